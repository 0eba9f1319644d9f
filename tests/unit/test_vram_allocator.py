"""The simulated caching allocator: the rules of CUDACachingAllocator.cpp, and what must hold for any sequence."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.vram.allocator import (
    MIB,
    Block,
    CachingAllocator,
    OutOfMemoryError,
    rounded,
    segment_size,
)

SIZES = st.one_of(
    st.integers(1, 4096), st.integers(1, 2 * MIB), st.integers(MIB, 24 * MIB), st.integers(20 * MIB, 200 * MIB)
)
# Positive: allocate that many bytes; a fraction: free one of the living.
OPERATIONS = st.lists(st.one_of(SIZES, st.floats(0, 0.999)), max_size=120)


def walk(start: Block) -> list[Block]:
    while start.before is not None:
        start = start.before
    blocks = [start]
    while blocks[-1].after is not None:
        blocks.append(blocks[-1].after)
    return blocks


def check(pool: CachingAllocator, alive: list[Block]) -> None:
    free = pool.segments()
    assert pool.allocated == sum(block.size for block in alive)
    assert pool.allocated <= pool.reserved <= pool.peak_reserved
    assert pool.peak_allocated >= pool.allocated
    assert pool.reserved == pool.allocated + sum(block.size for block in free)
    spans = sorted((block.address, block.address + block.size) for block in [*alive, *free])
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "blocks overlap"
    for block in free:
        chain = walk(block)
        assert all(not (a.is_free and b.is_free) for a, b in pairwise(chain)), "not merged"
        assert all(a.address + a.size == b.address for a, b in pairwise(chain))
        assert len({b.is_small for b in chain}) == 1


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.booleans())
def test_what_must_hold_for_any_sequence(operations: list[int | float], expandable: bool) -> None:
    pool = CachingAllocator(expandable=expandable)
    alive: list[Block] = []
    for operation in operations:
        if isinstance(operation, float):
            if alive:
                pool.free(alive.pop(int(operation * len(alive))))
        else:
            block = pool.allocate(operation)
            assert block is not None
            assert block.size >= rounded(operation)
            # What is not split off is less than a segment's least unit of its pool.
            assert block.size - rounded(operation) <= (511 if block.is_small or expandable else MIB)
            alive.append(block)
        check(pool, alive)
    while alive:
        pool.free(alive.pop())
    assert pool.allocated == 0
    pool.release_cached()
    assert pool.reserved == 0


@given(st.integers(1, 1 << 34))
def test_rounding(size: int) -> None:
    assert rounded(size) % 512 == 0
    assert 0 <= rounded(size) - size < 512
    assert segment_size(rounded(size)) >= rounded(size)
    assert segment_size(rounded(size)) % (2 * MIB) == 0


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
        (93_763_584, 90 * MIB),
    ],
)
def test_segments(size: int, segment: int) -> None:
    assert segment_size(size) == segment


def test_best_fit_and_reuse() -> None:
    pool = CachingAllocator()
    large, small = pool.allocate(64 * MIB), pool.allocate(32 * MIB)
    pool.free(large)
    pool.free(small)
    again = pool.allocate(30 * MIB)
    assert again is not None
    assert small is not None
    assert again.address == small.address, "the smallest block that is large enough"
    assert pool.reserved == 96 * MIB


def test_a_remainder_of_a_large_block_is_kept_whole_up_to_a_mebibyte() -> None:
    pool = CachingAllocator()
    pool.free(pool.allocate(20 * MIB))
    block = pool.allocate(19 * MIB)
    assert block is not None
    assert block.size == 20 * MIB, "one MiB is left and not split off"
    assert pool.allocated == 20 * MIB


def test_a_limit_gives_cached_segments_back_and_then_fails() -> None:
    pool = CachingAllocator(100 * MIB)
    pool.free(pool.allocate(60 * MIB))
    kept = pool.allocate(70 * MIB)
    assert (pool.retries, pool.reserved) == (1, 70 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.allocate(40 * MIB)
    assert caught.value.allocated == 70 * MIB
    pool.free(kept)
    pool.allocate(40 * MIB)


def test_expandable_segments_waste_less() -> None:
    sizes = [30 * MIB, 45 * MIB, 61 * MIB]
    reserved = []
    for expandable in (False, True):
        pool = CachingAllocator(expandable=expandable)
        for _ in range(3):
            blocks = [pool.allocate(size) for size in sizes]
            for block in blocks:
                pool.free(block)
            sizes = [size + 20 * MIB for size in sizes]
        reserved.append(pool.peak_reserved)
    assert reserved[1] < reserved[0]


def test_freeing_twice_is_a_mistake() -> None:
    pool = CachingAllocator()
    block = pool.allocate(10)
    pool.free(block)
    with pytest.raises(ValueError, match="freed before"):
        pool.free(block)


def test_nothing_needs_no_block() -> None:
    pool = CachingAllocator()
    assert pool.allocate(0) is None
    pool.free(None)
    assert pool.reserved == 0
