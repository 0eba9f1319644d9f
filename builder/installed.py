"""What is installed in an environment, as its installer recorded it: a digest, and the size on disk."""

from __future__ import annotations

import csv
import hashlib
import os
from pathlib import Path

# Facts about the installation rather than about what was installed: where a wheel lay, and when.
_ABOUT_THE_INSTALL = ("direct_url.json", "uv_cache.json", "uv_build.json", "INSTALLER", "REQUESTED")


def site_packages(prefix: Path) -> Path | None:
    return next(iter(sorted((prefix / "lib").glob("python*/site-packages"))), None)


def digest(prefix: Path) -> str:
    """Over every distribution's name, version and recorded file hashes; the same for the same wheels anywhere."""
    total = hashlib.sha256()
    site = site_packages(prefix)
    rows = sorted(_distribution(info) for info in site.glob("*.dist-info")) if site else []
    for name, version, record in rows:
        total.update(f"{name} {version} {record}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _distribution(info: Path) -> tuple[str, str, str]:
    name, _, version = info.name.removesuffix(".dist-info").partition("-")
    text = (info / "RECORD").read_text(encoding="utf-8") if (info / "RECORD").is_file() else ""
    lines = sorted(
        f"{row[0]},{row[1]}\n"
        for row in csv.reader(text.splitlines())
        # Rows without a hash are RECORD itself and compiled files.
        if len(row) >= 2 and row[1] and not _is_about_the_install(row[0])
    )
    return name, version, hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_about_the_install(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder.endswith(".dist-info") and name in _ABOUT_THE_INSTALL


def size_bytes(prefix: Path) -> int:
    """Sum of the sizes of all files, whether or not they share their blocks with a cache."""
    total = 0
    for folder, _, names in os.walk(prefix):
        for name in names:
            path = Path(folder, name)
            total += path.lstat().st_size
    return total
