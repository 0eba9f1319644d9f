"""A package index on loopback with stand-in wheels: PEP 503 pages or PEP 691 JSON, with or without upload times."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.parse import quote, unquote


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """One file of an index. `name` is the project, `data` the bytes of a wheel or source archive."""

    name: str
    filename: str
    data: bytes
    metadata: bytes | None
    uploaded: str | None = None
    yanked: str | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.filename
        path.write_bytes(self.data)
        return path


def _metadata(name: str, version: str, requires: Sequence[str], python: str | None) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    if python:
        lines.append(f"Requires-Python: {python}")
    return "\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires), ""])


def wheel(
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    python: str | None = None,
    uploaded: str | None = None,
    yanked: str | None = None,
    modules: Mapping[str, str] | None = None,
) -> StandIn:
    """A wheel that says what a real one would; `modules` are further files, path -> text."""
    module = name.replace("-", "_")
    metadata = _metadata(name, version, requires, python)
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": f"__version__ = {version!r}\n",
        **(modules or {}),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return StandIn(
        name=name,
        filename=f"{module}-{version}-{tag}.whl",
        data=buffer.getvalue(),
        metadata=metadata.encode(),
        uploaded=uploaded,
        yanked=yanked,
    )


def source_archive(name: str, version: str, *, uploaded: str | None = None, setup: str | None = None) -> StandIn:
    """An archive with a `setup.py` and no pyproject.toml, as packages of 2012 to 2020 have them."""
    script = setup or f"from setuptools import setup\nsetup(name={name!r}, version={version!r})\n"
    files = {"PKG-INFO": _metadata(name, version, (), None), "setup.py": script}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return StandIn(
        name=name, filename=f"{name}-{version}.tar.gz", data=buffer.getvalue(), metadata=None, uploaded=uploaded
    )


@dataclass
class SmallIndex:
    """Serves `files` under `/<prefix>/` until the context ends; `asked` lists every path that was asked for.

    `credentials` (user, password) are demanded when set; `status` answers every request with that HTTP status; of the
    file `cut_off` the first half is sent, and then the connection ends.
    """

    files: Sequence[StandIn]
    form: Literal["html", "json"] = "json"
    prefix: str = "simple"
    credentials: tuple[str, str] | None = None
    status: int | None = None
    cut_off: str = ""
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> SmallIndex:  # noqa: PYI034
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                index.asked.append(unquote(self.path))
                status, kind, body = index.answer(unquote(self.path), self.headers.get("Authorization"))
                self.send_response(status)
                if status == 401:
                    self.send_header("WWW-Authenticate", "Basic")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET" and unquote(self.path) == f"/files/{index.cut_off}":
                    self.wfile.write(body[: len(body) // 2])
                    self.close_connection = True
                elif self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/{self.prefix}"

    def projects_asked(self) -> set[str]:
        start = f"/{self.prefix}/"
        return {path.removeprefix(start).strip("/") for path in self.asked if path.startswith(start)}

    def answer(self, path: str, authorization: str | None) -> tuple[int, str, bytes]:
        if self.status is not None:
            return self.status, "text/plain", b"no"
        if self.credentials is not None:
            expected = "Basic " + base64.b64encode(":".join(self.credentials).encode()).decode()
            if authorization != expected:
                return 401, "text/plain", b"who are you"
        for file in self.files:
            if path == f"/files/{file.filename}":
                return 200, "application/octet-stream", file.data
            if path == f"/files/{file.filename}.metadata" and file.metadata is not None:
                return 200, "text/plain", file.metadata
        match = re.fullmatch(rf"/{re.escape(self.prefix)}/([^/]+)/", path)
        found = [file for file in self.files if match and normalized(file.name) == match[1]]
        if not match or not found:
            return 404, "text/plain", b"no such page"
        if self.form == "json":  # uv asks for both forms and takes the better one
            return 200, "application/vnd.pypi.simple.v1+json", self._json(match[1], found)
        return 200, "text/html", self._html(found)

    def _json(self, name: str, found: Sequence[StandIn]) -> bytes:
        entries = []
        for file in found:
            entry: dict[str, object] = {
                "filename": file.filename,
                "url": f"/files/{quote(file.filename)}",
                "hashes": {"sha256": file.sha256},
                "core-metadata": file.metadata is not None,
                "size": len(file.data),
            }
            if file.uploaded:
                entry["upload-time"] = file.uploaded
            if file.yanked is not None:
                entry["yanked"] = file.yanked or True
            entries.append(entry)
        return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": entries}).encode()

    def _html(self, found: Sequence[StandIn]) -> bytes:
        links = "".join(
            f'<a href="/files/{quote(file.filename)}#sha256={file.sha256}"'
            + (' data-core-metadata="true">' if file.metadata is not None else ">")
            + f"{file.filename}</a><br>"
            for file in found
        )
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
