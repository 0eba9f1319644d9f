"""The largest batch that fits a card, and the least harmful change that makes one fit; pure over `estimate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from builder.vram.estimate import VramEstimate
from builder.vram.loop import TrainingLoop

Estimator = Callable[[TrainingLoop], VramEstimate]

# A batch beyond this is no training step that anyone runs on one card; it ends the search for tiny models.
MOST = 1 << 16
LEAST_SEQ = 64
# Of adapters that are proposed where no change of the loop is enough (the default of peft's LoraConfig).
ADAPTER_RANK = 8


@dataclass(frozen=True, slots=True)
class Change:
    """`harm` says what it costs; `estimate` is of the loop with the change, at the batch that was asked for."""

    name: str
    harm: str
    loop: TrainingLoop
    estimate: VramEstimate


@dataclass(frozen=True, slots=True)
class Fit:
    """`largest` is 0 where not even one sample fits. `tried`: all, least harmful first; `changes`: those that fit."""

    asked: VramEstimate
    largest: int
    at_largest: VramEstimate | None
    tried: tuple[Change, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(change for change in self.tried if change.estimate.verdict == "fits")


def fit(loop: TrainingLoop, estimate: Estimator) -> Fit:
    asked = estimate(loop)
    largest, best = largest_batch(loop, estimate, start=asked)
    tried = () if asked.verdict == "fits" else tuple(_tried(loop, estimate))
    return Fit(asked, largest, best, tried)


def largest_batch(
    loop: TrainingLoop, estimate: Estimator, *, start: VramEstimate | None = None
) -> tuple[int, VramEstimate | None]:
    """By doubling, then halving the gap: memory grows with the batch."""
    fitting: tuple[int, VramEstimate | None] = (0, None)
    batch = loop.batch
    found = start or estimate(loop)
    if found.verdict == "fits":
        while found.verdict == "fits" and batch < MOST:
            fitting = (batch, found)
            batch *= 2
            found = estimate(loop.with_(batch=batch))
        low, high = fitting[0], batch
    else:
        low, high = 0, batch
    while high - low > 1:
        middle = (low + high) // 2
        found = estimate(loop.with_(batch=middle))
        if found.verdict == "fits":
            low, fitting = middle, (middle, found)
        else:
            high = middle
    return fitting


def _tried(loop: TrainingLoop, estimate: Estimator) -> Iterator[Change]:
    """Each kind of change by itself, in the order of harm; where none is enough, one on top of the other."""
    alone = [Change(name, harm, changed, estimate(changed)) for name, harm, changed in _alone(loop, estimate)]
    yield from alone
    if not any(change.estimate.verdict == "fits" for change in alone):
        yield from _together(loop, estimate)


def _alone(loop: TrainingLoop, estimate: Estimator) -> Iterator[tuple[str, str, TrainingLoop]]:
    accumulated = _accumulated(loop, estimate)
    if accumulated is not None:
        yield (
            f"accumulation: {accumulated.accumulation} x batch {accumulated.batch}",
            "same result but for batch statistics, slower",
            accumulated,
        )
    if loop.precision == "fp32":
        yield "half precision: bf16 autocast", "a little less exact", loop.with_(precision="bf16")
    if not loop.checkpointing:
        yield "gradient checkpointing", "same result, about a third slower", loop.with_(checkpointing=True)
    shorter = _shorter(loop, estimate)
    if shorter is not None:
        yield f"sequence {shorter.seq} instead of {loop.seq}", "longer texts are cut", shorter
    if loop.optimizer in ("adamw", "adamw-single", "adamw-fused", "adam"):
        yield "8-bit optimizer states (bitsandbytes)", "noise in the updates", loop.with_(optimizer="adam8bit")


def _shorter(loop: TrainingLoop, estimate: Estimator) -> TrainingLoop | None:
    """The longest half, quarter ... that fits, else the shortest; None where nothing is left to cut."""
    changed = None
    shorter = loop.seq // 2
    while shorter >= LEAST_SEQ:
        changed = loop.with_(seq=shorter)
        if estimate(changed).verdict == "fits":
            break
        shorter //= 2
    return changed


def _accumulated(loop: TrainingLoop, estimate: Estimator) -> TrainingLoop | None:
    """The fewest parts of equal size that fit, else single samples; None for a batch of one."""
    changed = None
    for parts in range(2, loop.batch + 1):
        if loop.batch % parts:
            continue
        changed = loop.with_(batch=loop.batch // parts, accumulation=loop.accumulation * parts)
        if estimate(changed).verdict == "fits":
            break
    return changed


def _together(loop: TrainingLoop, estimate: Estimator) -> Iterator[Change]:
    names: list[str] = []
    smallest = loop.with_(batch=1, accumulation=loop.accumulation * loop.batch)
    steps: list[tuple[str, TrainingLoop]] = [("accumulation", smallest)]
    if loop.precision == "fp32":
        steps.append(("bf16 autocast", steps[-1][1].with_(precision="bf16")))
    steps.append(("gradient checkpointing", steps[-1][1].with_(checkpointing=True)))
    if loop.seq > LEAST_SEQ:
        steps.append((f"sequence {LEAST_SEQ}", steps[-1][1].with_(seq=LEAST_SEQ)))
    if loop.optimizer.startswith("adam") and loop.optimizer != "adam8bit":
        steps.append(("8-bit optimizer states", steps[-1][1].with_(optimizer="adam8bit")))
    for name, changed in steps:
        names.append(name)
        result = estimate(changed)
        if result.verdict == "fits":
            yield Change(" + ".join(names), "all of them together", changed, result)
            return
    if not loop.lora_rank:
        adapters = smallest.with_(precision="bf16-pure", lora_rank=ADAPTER_RANK, checkpointing=True)
        result = estimate(adapters)
        if result.verdict == "fits":
            name = f"LoRA rank {ADAPTER_RANK} on bf16 weights + accumulation + gradient checkpointing"
            yield Change(name, "trains adapters, not the model", adapters, result)
