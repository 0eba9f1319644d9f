"""A simulation of the CUDA caching allocator: what is reserved from the device when tensors come and go.

The rules are those of torch, c10/cuda/CUDACachingAllocator.cpp, one stream, default settings (2.0 to 2.15):
requests are rounded to 512 B; up to 1 MiB they come from segments of 2 MiB, below 10 MiB from segments of 20 MiB,
above from segments of their own size rounded to 2 MiB; the best fit is taken; what is left of a block is split off when
it is at least 512 B (small pool) or more than 1 MiB (large pool); neighbours that are free are merged. When the device
is full, segments without a tensor in them are given back and the request is tried once more.

With `expandable` there is one segment a pool that grows at its end (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True).
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

MIB = 1 << 20
MIN_BLOCK = 512
SMALL_LIMIT = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT_FROM = 10 * MIB
SEGMENT_ROUNDING = 2 * MIB
# Far enough apart that blocks of two segments are never neighbours.
_SEGMENT_GAP = 1 << 50


class OutOfMemoryError(Exception):
    """What torch.OutOfMemoryError would say: sizes in bytes."""

    def __init__(self, asked: int, allocated: int, reserved: int, capacity: int) -> None:
        super().__init__(f"{asked} bytes asked, {allocated} allocated, {reserved} reserved of {capacity}")
        self.asked = asked
        self.allocated = allocated
        self.reserved = reserved
        self.capacity = capacity


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment. `before` and `after` are its neighbours in the same segment."""

    address: int
    size: int
    is_small: bool
    is_free: bool = True
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)

    @property
    def is_whole_segment(self) -> bool:
        return self.before is None and self.after is None


class _Pool:
    """Free blocks in the order of size, then address: the first that is large enough is the best fit."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        bisect.insort(self._keys, (block.size, block.address))
        self._blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self._keys[bisect.bisect_left(self._keys, (block.size, block.address))]
        del self._blocks[block.address]

    def take(self, size: int) -> Block | None:
        index = bisect.bisect_left(self._keys, (size, -1))
        if index == len(self._keys):
            return None
        _, address = self._keys.pop(index)
        return self._blocks.pop(address)

    def blocks(self) -> list[Block]:
        return [self._blocks[address] for _, address in self._keys]


def rounded(size: int) -> int:
    return max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)


def segment_size(size: int) -> int:
    """What is asked of the device for a rounded request that no cached block can serve."""
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING


class CachingAllocator:
    """`capacity` bytes may be reserved; None: no limit. `retries` counts how often cached segments were given back."""

    def __init__(self, capacity: int | None = None, *, expandable: bool = False) -> None:
        self.capacity = capacity
        self.expandable = expandable
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.retries = 0
        self._pools = {True: _Pool(), False: _Pool()}
        self._next_segment = 0
        self._tails: dict[bool, Block | None] = {True: None, False: None}

    def allocate(self, size: int) -> Block | None:
        """A block for `size` bytes; None for nothing. Raises OutOfMemoryError at the limit."""
        if size <= 0:
            return None
        size = rounded(size)
        is_small = size <= SMALL_LIMIT
        block = self._pools[is_small].take(size)
        if block is None:
            block = self._grown(size, is_small) if self.expandable else self._new_segment(size, is_small)
        self._split(block, size)
        block.is_free = False
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block | None) -> None:
        if block is None:
            return
        if block.is_free:
            raise ValueError(f"the block at {block.address} was freed before")
        block.is_free = True
        self.allocated -= block.size
        pool = self._pools[block.is_small]
        for neighbour in (block.before, block.after):
            if neighbour is not None and neighbour.is_free:
                pool.remove(neighbour)
                block = self._merged(block, neighbour)
        pool.add(block)

    def release_cached(self) -> None:
        """Give back every segment without a tensor in it (torch.cuda.empty_cache)."""
        if self.expandable:
            self._shrink_tails()
            return
        for pool in self._pools.values():
            for block in pool.blocks():
                if block.is_whole_segment:
                    pool.remove(block)
                    self.reserved -= block.size

    def segments(self) -> list[Block]:
        """Free blocks, for tests."""
        return [block for pool in self._pools.values() for block in pool.blocks()]

    def _new_segment(self, size: int, is_small: bool) -> Block:
        wanted = segment_size(size)
        self._reserve(wanted)
        block = Block(self._next_segment, wanted, is_small)
        self._next_segment += _SEGMENT_GAP
        return block

    def _reserve(self, wanted: int) -> None:
        if self.capacity is not None and self.reserved + wanted > self.capacity:
            self.release_cached()
            self.retries += 1
            if self.reserved + wanted > self.capacity:
                raise OutOfMemoryError(wanted, self.allocated, self.reserved, self.capacity)
        self.reserved += wanted
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        if not (rest >= MIN_BLOCK if block.is_small or self.expandable else rest > SMALL_LIMIT):
            return
        remainder = Block(block.address + size, rest, block.is_small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = remainder
        elif self.expandable:
            self._tails[block.is_small] = remainder
        block.after, block.size = remainder, size
        self._pools[block.is_small].add(remainder)

    def _merged(self, block: Block, neighbour: Block) -> Block:
        first, second = (block, neighbour) if block.address < neighbour.address else (neighbour, block)
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        elif self.expandable:
            self._tails[first.is_small] = first
        return first

    def _grown(self, size: int, is_small: bool) -> Block:
        """The last block of the pool's one segment, grown by whole pages until `size` fits."""
        page = SMALL_SEGMENT if is_small else LARGE_SEGMENT
        tail = self._tails[is_small]
        have = tail.size if tail is not None and tail.is_free else 0
        wanted = -(-(size - have) // page) * page
        self._reserve(wanted)
        tail = self._tails[is_small]
        if tail is not None and tail.is_free:
            self._pools[is_small].remove(tail)
            tail.size += wanted
            if tail.size >= size:
                return tail
            # The retry gave the tail's pages back, so that less was there than counted on.
            self._pools[is_small].add(tail)
            return self._grown(size, is_small)
        start = tail.address + tail.size if tail is not None else (0 if is_small else _SEGMENT_GAP * _SEGMENT_GAP)
        block = Block(start, wanted, is_small, before=tail)
        if tail is not None:
            tail.after = block
        self._tails[is_small] = block
        return block

    def _shrink_tails(self) -> None:
        """Pages inside a segment can be given back too; the simulation only counts those at its end."""
        for is_small, tail in self._tails.items():
            if tail is None or not tail.is_free:
                continue
            self._pools[is_small].remove(tail)
            self.reserved -= tail.size
            if tail.before is not None:
                tail.before.after = None
            self._tails[is_small] = tail.before
