"""Reads a Python package index by the simple API: names, files, upload times, metadata of wheels. Polite by design.

Only projects that are asked for are read. Answers are kept in a cache folder with what the server said about their
age (ETag, Last-Modified), and asked for again under that condition; metadata of a file never changes and is asked once.
"""

from __future__ import annotations

import email.parser
import hashlib
import io
import json
import ssl
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from builder import __version__
from builder.errors import PackageIndexError

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """One file of a project. `tags` is empty for a source archive; `has_metadata`: a `.metadata` file is beside it."""

    filename: str
    url: str
    version: Version
    is_wheel: bool
    tags: frozenset[str]
    requires_python: str | None
    uploaded: date | None
    is_yanked: bool
    has_metadata: bool


class PackageIndex:
    """`fetch` is replaceable: a test hands in a function instead of a network."""

    def __init__(
        self,
        url: str,
        cache: Path | None = None,
        *,
        ca_bundle: Path | None = None,
        proxies: Mapping[str, str] | None = None,
        fetch: Callable[[str, Mapping[str, str]], tuple[int, Mapping[str, str], bytes]] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._cache = cache
        self._opener = _opener(ca_bundle, proxies or {}) if fetch is None else None
        self._fetch = fetch or self._open
        self.requests = 0

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or self.url

    def files(self, project: str) -> list[IndexFile] | None:
        """Every file with a proper name; None: the index has no such project."""
        name = canonicalize_name(project)
        answer = self._get(f"{self.url}/{name}/", is_fixed=False)
        if answer is None:
            return None
        text, url = answer
        raws = json.loads(text)["files"] if text.lstrip().startswith("{") else _links(text)
        return [file for raw in raws if (file := _file(raw, url)) is not None]

    def requirements(self, file: IndexFile) -> tuple[str, ...] | None:
        """Requires-Dist of a wheel; None where the index gives neither metadata beside it nor parts of the wheel."""
        text = self._beside(file) if file.has_metadata else self._inside(file)
        if text is None:
            return None
        message = email.parser.HeaderParser().parsestr(text)
        return tuple(" ".join(str(value).split()) for value in message.get_all("Requires-Dist", []))

    def _beside(self, file: IndexFile) -> str | None:
        answer = self._get(f"{file.url}.metadata", is_fixed=True)
        return None if answer is None else answer[0]

    def _inside(self, file: IndexFile) -> str | None:
        """METADATA from the end of the wheel itself, by range requests: a few kB of files of a few GB."""
        kept = self._kept_path(f"{file.url}#METADATA")
        known = _kept(kept)
        if known is not None:
            return str(known["body"])
        try:
            text = metadata_of(lambda first, last: self._range(file.url, first, last))
        except (zipfile.BadZipFile, KeyError, EOFError, UnicodeDecodeError):
            return None
        if text is not None:
            _keep(kept, {"body": text})
        return text

    def _range(self, url: str, first: int | None, last: int) -> tuple[int, bytes] | None:
        """Bytes `first`..`last`, or the last `last` of them, with the size of the file; None: not to be had."""
        self.requests += 1
        asked = f"bytes=-{last}" if first is None else f"bytes={first}-{last}"
        agent = {"User-Agent": f"torchproof/{__version__}", "Range": asked}
        status, answer, body = self._fetch(url, agent)
        total = next((value for name, value in answer.items() if name.lower() == "content-range"), "").rpartition("/")[
            2
        ]
        return (int(total), body) if status == 206 and total.isdigit() else None

    def _get(self, url: str, *, is_fixed: bool) -> tuple[str, str] | None:
        kept = self._kept_path(url)
        known = _kept(kept)
        if known is not None and is_fixed:
            return known["body"], url
        headers = {"Accept": _ACCEPT, "User-Agent": f"torchproof/{__version__}"}
        if known is not None:
            headers |= {
                name: known[key]
                for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
                if known.get(key)
            }
        self.requests += 1
        status, answer, body = self._fetch(url, headers)
        if status == 304 and known is not None:
            return known["body"], url
        if status == 404:
            return None
        if status != 200:
            raise PackageIndexError("index-answer", f"{self.host} answered {status}", because=[f"asked for {url}"])
        text = body.decode("utf-8", "replace")
        lower = {key.lower(): value for key, value in answer.items()}
        _keep(kept, {"body": text, "etag": lower.get("etag"), "last-modified": lower.get("last-modified")})
        return text, url

    def _kept_path(self, url: str) -> Path | None:
        return self._cache / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.json" if self._cache else None

    def _open(self, url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        if not url.startswith(("https://", "http://", "file://")):
            raise PackageIndexError("index-address", f"`{url}` is not an address that can be read")
        assert self._opener is not None  # noqa: S101  (made whenever `fetch` is not given)
        request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310  (checked above)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.status or 200, dict(answer.headers.items()), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers.items()), b""
        except OSError as error:
            if url.startswith("file://"):
                return 404, {}, b""
            raise PackageIndexError(
                "index-unreachable", f"{self.host} does not answer", because=[str(getattr(error, "reason", error))]
            ) from None


def _opener(ca_bundle: Path | None, proxies: Mapping[str, str]) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None)
    by_scheme = {name.lower().removesuffix("_proxy"): value for name, value in proxies.items() if "NO_" not in name}
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler(by_scheme)
    )


