"""Topic packages: what an index tells about the neighbours of torch, and topic hazards: what no index tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.catalog_rows.base import Raw, Row
from builder.versions import GlibcVersion, PythonVersion

ANY = "any"


_WANTED = re.compile(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;()@]*)\)?\s*(?:;(.*))?", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requirement of the facts, whose form is checked where they are made: packaging's own class costs 30 ms."""

    name: str
    extras: frozenset[str]
    specifier: SpecifierSet
    marker: str | None


@lru_cache(maxsize=4096)
def requirement(text: str) -> Wanted:
    match = _WANTED.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text}` is no requirement")
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    extras = frozenset(filter(None, map(str.strip, (match[2] or "").split(","))))
    return Wanted(name, extras, specifier(match[3].strip()), (match[4] or "").strip() or None)


@lru_cache(maxsize=4096)
def specifier(text: str) -> SpecifierSet:
    return SpecifierSet(text)


@lru_cache(maxsize=1024)
def python_span(text: str) -> frozenset[PythonVersion]:
    """`3.8..3.11` or `3.8 3.10`."""
    first, dots, last = text.partition("..")
    if dots:
        low, high = PythonVersion.parse(first), PythonVersion.parse(last)
        return frozenset(PythonVersion((low.major, minor)) for minor in range(low.minor, high.minor + 1))
    return frozenset(PythonVersion.parse(word) for word in text.split())


class Release:
    """One release of a project, as an installer sees it."""

    __slots__ = ("_raw", "_sets", "name", "version")

    def __init__(self, name: str, version: Version, raw: Raw, sets: tuple[tuple[str, ...], ...]) -> None:
        self.name = name
        self.version = version
        self._raw = raw
        self._sets = sets

    @property
    def released(self) -> date | None:
        text = self._raw.get("released")
        return None if text is None else date.fromisoformat(text)

    @property
    def released_text(self) -> str:
        """ISO dates sort as text."""
        return str(self._raw.get("released", ""))

    @property
    def is_yanked(self) -> bool:
        """Withdrawn, or gone from the index altogether: no installer takes it unasked."""
        return bool(self._raw.get("yanked", False) or self._raw.get("deleted", False))

    @property
    def has_sdist(self) -> bool:
        return bool(self._raw.get("sdist", False))

    @property
    def is_pure(self) -> bool:
        return bool(self._raw["python"] == ANY)

    def pythons(self, arch: str) -> frozenset[PythonVersion] | None:
        """Pythons with a wheel; None: a pure wheel, for any."""
        text = self._raw.get("aarch64", self._raw["python"]) if arch == "aarch64" else self._raw["python"]
        return None if text == ANY else python_span(text)

    @property
    def requires_python(self) -> SpecifierSet | None:
        text = self._raw.get("requires_python")
        return None if text is None else specifier(text)

    @property
    def glibc(self) -> GlibcVersion | None:
        text = self._raw.get("glibc")
        return None if text is None else GlibcVersion.parse(text)

    @property
    def refused(self) -> str:
        """A requirement that pip takes for invalid from 24.1 on; "" where all are fine."""
        return str(self._raw.get("refused", ""))

    @property
    def requires(self) -> tuple[Wanted, ...] | None:
        """On tracked packages; None: not known."""
        number = self._raw.get("requires")
        return None if number is None else tuple(requirement(text) for text in self._sets[number])


class Package(Row):
    """A project. `source` and `confidence` are those of the table unless a row of a refresh has its own."""

    def __init__(self, name: str, raw: Raw, table: Raw) -> None:
        super().__init__(raw, table)
        self.name = name
        self._sets = tuple(tuple(texts) for texts in raw["requirement_sets"])
        self._rows: Mapping[str, Raw] = raw["releases"]

    @cached_property
    def releases(self) -> dict[Version, Release]:
        """Newest first."""
        rows = sorted(((Version(key), raw) for key, raw in self._rows.items()), key=lambda item: item[0], reverse=True)
        return {version: Release(self.name, version, raw, self._sets) for version, raw in rows}

    def newest_first(self) -> Iterator[Release]:
        """As `releases`, made one by one: rows stand in order of version, and the first is mostly the one wanted."""
        if "releases" in self.__dict__ or "source" in self._raw:  # a row of a refresh is ordered anew
            yield from self.releases.values()
            return
        for key in reversed(list(self._rows)):
            yield Release(self.name, Version(key), self._rows[key], self._sets)

    def release(self, version: Version) -> Release | None:
        raw = self._rows.get(str(version)) or self._rows.get(version.public)
        if raw is not None:
            return Release(self.name, version, raw, self._sets)
        return self.releases.get(Version(version.public))

    @cached_property
    def older(self) -> tuple[Version, ...]:
        """Releases that exist and of which nothing else is kept, newest first."""
        return tuple(sorted(map(Version, self._raw.get("older", ())), reverse=True))

    @cached_property
    def has_binary_wheels(self) -> bool:
        """Most of its releases come as wheels for one Python each, so that building it is out of the ordinary."""
        rows = [raw for raw in self._rows.values() if raw["python"] != ANY]
        return 2 * sum(1 for raw in rows if raw["python"]) > len(self._rows)

    @property
    def is_source_only(self) -> bool:
        return not any(raw["python"] for raw in self._rows.values())

    @property
    def fact(self) -> str:
        newest = next(iter(self.releases))
        return self.cite(f"{self.name}: {len(self.releases)} releases, the newest {newest}")


class Packages:
    """The topic as a whole."""

    def __init__(self, topic: Raw) -> None:
        self._topic = topic
        self._found: dict[str, Package | None] = {}

    def get(self, name: str) -> Package | None:
        if name not in self._found:
            raw = self._topic["projects"].get(name)
            self._found[name] = None if raw is None else Package(name, raw, self._topic)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._topic["projects"])


class Hazard(Row):
    """One row of the topic hazards: `id` is stable; what else it holds depends on its kind."""

    @property
    def id(self) -> str:
        return str(self._raw["id"])

    @property
    def says(self) -> str:
        return str(self._raw["says"])

    @property
    def package(self) -> str:
        return str(self._raw["package"])

    @cached_property
    def versions(self) -> SpecifierSet:
        return specifier(self._raw.get("versions", ""))

    def holds_for(self, version: Version) -> bool:
        return self.versions.contains(version.public, prereleases=True)

    def get(self, key: str) -> Any:
        return self._raw.get(key)

    def text(self, key: str) -> str:
        return str(self._raw[key])

    @property
    def fact(self) -> str:
        return self.cite(self.says)


class Hazards:
    """Rows by kind: `of("numpy_bound", "onnx")`."""

    def __init__(self, topic: Raw) -> None:
        self._topic = topic
        self._rows: dict[str, tuple[Hazard, ...]] = {}

    def all(self, kind: str) -> tuple[Hazard, ...]:
        if kind not in self._rows:
            self._rows[kind] = tuple(Hazard(raw) for raw in self._topic[kind])
        return self._rows[kind]

    def of(self, kind: str, package: str, version: Version | None = None) -> tuple[Hazard, ...]:
        """Rows about the package; with a version, those that hold for it."""
        rows = tuple(row for row in self.all(kind) if row.package == package)
        return rows if version is None else tuple(row for row in rows if row.holds_for(version))

    def row(self, kind: str, row_id: str) -> Hazard:
        """KeyError when there is none: ids are written in code."""
        for row in self.all(kind):
            if row.id == row_id:
                return row
        raise KeyError(row_id)


def parsed(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
