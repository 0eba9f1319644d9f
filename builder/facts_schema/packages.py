"""Topics onnxruntime, transformers, numpy and python."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field, model_validator

from builder.facts_schema.base import (
    Confidence,
    Glibc,
    Inheriting,
    Manylinux,
    Month,
    Package,
    Ptx,
    Python,
    RequirementText,
    Row,
    Sass,
    SeriesOrPackage,
    Sourced,
    Specifier,
    Text,
    Topic,
)


class Feed(Inheriting):
    feed: Text
    cuda: Text
    cudnn: Text
    versions: Text | None = None


class OrtCuda(Sourced):
    default_wheel: Text
    cuda_major: Annotated[Text, Field(pattern="^[0-9]+$")]
    cudnn: Text
    cudnn_major: Annotated[Text, Field(pattern="^[0-9]+$")]
    alternative_feeds: list[Feed]


class OrtOnnx(Sourced):
    built_with_onnx: Text
    onnx_confidence: Confidence
    onnx_source: Text
    max_opset: int
    max_ir: int
    note: Text | None = None


class OrtArchs(Sourced):
    sass: list[Sass] | None
    sass_aarch64: list[Sass] | None = None
    ptx: list[Ptx] | None


class OrtAarch64(Row):
    python: list[Python]
    free_threaded: tuple[Python, ...] = ()
    manylinux: list[Manylinux]
    glibc_floor: Glibc


class ExtrasInstallable(Row):
    cuda: bool
    cudnn: bool
    reason: Text
    confidence: Confidence


class OrtWheel(Sourced):
    requires_python: Specifier | None
    python: list[Python]
    free_threaded: tuple[Python, ...] = ()
    manylinux: list[Manylinux]
    glibc_floor: Glibc
    aarch64: OrtAarch64 | None
    requires: list[RequirementText]
    numpy_by_python: dict[Python, Specifier]
    extras: dict[Text, list[RequirementText]]
    extras_installable: ExtrasInstallable | None = None


class NumpyAbi(Sourced):
    numpy_upper: Specifier | None


class OrtRelease(Row):
    on_pypi: bool
    released: date | None = None
    pypi: OrtWheel | None = None
    cuda: OrtCuda
    onnx: OrtOnnx
    gpu_archs: OrtArchs
    numpy_abi: NumpyAbi | None = None

    @model_validator(mode="after")
    def _index_row(self) -> OrtRelease:
        if self.on_pypi and self.pypi is None:
            raise ValueError("is on the index and has no row about it")
        return self


class Removed(Sourced):
    versions: list[Package]
    all_before: Package


class CpuPackage(Sourced):
    name: Text
    pythons: None
    rule: Text


class OnnxRuntime(Topic):
    releases: dict[SeriesOrPackage, OrtRelease]
    removed: Removed | None = None
    cpu_package: CpuPackage | None = None


class ChangedRequirement(Row):
    first: Text
    last: Text


class TransformersMinor(Sourced):
    releases: list[Package]
    yanked: list[Package]
    first_released: date
    last_released: date
    requires_python: Specifier
    numpy: Specifier
    tokenizers: Specifier
    huggingface_hub: Specifier
    safetensors: Specifier | None
    torch_extra: Specifier
    changed_within_minor: dict[Text, ChangedRequirement] | None
    torch_floor_enforced_at_import: Package | None
    torch_load_pickle_needs_torch_2_6: bool
    has_transformers_onnx: bool
    code_confidence: Confidence
    code_source: Text


class Transformers(Topic):
    minors: dict[Package, TransformersMinor]


class NumpyRelease(Inheriting):
    released: date
    yanked: bool
    requires_python: Specifier
    python: list[Python]
    free_threaded: tuple[Python, ...] = ()
    manylinux: list[Manylinux]


class Numpy(Topic):
    confidence: Confidence
    source: Text
    releases: dict[Package, NumpyRelease]


class CPython(Inheriting):
    version: Python
    first_release: date
    end_of_life: date
    eol_on_2026_11_30: bool
    confidence: Confidence


class Distribution(Inheriting):
    image: Annotated[Text, Field(pattern="^[a-z]+:[0-9.]+$")]
    codename: Text
    python: Python
    glibc: Glibc
    gcc: Text
    standard_support_until: Month
    confidence: Confidence


class SameRelease(Sourced):
    systems: list[Text]


class Manylinuxes(Sourced):
    tags: dict[Manylinux, Glibc]


class Pythons(Topic):
    cpython: list[CPython]
    distributions: list[Distribution]
    same_release: SameRelease | None = None
    manylinux_glibc: Manylinuxes
    row_source: Text
