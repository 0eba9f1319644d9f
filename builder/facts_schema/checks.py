"""Topics packages and hazards: what an index tells about torch's neighbours, and what no index tells."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, model_validator

from builder.facts_schema.base import (
    Capability,
    Cuda,
    Glibc,
    Inheriting,
    Package,
    Python,
    RequirementText,
    Row,
    Sourced,
    Specifier,
    Text,
    Topic,
)

Pythons = Annotated[str, Field(pattern=r"^(any|3\.[0-9]+\.\.3\.[0-9]+|(3\.[0-9]+( 3\.[0-9]+)*)?)$")]


class PackageRelease(Row):
    released: date | None = None
    python: Pythons
    aarch64: Pythons | None = None
    glibc: Glibc | None = None
    requires_python: Specifier | None = None
    sdist: bool = False
    yanked: bool = False
    deleted: bool = False
    requires: int | None = None
    refused: Text | None = None  # a requirement that is not written as one


class Project(Inheriting):
    requirement_sets: list[list[RequirementText]]
    releases: dict[Package, PackageRelease]
    older: tuple[Package, ...] = ()  # releases of which nothing else is kept

    @model_validator(mode="after")
    def _sets_exist(self) -> Project:
        for version, row in self.releases.items():
            if row.requires is not None and not 0 <= row.requires < len(self.requirement_sets):
                raise ValueError(f"{version} names requirement set {row.requires}, which is not there")
        return self


class Packages(Topic):
    source: Text
    confidence: Text
    projects: dict[Text, Project]


class Hazard(Sourced):
    id: Text
    says: Text


class PackageHazard(Hazard):
    package: Text
    versions: Specifier = ""


class Bound(PackageHazard):
    """`package` in `versions` works only with `other` inside `bound`, whatever its metadata says."""

    other: Text
    bound: Specifier
    effect: Text
    severity: Literal["error", "warning"] = "error"  # warning: only some uses fail


class NativeLibraries(PackageHazard):
    """The CUDA versions that a release has a library for."""

    cuda: list[Cuda]


class SourceExtension(PackageHazard):
    """A package that compiles CUDA code on installation. `toolkit`: how near its compiler must be to torch's CUDA."""

    toolkit: Annotated[Text, Field(pattern="^(major|minor|any)$")]
    needs_compiler: bool
    repositories: tuple[Text, ...] = ()  # last part of the address, in lower case, where it is not the package's name
    imports_torch: bool
    own_architectures: bool = False  # its setup names the architectures itself where nothing says which


class LibraryUser(PackageHazard):
    """Loads libraries of these major versions, from torch's wheels or the system."""

    cuda: Text
    cudnn: Text


class GpuFloor(PackageHazard):
    """The lowest compute capability that the package has kernels for."""

    capability: Capability


class OnnxIr(PackageHazard):
    ir: int


class PrebuiltWheel(PackageHazard):
    """torch minors for which the project publishes ready wheels outside the index."""

    torch: list[Text]


class BaseImage(Hazard):
    repository: Text
    lacks: tuple[Text, ...] = ()
    python: Python | None = None
    torch: Specifier = ""


class SystemLibrary(PackageHazard):
    libraries: list[Text]
    apt: list[Text]
    instead: Text | None = None


class Companion(PackageHazard):
    """`package` needs `other` at run time and does not declare it."""

    other: Text
    beside: tuple[Text, ...] = ()


class Single(Hazard):
    """A fact of its own; `value` is what code compares with."""

    value: Text


class Hazards(Topic):
    bounds: list[Bound]
    native_libraries: list[NativeLibraries]
    source_extensions: list[SourceExtension]
    library_users: list[LibraryUser]
    gpu_floors: list[GpuFloor]
    onnx_ir: list[OnnxIr]
    prebuilt: list[PrebuiltWheel]
    base_images: list[BaseImage]
    system_libraries: list[SystemLibrary]
    undeclared: list[Companion]
    singles: list[Single]

    @model_validator(mode="after")
    def _row_ids_once(self) -> Hazards:
        kinds = (self.bounds, self.native_libraries, self.source_extensions, self.onnx_ir, self.prebuilt)
        kinds_too = (
            self.library_users,
            self.gpu_floors,
            self.base_images,
            self.system_libraries,
            self.undeclared,
            self.singles,
        )
        ids = [row.id for kind in (*kinds, *kinds_too) for row in kind]
        if twice := sorted({item for item in ids if ids.count(item) > 1}):
            raise ValueError(f"the row ids {', '.join(twice)} are used twice")
        return self
