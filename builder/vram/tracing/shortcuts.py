"""Results of frequent operators without their meta kernels, which are Python and take most of a trace's time.

Only sizes and types matter here, so what a kernel works out by general rules is said outright. Each gives the same
result as the kernel (tests/stack compares whole traces) or declines with NotImplemented.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Shortcut = Callable[..., Any]


def result(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """What the operator returns, or NotImplemented: then it has to be called."""
    operator = name.partition(".")[0]
    if operator.startswith("_foreach_") and operator.endswith("_"):
        # Lists that are changed in place; the CPU's step counts among them need no new value either.
        return None if args[0] and args[0][0].device.type == "meta" else NotImplemented
    found = SHORTCUTS.get(name)
    if found is None or (kwargs and name != "gelu.default" and name != "gelu_backward.default"):
        return NotImplemented
    return found(*args)


def _like_first(x: torch.Tensor, *_: Any) -> Any:
    return torch.empty_like(x) if x.device.type == "meta" else NotImplemented


def _like_both(x: Any, y: Any) -> Any:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.device.type != "meta":
        return NotImplemented
    is_same = x.shape == y.shape and x.dtype == y.dtype and x.stride() == y.stride() and x.device == y.device
    return torch.empty_like(x) if is_same else NotImplemented


def _dropout(x: torch.Tensor, _p: float, is_training: bool | None) -> Any:
    if not is_training or x.device.type != "meta":
        return NotImplemented
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _layer_norm(x: torch.Tensor, shape: list[int], *_: Any) -> Any:
    if x.device.type != "meta" or not x.is_contiguous():
        return NotImplemented
    rows = (*x.shape[: -len(shape)], *(1 for _ in shape))
    mean, deviation = (torch.empty(rows, dtype=torch.float32, device="meta") for _ in range(2))
    return torch.empty_like(x), mean, deviation


def _layer_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    _shape: Any,
    _mean: Any,
    _deviation: Any,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    wanted: list[bool],
) -> Any:
    if gradient.device.type != "meta" or not x.is_contiguous():
        return NotImplemented
    sources = (x, weight, bias)
    return tuple(
        torch.empty_like(source) if is_wanted and source is not None else None
        for source, is_wanted in zip(sources, wanted, strict=True)
    )


def _addmm(bias: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> Any:
    if bias.device.type != "meta" or first.dtype != second.dtype:
        return NotImplemented
    return torch.empty(first.shape[0], second.shape[1], dtype=first.dtype, device="meta")


def _each_like(tensors: list[torch.Tensor]) -> Any:
    if not tensors or tensors[0].device.type != "meta":
        return NotImplemented
    return [torch.empty_like(tensor) for tensor in tensors]


SHORTCUTS: dict[str, Shortcut] = {
    "_foreach_sqrt.default": _each_like,
    "add.Tensor": _like_both,
    "addmm.default": _addmm,
    "gelu.default": _like_first,
    "gelu_backward.default": _like_both,
    "mul.Tensor": _like_both,
    "native_dropout.default": _dropout,
    "native_dropout_backward.default": _like_first,
    "native_layer_norm.default": _layer_norm,
    "native_layer_norm_backward.default": _layer_norm_backward,
    "tanh.default": _like_first,
}
