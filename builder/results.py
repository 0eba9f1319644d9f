"""What a run found: checks, image reports and the report of a whole run. The JSON of these models is a contract."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1

Status = Literal["passed", "failed", "not-checked", "errored"]
Blame = Literal["image", "host", "tool"]


class Level(str, Enum):
    """How much was proven; ordered."""

    NONE = "none"
    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"

    @property
    def rank(self) -> int:
        return list(Level).index(self)

    def __lt__(self, other: object) -> bool:
        return self.rank < Level(other).rank

    def __le__(self, other: object) -> bool:
        return self.rank <= Level(other).rank

    def __gt__(self, other: object) -> bool:
        return self.rank > Level(other).rank

    def __ge__(self, other: object) -> bool:
        return self.rank >= Level(other).rank


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CheckResult(_Model):
    """One check: what was measured, what was expected, and whether that holds.

    `code` is a stable slug when the check failed or broke. `blame` says which of image, host and tool it speaks about.
    """

    id: str
    level: Level
    status: Status
    code: str | None = None
    message: str
    measured: Any = None
    expected: Any = None
    tolerance: Any = None
    seconds: float | None = None
    blame: Blame | None = None
    details: dict[str, Any] = Field(default_factory=dict)


class ScriptReport(_Model):
    """What one smoke script printed."""

    schema_version: Literal[1]
    script: str
    seconds: float
    environment: dict[str, Any] = Field(default_factory=dict)
    peak_rss_bytes: int | None = None
    checks: tuple[CheckResult, ...]


class GpuVerdict(_Model):
    """How far the image was proven for one target card. `reason` says why no further."""

    gpu: str
    compute_capability: str
    level: Level
    reason: str | None = None


class ImageLayer(_Model):
    """One layer of an image. `holds` is what a lock put there, in words; None where only the step tells."""

    digest: str
    size_bytes: int
    step: str
    holds: str | None = None


class ImageReport(_Model):
    """Everything found out about one image.

    `level` is the highest at which every required check passed; `digest` is what it speaks about: an image ID or the
    digest over the installed files. `stage` is how far the line got.
    """

    image_id: str
    stage: Literal["resolve", "lock", "build", "smoke"]
    engine: Literal["docker", "in-place"] | None = None
    reference: str | None = None
    digest: str | None = None
    digest_kind: Literal["image-id", "manifest", "installed-files"] | None = None
    size_bytes: int | None = None
    layers: tuple[int, ...] = ()
    image_layers: tuple[ImageLayer, ...] = ()
    build_seconds: float | None = None
    build_log: str | None = None
    lock_digest: str | None = None
    spec_digest: str | None = None
    base: str | None = None
    python: str | None = None
    variant: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    source_built: tuple[str, ...] = ()
    level: Level = Level.NONE
    required: Level = Level.L2
    gpus: tuple[GpuVerdict, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    scripts: tuple[ScriptReport, ...] = ()
    network_cut: bool | None = None
    choices: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    error: dict[str, Any] | None = None

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.status in ("failed", "errored"))

    @property
    def not_checked(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.status == "not-checked")


class RunReport(_Model):
    """One run of `verify` or `smoke` over a matrix."""

    schema_version: Literal[1] = 1
    tool: str = "torchproof"
    tool_version: str
    spec: str
    started: str
    seconds: float
    engine: Literal["docker", "in-place"] | None
    engine_version: str | None
    engine_reason: str | None = None
    host_gpus: tuple[str, ...] = ()
    host_gpu_reason: str | None = None
    facts_generated: str
    exit_status: int
    images: tuple[ImageReport, ...]
