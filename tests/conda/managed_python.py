"""A mirror of uv's managed Pythons in a folder: an archive made from a Python of this machine, and the list of it."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tarfile
from pathlib import Path

from local_channel import LEFT_OUT, SERIES, VERSION

# What uv puts a mirror in the place of.
RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"
BUILD = "20260101"


def mirror(folder: Path, *, base: Path = Path(sys.base_prefix), series: str = SERIES, wrong_hash: bool = False) -> Path:
    """Fill `folder` as a mirror; the file for UV_PYTHON_DOWNLOADS_JSON_URL."""
    version = VERSION if series == SERIES else f"{series}.0"
    target = "x86_64-unknown-linux-gnu-install_only_stripped"
    archive = folder / BUILD / f"cpython-{version}+{BUILD}-{target}.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name, path in _files(base, series):
            tar.add(path, f"python/{name}", recursive=False)
        for link in ("python", "python3"):
            member = tarfile.TarInfo(f"python/bin/{link}")
            member.type, member.linkname = tarfile.SYMTYPE, f"python{series}"
            tar.addfile(member)
    major, minor, patch = (int(part) for part in version.split("."))
    row = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": f"{RELEASES}/{BUILD}/{archive.name.replace('+', '%2B')}",
        "sha256": "0" * 64 if wrong_hash else hashlib.sha256(archive.read_bytes()).hexdigest(),
        "variant": None,
        "build": BUILD,
    }
    listed = folder / "downloads.json"
    listed.write_text(json.dumps({f"cpython-{version}-linux-x86_64-gnu": row}), encoding="utf-8")
    return listed


def _files(base: Path, series: str) -> list[tuple[str, Path]]:
    found = [(f"bin/python{series}", Path(os.path.realpath(base / "bin" / f"python{series}")))]
    found += [(f"lib/{path.name}", path) for path in sorted((base / "lib").glob(f"libpython{series}.so.*"))]
    stdlib = base / "lib" / f"python{series}"
    for folder, folders, names in os.walk(stdlib):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT and not name.startswith("config-"))
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not name.endswith(".pyc") and name != "EXTERNALLY-MANAGED":
                found.append((f"lib/python{series}/{path.relative_to(stdlib)}", Path(os.path.realpath(path))))
    return found
