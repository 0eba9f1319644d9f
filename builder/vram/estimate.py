"""All layers together: three numbers with an interval, and whether they fit a card.

- allocated     tensors alive             the tracer's count, or the closed form
- reserved      what the pool holds       the simulated allocator, or allocated x a usual fragmentation
- driver view   what nvidia-smi shows     reserved + the card's offset
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from builder.vram import traced
from builder.vram.allocator import OutOfMemoryError
from builder.vram.analytic import Analytic, analytic
from builder.vram.events import Replay, Trace, replay
from builder.vram.loop import TrainingLoop
from builder.vram.models import Model
from builder.vram.offsets import Card
from builder.vram.rule import rule_of_thumb

Layer = Literal["traced", "analytic"]
Verdict = Literal["fits", "does-not-fit", "too-close-to-call"]

# Half widths, as parts of the number. Traced: the 90th percentile of 29 published readings is 0.1 %, of T5 0.4 %
# (docs/vram.md); one percent leaves room for what nobody has read. Analytic: nearly all of a grid against the trace.
TRACED_BAND = 0.01
ANALYTIC_BAND = 0.06
# Reserved over allocated where nothing was simulated: 1.02 to 1.13 over traced loops, least for large batches.
FRAGMENTATION = 1.06
FRAGMENTATION_BAND = 0.05
# Operators of releases before 2.0 kept other tensors; readings of 2019 to 2022 lie within this. The middle of what
# reserved over allocated was on published runs (1.02 to 1.20) stands for the allocator of that time.
OLD_STACK_BAND = 0.10
OLD_FRAGMENTATION = 1.10


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes."""

    low: int
    value: int
    high: int

    @classmethod
    def around(cls, value: int, band: float) -> Interval:
        return cls(int(value * (1 - band)), value, int(value * (1 + band)))

    def plus(self, offset: int, spread: int) -> Interval:
        return Interval(self.low + max(0, offset - spread), self.value + offset, self.high + offset + spread)


