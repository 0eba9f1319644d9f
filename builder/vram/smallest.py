"""The smallest cards that train a loop; the estimate for each by the closed form where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import ConflictError
from builder.vram import offsets
from builder.vram.estimate import Layer, VramEstimate, estimate
from builder.vram.report import gib

if TYPE_CHECKING:
    from builder.catalog import Catalog
    from builder.vram.loop import TrainingLoop
    from builder.vram.models import Model


@dataclass(frozen=True, slots=True)
class Fitting:
    """`name` has the size behind it where the product is sold with several."""

    name: str
    estimate: VramEstimate


def smallest_cards(model: Model, loop: TrainingLoop, catalog: Catalog, *, count: int = 3) -> tuple[Fitting, ...]:
    """The first is the smallest; newer generations come first among equals. ConflictError: none is large enough."""
    layer: Layer | None = "analytic" if model.architecture is not None else None
    found: list[tuple[int, int, Fitting]] = []
    for order, gpu in enumerate(reversed(catalog.gpus())):
        if gpu.kind == "embedded" or gpu.host == "aarch64":
            continue  # shares its memory with the host, or is sold with an ARM processor only
        for size in gpu.vram_gib:
            name = gpu.name if len(gpu.vram_gib) == 1 else f"{gpu.name} {size}GB"
            judged = estimate(model, loop, offsets.card(name, catalog), layer=layer)
            if judged.verdict == "fits":
                found.append((judged.card.total, order, Fitting(name, judged)))
    if not found:
        largest = max(max(gpu.vram_gib) for gpu in catalog.gpus() if gpu.vram_gib)
        raise ConflictError(
            f"error[vram-no-card]: no card trains `{model.name}` with batch {loop.batch} at sequence {loop.seq}\n\n"
            f"  because the largest has {largest} GiB\n\n"
            "hint: `torchproof estimate ... --fit --gpu NAME` tells what would make it fit",
            code="vram-no-card",
        )
    return tuple(fitting for _, _, fitting in sorted(found, key=lambda item: item[:2])[:count])


def text(found: tuple[Fitting, ...]) -> str:
    first = found[0]
    needs = f"{gib(first.estimate.driver.value)} of {gib(first.estimate.card.total)}"
    others = f"; next: {', '.join(fitting.name for fitting in found[1:])}" if len(found) > 1 else ""
    return f"smallest card that trains it: {first.name} ({needs} in the driver's view){others}"
