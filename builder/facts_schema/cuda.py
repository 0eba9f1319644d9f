"""Topics cuda_driver, cuda_images and gpus."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.facts_schema.base import (
    Branch,
    Capability,
    Confidence,
    Cuda,
    Driver,
    Inheriting,
    Row,
    Sass,
    Sourced,
    Text,
    Topic,
)
from builder.versions import ComputeCapability


class Major(Sourced):
    min_driver: Driver | None
    guide_figure: Branch | None = None
    exception: Text | None = None
    rule: Text | None = None


class Patch(Sourced):
    min_driver: Driver | None
    bundled_driver: Driver | None


class Toolkit(Row):
    min_driver_minor_version_compat: Driver
    compat_confidence: Confidence
    compat_source: Text
    first_arch: Sass
    last_arch: Sass
    archs: list[Sass]
    arch_confidence: Confidence
    arch_source: Text
    patches: dict[Cuda, Patch]


class DriverBranch(Inheriting):
    driver_branch: Branch
    cuda: Cuda
    confidence: Confidence


class GenerationRange(Inheriting):
    first_branch: Branch | None
    last_branch: Branch | None
    confidence: Confidence


class WindowsFloors(Sourced):
    """By toolkit (`10.2`) or by major version (`12`), under minor-version compatibility."""

    floors: dict[Text, Driver]


class CudaDriver(Topic):
    minor_version_compatibility: dict[Text, Major]
    toolkits: dict[Cuda, Toolkit]
    nvidia_smi_cuda_version: list[DriverBranch]
    nvidia_smi_source: Text
    generation_driver_range: dict[Text, GenerationRange]
    generation_source: Text
    windows_min_driver: WindowsFloors | None = None


class CudaImages(Row):
    end_of_life_2025_12: bool | None
    variants: dict[Text, list[Annotated[Text, Field(pattern="^(cudnn[0-9]*-(runtime|devel)|base|runtime|devel)$")]]]
    confidence: Confidence
    source: Text


class CudaImageTopic(Topic):
    tag_template: Literal["{cuda}-{variant}-{os}"]
    images: dict[Cuda, CudaImages]


class Gpu(Sourced):
    name: Text
    aliases: list[Text]
    compute_capability: Capability
    sm: Sass
    vram_gib: list[int]
    vram_confidence: Confidence
    generation: Text
    class_: Literal["datacenter", "consumer", "workstation", "embedded", "desktop"] = Field(alias="class")
    note: Text | None = None
    host: Literal["aarch64"] | None = None  # the processor that the card is sold with, where it is no x86_64

    @model_validator(mode="after")
    def _one_capability(self) -> Gpu:
        if str(ComputeCapability.parse(self.compute_capability).sm) != self.sm:
            raise ValueError(f"{self.sm} is not compute capability {self.compute_capability}")
        return self


class MatmulSpeed(Sourced):
    """Of the boards that a driver names so, without the leading `NVIDIA`."""

    name: Text
    aliases: list[Text]
    fp16_gflops: int = Field(gt=0)
    least_percent: int = Field(gt=0, le=100)


class Gpus(Topic):
    gpus: list[Gpu]
    matmul_tflops: list[MatmulSpeed]
