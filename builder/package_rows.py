"""What an index tells about one project, as rows of the facts topic `packages`.

A row a release: when it came, which Pythons have a wheel, whether there is a source archive, what it requires. Metadata
is read for the first and the last patch of a minor version; where both agree, the patches between are taken to agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.package_index import IndexFile, PackageIndex

_CP = re.compile(r"(?:cp|py)3([0-9]+)-(cp3[0-9]+m?|abi3|none)-(.+)")
_GLIBC = re.compile(r"manylinux_([0-9]+)_([0-9]+)_")
_OLD_GLIBC = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_PYTHONS = tuple(f"3.{minor}" for minor in range(6, 16))


def rows(
    index: PackageIndex,
    project: str,
    *,
    tracked: frozenset[str],
    since: date | None = None,
    is_required_read: bool = True,
) -> dict[str, Any] | None:
    """The row of a project; None: the index has none. Requirements on names that are not `tracked` are left out.

    `older` lists the releases before `since`: that they exist is all that is kept of them.
    """
    files = index.files(project)
    if files is None:
        return None
    by_version: dict[Version, list[IndexFile]] = {}
    for file in files:
        if not file.version.is_prerelease and file.version.local is None:
            by_version.setdefault(file.version, []).append(file)
    dates = {version: _released(group) for version, group in by_version.items()}
    kept = {
        version: group
        for version, group in sorted(by_version.items())
        if since is None or (dates[version] or date.max) >= since or version == max(by_version)
    }
    requirements = _requirements(index, kept, tracked) if is_required_read else {}
    sets: list[list[str]] = []
    releases: dict[str, Any] = {}
    for version, group in kept.items():
        read = requirements.get(version)
        if read is not None and read.wanted not in sets:
            sets.append(read.wanted)
        row = _release(group, dates[version], None if read is None else sets.index(read.wanted))
        if read is not None and read.refused:
            row["refused"] = read.refused
        releases[str(version)] = row
    found: dict[str, Any] = {"requirement_sets": sets, "releases": releases}
    older = [str(version) for version in sorted(by_version) if version not in kept]
    return {**found, "older": older} if older else found


def _released(files: Iterable[IndexFile]) -> date | None:
    return min((file.uploaded for file in files if file.uploaded is not None), default=None)


def _release(files: list[IndexFile], released: date | None, requires: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if released is not None:
        row["released"] = released.isoformat()
    wheels = [file for file in files if file.is_wheel]
    row["python"] = span(pythons(wheels, "x86_64"))
    if (arm := span(pythons(wheels, "aarch64"))) != row["python"]:
        row["aarch64"] = arm
    floor = glibc(wheels)
    if floor is not None:
        row["glibc"] = floor
    bounds = {file.requires_python for file in files if file.requires_python}
    if len(bounds) == 1 and _is_specifier(bound := bounds.pop()):
        row["requires_python"] = bound
    if any(not file.is_wheel for file in files):
        row["sdist"] = True
    if all(file.is_yanked for file in files):
        row["yanked"] = True
    if requires is not None:
        row["requires"] = requires
    return row


def _is_specifier(text: str) -> bool:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def pythons(wheels: Iterable[IndexFile], arch: str) -> list[str] | str:
    """Pythons with a Linux wheel; `any` for a pure wheel, `>=3.8` text is never made: abi3 is spelled out."""
    found: set[str] = set()
    for wheel in wheels:
        for tag in wheel.tags:
            if tag in {"py3-none-any", "py2-none-any"}:
                if tag == "py3-none-any":
                    return "any"
                continue
            match = _CP.fullmatch(tag)
            is_py3 = re.fullmatch(r"(?:py3|cp3)-none-(.+)", tag)
            platform = match[3] if match else is_py3[1] if is_py3 else ""
            if not platform.endswith(f"_{arch}") or not platform.startswith(("manylinux", "linux")):
                continue
            if is_py3 or (match and match[2] == "none" and match[1] == ""):
                found.update(_PYTHONS)
            elif match and (match[2] == "abi3" or tag.startswith("py3")):
                found.update(python for python in _PYTHONS if int(python[2:]) >= int(match[1]))
            elif match:
                found.add(f"3.{match[1]}")
    return sorted(found, key=lambda text: int(text[2:]))


def span(found: list[str] | str) -> str:
    """`any`, `3.8..3.12`, `3.8 3.10`, or "" for none: a list would be ten lines a release."""
    if isinstance(found, str):
        return found
    minors = [int(text[2:]) for text in found]
    if len(minors) > 2 and minors == list(range(minors[0], minors[-1] + 1)):
        return f"{found[0]}..{found[-1]}"
    return " ".join(found)


def glibc(wheels: Iterable[IndexFile]) -> str | None:
    """The lowest floor any Linux x86_64 wheel asks for; None: no such wheel."""
    floors = []
    for wheel in wheels:
        for tag in wheel.tags:
            if not tag.endswith("_x86_64"):
                continue
            if match := _GLIBC.search(tag):
                floors.append((int(match[1]), int(match[2])))
            for name, floor in _OLD_GLIBC.items():
                if f"-{name}_" in tag:
                    floors.append(floor)
    return None if not floors else "{}.{}".format(*min(floors))


@dataclass(frozen=True)
class _Read:
    """What one release requires; `refused` is a line that new installers do not take (`torch (>=1.9.*)`)."""

    wanted: list[str]
    refused: str


def _requirements(
    index: PackageIndex, kept: Mapping[Version, list[IndexFile]], tracked: frozenset[str]
) -> dict[Version, _Read]:
    minors: dict[tuple[int, ...], list[Version]] = {}
    for version in kept:
        minors.setdefault(version.release[:2], []).append(version)
    found: dict[Version, _Read] = {}
    for versions in minors.values():
        first, last = versions[0], versions[-1]
        ends = []
        for version in dict.fromkeys((first, last)):
            raw = _metadata(index, kept[version])
            if raw is not None:
                found[version] = _read(raw, tracked)
                ends.append(found[version])
        for version in versions[1:-1]:
            if len(ends) == 2 and ends[0] == ends[1]:
                found[version] = ends[0]
            elif (raw := _metadata(index, kept[version])) is not None:
                found[version] = _read(raw, tracked)
    return found


def _read(raw: Iterable[str], tracked: frozenset[str]) -> _Read:
    return _Read(relevant(raw, tracked), next((text for text in raw if not _is_requirement(text)), ""))


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _metadata(index: PackageIndex, files: Iterable[IndexFile]) -> tuple[str, ...] | None:
    wheels = [file for file in files if file.is_wheel]
    # The Linux wheel speaks where wheels of several systems differ (torch declares its CUDA parts there alone).
    wheels.sort(key=lambda file: not any("linux" in tag and "x86_64" in tag for tag in file.tags))
    return index.requirements(wheels[0]) if wheels else None


_STAR = re.compile(r"((?:>=|<=|>|<|~=)\s*[0-9][0-9.]*?)\.\*")
_DEVELOPERS = re.compile(
    r"extra == [\"'](?:\w+[-_])?(?:dev|develop|development|tests?|testing|test[-_]\w+|tests[-_]\w+|docs?|docs[-_]\w+|"
    r"quality|lint|all|benchmarks?|examples?|build|ci|release|typing|pre-commit|strategies|readthedocs|rtfd|full|"
    r"modelcreation|rich|fabric\w*|pytorch-\w+|debug|metrics[-_]tests|audio|visual|text|detection|multimodal|image|"
    r"torch-speech|sigopt|ray|optuna|agents|serving|natten|codecarbon|dev[-_]\w+|doc[-_]build|mypy|developers?)[\"']"
)


def _is_for_developers(text: str) -> bool:
    return _DEVELOPERS.search(text) is not None


def relevant(requirements: Iterable[str], tracked: frozenset[str]) -> list[str]:
    """Requirements on tracked names, in a short form; extras that only developers of the project use are left out."""
    found = []
    for text in requirements:
        try:
            # `>=1.9.*` was taken for `>=1.9` until pip 24.1, and uv still takes it so.
            requirement = Requirement(_STAR.sub(r"\1", text))
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) not in tracked or _is_for_developers(text) or requirement.url:
            continue
        requirement.name = canonicalize_name(requirement.name)
        found.append(str(requirement))
    return sorted(set(found))
