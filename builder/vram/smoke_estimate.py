"""The estimate that the smoke test `vram_peak` is judged by, from the loop that it describes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from builder.errors import TorchproofError
from builder.vram import models, offsets, traced
from builder.vram.estimate import Layer, VramEstimate, estimate
from builder.vram.loop import TrainingLoop

if TYPE_CHECKING:
    from builder.catalog import Catalog

# How far a measured peak may be from the estimate, as parts of it (docs/vram.md). Reserved: fragmentation comes on top.
ALLOCATED_TOLERANCE: Mapping[Layer, float] = {"traced": 0.03, "analytic": 0.10}
RESERVED_TOLERANCE: Mapping[Layer, float] = {"traced": 0.05, "analytic": 0.15}
# BERT of transformers takes fused attention from 4.41 on, where torch is 2.1.1 or newer.
FUSED_FROM = (Version("4.41"), Version("2.1.1"))

# The loop that the estimate is made for and the script is told to run: the defaults of smoke_tests/vram_peak.py.
LOOP: Mapping[str, Any] = {
    "layers": 12,
    "hidden": 768,
    "heads": 12,
    "intermediate": 3072,
    "vocab": 30522,
    "positions": 512,
    "batch": 8,
    "seq": 128,
    "precision": "fp16",
    "attention": "auto",
    "optimizer": "adamw",
    "zero_grad": "none",
    "clip_norm": 1.0,
    "padded_mask": False,
    "steps": 3,
}

log = logging.getLogger(__name__)


def estimate_for_smoke(
    described: Mapping[str, Any], gpu: str | None, catalog: Catalog, *, layer: Layer | None = None
) -> VramEstimate:
    """`described`: the loop as `vram_peak` tells it in its details (layers, hidden, ..., attention, optimizer)."""
    model = models.from_config(
        {
            "model_type": "bert",
            "hidden_size": described["hidden"],
            "num_hidden_layers": described["layers"],
            "num_attention_heads": described["heads"],
            "intermediate_size": described["intermediate"],
            "vocab_size": described["vocab"],
            "max_position_embeddings": described["positions"],
        },
        name="the smoke test's BERT",
    )
    is_old = Version(str(described.get("torch", "2.6"))).release < (2, 0)
    loop = TrainingLoop(
        batch=described["batch"],
        seq=described["seq"],
        precision=described["precision"],
        optimizer=described["optimizer"],
        attention=described["attention"],
        head="classifier",
        mask="padded" if described["padded_mask"] else "full",
        clip=bool(described["clip_norm"]),
        steps=described["steps"],
        zero_grad="none" if described["zero_grad"] == "none" else "keep",
        # The script takes the loss out of the outputs and drops them at once.
        outputs="dropped",
    )
    card = offsets.card(gpu, catalog) if gpu else offsets.unknown_card(catalog)
    return estimate(model, loop, card, layer=layer, is_old_stack=is_old)


def params(
    described: Mapping[str, Any], gpu: str | None, catalog: Catalog, *, layer: Layer | None = None
) -> dict[str, Any]:
    """What goes into the script's request; {} where nothing can be estimated, so that it uses its own closed form."""
    try:
        found = estimate_for_smoke(described, gpu, catalog, layer=layer)
    except TorchproofError as error:
        log.warning("no estimate for the smoke test: %s", error.what)
        return {}
    kept = (
        "layers", "hidden", "heads", "intermediate", "vocab", "batch", "seq", "precision", "attention", "optimizer",
        "zero_grad", "clip_norm", "padded_mask", "steps",
    )  # fmt: skip
    return {
        "estimate_bytes": found.allocated.value,
        "estimate_reserved_bytes": found.reserved.value,
        "estimate_terms": dict(found.terms),
        "estimate_of": {name: described[name] for name in kept},
        "tolerance": ALLOCATED_TOLERANCE[found.layer],
        "reserved_tolerance": RESERVED_TOLERANCE[found.layer],
    }


def description(defaults: Mapping[str, Any], packages: Mapping[str, str]) -> dict[str, Any]:
    """The loop as the script will describe it in an image with `packages`, from the script's own defaults."""
    described = dict(defaults)
    torch = Version(packages.get("torch", "2.6.0"))
    transformers = Version(packages.get("transformers", "4.48.0"))
    described["torch"] = str(torch)
    if described["attention"] == "auto":
        is_fused = transformers >= FUSED_FROM[0] and torch >= FUSED_FROM[1]
        described["attention"] = "sdpa" if is_fused else "eager"
    if described["optimizer"] == "adamw" and torch.release < (2, 0):
        described["optimizer"] = "adamw-single"
    return described


# The small model and step of `vram_peak.live_bytes`.
LIVE_BYTES_STEP: Mapping[str, int] = {
    "layers": 2,
    "hidden": 128,
    "heads": 2,
    "intermediate": 512,
    "vocab": 1000,
    "positions": 64,
    "batch": 2,
    "seq": 32,
}


def live_bytes_params() -> dict[str, Any]:
    """For the request: the host's own trace of the step of `vram_peak.live_bytes`, or why there is none."""
    reason = traced.why_not()
    if reason is not None:
        return {"why_not_traced": reason}
    try:
        return {"traced_live_bytes": live_bytes(LIVE_BYTES_STEP)}
    except Exception as error:  # noqa: BLE001 - any model code may fail; the image is not to blame for it
        return {"why_not_traced": f"the trace fails: {type(error).__name__}: {str(error)[:200]}"}


def live_bytes(model: Mapping[str, int]) -> int:
    """The most bytes alive in the step of `vram_peak.live_bytes`, traced here."""
    config = {
        "model_type": "bert",
        "hidden_size": model["hidden"],
        "num_hidden_layers": model["layers"],
        "num_attention_heads": model["heads"],
        "intermediate_size": model["intermediate"],
        "vocab_size": model["vocab"],
        "max_position_embeddings": model["positions"],
    }
    loop = TrainingLoop(
        batch=model["batch"],
        seq=model["seq"],
        precision="fp32",
        optimizer="adamw-single",
        attention="eager",
        head="classifier",
        outputs="dropped",
    )
    return traced.native_live_bytes(models.from_config(config), loop)
