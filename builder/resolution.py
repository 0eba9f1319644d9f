"""What resolve chose for one image, with the facts behind each choice. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """Where an image starts. `python` and `glibc` are None when no fact tells them (a local or private image).

    kind: `debian` (a Debian suite, made from its packages or pulled), `registry` (a reference to pull) or `local`
    (an image that the engine already has). `reference` is what the spec says, without the `local:` prefix.
    """

    kind: Literal["debian", "registry", "local"]
    reference: str
    python: str | None
    glibc: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One thing decided: what was asked (`auto` or the user's text), what was taken, and the facts behind it."""

    subject: str
    asked: str
    value: str
    because: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One direct requirement, as PEP 508 text such as `torch==2.6.0` or `numpy<2`.

    `index`: `default` for the configured package index, `torch` for the PyTorch wheel index of the variant
    (exclusive: the package is looked up nowhere else), or the name of an index of the spec.
    `bound_only` is True for a bound that must hold when the package is in the set but does not ask for it.
    """

    text: str
    index: str = "default"
    bound_only: bool = False
    because: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetGpu:
    name: str
    compute_capability: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedIndex:
    """An index of the spec for the packages it names, and for those only. Credentials never stand in a spec."""

    name: str
    url: str
    packages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """The image that the spec's cell becomes. `python` is `3.11`; `glibc` the lowest the wheels may ask for.

    `exclude_newer` is a date (YYYY-MM-DD): transitive packages uploaded later are not considered; None: no limit.
    `provider` is where Python comes from: apt (the base or, in place, this machine), conda or uv's managed Pythons.
    `undecided_gpus` are those of `gpus` for which no fact tells whether the build has code.
    `variant` is `cpu` or `cuNNN`; `variant_is_default` says that the package index itself has that build.
    """

    image_id: str
    spec_name: str
    spec_digest: str
    cell: str
    python: str
    arch: Literal["x86_64", "aarch64"]
    glibc: str
    base: Base
    flavor: Literal["base", "runtime", "devel"]
    torch: str
    variant: str
    variant_is_default: bool
    requirements: tuple[Requirement, ...]
    choices: tuple[Choice, ...]
    warnings: tuple[str, ...] = ()
    gpus: tuple[TargetGpu, ...] = ()
    undecided_gpus: tuple[str, ...] = ()
    driver_floor: str | None = None
    driver_asked: str | None = None
    apt: tuple[str, ...] = ()
    user: str = "root"
    exclude_newer: str | None = None
    allow_source: tuple[str, ...] = ()
    indexes: tuple[NamedIndex, ...] = ()
    wheelhouses: tuple[str, ...] = field(default=())
    facts_generated: str = ""
    provider: Literal["apt", "conda", "uv"] = "apt"
    conda_channels: tuple[str, ...] = ()
    conda_packages: tuple[str, ...] = ()
