"""Which smoke scripts there are, what each proves first, which images it concerns, which a run takes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from builder.errors import UsageError
from builder.results import CheckResult, Level
from builder.verdict import NOT_APPLICABLE


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """`level` is the lowest that its checks prove. With `packages`, it concerns images that have one of them.

    `on_host`: nothing is sent into the image; the checks are made on this machine, of what the engine built.
    """

    name: str
    level: Level
    packages: tuple[str, ...] = ()
    on_host: bool = False

    def concerns(self, locked: Collection[str]) -> bool:
        return not self.packages or any(package in locked for package in self.packages)


# In the order in which they tell most: a probe that fails explains what fails after it.
TABLE = (
    Script(name="probe", level=Level.L1),
    Script(name="files", level=Level.L1),
    Script(name="image", level=Level.L1, on_host=True),
    Script(name="train_step", level=Level.L2),
    Script(name="vram_peak", level=Level.L2),
    Script(name="onnx_round_trip", level=Level.L2, packages=("onnxruntime", "onnxruntime-gpu")),
    Script(name="data_loader", level=Level.L2),
    Script(name="distributed", level=Level.L2),
    Script(name="trainer", level=Level.L2, packages=("accelerate", "datasets")),
    Script(name="loggers", level=Level.L2, packages=("tensorboard", "wandb")),
    Script(name="compile", level=Level.L2),
    Script(name="card", level=Level.L2),
)
SCRIPTS = tuple(script.name for script in TABLE)
SENT = tuple(script.name for script in TABLE if not script.on_host)
BY_NAME = {script.name: script for script in TABLE}


def chosen(*, only: Sequence[str] = (), skip: Sequence[str] = (), level: Level | None = None) -> tuple[str, ...]:
    """The scripts of a run, in the order of the table. `level`: those that prove something at it or below."""
    for name in [*only, *skip]:
        if name not in BY_NAME:
            raise UsageError("bad-script", f"`{name}` is no smoke script", hint=f"say one of {', '.join(SCRIPTS)}")
    return tuple(
        script.name
        for script in TABLE
        if (not only or script.name in only) and script.name not in skip and (level is None or script.level <= level)
    )


def not_run(taken: Sequence[str], locked: Collection[str]) -> list[CheckResult]:
    """One check for each script that does not run. What was left out by choice is not proven, and holds its level
    back; what does not concern the image holds nothing back.
    """
    found = []
    for script in TABLE:
        concerns = script.concerns(locked)
        if concerns and script.name in taken:
            continue
        missing = f"none of {', '.join(script.packages)} is in the lock"
        found.append(
            CheckResult(
                id=f"{script.name}.ran",
                level=script.level,
                status="not-checked",
                code=None if concerns else NOT_APPLICABLE,
                message=f"{script.name} was left out of this run" if concerns else missing,
            )
        )
    return found
