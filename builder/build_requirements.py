"""What a source archive needs for being built (PEP 517 and 518)."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builder.errors import TorchproofError
from builder.lockfile import LockedPackage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# PEP 517: an archive that says nothing is built by setuptools; 40.8.0 is the first with a backend for old projects.
_DEFAULT = ("setuptools>=40.8.0",)


def of(package: LockedPackage, *, folder: Path | None, archive: Path | None) -> frozenset[str]:
    """Requirements as text. `folder` holds the unpacked archive, or `archive` is the archive itself."""
    if archive is not None:
        text = _member(archive, "pyproject.toml")
    elif folder is not None:
        file = folder / "pyproject.toml"
        text = file.read_text(encoding="utf-8") if file.is_file() else None
    else:
        # Guessing would give an image build that fails, or one that takes what is newest that day.
        raise TorchproofError(
            "uv-cache",
            f"the source of {package.name} {package.version} is not where uv unpacks it",
            because=["what builds it has to be locked too", "its pyproject.toml tells what that is"],
            hint="this release of uv may be newer than this torchproof: install the uv that torchproof was tested with",
        )
    found = set(_DEFAULT)
    if text is not None:
        try:
            system = tomllib.loads(text).get("build-system", {})
            found = {str(Requirement(line)) for line in system.get("requires", _DEFAULT)}
        except (tomllib.TOMLDecodeError, InvalidRequirement) as error:
            raise TorchproofError(
                "source-build", f"the pyproject.toml of {package.name} {package.version} cannot be read: {error}"
            ) from error
    if "setuptools" in {canonicalize_name(Requirement(line).name) for line in found}:
        found.add("wheel")  # setuptools before 70.1 asks for it once it runs, which no file tells
    return frozenset(found)


def _member(archive: Path, name: str) -> str | None:
    """The text of a file in the archive's one top folder."""
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            found = [entry for entry in opened.namelist() if entry.split("/")[1:] == [name]]
            return opened.read(found[0]).decode() if found else None
    with tarfile.open(archive) as opened_tar:
        members = [entry for entry in opened_tar.getmembers() if entry.name.split("/")[1:] == [name]]
        stream = opened_tar.extractfile(members[0]) if members else None
        return stream.read().decode() if stream else None
