"""Follows every storage from birth to death under a dispatch mode, and writes the events down.

The idea is that of torch.distributed._tools.MemTracker: a weak reference to each storage that an operator returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from builder.vram.events import PHASE, Category, Event, Trace
from builder.vram.tracing import shortcuts

# Scratch of one kernel: called with the operator's name, arguments and result, gives sizes in bytes.
Scratch = Callable[[str, tuple[Any, ...], Any], Iterable[int]]


class Tracker(TorchDispatchMode):
    """Every storage on `device` that is born inside becomes an event in `trace`.

    `workspace`: bytes that a thread's first matrix product takes from the pool and keeps (cuBLAS).
    """

    def __init__(
        self,
        trace: Trace,
        device: str,
        *,
        scratch: Scratch | None = None,
        workspace: int = 0,
        takes_shortcuts: bool = True,
    ) -> None:
        super().__init__()
        self.trace = trace
        self.device = device
        self.scratch = scratch
        self.workspace = workspace
        self.takes_shortcuts = takes_shortcuts and device == "meta"
        self.counts = sole_owner_counts()
        self.thread = "forward"
        self._threads_seen: set[str] = set()
        self._alive: dict[int, tuple[int, weakref.ref[Any], int]] = {}
        self._next = 0

    def phase(self, name: str) -> None:
        self.trace.events.append(Event(0, PHASE, name))

    def identity(self, tensor: torch.Tensor) -> int | None:
        """The number under which the tensor's storage stands in the events."""
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[0]

    def mark(self, tensors: Iterable[torch.Tensor | None], category: Category) -> None:
        for tensor in tensors:
            if tensor is not None and tensor.device.type == self.device:
                self.see(tensor)
                identity = self.identity(tensor)
                if identity is not None:
                    self.trace.categories[identity] = category

    def alive(self) -> list[int]:
        return [entry[0] for entry in self._alive.values()]

    def see(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        entry = self._alive.get(key)
        if entry is not None:
            if entry[1]() is not None and entry[2] == size:
                return
            # Resized in place, or the address was given to another storage before the death was told.
            self._drop(key, None)
        if size == 0:
            return
        identity = self._born(size)

        def died(ref: weakref.ref[Any]) -> None:
            self._drop(key, ref)

        self._alive[key] = (identity, weakref.ref(storage, died), size)

    def stop(self) -> None:
        """The loop is over: what dies from now on is the tracing program's own tidying."""
        self._alive.clear()

    def temporary(self, sizes: Iterable[int]) -> None:
        """What a kernel takes and gives back while it runs."""
        born = [self._born(size) for size in sizes if size > 0]
        self.trace.events += [Event(identity, 0) for identity in born]

    def keep(self, size: int, category: Category) -> None:
        """Memory that stays to the end."""
        self.trace.categories[self._born(size)] = category

    def _born(self, size: int) -> int:
        self._next += 1
        self.trace.events.append(Event(self._next, size))
        return self._next

    def _drop(self, key: int, ref: weakref.ref[Any] | None) -> None:
        entry = self._alive.get(key)
        if entry is None or (ref is not None and entry[1] is not ref):
            return
        del self._alive[key]
        self.trace.events.append(Event(entry[0], 0))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.trace.operators += 1
        name = func.__name__
        if self.workspace and self.thread not in self._threads_seen and name.partition(".")[0] in PRODUCTS:
            self._threads_seen.add(self.thread)
            self.keep(self.workspace, "workspaces")
        if self.counts is not None and name == "add.Tensor" and is_accumulation(args, kwargs, self.counts):
            result = args[0].add_(args[1])
        else:
            result = shortcuts.result(name, args, kwargs) if self.takes_shortcuts else NotImplemented
            if result is NotImplemented:
                result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        if self.scratch is not None:
            self.temporary(self.scratch(name, args, result))
        return result


def reference_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """References to the tensor and to its storage, as seen from inside a dispatch mode."""
    storage = tensor.untyped_storage()
    return int(tensor._use_count()), int(torch._C._storage_Use_Count(storage._cdata))


def is_accumulation(args: tuple[Any, ...], kwargs: dict[str, Any] | None, sole: tuple[int, int]) -> bool:
    """Whether the engine adds two gradients of one tensor of which it alone owns the first.

    Torch adds them in place then (torch/csrc/autograd/input_buffer.cpp), except under a dispatch mode or on meta
    tensors (ATen/TensorSubclassLikeUtils.h), which is what a trace is. Left alone, each such addition would show a
    tensor too many: 90 MiB, under autocast, for the table that BERT shares between its embedding and its head.
    """
    if kwargs or len(args) != 2 or torch.is_grad_enabled():
        return False
    first, second = args
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    is_same = first.shape == second.shape and first.dtype == second.dtype and first.numel() > 1
    return is_same and reference_counts(first) == sole


class _Counts(TorchDispatchMode):
    """Records the counts of the first operand of each addition."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ == "add.Tensor":
            self.found.append(reference_counts(args[0]))
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=1)
def sole_owner_counts() -> tuple[int, int]:
    """The counts of a gradient that only the engine owns, measured: they depend on how this torch calls a mode."""
    x = torch.ones(2, device="meta", requires_grad=True)
    y = x * 2
    total = (torch.sin(y) * torch.cos(y)).sum()
    with _Counts() as counts:
        total.backward()
    tensor, storage = counts.found[0]
    return tensor, storage


PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"})
