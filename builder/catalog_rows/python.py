"""Topics python and numpy: CPython life spans, distributions, manylinux floors, numpy releases."""

from __future__ import annotations

from datetime import date, timedelta
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.base import Raw, Row, pythons
from builder.versions import GlibcVersion, PythonVersion


class CPython(Row):
    @cached_property
    def version(self) -> PythonVersion:
        return PythonVersion.parse(self._raw["version"])

    @property
    def first_release(self) -> date:
        return date.fromisoformat(self._raw["first_release"])

    @property
    def end_of_life(self) -> date:
        return date.fromisoformat(self._raw["end_of_life"])

    @property
    def fact(self) -> str:
        return self.cite(f"CPython {self.version} is supported until {self.end_of_life}")


class Distribution(Row):
    """An operating system image with the Python it ships."""

    @property
    def image(self) -> str:
        """`debian:12`."""
        return str(self._raw["image"])

    @property
    def name(self) -> str:
        return self.image.split(":")[0]

    @property
    def release(self) -> str:
        return self.image.split(":")[1]

    @property
    def codename(self) -> str:
        """`bookworm`; where the system has none, its release number."""
        return str(self._raw["codename"])

    @cached_property
    def python(self) -> PythonVersion:
        return PythonVersion.parse(self._raw["python"])

    @cached_property
    def glibc(self) -> GlibcVersion:
        return GlibcVersion.parse(self._raw["glibc"])

    @property
    def gcc(self) -> str:
        return str(self._raw["gcc"])

    @property
    def supported_until(self) -> date:
        """The last day of the month the facts name."""
        year, month = map(int, self._raw["standard_support_until"].split("-"))
        return (date(year, month, 28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)

    @property
    def fact(self) -> str:
        return self.cite(f"{self.image} ({self.codename}) has Python {self.python} and glibc {self.glibc}")


class NumpyRelease(Row):
    def __init__(self, version: str, raw: Raw, table: Raw) -> None:
        super().__init__(raw, table)
        self.version = Version(version)

    @property
    def released(self) -> date:
        return date.fromisoformat(self._raw["released"])

    @property
    def is_yanked(self) -> bool:
        return bool(self._raw["yanked"])

    @cached_property
    def python_requires(self) -> SpecifierSet:
        return SpecifierSet(self._raw["requires_python"])

    @cached_property
    def pythons(self) -> tuple[PythonVersion, ...]:
        """Pythons with a Linux x86_64 wheel."""
        return pythons(self._raw["python"])

    @property
    def manylinux(self) -> tuple[str, ...]:
        return tuple(self._raw["manylinux"])

    @property
    def fact(self) -> str:
        return self.cite(f"numpy {self.version} has wheels for Python {', '.join(map(str, self.pythons))}")
