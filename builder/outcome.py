"""What would be installed in the end: the types that the rules of `check` look at. installer.py makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

from packaging.version import Version

from builder.catalog import Catalog
from builder.catalog_rows.base import Arch
from builder.catalog_rows.cuda import DriverFloor
from builder.catalog_rows.gpus import Gpu
from builder.catalog_rows.torch import TorchBuild, TorchRelease
from builder.environment import Environment, GpuAsk, IndexSettings, InstallStep, Request
from builder.shelf import Offer, Shelf
from builder.solver import Failure
from builder.versions import CudaVariant, CudaVersion, DriverVersion, GlibcVersion, PythonVersion


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One package at the end. `version` None: asked for, but not known which (a nightly, an unknown project)."""

    name: str
    version: Version | None
    step: int
    request: Request | None = None  # None where another package brought it
    via: str | None = None
    offer: Offer | None = None
    label: str | None = None  # the local label asked for
    variant: CudaVariant | None = None  # torch and its companions

    @property
    def is_pinned(self) -> bool:
        return self.request is not None and self.request.version is not None

    @property
    def title(self) -> str:
        """`torch 2.6.0 cu124`."""
        words = [self.name, str(self.version) if self.version else "", str(self.variant) if self.variant else ""]
        return " ".join(filter(None, words))

    @property
    def origin(self) -> str:
        return str(self.request.origin) if self.request is not None else ""

    @property
    def says(self) -> str:
        """The user's line as a premise."""
        request = self.request
        if request is None:
            return f"{self.via or 'another package'} brings {self.name}, today {self.version}"
        if request.installer == "base-image":
            return f"{request.origin}: the base image holds {self.name} {self.version}"
        written = request.text if request.installer == "conda" and len(request.text) <= 60 else ""
        if request.version is not None:
            return f"{request.origin} asks for {written or f'{request.name}=={request.version}'}"
        asked = written or f"{request.name}{request.specifier}"
        gives = f", which gives {self.version} today" if self.version is not None else ""
        return f"{request.origin} asks for {asked}{gives}"


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """A package that a later step changed without being asked to."""

    before: Chosen
    after: Chosen
    step: InstallStep


@dataclass(frozen=True, kw_only=True)
class Conflicting:
    """A step for which no whole answer exists."""

    step: InstallStep
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`python` is what was said; `assumed_python` is what ranges were judged by where nothing was said."""

    env: Environment
    catalog: Catalog
    shelf: Shelf
    today: date
    arch: Arch
    python: PythonVersion | None
    python_says: str
    assumed_python: PythonVersion | None
    glibc: GlibcVersion | None
    glibc_says: str
    gpus: tuple[tuple[GpuAsk, Gpu | None], ...]
    packages: Mapping[str, Chosen]
    replaced: tuple[Replaced, ...] = ()
    conflicts: tuple[Conflicting, ...] = ()
    undecided: tuple[InstallStep, ...] = field(default=())

    @property
    def driver(self) -> DriverVersion | None:
        return None if self.env.driver is None else self.env.driver.version

    @property
    def arch_says(self) -> str:
        if self.env.arch_origin is not None or not self.known_gpus:
            return f"{self.env.arch_origin} says {self.arch}"
        return f"{self.known_gpus[0].name} is sold with an ARM processor ({self.arch})"

    @property
    def has_windows_driver(self) -> bool:
        """Windows drivers have numbers of their own, in two parts; WSL shows the one of its host."""
        if self.driver is None or self.env.driver is None:
            return False
        os = self.env.os
        is_host = os is not None and os.family in {"windows", "wsl"}
        return self.env.driver.is_windows or (is_host and len(self.driver.text.split(".")) == 2)

    @property
    def has_embedded_driver(self) -> bool:
        """On Jetson the driver belongs to JetPack: no table of driver floors speaks of it."""
        return bool(self.known_gpus) and all(gpu.kind == "embedded" for gpu in self.known_gpus)

    def driver_floor(self, toolkit: CudaVersion) -> DriverFloor:
        """The lowest driver for the toolkit on the asked system; without one where none is known."""
        if self.has_embedded_driver:
            return DriverFloor(None, "")
        if self.has_windows_driver:
            return self.catalog.windows_driver_floor(toolkit)
        return self.catalog.driver_floor(toolkit)

    @property
    def driver_says(self) -> str:
        return "" if self.env.driver is None else f"{self.env.driver.origin} says driver {self.env.driver.version}"

    @cached_property
    def known_gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for _, gpu in self.gpus if gpu is not None)

    def package(self, name: str) -> Chosen | None:
        return self.packages.get(name)

    def version(self, name: str) -> Version | None:
        found = self.packages.get(name)
        return None if found is None else found.version

    @property
    def torch(self) -> Chosen | None:
        return self.packages.get("torch")

    @cached_property
    def torch_release(self) -> TorchRelease | None:
        version = self.version("torch")
        return None if version is None else self.catalog.torch_release(version)

    @cached_property
    def torch_build(self) -> TorchBuild | None:
        torch = self.torch
        if torch is None or torch.variant is None or self.torch_release is None:
            return None
        return self.torch_release.build(torch.variant, self.arch)

    @property
    def torch_toolkit(self) -> CudaVersion | None:
        torch = self.torch
        return None if torch is None or torch.variant is None else torch.variant.toolkit

    def step_of(self, chosen: Chosen) -> InstallStep | None:
        steps = self.env.steps
        return steps[chosen.step] if 0 <= chosen.step < len(steps) else None

    def indexes_of(self, chosen: Chosen) -> IndexSettings | None:
        step = self.step_of(chosen)
        return None if step is None else step.indexes

    @cached_property
    def _open_steps(self) -> frozenset[int]:
        return frozenset({each.step.number for each in self.conflicts} | {step.number for step in self.undecided})

    def is_open(self, chosen: Chosen) -> bool:
        """Of a step without a whole answer, and no pin: an installer would not take just this release."""
        return chosen.step in self._open_steps and not chosen.is_pinned

    def is_conda(self, chosen: Chosen) -> bool:
        return chosen.request is not None and chosen.request.installer == "conda"

    @property
    def wants_gpu(self) -> bool:
        """Whether anything says that a GPU is to be used."""
        base = self.env.base
        return bool(self.gpus) or self.env.driver is not None or (base is not None and base.toolkit is not None)
