"""A precision that the card, or the torch, does not have."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.outcome import Outcome
from builder.rules.base import Change, Finding, finding
from builder.versions import ComputeCapability


def card_has_precision(o: Outcome) -> Iterator[Finding]:
    singles = o.catalog.hazards
    for name, origin in o.env.precisions:
        if name not in {"bf16", "tf32", "fp16", "fp8"}:
            continue
        kind = name
        floor = singles.row("singles", f"{kind}-capability")
        least = ComputeCapability.parse(floor.text("value"))
        for ask, gpu in o.gpus:
            if gpu is None:
                continue
            because = [f"{origin} asks for {name}", f"{ask.origin} asks for {ask.name}", gpu.fact, floor.fact]
            if gpu.compute_capability < least:
                yield finding(
                    "precision-unsupported",
                    "error",
                    f"{name} on {ask.name}",
                    because,
                    f"{ask.name} has no {name} arithmetic",
                    hint={"bf16": "use fp16 with fp32 weights", "fp8": "use fp16 or bf16"}.get(kind, "use fp32"),
                )
            elif (
                kind == "fp16"
                and str(gpu.compute_capability) in singles.row("singles", "fp16-slow").text("value").split()
            ):
                yield finding(
                    "precision-slow",
                    "warning",
                    f"{name} on {ask.name}",
                    [*because[:3], singles.row("singles", "fp16-slow").fact],
                    "fp16 saves memory there and costs speed",
                )


def torch_has_precision(o: Outcome) -> Iterator[Finding]:
    torch = o.torch
    if torch is None or torch.version is None:
        return
    first = o.catalog.hazards.row("singles", "bf16-torch")
    for name, origin in o.env.precisions:
        if name == "bf16" and torch.version < Version(first.text("value")):
            yield finding(
                "precision-unsupported",
                "error",
                f"{name} with torch {torch.version}",
                [f"{origin} asks for {name}", torch.says, first.fact],
                "this torch has no bfloat16 autocast",
                tries=[Change("pin", "torch", "==1.13.1")],
            )


RULES = (card_has_precision, torch_has_precision)
