"""A `pylock.toml` that uv wrote for one target -> the one file of each package that the target installs."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builder.errors import ConflictError, TorchproofError
from builder.lockfile import LockedPackage, group_of
from builder.versions import GlibcVersion, PythonVersion

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# PEP 600: the older names of three manylinux levels.
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the wheels run: `python` 3.11, `arch` x86_64, `glibc` 2.31. Nothing here is about this machine."""

    python: str
    arch: str
    glibc: str

    @cached_property
    def ranks(self) -> dict[Tag, int]:
        """Wheel tag -> rank; 0 is the best fit."""
        version = PythonVersion.parse(self.python)
        series = (version.major, version.minor)
        # Up to 3.7 the ABI tag carries the `m` of pymalloc.
        abi = f"cp{version.major}{version.minor}{'m' if series < (3, 8) else ''}"
        platforms = list(self._platforms())
        tags = [
            *cpython_tags(series, [abi], platforms),
            *compatible_tags(series, f"cp{version.major}{version.minor}", platforms),
        ]
        ranks: dict[Tag, int] = {}
        for tag in tags:
            ranks.setdefault(tag, len(ranks))
        return ranks

    def _platforms(self) -> Iterator[str]:
        yield f"linux_{self.arch}"  # first, as `packaging` has it; the PyTorch wheel index used it until 2.6
        glibc = GlibcVersion.parse(self.glibc)
        for minor in range(glibc.minor, 4, -1):
            yield f"manylinux_{glibc.major}_{minor}_{self.arch}"
            # manylinux2010 and manylinux1 exist for x86 alone.
            legacy = _LEGACY.get((glibc.major, minor))
            if legacy and (self.arch == "x86_64" or minor == 17):
                yield f"{legacy}_{self.arch}"

    def rank(self, filename: str) -> tuple[int, tuple[int, str]] | None:
        """How well a wheel fits, smaller is better (a higher build number wins a tie); None when it does not fit."""
        try:
            _, _, build, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        fits = [self.ranks[tag] for tag in tags if tag in self.ranks]
        number = build[0] if build else -1
        return (min(fits), (-number, filename)) if fits else None


def read(path: Path, target: Target, *, source_of: Callable[[str], str]) -> tuple[LockedPackage, ...]:
    """The packages in order of name. `source_of` tells the source of a package whose file is not local."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    packages = [_package(entry, target, source_of) for entry in table.get("packages", [])]
    return tuple(sorted(packages, key=lambda package: package.name))


def versions(path: Path) -> dict[str, str]:
    """Package -> version, without a look at the files."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return {canonicalize_name(entry["name"]): str(entry["version"]) for entry in table.get("packages", [])}


def _package(entry: dict[str, Any], target: Target, source_of: Callable[[str], str]) -> LockedPackage:
    name, version = canonicalize_name(entry["name"]), entry["version"]
    ranked = [
        (rank, number)
        for number, wheel in enumerate(entry.get("wheels", []))
        if (rank := target.rank(_filename(wheel)))
    ]
    if ranked:
        file, kind = entry["wheels"][min(ranked)[1]], "wheel"
    elif "sdist" in entry:
        file, kind = entry["sdist"], "sdist"
    else:
        # uv takes its tags from a list of platforms, this module from the target itself: a gap between the two.
        raise TorchproofError(
            "no-wheel-for-target",
            f"no wheel of {name} {version} fits Python {target.python}, {target.arch}, glibc {target.glibc}",
            because=[f"uv offers {', '.join(_filename(wheel) for wheel in entry.get('wheels', [])) or 'no file'}"],
        )
    path = _local_path(file)
    size = file.get("size", path.stat().st_size if path else None)
    sha256 = file.get("hashes", {}).get("sha256")
    if sha256 is None:
        if path is None:
            raise ConflictError(
                f"error[no-hash]: `{_filename(file)}` cannot be locked\n\n"
                "  because its package index tells no sha256 for it.\n\n"
                "hint: use an index that tells hashes (PEP 503 `#sha256=` or PEP 691 `hashes`)",
                code="no-hash",
            )
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return LockedPackage(
        name=name,
        version=version,
        filename=_filename(file),
        sha256=sha256,
        size=size,
        kind="wheel" if kind == "wheel" else "sdist",
        source="wheelhouse" if path else source_of(name),
        group=group_of(name),
    )


def _local_path(file: dict[str, Any]) -> Path | None:
    if "path" in file:
        return Path(file["path"])
    parts = urlsplit(file["url"])
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _filename(file: dict[str, Any]) -> str:
    """The file name; it is only written down where the address ends otherwise."""
    return str(file.get("name") or unquote(urlsplit(file.get("url") or file["path"]).path).rsplit("/", 1)[-1])
