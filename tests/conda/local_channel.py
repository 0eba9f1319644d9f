"""A conda channel in a folder: a real `python`, made from the interpreter that runs the tests, and small stand-ins."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SERIES = f"{sys.version_info[0]}.{sys.version_info[1]}"
VERSION = ".".join(str(part) for part in sys.version_info[:3])
SUBDIR = "linux-64"

# Half of the standard library's bytes, none of which an environment under test needs.
LEFT_OUT = {
    "test",
    "tests",
    "site-packages",
    "__pycache__",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
}


def package(
    channel: Path,
    name: str,
    version: str,
    *,
    files: Mapping[str, bytes | Path] | None = None,
    links: Mapping[str, str] | None = None,
    depends: Sequence[str] = (),
    build: str = "0",
) -> Path:
    """An archive as conda builds them: files, and what `info/` says about them."""
    content = dict(files or {f"share/{name}.txt": f"{name} {version}\n".encode()})
    links = links or {}
    paths = []
    for path, source in sorted(content.items()):
        data = source if isinstance(source, bytes) else source.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        paths.append({"_path": path, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(data)})
    # conda records of a link what it leads to.
    for path, target in sorted(links.items()):
        data = _bytes_of(content, os.path.normpath(os.path.join(os.path.dirname(path), target)))  # noqa: PTH118,PTH120
        digest = hashlib.sha256(data).hexdigest()
        paths.append({"_path": path, "path_type": "softlink", "sha256": digest, "size_in_bytes": len(data)})
    index = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "subdir": SUBDIR,
        "arch": "x86_64",
        "platform": "linux",
        "depends": list(depends),
    }
    info = {
        "info/index.json": json.dumps(index),
        "info/paths.json": json.dumps({"paths": paths, "paths_version": 1}),
        "info/files": "".join(f"{path}\n" for path in [*content, *links]),
    }
    folder = channel / SUBDIR
    folder.mkdir(parents=True, exist_ok=True)
    target_file = folder / f"{name}-{version}-{build}.tar.bz2"
    with tarfile.open(target_file, "w:bz2", compresslevel=1) as archive:
        for path, text in info.items():
            _add(archive, path, text.encode(), 0o644)
        for path, source in content.items():
            data = source if isinstance(source, bytes) else source.read_bytes()
            mode = 0o755 if path.startswith("bin/") or ".so" in path else 0o644
            _add(archive, path, data, mode)
        for path, target in links.items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return target_file


def _bytes_of(content: Mapping[str, bytes | Path], path: str) -> bytes:
    source = content[path]
    return source if isinstance(source, bytes) else source.read_bytes()


def _add(archive: tarfile.TarFile, path: str, data: bytes, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))


def python_package(
    channel: Path, *, depends: Sequence[str] = (), base: Path = Path(sys.base_prefix), series: str = SERIES
) -> Path:
    """The running interpreter, or the one below `base`, with its standard library, as a conda package."""
    binary = Path(os.path.realpath(base / "bin" / f"python{series}"))
    version = VERSION if series == SERIES else f"{series}.0"
    files: dict[str, bytes | Path] = {f"bin/python{series}": binary}
    for library in sorted((base / "lib").glob(f"libpython{series}.so.*")):
        files[f"lib/{library.name}"] = library
    stdlib = base / "lib" / f"python{series}"
    for folder, folders, names in os.walk(stdlib):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("config-"))
        for name in sorted(names):
            path = Path(folder, name)
            # A distribution's note that its Python is not to be installed into does not hold for the package.
            if path.is_file() and not name.endswith(".pyc") and name != "EXTERNALLY-MANAGED":
                files[f"lib/python{series}/{path.relative_to(stdlib)}"] = path
    # As conda-forge has it: an empty folder that packages are installed into.
    files[f"lib/python{series}/site-packages/README.txt"] = b"packages are installed here\n"
    links = {"bin/python": f"python{series}", "bin/python3": f"python{series}"}
    return package(channel, "python", version, files=files, links=links, depends=depends)


def index(channel: Path) -> str:
    """Index the folder with py-rattler; the channel's URL."""
    from rattler.index import index_fs  # noqa: PLC0415 - an extra

    (channel / "noarch").mkdir(exist_ok=True)
    asyncio.run(index_fs(channel, write_zst=False, write_shards=False))
    time.sleep(0.2)  # as in conda_tool: py-rattler's threads end a moment later
    return channel.as_uri()
