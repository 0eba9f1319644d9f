"""What is installed in an environment, as its installer recorded it: a digest, and the size on disk."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

_PYTHON = re.compile(r"python3\.\d+")

# Facts about the installation rather than about what was installed: where a wheel lay, and when.
_ABOUT_THE_INSTALL = ("direct_url.json", "uv_cache.json", "uv_build.json", "INSTALLER", "REQUESTED")


def site_folders(prefix: Path) -> tuple[Path, ...]:
    """Where the packages of a prefix lie: its site-packages; a distribution's own Python has other folders, too."""
    version = _python_of(prefix)
    found: dict[Path, None] = {}
    for pattern in (f"lib/{version}", f"lib64/{version}", f"local/lib/{version}", "lib/python3"):
        for name in ("site-packages", "dist-packages"):
            for folder in sorted(prefix.glob(f"{pattern}/{name}")):
                found.setdefault(folder.resolve() if folder.is_symlink() else folder)
    return tuple(dict.fromkeys(path for path in found if not _is_same(path, found)))


def _python_of(prefix: Path) -> str:
    """`python3.11`: by what `bin/python` leads to, since a prefix such as /usr/local may hold several."""
    for name in ("python", "python3"):
        real = (prefix / "bin" / name).resolve().name
        if _PYTHON.fullmatch(real) and (prefix / "lib" / real).is_dir():
            return real
    return "python3.*"


def _is_same(path: Path, others: Iterable[Path]) -> bool:
    """lib64 is a link to lib in a virtual environment: one folder under two names."""
    return any(other != path and "lib64" in path.parts and other.samefile(path) for other in others)


def site_packages(prefix: Path) -> Path | None:
    return next(iter(site_folders(prefix)), None)


def digest(prefix: Path) -> str:
    """Over every distribution's name, version and recorded file hashes; the same for the same wheels anywhere."""
    total = hashlib.sha256()
    for name, (version, record) in sorted({**records(prefix), **conda_records(prefix)}.items()):
        total.update(f"{name} {version} {record}\n".encode())
    return f"sha256:{total.hexdigest()}"


def records(prefix: Path) -> dict[str, tuple[str, str]]:
    """Distribution -> its version, and a digest over the file hashes of its RECORD."""
    found: dict[str, tuple[str, str]] = {}
    for site in site_folders(prefix):
        for info in site.glob("*.dist-info"):
            name, version, record = _distribution(info)
            # The first folder is the one that Python imports from.
            found.setdefault(name, (version, record))
    return found


def conda_records(prefix: Path) -> dict[str, tuple[str, str]]:
    """`conda:name` -> version with build, and the sha256 of the archive that it came from."""
    found: dict[str, tuple[str, str]] = {}
    for path in (prefix / "conda-meta").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[f"conda:{record['name']}"] = (f"{record['version']}-{record['build']}", str(record.get("sha256") or ""))
    return found


def _distribution(info: Path) -> tuple[str, str, str]:
    name, _, version = info.name.removesuffix(".dist-info").partition("-")
    text = (info / "RECORD").read_text(encoding="utf-8") if (info / "RECORD").is_file() else ""
    lines = sorted(
        f"{row[0]},{row[1]}\n"
        for row in csv.reader(text.splitlines())
        # Rows without a hash are RECORD itself and compiled files.
        if len(row) >= 2 and row[1] and not is_about_the_install(row[0]) and not _is_script(row[0])
    )
    return name, version, hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_script(path: str) -> bool:
    """The installer writes the path of the environment's Python into it: every environment has its own."""
    return path.startswith("../") and "/bin/" in path


def is_about_the_install(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.endswith(".dist-info") and name in _ABOUT_THE_INSTALL


def size_bytes(prefix: Path) -> int:
    """Sum of the sizes of all files, whether or not they share their blocks with a cache."""
    total = 0
    folders = [os.fspath(prefix)]
    while folders:
        with os.scandir(folders.pop()) as entries:  # four times as fast as a walk over paths
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total
