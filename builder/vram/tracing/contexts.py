"""The places where model code meets autocast or runs again in the backward pass, made to see the emulation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import transformers
import transformers.cache_utils

from builder.vram.tracing.emulation import CudaBehaviour


@contextlib.contextmanager
def cache_as_it_came() -> Iterator[None]:
    """Release 4 of transformers kept the first keys and values as they came; release 5 joins them to an empty tensor,
    which copies them. The copy is what the products would make anyway, so release 4 holds one more of each.
    """
    layer = getattr(transformers.cache_utils, "DynamicLayer", None)
    if layer is None:
        yield
        return
    joined = layer.update

    def update(self: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.is_initialized:
            return joined(self, keys, values, *args, **kwargs)
        self.device, self.is_initialized = keys.device, True
        self.dtype = keys.dtype
        self.keys, self.values = keys, values
        return keys, values

    with mock.patch.object(layer, "update", update):
        yield


@contextlib.contextmanager
def forward_pass(behaviour: CudaBehaviour) -> Iterator[None]:
    """The autocast block of a training loop; leaving it drops the half copies that autograd did not save."""
    behaviour.is_active = True
    with behaviour, _autocast_known(behaviour, ends_autocast=False):
        yield


@contextlib.contextmanager
def backward_pass(behaviour: CudaBehaviour, *, is_autocast: bool) -> Iterator[None]:
    """Model code that runs again in the backward pass does so with gradients enabled, and only there the mode acts.

    The mode cannot simply stay on: newer releases of torch switch it off for the Python code of a backward pass.
    `is_autocast`: a checkpoint goes back into autocast for the recomputation; other code that runs again, such as the
    reversible layers of Reformer, does not.
    """
    behaviour.is_active = is_autocast
    real = torch.enable_grad

    class EnableGrad(real):  # type: ignore[misc, valid-type]
        def __enter__(self) -> None:
            super().__enter__()
            behaviour.__enter__()

        def __exit__(self, *error: object) -> None:
            behaviour.__exit__(*error)
            super().__exit__(*error)

    with (
        _autocast_known(behaviour, ends_autocast=True),
        mock.patch.object(torch, "enable_grad", EnableGrad),
        mock.patch.object(torch.autograd, "enable_grad", EnableGrad),
    ):
        yield
    behaviour.leave_autocast()


@contextlib.contextmanager
def _autocast_known(behaviour: CudaBehaviour, *, ends_autocast: bool) -> Iterator[None]:
    """Model code that leaves autocast for a few lines (rotary positions) names the device, and torch refuses meta.

    `ends_autocast`: torch.utils.checkpoint enters autocast around every recomputation, and leaving it drops the cached
    half copies, as leaving the outermost block does.
    """
    real = torch.autocast

    @contextlib.contextmanager
    def block(is_enabled: bool) -> Iterator[None]:
        was, behaviour.is_active = behaviour.is_active, is_enabled and behaviour.is_active
        try:
            yield
        finally:
            behaviour.is_active = was

    @contextlib.contextmanager
    def recomputation(inner: Any) -> Iterator[None]:
        with inner:
            yield
        behaviour.leave_autocast()

    def autocast(device_type: str, *args: Any, enabled: bool = True, **kwargs: Any) -> Any:
        if device_type == "meta":
            return block(enabled)
        inner = real(device_type, *args, enabled=enabled, **kwargs)
        return recomputation(inner) if ends_autocast else inner

    with mock.patch.object(torch, "autocast", autocast), mock.patch.object(torch.amp, "autocast", autocast):
        yield
