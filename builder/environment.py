"""What a user's files and options ask for, with the origin of every value. Plain values: no I/O, no facts.

    Environment
      python, system, driver, gpus, ...   what is asked of the machine, each with its origin
      requests -> Request                 one package asked for, by whom, in which install step
      constraints -> Request              bounds that install nothing (`pip -c`, uv `constraint-dependencies`)
      steps -> InstallStep                one command that installs, in order, with the index settings in force
      base -> BaseImage                   the image that the last stage of a Dockerfile stands on
      variables, apt, commands, builds    the rest of a Dockerfile that rules look at
      unparsed -> Unparsed                what was not understood, and why

    env.in_force()["torch"]               which request decides a package at the end; see `InForce`
    env.merge(other)                      `other` (options) laid over `env` (files)
    env.to_json(decided)                  the `environment` block of `check --json`

A name is canonical and the package index's: conda's `pytorch` is `torch` here, `asked_as` keeps what was written.
Versions are `packaging` types; a conda spec such as `=2.0` is translated (`==2.0.*`). None is "not said", never "none".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.environment_parts import (
    AptPackage,
    BaseImage,
    Command,
    DateAsk,
    DriverAsk,
    Flavor,
    GpuAsk,
    Index,
    IndexKind,
    IndexSettings,
    Installer,
    InstallStep,
    Kind,
    OperatingSystem,
    Origin,
    PythonAsk,
    Request,
    Source,
    SourceBuild,
    Unparsed,
    Variable,
    WheelFile,
)
from builder.versions import CudaVariant, GlibcVersion

# Packages whose builds differ by CUDA variant on the indexes that name one.
_BUILT_FOR_CUDA = frozenset({"torch", "torchvision", "torchaudio", "torchtext"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """What resolution made of a package, for `to_json`."""

    version: str | None = None
    variant: str | None = None
    origin: str | None = None


@dataclass(frozen=True, kw_only=True)
class InForce:
    """What decides one package when every step has run.

    `request` is the deciding one; `also` are further requests of the same package that hold at the same time (an
    earlier pin that a later range does not touch, two lines of one file), `replaced` those that a later step overrode.
    """

    request: Request
    also: tuple[Request, ...] = ()
    replaced: tuple[Request, ...] = ()
    constraints: tuple[Request, ...] = ()

    @property
    def version(self) -> Version | None:
        """The exact version, from the request, from one that holds beside it, or from a constraint."""
        holding = (self.request, *self.also, *self.constraints)
        return next((request.version for request in holding if request.version is not None), None)

    @cached_property
    def specifier(self) -> SpecifierSet:
        """Everything that must hold, exact versions included."""
        found = SpecifierSet()
        for request in (self.request, *self.also, *self.constraints):
            found &= SpecifierSet(f"=={request.version}") if request.version is not None else request.specifier
        return found

    @property
    def variant(self) -> CudaVariant | None:
        holding = (self.request, *self.also, *self.constraints)
        return next((request.variant for request in holding if request.variant is not None), None)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """See the module's docstring. Every field has an empty default: a parser gives the part that its file says."""

    sources: tuple[Source, ...] = ()
    requests: tuple[Request, ...] = ()
    constraints: tuple[Request, ...] = ()
    steps: tuple[InstallStep, ...] = ()
    pythons: tuple[PythonAsk, ...] = ()  # the first one holds; the others were said too
    arch: Literal["x86_64", "aarch64"] | None = None
    arch_origin: Origin | None = None
    os: OperatingSystem | None = None
    glibc: GlibcVersion | None = None
    glibc_origin: Origin | None = None
    driver: DriverAsk | None = None
    gpus: tuple[GpuAsk, ...] = ()
    bases: tuple[BaseImage, ...] = ()  # of the last stage first, then of stages it is copied from
    variables: tuple[Variable, ...] = ()  # in order; a later one of the same name holds
    apt: tuple[AptPackage, ...] = ()
    commands: tuple[Command, ...] = ()
    builds: tuple[SourceBuild, ...] = ()
    virtual_packages: tuple[tuple[str, str], ...] = ()  # conda: (`__cuda`, `12.1`)
    platforms: tuple[str, ...] = ()  # conda `platforms:`, pylock environments
    precisions: tuple[tuple[str, Origin], ...] = ()
    opset: int | None = None
    opset_origin: Origin | None = None
    date: DateAsk | None = None
    unparsed: tuple[Unparsed, ...] = ()

    @property
    def python(self) -> PythonAsk | None:
        return self.pythons[0] if self.pythons else None

    @property
    def base(self) -> BaseImage | None:
        return self.bases[0] if self.bases else None

    @property
    def is_lock(self) -> bool:
        """Every file is a lock: what is not listed is not installed."""
        files = [source for source in self.sources if source.kind != "options"]
        return bool(files) and all(source.is_lock for source in files)

    @property
    def is_image(self) -> bool:
        """A Dockerfile is among the inputs, so that installs run without a GPU or driver in sight."""
        return any(source.kind == "dockerfile" for source in self.sources)

    def variable(self, name: str) -> Variable | None:
        """The one that holds at the end, as the running image or the shell sees it."""
        holding = (found for found in reversed(self.variables) if found.name == name and found.scope != "build")
        return next(holding, None)

    def step_of(self, request: Request) -> InstallStep:
        return self.steps[request.step]

    @cached_property
    def _in_force(self) -> Mapping[str, InForce]:
        from builder.in_force import decide  # noqa: PLC0415 - it imports this module

        return decide(self)

    def in_force(self) -> Mapping[str, InForce]:
        """Canonical name -> what decides it at the end of the last stage; markers that do not hold are left out."""
        return self._in_force

    def stated_variant(self, name: str) -> CudaVariant | None:
        """What the input says about the CUDA build of a package, conda's companions and a sole index included."""
        from builder.in_force import stated_variant  # noqa: PLC0415 - it imports this module

        return stated_variant(self, name)

    def merge(self, other: Environment) -> Environment:
        """Both; where a value can only be one, that of `other` holds. Steps of `other` run after those of `self`."""
        shift = len(self.steps)
        merged: dict[str, Any] = {}
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, tuple):
                merged[each.name] = mine + theirs
            else:
                merged[each.name] = mine if theirs is None else theirs
        merged["pythons"] = other.pythons + self.pythons
        merged["gpus"] = other.gpus or self.gpus
        merged["requests"] = self.requests + _shifted(other.requests, shift)
        merged["constraints"] = self.constraints + _shifted(other.constraints, shift)
        merged["apt"] = self.apt + _shifted(other.apt, shift)
        merged["commands"] = self.commands + _shifted(other.commands, shift)
        merged["builds"] = self.builds + _shifted(other.builds, shift)
        merged["steps"] = self.steps + tuple(replace(step, number=step.number + shift) for step in other.steps)
        return Environment(**merged)

    def to_json(self, decided: Mapping[str, Decided] | None = None) -> dict[str, Any]:
        """`decided` adds what resolution found: the version behind a range, the CUDA variant behind an index."""
        packages: dict[str, dict[str, Any]] = {}
        for name, state in self.in_force().items():
            entry: dict[str, Any] = {}
            if state.version is not None:
                entry["version"] = state.version.public
            else:
                entry["specifier"] = str(state.specifier)
            variant = self.stated_variant(name) if name in _BUILT_FOR_CUDA else state.variant
            entry["variant"] = None if variant is None else str(variant)
            entry["origin"] = str(state.request.origin)
            packages[name] = entry
        for name, found in (decided or {}).items():
            entry = packages.setdefault(name, {"variant": None, "origin": found.origin or ""})
            if found.version is not None:
                entry["version"] = found.version
            if found.variant is not None:
                entry["variant"] = found.variant
        python = self.python
        return {
            "python": None if python is None else str(python.version or python.specifier),
            "arch": self.arch,
            "glibc": None if self.glibc is None else str(self.glibc),
            "driver": None if self.driver is None else str(self.driver.version),
            "gpus": [gpu.name for gpu in self.gpus],
            "packages": {name: packages[name] for name in sorted(packages)},
            "unparsed": [{"origin": str(u.origin), "text": u.text, "why": u.why} for u in self.unparsed],
        }


def _shifted(rows: Iterable[Any], shift: int) -> tuple[Any, ...]:
    return tuple(replace(row, step=row.step + shift) for row in rows)


__all__ = [
    "AptPackage",
    "BaseImage",
    "Command",
    "DateAsk",
    "Decided",
    "DriverAsk",
    "Environment",
    "Flavor",
    "GpuAsk",
    "InForce",
    "Index",
    "IndexKind",
    "IndexSettings",
    "InstallStep",
    "Installer",
    "Kind",
    "OperatingSystem",
    "Origin",
    "PythonAsk",
    "Request",
    "Source",
    "SourceBuild",
    "Unparsed",
    "Variable",
    "WheelFile",
]
