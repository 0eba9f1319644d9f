"""The update of each optimizer as CUDA's default path does it, on tensors without data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers

from builder.vram.loop import TrainingLoop


class HandMade:
    """State without an update to trace: no temporaries.

    Fused AdamW keeps two states and a step count a tensor on the device and works in place. 8-bit Adam (bitsandbytes,
    block-wise) keeps two states of one byte and an fp32 scale for each block of 256; tensors under 4096 elements stay
    in fp32.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], kind: str) -> None:
        self.parameters = parameters
        self.kind = kind
        self.state: dict[int, list[torch.Tensor]] = {}

    def step(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None or id(parameter) in self.state:
                continue
            if self.kind == "adam8bit" and parameter.numel() >= 4096:
                blocks = -(-parameter.numel() // 256)
                made = [torch.zeros_like(parameter, dtype=torch.uint8) for _ in range(2)]
                made += [torch.zeros(blocks, dtype=torch.float32, device=parameter.device) for _ in range(2)]
            else:
                dtype = torch.float32 if self.kind == "adam8bit" else parameter.dtype
                made = [torch.zeros_like(parameter, dtype=dtype) for _ in range(2)]
                if self.kind == "adamw-fused":
                    made.append(torch.zeros((), dtype=torch.float32, device=parameter.device))
            self.state[id(parameter)] = made

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def states(self) -> list[torch.Tensor]:
        return [tensor for tensors in self.state.values() for tensor in tensors]


class Stepping:
    """A real optimizer of torch or transformers."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def states(self) -> list[torch.Tensor]:
        return [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]


def make(parameters: Sequence[torch.nn.Parameter], loop: TrainingLoop) -> HandMade | Stepping:
    """Foreach is asked for by name: it is the default on CUDA, and torch does not choose it on meta."""
    optim: Any = torch.optim
    match loop.optimizer:
        case "adamw":
            return Stepping(optim.AdamW(parameters, lr=1e-5, foreach=True))
        case "adam":
            return Stepping(optim.Adam(parameters, lr=1e-5, foreach=True))
        case "adamw-single":
            return Stepping(optim.AdamW(parameters, lr=1e-5, foreach=False))
        case "sgd":
            return Stepping(optim.SGD(parameters, lr=1e-5, foreach=True))
        case "sgd-momentum":
            return Stepping(optim.SGD(parameters, lr=1e-5, momentum=0.9, foreach=True))
        case "adafactor":
            return Stepping(optim.Adafactor(parameters, lr=1e-3))
        case "adafactor-hf":
            from transformers.optimization import Adafactor  # noqa: PLC0415

            return Stepping(Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False))
        case "none":
            return HandMade((), "none")
        case kind:
            return HandMade(parameters, kind)


def clip(parameters: Sequence[torch.Tensor]) -> None:
    """clip_grad_norm_'s path on CUDA; on meta torch itself refuses the lists that it uses there."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    with torch.no_grad():
        norms = torch._foreach_norm(gradients, 2.0)
        total = torch.linalg.vector_norm(torch.stack(norms))
        factor = torch.clamp(1.0 / (total + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, factor)


VERSION = transformers.__version__
