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