def _kept(path: Path | None) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path is not None else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "body" in found else None


def _keep(path: Path | None, content: Mapping[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.replace(path)


class _RangeFile(io.RawIOBase):
    """As much of a remote file as zipfile asks for; its end, where the directory of a wheel is, comes first."""

    TAIL = 48 << 10

    def __init__(self, read: Callable[[int | None, int], tuple[int, bytes] | None]) -> None:
        super().__init__()
        self._read_range = read
        first = read(None, self.TAIL)
        if first is None:
            raise EOFError
        self._size, tail = first
        self._parts: list[tuple[int, bytes]] = [(self._size - len(tail), tail)]
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0 if whence == 0 else self._at if whence == 1 else self._size)
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        for start, data in self._parts:
            if start <= self._at and end <= start + len(data):
                found = data[self._at - start : end - start]
                self._at = end
                return found
        answer = self._read_range(self._at, min(self._size, max(end, self._at + self.TAIL)) - 1)
        if answer is None:
            raise EOFError
        self._parts.append((self._at, answer[1]))
        return self.read(size) if len(answer[1]) >= end - self._at else b""


def metadata_of(read: Callable[[int | None, int], tuple[int, bytes] | None]) -> str | None:
    """The text of METADATA in a wheel of which `read` gives parts; None: it has none."""
    with zipfile.ZipFile(_RangeFile(read)) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        return wheel.read(names[0]).decode() if names else None


def _file(raw: Mapping[str, Any], base: str) -> IndexFile | None:
    filename = str(raw["filename"])
    tags: frozenset[str] = frozenset()
    try:
        if filename.endswith(".whl"):
            _, version, _, wheel_tags = parse_wheel_filename(filename)
            tags = frozenset(map(str, wheel_tags))
        else:
            _, version = parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    uploaded = raw.get("upload-time")
    return IndexFile(
        filename=filename,
        url=urljoin(base, str(raw["url"])),
        version=version,
        is_wheel=filename.endswith(".whl"),
        tags=tags,
        requires_python=raw.get("requires-python") or None,
        uploaded=date.fromisoformat(uploaded[:10]) if uploaded else None,
        is_yanked=raw.get("yanked", False) is not False,
        has_metadata=bool(raw.get("core-metadata") or raw.get("data-dist-info-metadata")),
    )


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag != "a" or not values.get("href"):
            return
        url = str(values["href"]).split("#")[0]
        self.found.append(
            {
                "filename": unquote(urlsplit(url).path).rpartition("/")[2],
                "url": url,
                "requires-python": values.get("data-requires-python"),
                "yanked": "data-yanked" in values,
                "core-metadata": "data-core-metadata" in values or "data-dist-info-metadata" in values,
            }
        )


def _links(text: str) -> list[dict[str, Any]]:
    """The older, HTML form of the simple API: no upload times."""
    parser = _Anchors()
    parser.feed(text)
    return parser.found
