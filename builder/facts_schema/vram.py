"""Topics vram_models and vram_offsets."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from builder.facts_schema.base import Capability, Cuda, Sourced, Text, Topic


class ModelRow(Sourced):
    name: Text
    aliases: list[Text]
    config: dict[str, Any]

    @field_validator("config")
    @classmethod
    def _has_a_type(cls, config: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(config.get("model_type"), str):
            raise ValueError("the config has no `model_type`")  # noqa: TRY004 - pydantic wants this one
        return config


class VramModels(Topic):
    models: list[ModelRow]


class OffsetRow(Sourced):
    id: Text
    gpu: Text
    compute_capability: Capability
    cuda: Cuda
    offset_mib: int
    spread_mib: int


class Offset(Sourced):
    offset_mib: int
    spread_mib: int


class Spread(Sourced):
    spread_mib: int


class Lazy(Sourced):
    cuda: Cuda


class WorkspaceRow(Sourced):
    id: Text
    compute_capability: Capability | None
    cublas_bytes: int
    handles: int


class TotalRow(Sourced):
    name: Text
    gib: int
    total_mib: int


class TotalDefault(Sourced):
    percent_of_nominal: int


class VramOffsets(Topic):
    offsets: list[OffsetRow]
    default: Offset
    borrowed: Spread
    lazy_loading: Lazy
    workspaces: list[WorkspaceRow]
    totals: list[TotalRow]
    default_total: TotalDefault
