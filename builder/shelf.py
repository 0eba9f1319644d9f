"""What an installer finds: the releases of a package, newest first, from all topics of the facts, in one form. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog import Catalog
from builder.catalog_rows.base import Arch
from builder.catalog_rows.packages import Package, Release, Wanted, requirement, specifier
from builder.catalog_rows.python import NumpyRelease
from builder.catalog_rows.torch import TorchRelease
from builder.catalog_rows.torch_parts import COMPANIONS
from builder.versions import PythonVersion

_OWN_TOPIC = frozenset({"torch", "numpy", *COMPANIONS})


class Offer:
    """One release that could be installed. `requires` None: what it needs is not known."""

    __slots__ = ("has_sdist", "is_yanked", "name", "pythons", "released", "requires", "requires_python", "version")

    def __init__(
        self,
        name: str,
        version: Version,
        *,
        pythons: frozenset[PythonVersion] | None,
        requires: tuple[Wanted, ...] | None,
        released: str = "",
        requires_python: SpecifierSet | None = None,
        has_sdist: bool = False,
        is_yanked: bool = False,
    ) -> None:
        self.name = name
        self.version = version
        self.pythons = pythons  # with a wheel; None: any
        self.requires = requires
        self.released = released  # ISO, "" where not known
        self.requires_python = requires_python
        self.has_sdist = has_sdist
        self.is_yanked = is_yanked

    def __repr__(self) -> str:
        return f"<{self.name} {self.version}>"

    def lets_in(self, python: PythonVersion) -> bool:
        """Whether an installer takes it on this Python, from a wheel or from source."""
        if self.requires_python is not None and not python.satisfies(self.requires_python):
            return False
        return self.has_wheel(python) or self.has_sdist

    def has_wheel(self, python: PythonVersion) -> bool:
        return self.pythons is None or python.series in self.pythons


class Shelf:
    """Offers are made when first looked at: a start touches a handful of thousands of releases."""

    def __init__(self, catalog: Catalog, arch: Arch = "x86_64") -> None:
        self.catalog = catalog
        self.arch: Arch = arch
        self._offers: dict[str, tuple[Offer, ...] | None] = {}
        self._single: dict[tuple[str, str], Offer | None] = {}
        self._bare: dict[str, tuple[Offer, ...]] = {}

    def knows(self, name: str) -> bool:
        return name in _OWN_TOPIC or self.catalog.packages.get(name) is not None

    def offers(self, name: str) -> tuple[Offer, ...]:
        """Newest first; empty: the facts do not know the project (see `knows`)."""
        if name not in self._offers:
            self._offers[name] = tuple(self._all(name))
        return self._offers[name] or ()

    def newest_first(self, name: str) -> Iterator[Offer]:
        """As `offers`, made one by one."""
        if name in self._offers or name in _OWN_TOPIC:
            yield from self.offers(name)
            return
        package = self.catalog.packages.get(name)
        if package is None:
            return
        for release in package.newest_first():
            key = (name, str(release.version))
            if key not in self._single:
                self._single[key] = self._of_release(release)
            offer = self._single[key]
            if offer is not None:
                yield offer
        yield from self._older(package)

    def _older(self, package: Package) -> tuple[Offer, ...]:
        """Releases of which only the version is kept: they come last, whatever their number."""
        if package.name not in self._bare:
            self._bare[package.name] = tuple(
                Offer(package.name, version, pythons=None, requires=None) for version in package.older
            )
        return self._bare[package.name]

    def offer(self, name: str, version: Version) -> Offer | None:
        """None: the facts have no such release."""
        key = (name, version.public)
        if key not in self._single:
            self._single[key] = self._one(name, Version(version.public))
        return self._single[key]

    def newest(self, name: str) -> Version | None:
        found = self.offers(name)
        return found[0].version if found else None

    def _one(self, name: str, version: Version) -> Offer | None:
        """One row alone: a pin must not cost the making of every other release."""
        if name == "torch":
            torch = self.catalog.torch_release(version)
            return None if torch is None else self._of_torch(torch)
        if name == "numpy":
            numpy = self.catalog.numpy_release(version)
            return None if numpy is None else _of_numpy(numpy)
        if name in COMPANIONS:
            table = self.catalog.raw("torch")["companion_packages"][name]
            found = next((key for key in table if Version(key) == version), None)
            return None if found is None else _of_companion(name, version, table[found])
        package = self.catalog.packages.get(name)
        if package is None:
            return None
        release = package.release(version)
        if release is not None:
            return self._of_release(release)
        return next((offer for offer in self._older(package) if offer.version == version), None)

    def _all(self, name: str) -> Iterator[Offer]:
        if name == "torch":
            yield from map(self._of_torch, self.catalog.torch_releases())
        elif name == "numpy":
            yield from map(_of_numpy, self.catalog.numpy_releases())
        elif name in COMPANIONS:
            table = self.catalog.raw("torch")["companion_packages"][name]
            for version, raw in sorted(((Version(key), raw) for key, raw in table.items()), reverse=True, key=_first):
                yield _of_companion(name, version, raw)
        else:
            package = self.catalog.packages.get(name)
            if package is not None:
                yield from map(self._of_release, package.releases.values())
                yield from self._older(package)

    def _of_release(self, release: Release) -> Offer:
        return Offer(
            release.name,
            release.version,
            pythons=release.pythons(self.arch),
            requires=release.requires,
            released=release.released_text,
            requires_python=release.requires_python,
            has_sdist=release.has_sdist,
            is_yanked=release.is_yanked,
        )

    def _of_torch(self, release: TorchRelease) -> Offer:
        requires = []
        if release.is_numpy_required:
            requires.append(requirement("numpy"))
        if release.setuptools_requirement is not None:
            # Until 2.10 for Python 3.12 and later alone, where it no longer comes with a new environment.
            marker = "" if release.version >= Version("2.11") else "; python_version >= '3.12'"
            requires.append(requirement(f"setuptools{release.setuptools_requirement}{marker}"))
        if release.triton is not None and self.arch == "x86_64":
            marker = f"; {release.triton_marker}" if release.triton_marker else ""
            requires.append(requirement(f"triton{release.triton}{marker}"))
        return Offer(
            "torch",
            release.version,
            pythons=frozenset(release.pythons(self.arch)) or frozenset(release.pythons()),
            requires=tuple(requires),
            released=release.released.isoformat(),
            requires_python=release.python_requires,
        )


def _first(pair: tuple[Version, Any]) -> Version:
    return pair[0]


def _of_numpy(row: NumpyRelease) -> Offer:
    return Offer(
        "numpy",
        row.version,
        pythons=frozenset(row.pythons),
        requires=(),
        released=row.released.isoformat(),
        requires_python=row.python_requires,
        has_sdist=True,
        is_yanked=row.is_yanked,
    )


def _of_companion(name: str, version: Version, raw: Any) -> Offer:
    requires = [] if raw["requires_torch"] is None else [requirement(f"torch{raw['requires_torch']}")]
    if name == "torchvision":
        requires.append(requirement("numpy"))
    return Offer(
        name,
        version,
        pythons=None if raw.get("any_python3") else frozenset(map(PythonVersion.parse, raw["python"])),
        requires=tuple(requires),
        released=str(raw["released"]),
        is_yanked=bool(raw["yanked"]),
    )


@lru_cache(maxsize=8)
def shelf_of(catalog: Catalog, arch: Arch) -> Shelf:
    """One for all checks with the same facts: the trials behind a hint would make every row again."""
    return Shelf(catalog, arch)


_LINUX = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_python_implementation": "CPython",
    "platform_release": "",
    "platform_system": "Linux",
    "platform_version": "",
    "sys_platform": "linux",
}


@lru_cache(maxsize=8192)
def marker_holds(wanted: Wanted, python: PythonVersion | None, arch: str, extras: tuple[str, ...]) -> bool:
    """Whether a requirement of a package applies. Without a Python, one that some Python meets counts."""
    if wanted.marker is None:
        return True
    text = wanted.marker
    if "extra" in text and not extras:
        if " or " not in text:
            return False
    elif "python" not in text:
        python = python or PythonVersion((3, 11))
    pythons = (python,) if python is not None else tuple(PythonVersion((3, minor)) for minor in (8, 11, 13))
    for one in pythons:
        full = str(one) if len(one.parts) == 3 else f"{one}.99"
        values = {
            **_LINUX,
            "implementation_version": full,
            "platform_machine": arch,
            "python_full_version": full,
            "python_version": str(one.series),
        }
        if any(_evaluated(text, {**values, "extra": extra}) for extra in extras or ("",)):
            return True
    return False


_TERM = re.compile(r"""\s*(\w+)\s*(==|!=|<=|>=|<|>)\s*["']([\w.-]*)["']\s*""")
_VERSIONS = frozenset({"implementation_version", "python_full_version", "python_version"})


def _evaluated(text: str, values: dict[str, str]) -> bool:
    """The plain `a == "x" and b < "y"` is decided here; loading packaging's markers takes as long as a whole check."""
    terms = [_TERM.fullmatch(term) for term in text.split(" and ")]
    if any(term is None or not _is_plain(term[1], term[2], values) for term in terms):
        from packaging.markers import Marker  # noqa: PLC0415

        return bool(Marker(text).evaluate(values))
    return all(_holds(term[1], term[2], term[3], values) for term in terms if term is not None)


def _is_plain(name: str, operator: str, values: dict[str, str]) -> bool:
    return name in values and (name in _VERSIONS or operator in {"==", "!="})


def _holds(name: str, operator: str, value: str, values: dict[str, str]) -> bool:
    if name in _VERSIONS:
        return specifier(f"{operator}{value}").contains(values[name], prereleases=True)
    if name == "extra":
        value = re.sub(r"[-_.]+", "-", value).lower()
    return (values[name] == value) is (operator == "==")


__all__ = ["Offer", "Shelf", "marker_holds", "shelf_of", "specifier"]
