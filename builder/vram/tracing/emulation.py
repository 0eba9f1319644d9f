"""Acts at the Python API as CUDA does there: autocast, fused dropout, attention kernels, answers about data.

A meta tensor has no autocast, and the CPU's operators keep other tensors than CUDA's (a dropout keeps a full-width
noise tensor on a CPU and one byte an element on CUDA). Every rule is one method; tests switch each off and look for
the difference (tests/stack/test_vram_semantics.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch.overrides import TorchFunctionMode

from builder.vram.tracing.kernels import attention_kernel

SDPA = F.scaled_dot_product_attention
Function = Callable[..., Any]

# aten/src/ATen/autocast_mode.h, AT_FORALL_LOWER_PRECISION_FP: what runs in the 16-bit type.
LOWER: frozenset[Function] = frozenset(
    {
        F.linear,
        F.bilinear,
        F.conv1d,
        F.conv2d,
        F.conv3d,
        F.conv_transpose1d,
        F.conv_transpose2d,
        F.conv_transpose3d,
        F.prelu,
        SDPA,
        torch.addbmm,
        torch.addmm,
        torch.addmv,
        torch.addr,
        torch.baddbmm,
        torch.bmm,
        torch.chain_matmul,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.einsum,
        torch.matmul,
        torch.mm,
        torch.mv,
        torch.Tensor.addmm,
        torch.Tensor.baddbmm,
        torch.Tensor.bmm,
        torch.Tensor.matmul,
        torch.Tensor.mm,
        torch.Tensor.mv,
        torch.Tensor.__matmul__,
        torch.Tensor.__rmatmul__,
    }
)
# AT_FORALL_FP32: what runs in fp32, inputs converted.
FP32: frozenset[Function] = frozenset(
    {
        F.binary_cross_entropy_with_logits,
        F.cosine_embedding_loss,
        F.cosine_similarity,
        F.group_norm,
        F.huber_loss,
        F.kl_div,
        F.l1_loss,
        F.layer_norm,
        F.mse_loss,
        F.nll_loss,
        F.smooth_l1_loss,
        F.softplus,
        torch.cdist,
        torch.exp,
        torch.expm1,
        torch.log,
        torch.log10,
        torch.log1p,
        torch.log2,
        torch.logsumexp,
        torch.pow,
        torch.reciprocal,
        torch.rsqrt,
        torch.Tensor.exp,
        torch.Tensor.log,
        torch.Tensor.logsumexp,
        torch.Tensor.pow,
        torch.Tensor.__pow__,
        torch.Tensor.reciprocal,
        torch.Tensor.rsqrt,
        torch.Tensor.softmax,
    }
) - {torch.Tensor.softmax}
SOFTMAX: dict[Function, bool] = {
    F.softmax: False,
    torch.softmax: False,
    torch.Tensor.softmax: False,
    F.log_softmax: True,
    torch.log_softmax: True,
    torch.Tensor.log_softmax: True,
}
# AT_FORALL_FP32_SET_OPT_DTYPE beside the softmaxes: an output type of fp32 is filled in where none is asked.
SUMS: frozenset[Function] = frozenset(
    {torch.sum, torch.prod, torch.cumsum, torch.cumprod, torch.Tensor.sum, torch.Tensor.prod, torch.Tensor.cumsum}
)


class CudaBehaviour(TorchFunctionMode):
    """`half`: the type of autocast, None without. `is_padded`: how the question "is the mask all ones" is answered."""

    def __init__(
        self,
        half: torch.dtype | None,
        *,
        capability: tuple[int, int] = (8, 0),
        is_padded: bool = False,
        switched_off: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.half = half
        self.capability = capability
        self.is_padded = is_padded
        self.switched_off = switched_off
        self.is_active = True
        self.copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._about_all: set[int] = set()

    def leave_autocast(self) -> None:
        """The end of the autocast block drops the cached half copies; those that autograd saved live on."""
        self.copies.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in QUESTIONS:
            return self._answer(func, args, kwargs)
        if func in FILLS:
            args, kwargs = self._same_device(args, kwargs)
        if func is F.dropout and "dropout" not in self.switched_off:
            return self._dropout(args, kwargs)
        if self.half is not None and self.is_active:
            if func in LOWER:
                args, kwargs = self._cast(args, self.half), self._cast(kwargs, self.half)
            elif func in SOFTMAX:
                return self._softmax(func, args, kwargs)
            elif func is F.cross_entropy and "cross_entropy" not in self.switched_off:
                return self._cross_entropy(args, kwargs)
            elif func in FP32 or func is F.cross_entropy:
                args, kwargs = self._cast(args, torch.float32), self._cast(kwargs, torch.float32)
            elif func in SUMS and kwargs.get("dtype") is None and _is_half(args[0]):
                kwargs["dtype"] = torch.float32
        if func is SDPA and "attention" not in self.switched_off:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    # --- autocast

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        """cached_cast: each consumer casts for itself; only fp32 leaves that need a gradient are cached."""
        if isinstance(value, torch.Tensor):
            if not value.is_floating_point() or value.dtype == dtype or value.dtype == torch.float64:
                return value
            is_weight = value.is_leaf and value.requires_grad and dtype != torch.float32
            if not is_weight or "weight_cache" in self.switched_off:
                return value.to(dtype)
            if id(value) not in self.copies:
                self.copies[id(value)] = (value, value.to(dtype))
            return self.copies[id(value)][1]
        if isinstance(value, dict):
            return {key: self._cast(item, dtype) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            return type(value)(self._cast(item, dtype) for item in value)
        return value

    def _softmax(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """fp32 out: fp16 is read by the kernel itself, bfloat16 is copied first (SoftMax.cpp, half_to_float)."""
        x = args[0] if args else kwargs["input"]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
        dtype = kwargs.get("dtype") or torch.float32
        operator = torch.ops.aten._log_softmax if SOFTMAX[func] else torch.ops.aten._softmax
        if x.dtype == torch.float16 and dtype == torch.float32 and "softmax" not in self.switched_off:
            return operator(x, dim, True)
        return operator(x.to(dtype), dim, False)

    def _cross_entropy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """LossNLL.cpp asks log_softmax for the input's own type, so autocast does not raise it; nll_loss is raised."""
        x = args[0] if args else kwargs["input"]
        target = args[1] if len(args) > 1 else kwargs["target"]
        passed = {key: value for key, value in kwargs.items() if key in ("ignore_index", "reduction", "weight")}
        if len(args) > 2 and args[2] is not None:
            passed["weight"] = args[2]
        dim = 1 if x.dim() > 1 else 0
        logs = torch.ops.aten._log_softmax(x, dim, False)
        return F.nll_loss(logs.float(), target, **passed)

    # --- kernels

    def _dropout(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """CUDA's fused kernel keeps one byte an element (Dropout.cpp, is_fused_kernel_acceptable)."""
        x = args[0] if args else kwargs["input"]
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        is_training = args[2] if len(args) > 2 else kwargs.get("training", True)
        if not is_training or p == 0:
            return x
        return torch.native_dropout(x, p, True)[0]

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if enable_gqa and key.shape[1] != query.shape[1]:
            kernel = attention_kernel(query, attn_mask, self.capability)
            if kernel != "flash":
                # Only flash reads shared heads as they are.
                groups = query.shape[1] // key.shape[1]
                key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        kernel = attention_kernel(query, attn_mask, self.capability)
        if kernel == "flash":
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
        if kernel == "efficient":
            bias = _as_bias(attn_mask, query, key)
            efficient = torch.ops.aten._scaled_dot_product_efficient_attention
            return efficient(query, key, value, bias, True, dropout_p, is_causal, scale=scale)[0]
        return _math_attention(query, key, value, attn_mask, dropout_p)

    def _same_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """CUDA takes a number that lies in a CPU tensor; meta does not."""
        device = args[0].device

        def moved(value: Any) -> Any:
            is_number = isinstance(value, torch.Tensor) and value.dim() == 0 and value.device != device
            return value.to(device) if is_number else value

        return tuple(map(moved, args)), {key: moved(value) for key, value in kwargs.items()}

    # --- questions about data that a meta tensor does not have

    def _answer(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in ALL:
            result = func(*args, **kwargs)
            self._about_all.add(id(result))
            return result
        tensor = args[0]
        if tensor.device.type != "meta":
            return func(*args, **kwargs)
        if func is torch.Tensor.__bool__:
            # The one question whose answer changes memory is whether a mask is all ones; others ask about accidents
            # (an infinity, a token that must not be there) and get the answer of a sound run.
            return id(tensor) in self._about_all and not self.is_padded
        if func is torch.Tensor.__contains__:
            return False
        return 1.0 if tensor.is_floating_point() else 1


FILLS: frozenset[Function] = frozenset(
    {torch.Tensor.masked_fill, torch.Tensor.masked_fill_, torch.masked_fill, torch.where, torch.Tensor.where}
)
ALL: frozenset[Function] = frozenset({torch.all, torch.Tensor.all})
QUESTIONS: frozenset[Function] = ALL | {
    torch.Tensor.__bool__,
    torch.Tensor.__contains__,
    torch.Tensor.item,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
}


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """The memory-efficient kernel adds a mask in the query's type; a boolean one is converted first."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        empty = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        mask = empty.masked_fill_(mask.logical_not(), float("-inf"))
    mask = mask.to(query.dtype)
    if key.shape[-2] % 8:
        # sdp_utils: the bias is padded so that its rows are aligned.
        mask = F.pad(mask, (0, 8 - key.shape[-2] % 8))[..., : key.shape[-2]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _math_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, p: float
) -> torch.Tensor:
    """attention.cpp, _scaled_dot_product_attention_math: both sides scaled, plain products."""
    scale = query.shape[-1] ** -0.25
    scores = torch.matmul(query * scale, (key * scale).transpose(-2, -1))
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if p:
        weights = torch.native_dropout(weights, p, True)[0]
    return torch.matmul(weights, value)
