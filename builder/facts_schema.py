"""The form of facts/*.json, as strict models: no unknown keys, no numbers for versions, no rows without a source.

Used where facts enter: bin/import_facts.py, `facts refresh`, overlays, and content whose checksum is not the shipped
one. A start of the tool does not come here: building these models costs more than reading all facts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from builder.errors import UsageError
from builder.versions import (
    ComputeCapability,
    CudaVariant,
    CudaVersion,
    DriverVersion,
    GlibcVersion,
    GpuCode,
    PythonVersion,
)

_SHOWN_FAULTS = 12


class FactsInvalidError(UsageError):
    """`because` holds every fault with its place."""


def _parses(parse: Any) -> AfterValidator:
    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(check)


Text = Annotated[str, Field(min_length=1)]
Package = Annotated[Text, _parses(Version)]
Specifier = Annotated[str, _parses(SpecifierSet)]
RequirementText = Annotated[Text, _parses(Requirement)]
Python = Annotated[Text, _parses(PythonVersion.parse)]
Glibc = Annotated[Text, _parses(GlibcVersion.parse)]
Cuda = Annotated[Text, _parses(CudaVersion.parse)]
Variant = Annotated[Text, _parses(CudaVariant.parse)]
Driver = Annotated[Text, _parses(DriverVersion.parse)]
Branch = Annotated[Text, Field(pattern="^[0-9]{3}$")]
Capability = Annotated[Text, _parses(ComputeCapability.parse)]
Code = Annotated[Text, _parses(GpuCode.parse)]
Sass = Annotated[Code, Field(pattern="^sm_")]
Ptx = Annotated[Code, Field(pattern="^compute_")]
Manylinux = Annotated[Text, Field(pattern="^manylinux[0-9_]+$")]
Month = Annotated[Text, Field(pattern="^[0-9]{4}-[0-9]{2}$")]
SeriesOrPackage = Annotated[Text, _parses(lambda text: Version(text.removesuffix(".x")))]
Confidence = Literal["verified-from-metadata", "from-source", "from-memory"]


class Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Sourced(Row):
    confidence: Confidence
    source: Text


class Inheriting(Row):
    """Stands in a table that has source and confidence; may have its own."""

    confidence: Confidence | None = None
    source: Text | None = None

    @model_validator(mode="after")
    def _both_or_none(self) -> Inheriting:
        if self.source is not None and self.confidence is None:
            raise ValueError("has a source of its own and no confidence")
        return self


class Note(Sourced):
    id: Text
    fact: Text


class Topic(Row):
    generated_by: Text | None = None
    generated: date
    schema_version: Literal[1]
    confidence_labels: dict[str, Text] = {}
    notes: list[Note] = []

    @model_validator(mode="after")
    def _ids_once(self) -> Topic:
        ids = [note.id for note in self.notes]
        if twice := sorted({item for item in ids if ids.count(item) > 1}):
            raise ValueError(f"the note ids {', '.join(twice)} are used twice")
        return self


# ---- torch


class X8664Wheel(Row):
    manylinux: list[Manylinux]
    largest_wheel_mib: int


class Aarch64Wheel(X8664Wheel):
    python: list[Python]
    free_threaded: list[Python] = []
    cuda: bool


class TorchWheel(Sourced):
    requires_python: Specifier
    python: list[Python]
    free_threaded: list[Python] = []
    x86_64: X8664Wheel
    aarch64: Aarch64Wheel | None
    default_build: Variant
    default_build_from: Text
    cuda_runtime: Cuda | None
    cuda_toolkit: Cuda | None
    cudnn: Text | None
    nccl: Text | None
    triton: Text | None
    triton_marker: Text | None
    numpy_requirement: Text | None
    setuptools_requirement: Specifier | None
    nvidia_requirements: list[RequirementText]


class TorchBuild(Sourced):
    archs: list[Sass]
    ptx: list[Ptx] | None
    cudnn: Text | None = None
    nccl: Text | None = None
    libs_source: Text | None = None


class TorchBuilds(Sourced):
    tags: list[Variant]
    per_build: dict[Variant, TorchBuild]


class Aarch64Archs(Sourced):
    per_build: dict[Variant, list[Sass]]


class Companion(Inheriting):
    version: Package
    requires_torch: Specifier | None
    python: list[Python] | None = None
    free_threaded: list[Python] = []
    any_python3: bool = False


class Companions(Row):
    torchvision: list[Companion]
    torchaudio: list[Companion]
    torchtext: list[Companion]


class Abi(Sourced):
    cxx11: bool
    numpy_c_api: Literal[1, 2]
    numpy_upper: Specifier | None
    glibc_floor: Glibc
    glibc_symbol_max_seen: Glibc


class OnnxExport(Sourced):
    default_opset: int
    max_opset: int | None
    max_opset_torchscript: int | None
    dynamo_default: bool | None
    needs_onnxscript_by_default: bool
    onnxscript_api: Text | None


class Features(Sourced):
    torch_load_weights_only_default: bool
    torch_amp_gradscaler: bool
    torch_cuda_amp_gradscaler_deprecated: bool
    torch_compile: bool


class TorchRelease(Row):
    released: date
    pypi: TorchWheel
    cuda_builds: TorchBuilds
    aarch64_archs: Aarch64Archs | None = None
    companions: Companions
    abi: Abi
    onnx_export: OnnxExport
    features: Features
    official_conda_channel: bool

    @model_validator(mode="after")
    def _builds_agree(self) -> TorchRelease:
        tags = set(self.cuda_builds.tags)
        if extra := sorted(set(self.cuda_builds.per_build) - tags):
            raise ValueError(f"per_build describes {', '.join(extra)}, which cuda_builds.tags does not name")
        if self.pypi.default_build not in tags:
            raise ValueError(f"the default build {self.pypi.default_build} is not in cuda_builds.tags")
        return self


class Triton(Sourced):
    released: date
    python: list[Python]
    free_threaded: list[Python] = []
    abi3_from: Python | None = None
    manylinux: list[Manylinux]
    requires_python: Specifier | None
    used_by_torch: list[Package]


class OnnxScriptRelease(Row):
    released: date
    requires_python: Specifier
    requires: list[RequirementText]
    torch_apis: list[Text]


class OnnxScript(Sourced):
    versions: dict[Package, OnnxScriptRelease]


class CompanionRelease(Row):
    released: date
    yanked: bool
    requires_torch: Specifier | None
    requires_torchdata: Specifier | None = None
    python: list[Python]
    free_threaded: list[Python] = []
    any_python3: bool = False
    manylinux: list[Manylinux]


class CompanionPackages(Sourced):
    torchvision: dict[Package, CompanionRelease]
    torchaudio: dict[Package, CompanionRelease]
    torchtext: dict[Package, CompanionRelease]


class ToolkitComponents(Row):
    released: date
    cudart: Text
    nvrtc: Text
    cublas: Text


class ToolkitPackages(Sourced):
    versions: dict[Package, ToolkitComponents]


class Conda(Sourced):
    last_official: Package
    arch_note: Text


class CpuBuilds(Sourced):
    first: Package


class Torch(Topic):
    releases: dict[Package, TorchRelease]
    triton: dict[Package, Triton]
    onnxscript: OnnxScript
    companion_packages: CompanionPackages
    cuda_toolkit_components: ToolkitPackages
    conda: Conda
    cpu_builds: CpuBuilds | None = None


# ---- CUDA


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


class CudaDriver(Topic):
    minor_version_compatibility: dict[Text, Major]
    toolkits: dict[Cuda, Toolkit]
    nvidia_smi_cuda_version: list[DriverBranch]
    nvidia_smi_source: Text
    generation_driver_range: dict[Text, GenerationRange]
    generation_source: Text


class CudaImages(Row):
    end_of_life_2025_12: bool | None
    variants: dict[Text, list[Annotated[Text, Field(pattern="^(cudnn[0-9]*-(runtime|devel)|base|runtime|devel)$")]]]
    confidence: Confidence
    source: Text


class CudaImageTopic(Topic):
    tag_template: Literal["{cuda}-{variant}-{os}"]
    images: dict[Cuda, CudaImages]


# ---- GPUs


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

    @model_validator(mode="after")
    def _one_capability(self) -> Gpu:
        if str(ComputeCapability.parse(self.compute_capability).sm) != self.sm:
            raise ValueError(f"{self.sm} is not compute capability {self.compute_capability}")
        return self


class Gpus(Topic):
    gpus: list[Gpu]


# ---- onnxruntime


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
    free_threaded: list[Python] = []
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
    free_threaded: list[Python] = []
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


# ---- transformers, numpy, Python


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
    free_threaded: list[Python] = []
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


class Manylinuxes(Sourced):
    tags: dict[Manylinux, Glibc]


class Pythons(Topic):
    cpython: list[CPython]
    distributions: list[Distribution]
    manylinux_glibc: Manylinuxes
    row_source: Text


# ---- platforms, measured VRAM


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
    others_estimates_bytes: dict[Text, int] = {}
    note: Text | None = None


class VramMeasured(Topic):
    row_confidence: Confidence
    points: list[VramPoint]


TOPICS: dict[str, type[Topic]] = {
    "cuda_driver": CudaDriver,
    "cuda_images": CudaImageTopic,
    "gpus": Gpus,
    "numpy": Numpy,
    "onnxruntime": OnnxRuntime,
    "platforms": Platforms,
    "python": Pythons,
    "torch": Torch,
    "transformers": Transformers,
    "vram_measured": VramMeasured,
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
