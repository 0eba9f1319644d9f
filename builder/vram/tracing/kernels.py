"""What CUDA kernels take from the pool that no operator shows, and which attention kernel CUDA takes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch

AttentionKernel = Literal["flash", "efficient", "math"]

# aten/src/ATen/native/cuda/Embedding.cu: up to this many indices are added without sorting them first.
UNSORTED_INDICES = 3072
# aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu: NROWS_PER_THREAD.
ROWS_PER_THREAD = 10


def attention_kernel(query: torch.Tensor, mask: torch.Tensor | None, capability: tuple[int, int]) -> AttentionKernel:
    """aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: flash, else memory-efficient, else plain products.

    Flash takes 16-bit inputs without a mask, heads of up to 256, from compute capability 8.0. The memory-efficient
    kernel takes fp32 and fp16 on every card that torch still supports, bfloat16 from 8.0.
    """
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if is_half and mask is None and query.shape[-1] <= 256 and capability >= (8, 0):
        return "flash"
    if query.dtype == torch.bfloat16 and capability < (8, 0):
        return "math"
    return "efficient"


def scratch(name: str, args: tuple[Any, ...], _result: Any) -> Iterable[int]:
    """Sizes that the CUDA kernel behind an operator allocates and frees again."""
    if name.startswith("_scaled_dot_product_flash_attention_backward"):
        return _flash_backward(args[1])
    if name.startswith("_scaled_dot_product_efficient_attention_backward"):
        return _efficient_backward(args[1])
    if name.startswith("embedding_dense_backward"):
        return _embedding_backward(args[0], args[1], int(args[2]))
    if name.startswith("logsumexp"):
        # ReduceOps.cpp: exp(x - max) in full before it is summed.
        return (args[0].numel() * args[0].element_size(),)
    return ()


def _flash_backward(query: torch.Tensor) -> tuple[int, ...]:
    """flash_attn/flash_api.cpp, mha_bwd: softmax_d and an fp32 accumulator of dq, lengths to 128, heads to 32."""
    batch, heads, length, size = query.shape
    rows = -(-length // 128) * 128
    columns = -(-size // 32) * 32
    return batch * heads * rows * 4, batch * heads * rows * columns * 4


def _efficient_backward(query: torch.Tensor) -> tuple[int, ...]:
    """attention_backward.cu: delta, and in fp32 the product it is summed from or in half the accumulator of dq."""
    batch, heads, length, size = query.shape
    return batch * heads * length * 4, batch * heads * length * size * 4


def _embedding_backward(gradient: torch.Tensor, indices: torch.Tensor, rows: int) -> tuple[int, ...]:
    """Sorted indices, their origins and the sort's own room; then partial sums for every segment there may be."""
    count = indices.numel()
    if count <= UNSORTED_INDICES:
        return ()
    segments = min(count, rows)
    partial = count // ROWS_PER_THREAD + segments
    return (*[8 * count] * 4, partial * gradient.shape[-1] * 4)
