"""Topics platforms and vram_measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import model_validator

from builder.facts_schema.base import Confidence, Row, Text, Topic


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping that states something: it has `value`, `what` or any of the fields of a row."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{place}[{number}]")
    elif isinstance(value, dict):
        if {"value", "what", "source", "confidence"} & set(value):
            yield place, value
        else:
            for key, item in value.items():
                yield from _leaves(item, f"{place}.{key}")


class Platforms(Topic):
    """The labels of confidence are this topic's own."""

    snapshots_read: dict[Text, Text]
    platforms: dict[Text, dict[str, Any]]

    @model_validator(mode="after")
    def _leaves_have_sources(self) -> Platforms:
        for place, leaf in _leaves(self.platforms, "platforms"):
            # `unknown` says that it was looked for and not found, so there is nothing to name.
            if not leaf.get("source") and leaf.get("confidence") != "unknown":
                raise ValueError(f"{place} has no source")
            if leaf.get("confidence") not in self.confidence_labels:
                raise ValueError(f"{place} has no confidence of {', '.join(self.confidence_labels)}")
            if cut := sorted(key for key, item in leaf.items() if item is None):
                raise ValueError(f"{place} has keys without a value ({', '.join(cut)}): quote the text with the comma")
        return self


class VramPoint(Row):
    id: Text
    source: Text
    model: Text
    batch: int
    seq: int | Text | None
    image: Text | None = None
    precision: Text
    attention: Text | None
    grads: Text | None = None
    clip: Text | None = None
    optimizer: Text
    data: Text | None = None
    loss: Text | None = None
    extra: Text | None = None
    accumulation: int = 1
    checkpointing: bool = False
    framework: Text
    gpu: Text
    measured_mib: int
    measured_what: Text
    others_estimates_bytes: dict[Text, int] | None = None
    note: Text | None = None


class VramMeasured(Topic):
    row_confidence: Confidence
    points: list[VramPoint]
