"""One training loop, traced: what a person's loop does, in their order."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from builder.vram.events import Trace
from builder.vram.loop import TrainingLoop, nothing_trained
from builder.vram.models import Model
from builder.vram.tracing import contexts, kernels, modelling, optimizers
from builder.vram.tracing.emulation import CudaBehaviour
from builder.vram.tracing.tracker import Tracker

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


def trace(
    model: Model,
    loop: TrainingLoop,
    *,
    capability: tuple[int, int] = (8, 0),
    workspace: int = 0,
    device: str = "meta",
    is_native: bool = False,
    switched_off: frozenset[str] = frozenset(),
    takes_shortcuts: bool = True,
) -> Trace:
    """The events of `loop`. `is_native` leaves CUDA's behaviour out: on `device="cpu"` the step then really runs."""
    started = time.perf_counter()
    found = Trace(torch=str(torch.__version__), transformers=str(transformers.__version__))
    with _quiet():
        built = modelling.build(model, loop, device)
    behaviour = None
    if not is_native:
        behaviour = CudaBehaviour(
            HALF.get(loop.precision),
            capability=capability,
            is_padded=loop.mask == "padded",
            switched_off=switched_off,
        )
    elif device == "meta":
        # Nothing of CUDA; only questions about data are answered.
        behaviour = CudaBehaviour(None, switched_off=frozenset({"dropout", "attention"}))
    tracker = Tracker(
        found,
        device,
        scratch=None if is_native else kernels.scratch,
        workspace=0 if is_native else workspace,
        takes_shortcuts=takes_shortcuts and not is_native,
    )
    tracker.phase("model")
    tracker.mark([*built.parameters(), *built.buffers()], "weights")
    parameters = [parameter for parameter in built.parameters() if parameter.requires_grad]
    found.parameters = sum(parameter.numel() for parameter in built.parameters())
    found.trained = sum(parameter.numel() for parameter in parameters)
    if not parameters and not loop.forward_only:
        raise nothing_trained(model.name, loop)
    step = _Step(model, loop, built, parameters, tracker, behaviour, device)
    with _quiet():
        for number in range(loop.steps):
            step.run(number + 1)
    tracker.stop()
    found.seconds = time.perf_counter() - started
    return found


class _Step:
    def __init__(
        self,
        model: Model,
        loop: TrainingLoop,
        built: torch.nn.Module,
        parameters: list[torch.nn.Parameter],
        tracker: Tracker,
        behaviour: CudaBehaviour | None,
        device: str,
    ) -> None:
        self.model = model
        self.loop = loop
        self.built = built
        self.parameters = parameters
        self.tracker = tracker
        self.behaviour = behaviour
        self.device = device
        self.optimizer = optimizers.make(parameters, loop)
        self.batch: dict[str, Any] = {}
        self.outputs: Any = None

    def run(self, number: int) -> None:
        with self.tracker:
            for part in range(self.loop.accumulation):
                suffix = f"{number}.{part + 1}" if self.loop.accumulation > 1 else str(number)
                self._forward_backward(suffix)
            if self.loop.forward_only:
                return
            self.tracker.phase(f"optimizer {number}")
            if self.loop.clip:
                optimizers.clip(self.parameters)
            with self._answering():
                self.optimizer.step()
            self.tracker.mark(self.optimizer.states(), "optimizer state")
            if self.loop.zero_grad == "none":
                for parameter in self.parameters:
                    parameter.grad = None

    def _forward_backward(self, suffix: str) -> None:
        tracker, loop = self.tracker, self.loop
        tracker.phase(f"inputs {suffix}")
        # A loop's variable: the last batch lives until the next one is there.
        batch = self.batch = modelling.batch(self.model, self.built, loop, self.device)
        tracker.mark(batch.values(), "inputs")
        tracker.phase(f"forward {suffix}")
        tracker.thread = "forward"
        before = set(tracker.alive())
        copies: list[int] = []
        with self._forward():
            outputs, loss = modelling.outputs_and_loss(self.built, batch, loop)
            self.outputs = outputs if loop.outputs == "loop" else None
            if self.behaviour is not None:
                copies = [
                    identity
                    for _, copy in self.behaviour.copies.values()
                    if (identity := tracker.identity(copy)) is not None
                ]
                self.behaviour.leave_autocast()
        for identity in set(tracker.alive()) - before:
            tracker.trace.categories.setdefault(identity, "activations")
        tracker.trace.categories.update(dict.fromkeys(copies, "half copies of weights"))
        if loop.forward_only:
            return
        tracker.phase(f"backward {suffix}")
        tracker.thread = "backward"
        if not loop.keeps_outputs:
            outputs = None
        # GradScaler multiplies the loss, which costs one element.
        scaled = loss * 1.0
        with self._backward():
            # Tensor.backward would go through the mode and switch it off for all that it calls.
            torch.autograd.backward(scaled)
        tracker.mark([parameter.grad for parameter in self.parameters], "gradients")
        del outputs, loss, scaled

    def _forward(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.behaviour is None else contexts.forward_pass(self.behaviour)

    def _backward(self) -> contextlib.AbstractContextManager[None]:
        if self.behaviour is None:
            return contextlib.nullcontext()
        return contexts.backward_pass(self.behaviour, is_autocast=self.loop.checkpointing)

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Optimizers ask for the value of a norm; a meta tensor has none."""
        if self.device != "meta":
            yield
            return
        with CudaBehaviour(None):
            yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Transformers logs advice about each model; none of it is about the memory."""
    logger = transformers.utils.logging
    was = logger.get_verbosity()
    logger.set_verbosity_error()
    try:
        yield
    finally:
        logger.set_verbosity(was)
