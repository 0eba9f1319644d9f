"""A published measurement -> the loop it ran, or why it cannot be used; pure.

Points are rows of facts/vram_measured.json: texts as their authors would say them. A point is used only when everything
that moves the result is stated; what is not, is given as the reason, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from builder.vram.loop import Head, Optimizer, Precision, TrainingLoop

Quantity = Literal["driver view", "peak allocated", "allocated after forward"]

CONVOLUTIONS = ("resnet", "convnext", "regnet", "vgg", "densenet", "efficientnet")
HEADS: Mapping[str, Head] = {
    "maskedlm": "mlm",
    "mlm": "mlm",
    "sequenceclassification": "classifier",
    "audioclassification": "classifier",
    "imageclassification": "classifier",
    "conditionalgeneration": "seq2seq",
    "causallm": "lm",
    "lmheadmodel": "lm",
    "pretraining": "pretraining",
    "cls": "classifier",
    "classifier": "classifier",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """`group` is what points are judged by together; `is_old` says that its torch is older than 2.0."""

    id: str
    group: str
    model: str
    changes: Mapping[str, Any]
    loop: TrainingLoop
    gpu: str
    cuda: str | None
    quantity: Quantity
    measured_mib: int
    is_old: bool


@dataclass(frozen=True, slots=True)
class Unusable:
    id: str
    measured_mib: int | None
    reason: str


def read(row: Mapping[str, Any]) -> Point | Unusable:
    reason = _why_unusable(row)
    if reason is not None:
        return Unusable(str(row["id"]), row.get("measured_mib"), reason)
    text = str(row["model"])
    model = _model(text)
    is_old = _is_old(row)
    head = _head(text)
    optimizer = _optimizer(str(row["optimizer"]), is_old=is_old)
    loop = TrainingLoop(
        batch=int(row["batch"]),
        seq=int(row["seq"]),
        precision=_precision(str(row["precision"])),
        optimizer=optimizer,
        attention="eager" if "eager" in str(row.get("attention")) else "auto",
        head=head,
        mask="full" if "attention mask of ones" in str(row.get("data")) else "none",
        clip=str(row.get("clip", "none")) not in ("none", "None"),
        accumulation=int(row.get("accumulation", 1)),
        zero_grad=_zero_grad(str(row.get("grads", ""))),
        checkpointing=bool(row.get("checkpointing", False)),
        forward_only=optimizer == "none" and "forward" in str(row["optimizer"]),
    )
    changes = {"hidden_act": "gelu_python"} if "gelu written out" in str(row.get("attention")) else {}
    return Point(
        id=str(row["id"]),
        group=_group(model, is_old=is_old),
        model=model,
        changes=changes,
        loop=loop,
        gpu=str(row["gpu"]),
        cuda=_cuda(str(row.get("framework"))),
        quantity=_quantity(str(row.get("measured_what"))),
        measured_mib=int(row["measured_mib"]),
        is_old=is_old,
    )


def _why_unusable(row: Mapping[str, Any]) -> str | None:
    model = str(row.get("model", "")).lower()
    if any(name in model for name in CONVOLUTIONS):
        return "convolutions: cuDNN takes workspaces by its own timing, up to gigabytes, which no trace sees"
    for key in ("batch", "seq", "measured_mib"):
        value = row.get(key)
        if value is None or not re.fullmatch(r"\d+", str(value)):
            return f"{key} is not stated as a number ({value})"
    for key in ("precision", "optimizer", "attention", "framework"):
        if "unstated" in str(row.get(key)) or row.get(key) is None:
            return f"{key} is not stated"
    what = str(row.get("measured_what"))
    if "by a slip" in what:
        return "its figure has a CPU delta mixed in, as its authors' notebook adds it"
    if not re.search(r"NVML|nvidia-smi|memory_allocated|max_memory", what):
        return f"what was measured is not clear ({what[:60]})"
    if _model(model) == "":
        return f"no known model is named ({model[:60]})"
    return None


def _model(text: str) -> str:
    """The name under which the facts have the model; "" where none is named."""
    lower = text.lower()
    match = re.match(r"[a-z0-9_./-]+(?:\.[0-9]+)?", lower)
    name = match[0].split("/")[-1] if match else ""
    return name.removesuffix("-uncased").rstrip("-_.")


def _head(text: str) -> Head:
    flat = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((head for word, head in HEADS.items() if word in flat), "auto")


def _precision(text: str) -> Precision:
    lower = text.lower()
    if "pure" in lower or "weights in" in lower:
        return "bf16-pure" if "bf16" in lower else "fp16-pure"
    if lower.startswith("bf16"):
        return "bf16"
    return "fp16" if lower.startswith("fp16") else "fp32"


def _optimizer(text: str, *, is_old: bool) -> Optimizer:
    lower = text.lower()
    if lower.startswith("none"):
        return "none"
    if "8bit" in lower or "8-bit" in lower:
        return "adam8bit"
    if "adafactor" in lower:
        return "adafactor-hf"
    if "sgd" in lower:
        has_momentum = "momentum" in lower and "no momentum" not in lower
        return "sgd-momentum" if has_momentum else "sgd"
    if "fused" in lower:
        return "adamw-fused"
    if is_old or "foreach=false" in lower or "single" in lower or "adamw_hf" in lower:
        return "adamw-single"
    return "adamw" if "adamw" in lower else "adam"


def _zero_grad(text: str) -> Literal["none", "keep"]:
    lower = text.lower()
    is_kept = "never zeroed" in lower or "zeroed in place" in lower or "stays allocated" in lower
    return "keep" if is_kept else "none"


def _quantity(what: str) -> Quantity:
    if "after the forward" in what:
        return "allocated after forward"
    return "peak allocated" if "max_memory_allocated" in what else "driver view"


def _is_old(row: Mapping[str, Any]) -> bool:
    match = re.search(r"torch\s*~?\s*(\d+)\.(\d+)", str(row.get("framework")))
    return match is not None and int(match[1]) < 2


def _cuda(framework: str) -> str | None:
    variant = re.search(r"\+cu(\d+?)(\d)\b", framework)
    if variant:
        return f"{variant[1]}.{variant[2]}"
    plain = re.search(r"CUDA (\d+\.\d+)", framework)
    return plain[1] if plain else None


def _group(model: str, *, is_old: bool) -> str:
    if is_old:
        return "old stacks"
    for word, group in (
        ("bert", "BERT"),
        ("t5", "T5"),
        ("gpt", "GPT-2"),
        ("whisper", "Whisper"),
        ("reformer", "Reformer"),
    ):
        if word in model:
            return group
    return "others"
