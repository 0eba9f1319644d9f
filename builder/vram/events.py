"""What a trace leaves: births and deaths of device memory in order, and their replay through the allocator; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from builder.vram.allocator import Block, CachingAllocator

Category = Literal[
    "weights",
    "gradients",
    "optimizer state",
    "half copies of weights",
    "inputs",
    "activations",
    "temporaries",
    "workspaces",
]
CATEGORIES: tuple[Category, ...] = (
    "weights",
    "optimizer state",
    "gradients",
    "half copies of weights",
    "workspaces",
    "inputs",
    "activations",
    "temporaries",
)


class Event(NamedTuple):
    """`size` > 0: born; 0: dead; < 0: the start of a phase, `name` says which."""

    identity: int
    size: int
    name: str = ""


PHASE = -1


@dataclass(slots=True)
class Trace:
    """`categories` maps what was born to its part of the picture, which is known only when its life is over."""

    events: list[Event] = field(default_factory=list)
    categories: dict[int, Category] = field(default_factory=dict)
    parameters: int = 0
    trained: int = 0
    operators: int = 0
    seconds: float = 0.0
    torch: str = ""
    transformers: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One point of the picture: what is alive by category, and what the pool holds, after `event` events."""

    event: int
    phase: str
    reserved: int
    alive: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """Bytes. `terms`: what was alive at the allocated peak; `phases`: the allocated peak of each phase."""

    peak_allocated: int
    peak_reserved: int
    peak_phase: str
    terms: dict[Category, int]
    phases: dict[str, int]
    retries: int
    samples: tuple[Sample, ...] = ()


def replay(
    trace: Trace,
    *,
    capacity: int | None = None,
    expandable: bool = False,
    keeps_samples: bool = False,
    on_event: Callable[[CachingAllocator], None] | None = None,
) -> Replay:
    """Run the events through a fresh allocator; raises allocator.OutOfMemoryError where a capacity is not enough."""
    pool = CachingAllocator(capacity, expandable=expandable)
    blocks: dict[int, Block | None] = {}
    alive = dict.fromkeys(CATEGORIES, 0)
    phase, phases = "start", {"start": 0}
    peak, peak_phase, terms = 0, phase, dict(alive)
    samples: list[Sample] = []
    for number, (identity, size, name) in enumerate(trace.events):
        if size > 0:
            block = pool.allocate(size)
            blocks[identity] = block
            assert block is not None  # noqa: S101 - a size above 0 gets a block
            alive[trace.categories.get(identity, "temporaries")] += block.size
            if pool.allocated > phases[phase]:
                phases[phase] = pool.allocated
            if pool.allocated > peak:
                peak, peak_phase, terms = pool.allocated, phase, dict(alive)
        elif size == 0:
            dead = blocks.pop(identity)
            assert dead is not None  # noqa: S101 - as above
            alive[trace.categories.get(identity, "temporaries")] -= dead.size
            pool.free(dead)
        else:
            phase = name
            phases.setdefault(phase, pool.allocated)
        if keeps_samples:
            samples.append(Sample(number, phase, pool.reserved, tuple(alive.values())))
        if on_event is not None:
            on_event(pool)
    return Replay(peak, pool.peak_reserved, peak_phase, terms, phases, pool.retries, tuple(samples))


def biggest(terms: dict[Category, int], count: int = 4) -> Sequence[tuple[str, int]]:
    return sorted(((name, size) for name, size in terms.items() if size), key=lambda term: -term[1])[:count]
