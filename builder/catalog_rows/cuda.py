"""Topics cuda_driver and cuda_images: toolkits, driver floors, driver branches, nvidia/cuda tags."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal, NamedTuple

from builder.catalog_rows.base import Raw, Row
from builder.versions import CudaVersion, DriverVersion, GpuCode

Flavor = Literal["base", "runtime", "devel"]


class DriverFloor(NamedTuple):
    """The lowest driver that runs binaries of a toolkit; None: not in the facts. `fact` says what it rests on."""

    driver: DriverVersion | None
    fact: str


class ToolkitPatch(Row):
    """A toolkit as shipped: the driver of its release notes, without minor-version compatibility."""

    def __init__(self, version: str, raw: Raw) -> None:
        super().__init__(raw)
        self.version = version

    @property
    def min_driver(self) -> DriverVersion | None:
        text = self._raw["min_driver"]
        return None if text is None else DriverVersion.parse(text)

    @property
    def bundled_driver(self) -> DriverVersion | None:
        text = self._raw["bundled_driver"]
        return None if text is None else DriverVersion.parse(text)

    @property
    def fact(self) -> str:
        return self.cite(f"CUDA {self.version} release notes: driver {self.min_driver or 'not found'}")


class Toolkit(Row):
    """`source` and `confidence` are those of the driver floor."""

    def __init__(self, version: str, raw: Raw) -> None:
        super().__init__({"source": raw["compat_source"], "confidence": raw["compat_confidence"]})
        self.version = CudaVersion.parse(version)
        self._row = raw

    @cached_property
    def min_driver(self) -> DriverVersion:
        """Under minor-version compatibility; for 9.x and 10.x the toolkit's own."""
        return DriverVersion.parse(self._row["min_driver_minor_version_compat"])

    @cached_property
    def archs(self) -> tuple[GpuCode, ...]:
        """What nvcc can target."""
        return tuple(GpuCode.parse(text) for text in self._row["archs"])

    @cached_property
    def patches(self) -> tuple[ToolkitPatch, ...]:
        return tuple(ToolkitPatch(version, raw) for version, raw in self._row["patches"].items())

    @property
    def fact(self) -> str:
        return self.cite(f"CUDA {self.version} runs on driver {self.min_driver} or newer")

    @property
    def archs_fact(self) -> str:
        row = Row({"source": self._row["arch_source"], "confidence": self._row["arch_confidence"]})
        return row.cite(f"nvcc {self.version} targets {self.archs[0]}..{self.archs[-1]}")


class DriverBranch(Row):
    """The CUDA version that nvidia-smi prints for a driver branch: the newest it supports natively."""

    @property
    def branch(self) -> int:
        return int(self._raw["driver_branch"])

    @property
    def cuda(self) -> CudaVersion:
        return CudaVersion.parse(self._raw["cuda"])

    @property
    def fact(self) -> str:
        return self.cite(f"driver branch {self.branch} supports CUDA {self.cuda}")


class GenerationDrivers(Row):
    """The driver branches that drive a GPU generation; None: not bounded, or not in the facts (see `fact`)."""

    def __init__(self, generation: str, raw: Raw, table: Raw) -> None:
        super().__init__(raw, table)
        self.generation = generation

    @property
    def first_branch(self) -> int | None:
        text = self._raw["first_branch"]
        return None if text is None else int(text)

    @property
    def last_branch(self) -> int | None:
        text = self._raw["last_branch"]
        return None if text is None else int(text)

    @property
    def fact(self) -> str:
        if self.last_branch is None:
            return self.cite(f"{self.generation} is driven from branch {self.first_branch} on")
        first = "" if self.first_branch is None else f"from branch {self.first_branch} "
        return self.cite(f"{self.generation} is driven {first}up to branch {self.last_branch}")


class CudaImage(Row):
    """One nvidia/cuda tag. `cudnn` is the part of the tag: `cudnn8`, `cudnn`, or None."""

    _FORM = re.compile(r"([0-9][0-9.]*)-(?:(cudnn[0-9]*)-)?(base|runtime|devel)-([a-z]+[0-9.]+)")

    def __init__(self, version: str, variant: str, os: str, raw: Raw) -> None:
        super().__init__(raw)
        self.tag = f"{version}-{variant}-{os}"
        self.version = CudaVersion.parse(version)
        cudnn, _, self.flavor = variant.rpartition("-")
        self.cudnn: str | None = cudnn or None
        self.os = os

    @classmethod
    def parts(cls, tag: str) -> tuple[str, str | None, str, str] | None:
        """The parts version, cudnn, flavor, os of a tag; None: not of that form."""
        match = cls._FORM.fullmatch(tag)
        return None if match is None else (match[1], match[2], match[3], match[4])

    @property
    def is_end_of_life(self) -> bool | None:
        """As the vendor's own tree said in December 2025; None: not said."""
        return self._raw["end_of_life_2025_12"]  # type: ignore[no-any-return]

    @property
    def fact(self) -> str:
        return self.cite(f"nvidia/cuda:{self.tag} was listed")
