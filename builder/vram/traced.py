"""The traced layer from outside: the one place that may import torch, and only when it is called."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from builder.errors import UsageError
from builder.vram.events import Trace
from builder.vram.loop import TrainingLoop
from builder.vram.models import Model

# Earlier releases lose weak references of storages or have no meta kernels for the optimizers (docs/vram.md).
OLDEST_TORCH = (2, 6)
# Single numbers do not count: an optimizer keeps its step counts on the CPU wherever the model is.
ONE_NUMBER = 8


@lru_cache(maxsize=1)
def why_not() -> str | None:
    """Why this Python cannot trace; None when it can. Does not import torch."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    for name in ("torch", "transformers"):
        if find_spec(name) is None:
            return f"{name} is not installed beside torchproof"
    try:
        found = version("torch")
    except PackageNotFoundError:
        return "torch has no metadata"
    numbers = found.split("+")[0].split(".")[:2]
    if not all(number.isdigit() for number in numbers) or tuple(map(int, numbers)) < OLDEST_TORCH:
        return f"torch {found} cannot run the trace, which needs 2.6 or newer"
    return None


def trace(model: Model, loop: TrainingLoop, *, capability: tuple[int, int] = (8, 0), workspace: int = 0) -> Trace:
    """The events of the loop on the meta device, as CUDA of `capability` would have them."""
    reason = why_not()
    if reason is not None:
        raise UsageError(
            "vram-no-torch",
            "the traced estimate cannot be made",
            because=[reason],
            hint="install a CPU build of torch and transformers beside torchproof (`torchproof[stack]`), "
            "or take the closed form with `--layer analytic`",
        )
    from builder.vram.tracing import run  # noqa: PLC0415

    return run.trace(model, loop, capability=capability, workspace=workspace)


def native_live_bytes(model: Model, loop: TrainingLoop, *, device: str = "meta") -> int:
    """The most bytes alive at once in a step as the CPU runs it; on `device="cpu"` it is run, with real tensors."""
    from builder.vram.tracing import run  # noqa: PLC0415

    found = run.trace(model, loop, device=device, is_native=True)
    alive = peak = 0
    sizes: dict[int, int] = {}
    for identity, size, _ in found.events:
        if size > ONE_NUMBER:
            sizes[identity] = size
            alive += size
            peak = max(peak, alive)
        elif size == 0:
            alive -= sizes.pop(identity, 0)
    return peak
