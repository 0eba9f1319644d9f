"""What the release of torch that will run a loop changes in it; pure."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.vram.loop import TrainingLoop

# From 2.0 on: zero_grad drops gradients, AdamW updates lists of tensors, attention can be fused (torch release notes).
MODERN = Version("2.0")


def as_of(loop: TrainingLoop, torch: str | None) -> tuple[TrainingLoop, bool]:
    """(the loop with the defaults of that release, whether it is older than what the estimate is calibrated on)."""
    if torch is None:
        return loop, False
    try:
        version = Version(torch)
    except InvalidVersion:
        raise UsageError("vram-bad-torch", f"`{torch}` is no version of torch", hint="say 2.6.0") from None
    if version >= MODERN:
        return loop, False
    return loop.with_(
        attention="eager",
        zero_grad="keep",
        optimizer="adamw-single" if loop.optimizer in ("adamw", "adam", "adamw-fused") else loop.optimizer,
    ), True
