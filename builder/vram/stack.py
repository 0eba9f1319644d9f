"""What the release of torch that will run a loop changes in it; pure."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from builder.errors import UsageError
from builder.vram.loop import TrainingLoop

# From 2.0 on: zero_grad drops gradients, AdamW updates lists of tensors, attention can be fused (torch release notes).
MODERN = Version("2.0")


# From 5.0 on: a model that is given labels returns no keys and values (src/transformers/models/t5/modeling_t5.py).
NO_CACHE_WITH_LABELS = Version("5.0")


def as_of(loop: TrainingLoop, torch: str | None, transformers: str | None = None) -> tuple[TrainingLoop, bool]:
    """(the loop with the defaults of those releases, whether they are older than what estimates are calibrated on)."""
    if transformers is not None and _version("transformers", transformers, "4.48.1") >= NO_CACHE_WITH_LABELS:
        loop = loop.with_(use_cache=False)
    if torch is None or _version("torch", torch, "2.6.0") >= MODERN:
        return loop, False
    return loop.with_(
        attention="eager",
        zero_grad="keep",
        optimizer="adamw-single" if loop.optimizer in ("adamw", "adam", "adamw-fused") else loop.optimizer,
    ), True


def _version(name: str, text: str, example: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError("vram-bad-torch", f"`{text}` is no version of {name}", hint=f"say {example}") from None
