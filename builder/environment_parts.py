"""The values an `Environment` is made of; environment.py has the overview. No I/O, no facts, no logic."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date as Date  # noqa: N812 - `date` is a field of Environment
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.versions import ComputeCapability, CudaVariant, CudaVersion, DriverVersion, PythonVersion

Installer = Literal["pip", "uv", "conda", "base-image"]
Kind = Literal[
    "requirements", "conda", "dockerfile", "pyproject", "uv-lock", "pylock", "poetry-lock", "conda-explicit",
    "conda-lock", "spec", "options",
]  # fmt: skip
IndexKind = Literal["unspecified", "default", "torch", "other"]
Flavor = Literal["base", "runtime", "devel"]


@dataclass(frozen=True, slots=True)
class Origin:
    """`file` as the person named it; for an option its name (`--pin`) and no line."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Something that was left out; `why` starts lower case and needs no context. It never stops the rest."""

    origin: Origin
    text: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """A place that packages come from.

    `unspecified`: nobody said (pins alone), so a missing index is no fault. `default`: the installer's own default
    index or a full mirror of one. `torch`: a PyTorch wheel index, `variant` where its path names one (`whl/cu121`),
    None for the page of all variants (`torch_stable.html`, `whl/`). `other`: anything else, content unknown.
    """

    kind: IndexKind
    origin: Origin
    url: str | None = None
    variant: CudaVariant | None = None
    is_nightly: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSettings:
    """`primary` answers first; `additive` are `--extra-index-url` and further `--index`; `find_links` are flat pages.

    `strategy`: pip merges all of them and takes the best version (`best-match`); uv stops at the first index that has
    the package, additive ones first (`first-index`). `for_package` binds names to an index (`tool.uv.sources`).
    """

    primary: Index
    additive: tuple[Index, ...] = ()
    find_links: tuple[Index, ...] = ()
    no_index: bool = False
    pre: bool = False
    strategy: Literal["best-match", "first-index"] = "best-match"
    torch_backend: str | None = None  # uv's `--torch-backend`: cu126, cpu, auto
    for_package: tuple[tuple[str, Index], ...] = ()

    @property
    def all(self) -> tuple[Index, ...]:
        """Every place that is asked, the primary first; none of the bound ones."""
        first = () if self.no_index else (self.primary, *self.additive)
        return (*first, *self.find_links)

    def of(self, name: str) -> tuple[Index, ...]:
        """Where this package may come from."""
        bound = tuple(index for package, index in self.for_package if package == name)
        return bound or self.all

    def variants(self, name: str = "torch") -> tuple[CudaVariant, ...]:
        """The CUDA variants that the indexes of this package name, in order, each once."""
        return tuple(dict.fromkeys(index.variant for index in self.of(name) if index.variant is not None))


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelFile:
    """A wheel named by its file: `torch-2.1.2+cu118-cp310-cp310-linux_x86_64.whl`."""

    filename: str
    version: Version
    pythons: tuple[str, ...]  # cp310, py3
    abis: tuple[str, ...]
    platforms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One package asked for.

    `version` is set where exactly one is asked for (`==2.1.0+cu118`, a lock entry, a wheel file, conda `=1.19.2`): with
    its local label, as in the text. Otherwise `specifier` says what is asked, empty for a bare name. A conda `=` with
    fewer than three numbers is a range (`=2.5` is `==2.5.*`). `name` is "" for a path or repository that names none.
    """

    name: str
    origin: Origin
    installer: Installer
    step: int
    text: str
    asked_as: str = ""
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    version: Version | None = None
    extras: tuple[str, ...] = ()
    marker: str | None = None
    url: str | None = None
    path: str | None = None
    vcs: str | None = None  # git, hg, svn, bzr
    is_editable: bool = False
    is_direct: bool = True  # False where a lock lists it because something else needs it
    wheel: WheelFile | None = None
    hashes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # a lock's file names: wheels and source archives
    requires: tuple[str, ...] = ()  # a lock's own edges, canonical names
    index: Index | None = None  # a lock's registry, a source bound to the package
    channel: str | None = None
    build: str | None = None  # conda build string or pattern: `py3.8_cuda11.1_cudnn8.0.5_0`, `*cuda*`
    build_variant: CudaVariant | None = None  # what that build string, or the image's tag, says
    asks_for_cuda: bool = False  # a CUDA build of no named toolkit: `*=*cuda*`, `pytorch-gpu`

    @property
    def local(self) -> str | None:
        """`cu118` of 2.1.0+cu118."""
        return None if self.version is None else self.version.local

    @property
    def variant(self) -> CudaVariant | None:
        """What the request itself says about the build: local label, build string or image tag. Not the index."""
        return CudaVariant.of_local(self.local) or self.build_variant

    @property
    def is_source(self) -> bool:
        """Built on the spot: a repository, a folder, a source archive."""
        if self.wheel is not None or (self.path or "").endswith(".whl"):  # also `dist/*.whl`, a wheel without a name
            return False
        return self.vcs is not None or self.path is not None or self.url is not None

    @property
    def asks(self) -> str:
        """`==2.1.0+cu118`, `>=2,<3`, or "" for any version."""
        return f"=={self.version}" if self.version is not None else str(self.specifier)


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallStep:
    """One command that installs or removes, or one file. Steps are numbered from 0 in the order in which they run."""

    number: int
    installer: Installer
    origin: Origin
    text: str
    indexes: IndexSettings
    stage: str | None = None
    python: PythonVersion | None = None  # the interpreter named: `python3.9 -m pip`
    channels: tuple[str, ...] = ()  # conda, highest priority first
    channel_priority: Literal["strict", "flexible", "disabled"] | None = None
    removes: tuple[str, ...] = ()  # names uninstalled
    is_upgrade: bool = False  # -U, `conda update`: a looser request replaces what is there
    no_deps: bool = False
    no_build_isolation: bool = False
    requires_hashes: bool = False
    no_binary: tuple[str, ...] = ()
    only_binary: tuple[str, ...] = ()
    is_sync: bool = False  # a lock or `uv pip sync`: the set is complete, everything else goes
    is_conditional: bool = False  # stands in an `if` or behind `||`: may not run
    variables: tuple[Variable, ...] = ()  # in force while it runs: ENV, ARG, `export`, `NAME=value cmd`
    base: BaseImage | None = None  # what the stage it runs in stands on


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """`scope`: `image` (ENV, holds when the image runs), `build` (ARG, export), `step` (one command), `option`."""

    name: str
    value: str
    origin: Origin
    scope: Literal["image", "build", "step", "option"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """What stands behind FROM, taken apart. Only what the reference itself says: no table of tags is asked.

    `repository` has no registry: `nvidia/cuda`, `pytorch/pytorch`, `python`; from nvcr.io also `nvidia/pytorch`.
    """

    reference: str
    origin: Origin
    repository: str
    registry: str | None = None
    tag: str | None = None
    digest: str | None = None
    stage: str | None = None
    platform: str | None = None
    toolkit: CudaVersion | None = None
    cudnn: int | None = None  # major; 0 where the tag says `cudnn` without a number
    flavor: Flavor | None = None
    distribution: str | None = None  # `ubuntu22.04`, `debian:bookworm`, as `Catalog.distribution` reads it
    python: PythonVersion | None = None
    torch: Version | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AptPackage:
    """`version` without the `=`; `step` is the number of install steps that ran before it."""

    name: str
    origin: Origin
    version: str | None = None
    step: int = 0
    manager: Literal["apt", "apk", "yum"] = "apt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A simple command of a RUN (or CMD, ENTRYPOINT) that installs nothing itself. `step`: as for AptPackage."""

    text: str
    words: tuple[str, ...]
    origin: Origin
    step: int
    instruction: Literal["RUN", "CMD", "ENTRYPOINT"] = "RUN"
    variables: tuple[Variable, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBuild:
    """Code that is compiled on the spot: a repository, a folder, `setup.py install`, `build X`.

    `name` is the package where the text tells it, else None; `step` is that of the request, or as for AptPackage.
    """

    name: str | None
    origin: Origin
    text: str
    step: int
    variables: tuple[Variable, ...] = ()
    base: BaseImage | None = None  # as for InstallStep


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonAsk:
    """One Python version or a range; `means` says how it was said, for the message: `--python`, `base image` ..."""

    origin: Origin
    means: str
    version: PythonVersion | None = None
    specifier: SpecifierSet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingSystem:
    """`distribution` is a key for `Catalog.distribution` (`ubuntu22.04`); None where the text names none."""

    text: str
    origin: Origin
    family: Literal["linux", "windows", "wsl", "macos"] = "linux"
    distribution: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuAsk:
    """`name` as written. `mig` is the profile (`3g.40gb`), `count` how many; `capability` where the name is one."""

    name: str
    origin: Origin
    capability: ComputeCapability | None = None
    mig: str | None = None
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverAsk:
    version: DriverVersion
    origin: Origin
    is_windows: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DateAsk:
    """The day the environment is made. `after`: only known to be later than `day`."""

    day: Date
    origin: Origin
    after: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file that was read. `is_lock`: the complete set. `included_by` where another file named it."""

    file: str
    kind: Kind
    is_lock: bool = False
    included_by: Origin | None = None
