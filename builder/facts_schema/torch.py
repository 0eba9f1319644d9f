"""Topic torch."""

from __future__ import annotations

from datetime import date
from typing import Literal

from pydantic import model_validator

from builder.facts_schema.base import (
    Cuda,
    Glibc,
    Inheriting,
    Manylinux,
    Package,
    Ptx,
    Python,
    RequirementText,
    Row,
    Sass,
    Sourced,
    Specifier,
    Text,
    Topic,
    Variant,
)


class X8664Wheel(Row):
    manylinux: list[Manylinux]
    largest_wheel_mib: int


class Aarch64Wheel(X8664Wheel):
    python: list[Python]
    free_threaded: tuple[Python, ...] = ()
    cuda: bool


class TorchWheel(Sourced):
    requires_python: Specifier
    python: list[Python]
    free_threaded: tuple[Python, ...] = ()
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


class NeverPublished(Sourced):
    tags: list[Variant]


class NewerGlibc(Sourced):
    tags: list[Variant]
    floor: Glibc


class TorchBuilds(Sourced):
    """`unpublished`: builds that the tables of the wheel describe and that no index ever had.

    `newer_glibc`: builds that were made on a newer system than the default one of the release.
    """

    tags: list[Variant]
    per_build: dict[Variant, TorchBuild]
    unpublished: NeverPublished | None = None
    newer_glibc: NewerGlibc | None = None


class Aarch64Archs(Sourced):
    """`ptx` of a build that is not named there is not known."""

    per_build: dict[Variant, list[Sass]]
    ptx: dict[Variant, list[Ptx]] | None = None


class Companion(Inheriting):
    version: Package
    requires_torch: Specifier | None
    python: list[Python] | None = None
    free_threaded: tuple[Python, ...] = ()
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
    free_threaded: tuple[Python, ...] = ()
    abi3_from: Python | None = None
    manylinux: list[Manylinux]
    requires_python: Specifier | None
    used_by_torch: list[Package]


class OnnxScriptRelease(Inheriting):
    released: date
    requires_python: Specifier
    requires: list[RequirementText]
    torch_apis: list[Text]


class OnnxScript(Sourced):
    versions: dict[Package, OnnxScriptRelease]


class CompanionRelease(Inheriting):
    released: date
    yanked: bool
    requires_torch: Specifier | None
    requires_torchdata: Specifier | None = None
    python: list[Python]
    free_threaded: tuple[Python, ...] = ()
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


class CondaForge(Sourced):
    toolkits: dict[Package, list[Cuda]]


class CpuBuilds(Sourced):
    first: Package


class OnnxPackage(Sourced):
    old_exporter_needs_it_from: Package


class Torch(Topic):
    releases: dict[Package, TorchRelease]
    triton: dict[Package, Triton]
    onnxscript: OnnxScript
    companion_packages: CompanionPackages
    cuda_toolkit_components: ToolkitPackages
    conda: Conda
    conda_forge: CondaForge | None = None
    cpu_builds: CpuBuilds | None = None
    onnx_package: OnnxPackage | None = None