@dataclass(frozen=True, kw_only=True, slots=True)
class VramEstimate:
    """`terms` are alive together at `moment`, the allocated peak. `verdict` is None where no card was named."""

    model: str
    loop: TrainingLoop
    card: Card
    layer: Layer
    parameters: int
    trained: int
    allocated: Interval
    reserved: Interval
    driver: Interval
    moment: str
    terms: Mapping[str, int]
    rule: int
    verdict: Verdict | None
    notes: tuple[str, ...]
    trace: Trace | None = field(default=None, repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        def interval(value: Interval) -> dict[str, int]:
            return {"low_bytes": value.low, "bytes": value.value, "high_bytes": value.high}

        has_card = self.card.total > 0
        return {
            "model": self.model,
            "loop": self.loop.as_dict(),
            "layer": self.layer,
            "parameters": self.parameters,
            "trained_parameters": self.trained,
            "peak_allocated": interval(self.allocated),
            "peak_reserved": interval(self.reserved),
            "driver_view": interval(self.driver),
            "moment": self.moment,
            "terms_bytes": dict(self.terms),
            "rule_of_thumb_bytes": self.rule,
            "gpu": {
                "name": self.card.name,
                "total_bytes": self.card.total,
                "offset_bytes": self.card.offset,
                "offset_spread_bytes": self.card.spread,
                "is_calibrated": self.card.is_calibrated,
                "source": self.card.source,
            }
            if has_card
            else None,
            "verdict": self.verdict,
            "notes": list(self.notes),
        }


def estimate(
    model: Model,
    loop: TrainingLoop,
    card: Card,
    *,
    layer: Layer | None = None,
    expandable: bool = False,
    is_old_stack: bool = False,
) -> VramEstimate:
    """With `layer` None the traced one, where torch is there, else the closed form."""
    if layer is None:
        layer = "traced" if traced.why_not() is None else "analytic"
        if is_old_stack and model.architecture is not None:
            # A trace would run today's operators.
            layer = "analytic"
    if layer == "traced":
        return _traced(model, loop, card, expandable=expandable, is_old_stack=is_old_stack)
    return _analytic(model, loop, card, is_old_stack=is_old_stack)


def _traced(model: Model, loop: TrainingLoop, card: Card, *, expandable: bool, is_old_stack: bool) -> VramEstimate:
    found = traced.trace(model, loop, capability=card.capability, workspace=card.workspace)
    free = replay(found, expandable=expandable)
    band = OLD_STACK_BAND if is_old_stack else TRACED_BAND
    allocated = Interval.around(free.peak_allocated, band)
    reserved = Interval.around(free.peak_reserved, band)
    driver = reserved.plus(card.offset, card.spread)
    verdict, notes = _fits(found, free, allocated, driver, card, expandable=expandable)
    return VramEstimate(
        model=model.name,
        loop=loop,
        card=card,
        layer="traced",
        parameters=found.parameters,
        trained=found.trained,
        allocated=allocated,
        reserved=reserved,
        driver=driver,
        moment=free.peak_phase,
        terms={name: size for name, size in free.terms.items() if size},
        rule=_rule(model, loop, found.parameters),
        verdict=verdict,
        notes=(*_notes(loop, card, is_old_stack), *notes),
        trace=found,
    )


def _fits(
    found: Trace, free: Replay, allocated: Interval, driver: Interval, card: Card, *, expandable: bool
) -> tuple[Verdict | None, tuple[str, ...]]:
    """On a full card the pool gives cached memory back before it gives up, so less than `reserved` may do."""
    plain = _verdict(allocated, driver, card)
    if plain != "too-close-to-call" or driver.value <= card.total:
        return plain, ()
    try:
        tight = replay(found, capacity=card.for_pool, expandable=expandable)
    except OutOfMemoryError:
        return ("does-not-fit" if driver.low > card.total else plain), ()
    note = (
        f"the pool would want {_gib(free.peak_reserved)}; held to what the card has, it gives cached memory back "
        f"{tight.retries} times and gets through, which is slow"
    )
    return plain, (note,)


def _verdict(allocated: Interval, driver: Interval, card: Card) -> Verdict | None:
    if not card.total:
        return None
    if driver.high <= card.total:
        return "fits"
    if allocated.low + max(0, card.offset - card.spread) > card.total:
        return "does-not-fit"
    return "too-close-to-call"


def _analytic(model: Model, loop: TrainingLoop, card: Card, *, is_old_stack: bool) -> VramEstimate:
    if model.architecture is None:
        from builder.errors import UsageError  # noqa: PLC0415
        from builder.vram.models import FAMILIES  # noqa: PLC0415

        raise UsageError(
            "vram-no-closed-form",
            f"there is no closed form for `{model.name}`",
            because=[
                f"its layers are those of `{model.model_type}`",
                f"the closed form knows {', '.join(sorted(FAMILIES))}",
            ],
            hint="install torch and transformers beside torchproof (`torchproof[stack]`): "
            "the traced estimate takes any model of transformers",
        )
    found = analytic(model.architecture, loop)
    terms = with_workspaces(found, card)
    total = sum(terms.values())
    band = OLD_STACK_BAND if is_old_stack else ANALYTIC_BAND
    allocated = Interval.around(total, band)
    fragmentation = OLD_FRAGMENTATION if is_old_stack else FRAGMENTATION
    reserved = Interval.around(int(total * fragmentation), band + FRAGMENTATION_BAND / 2)
    driver = reserved.plus(card.offset, card.spread)
    return VramEstimate(
        model=model.name,
        loop=loop,
        card=card,
        layer="analytic",
        parameters=found.parameters,
        trained=found.trained,
        allocated=allocated,
        reserved=reserved,
        driver=driver,
        moment=found.moment,
        terms=terms,
        rule=_rule(model, loop, found.parameters),
        verdict=_verdict(allocated, driver, card),
        notes=_notes(loop, card, is_old_stack),
    )


def with_workspaces(found: Analytic, card: Card) -> dict[str, int]:
    return {name: size for name, size in {**found.terms, "workspaces": card.handles * card.workspace}.items() if size}


def _rule(model: Model, loop: TrainingLoop, parameters: int) -> int:
    hidden = model.architecture.hidden if model.architecture else int(model.config.get("hidden_size", 0))
    return rule_of_thumb(parameters=parameters, batch=loop.batch, seq=loop.seq, hidden=hidden)


def _notes(loop: TrainingLoop, card: Card, is_old_stack: bool) -> tuple[str, ...]:
    notes = []
    if is_old_stack:
        notes.append("out of the calibrated range: releases before torch 2.0 kept other tensors, within 10 %")
    if card.other_sizes:
        size = card.other_sizes[-1]
        notes.append(f"this is the smallest {card.name}; say `{card.name} {size}GB` for the one with {size} GiB")
    if card.total and not card.is_calibrated:
        notes.append(
            f"uncalibrated: the context of this card was not measured ({card.source}); "
            "`torchproof calibrate` measures it on the card"
        )
    if loop.steps == 1 and loop.optimizer not in ("sgd", "none"):
        notes.append("one step has no optimizer state in its forward pass; from the second on it needs more")
    return tuple(notes)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
