"""What builds an image and runs something in it: the border that `docker_engine` and `in_place` stand behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol, runtime_checkable

EngineKind = Literal["docker", "in-place"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineInfo:
    """`gpus`: names the engine can pass through; empty when it has none. `reason`: why there are none."""

    kind: EngineKind
    version: str
    store: str | None = None
    supports_link: bool = True
    gpus: tuple[str, ...] = ()
    gpu_reason: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildTarget:
    """One image of a bake. `tag` is the local name it gets."""

    image_id: str
    tag: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    """A folder that render wrote, and what the build may use but must never keep.

    `bake_file` is relative to `folder`. `contexts` are named build contexts (name -> folder or image reference),
    `secrets` are BuildKit secrets (id -> file on this machine). The last five only serve in-place builds: the
    interpreter (a path or `X.Y`), where the environment goes, the CUDA variant of the torch index, where Python comes
    from, and how many bytes the installed files will take, where that is known.
    """

    folder: Path
    bake_file: str
    targets: tuple[BuildTarget, ...]
    contexts: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    log_file: Path
    python: str | None = None
    venv: Path | None = None
    variant: str | None = None
    provider: Literal["apt", "conda", "uv"] = "apt"
    installed_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltImage:
    """`digest` is the engine's content address of the image (image ID), or of the installed files in place."""

    image_id: str
    reference: str
    digest: str
    digest_kind: Literal["image-id", "manifest", "installed-files"]
    size_bytes: int
    seconds: float
    log_file: Path | None
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    memory_bytes: int = 8 * 2**30
    shm_bytes: int = 2**30
    pids: int = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Bytes that an image, and the packages in it, may take; None: their size is told and not judged."""

    image_bytes: int | None = None
    packages_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecResult:
    """`exit_status` is None when the process was stopped at its time limit."""

    argv: tuple[str, ...]
    exit_status: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    timed_out: bool = False
    out_of_memory: bool = False


class Session(Protocol):
    """A running image. `scratch` is the only folder that a check may write to. `network_cut`: nothing gets out."""

    scratch: str
    network_cut: bool
    smoke_folder: str
    has_gpu: bool

    def python(self) -> Sequence[str]:
        """Argv that starts the Python of the environment under test."""
        ...

    def put(self, name: str, content: bytes) -> str:
        """Write a file below the scratch folder; returns its path inside."""
        ...

    def run(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> ExecResult:
        """Run to the end or to the time limit, as the image's user. A timeout kills the whole process tree."""
        ...


class Engine(Protocol):
    @property
    def kind(self) -> EngineKind: ...

    def info(self) -> EngineInfo: ...

    def build(self, plan: BuildPlan, on_line: Callable[[str], None]) -> Mapping[str, BuiltImage]:
        """Build every target of the plan; raises BuildError with the last lines and the log's path."""
        ...

    def session(
        self, image: BuiltImage, smoke_files: Mapping[str, bytes], limits: Limits, *, gpus: bool
    ) -> AbstractContextManager[Session]:
        """Start the image without network, with the smoke scripts in it; removed on every path out."""
        ...

    def image(self, reference: str) -> BuiltImage:
        """What was built earlier under this reference; EngineError when there is no such."""
        ...

    def remove(self, image: BuiltImage) -> None: ...


@runtime_checkable
class Settling(Protocol):
    """An engine whose results take the place of earlier ones, and do so only when told that they were proven."""

    def settle(self, image: BuiltImage, *, is_proven: bool) -> BuiltImage:
        """The image under the reference that it is known by from now on."""
        ...

    def place_of(self, image: BuiltImage) -> Path | None:
        """Where the image stands once it is proven; None when it has no other place."""
        ...


@runtime_checkable
class Saving(Protocol):
    """An engine that can hand out the layers of what it built."""

    def saved(self, image: BuiltImage) -> AbstractContextManager[IO[bytes]]:
        """The image of this digest in the form of `docker save`: a tar that is read once, from its start."""
        ...
