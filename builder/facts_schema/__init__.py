"""The form of facts/*.json, as strict models: no unknown keys, no numbers for versions, no rows without a source.

Used where facts enter: bin/import_facts.py, `facts refresh`, overlays, and content whose checksum is not the shipped
one. A start of the tool does not come here: building these models costs more than reading all facts.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from builder.errors import UsageError
from builder.facts_schema.base import Topic
from builder.facts_schema.checks import Hazards, Packages
from builder.facts_schema.cuda import CudaDriver, CudaImageTopic, Gpus
from builder.facts_schema.packages import Numpy, OnnxRuntime, Pythons, Transformers
from builder.facts_schema.platforms import Platforms, VramMeasured
from builder.facts_schema.torch import Torch
from builder.facts_schema.vram import VramModels, VramOffsets

_SHOWN_FAULTS = 12


class FactsInvalidError(UsageError):
    """`because` holds every fault with its place."""


TOPICS: dict[str, type[Topic]] = {
    "cuda_driver": CudaDriver,
    "cuda_images": CudaImageTopic,
    "gpus": Gpus,
    "hazards": Hazards,
    "numpy": Numpy,
    "onnxruntime": OnnxRuntime,
    "packages": Packages,
    "platforms": Platforms,
    "python": Pythons,
    "torch": Torch,
    "transformers": Transformers,
    "vram_measured": VramMeasured,
    "vram_models": VramModels,
    "vram_offsets": VramOffsets,
}


def validate(topic: str, content: Any, origin: str) -> None:
    """Raises FactsInvalidError with every fault; `origin` names the file in the message."""
    try:
        # JSON mode is strict about numbers and texts and still reads dates.
        TypeAdapter(TOPICS[topic]).validate_json(json.dumps(content))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or topic}: {_said(fault)}" for fault in error.errors()]
        more = [f"{len(faults) - _SHOWN_FAULTS} more"] if len(faults) > _SHOWN_FAULTS else []
        raise FactsInvalidError(
            "facts-invalid",
            f"{origin}: the facts about {topic} are not valid",
            because=[*faults[:_SHOWN_FAULTS], *more],
        ) from None


def _said(fault: Any) -> str:
    return str(fault["msg"]).removeprefix("Value error, ")


def read_overlay(path: Path) -> dict[str, Any]:
    """Topic -> content, from YAML or JSON, every scalar as it would stand in the shipped files."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("facts-overlay", f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError("facts-overlay", f"{path} is neither YAML nor JSON", detail=str(error)) from None
    if not isinstance(content, dict) or not all(isinstance(value, dict) for value in content.values()):
        raise UsageError(
            "facts-overlay",
            f"{path} does not hold facts",
            because=["an overlay maps topics, such as torch, to their rows"],
        )
    return {str(topic): _dates_as_text(rows) for topic, rows in content.items()}


def _dates_as_text(value: Any) -> Any:
    """YAML reads an unquoted 2026-11-30 as a date; the files hold text."""
    if isinstance(value, dict):
        return {str(key): _dates_as_text(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_dates_as_text(item) for item in value]
    return value.isoformat() if isinstance(value, date) else value
