"""The keys of a matrix file. Strict and frozen: an unknown key or an odd value is an error, never a guess."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from builder.spec_values import (
    AptNameAxis,
    BaseAxis,
    BaseText,
    ChannelAxis,
    CondaSpecAxis,
    DateOrWordText,
    DriverText,
    Names,
    PackageNameAxis,
    PackageVersionAxis,
    PackageVersionText,
    ProviderAxis,
    PythonAxis,
    PythonText,
    SecondsText,
    SizeText,
    UserNameText,
    VariantAxis,
    VariantText,
    VersionAxis,
    VersionOrNoneAxis,
    VersionOrNoneText,
    VersionText,
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Axes(_Strict):
    """One dimension each; every combination of their values is a cell. `auto` leaves the choice to torchproof."""

    torch: VersionAxis = Field(("auto",), description="exact (2.6.0), a minor line (2.6) or auto")
    variant: VariantAxis = Field(("auto",), description="CUDA variant of the torch wheel: cpu, cu118, ...")
    python: PythonAxis = ("auto",)
    base: BaseAxis = Field(("auto",), description="debian:<suite>, an image reference, local:<image> or auto")
    transformers: VersionOrNoneAxis = ("auto",)
    onnxruntime: VersionOrNoneAxis = ("none",)
    onnxruntime_gpu: VersionOrNoneAxis = Field(("none",), alias="onnxruntime-gpu")
    packages: dict[str, PackageVersionAxis] = Field(default_factory=dict)


class Cell(_Strict):
    """A cell written out: under `include` it is added, under `exclude` every cell that agrees with it is dropped."""

    torch: VersionText | None = None
    variant: VariantText | None = None
    python: PythonText | None = None
    base: BaseText | None = None
    transformers: VersionOrNoneText | None = None
    onnxruntime: VersionOrNoneText | None = None
    onnxruntime_gpu: VersionOrNoneText | None = Field(None, alias="onnxruntime-gpu")
    packages: dict[str, PackageVersionText] | None = None


class IncludedCell(Cell):
    """A cell of its own, which may also have its own GPUs, driver, flavor, apt packages and date limit."""

    gpus: Names | None = None
    driver: DriverText | None = None
    flavor: Literal["base", "runtime", "devel"] | None = None
    apt: AptNameAxis | None = None
    exclude_newer: DateOrWordText | None = None
    allow_source: PackageNameAxis | None = None


class PrivateIndex(_Strict):
    """An index for the packages it names and no others. User and password come from the environment (docs)."""

    name: UserNameText
    url: str
    packages: PackageNameAxis


class CondaSettings(_Strict):
    channels: ChannelAxis = ("conda-forge",)
    packages: CondaSpecAxis = Field(
        default=(), description="conda packages beside Python, such as ffmpeg or libsndfile>=1.2"
    )


class SmokeSettings(_Strict):
    memory: SizeText = "8GiB"
    shm: SizeText = "1GiB"
    time_limit: SecondsText = "600"


class Budget(_Strict):
    """`image` is the environment, where it is made in place."""

    image: SizeText | None = None
    packages: SizeText | None = None


class Matrix(_Strict):
    """A file of `images/`: axes and settings that all of its images share."""

    model_config = ConfigDict(title="torchproof matrix", json_schema_extra={"additionalProperties": False})

    name: UserNameText | None = Field(None, description="default: the file's name")
    description: str = ""
    axes: Axes | None = None
    include: tuple[IncludedCell, ...] = ()
    exclude: tuple[Cell, ...] = ()
    gpus: Names = Field((), description="cards that every image must serve, as sold or as the driver names them")
    driver: DriverText | None = Field(None, description="oldest NVIDIA driver to serve")
    flavor: Literal["base", "runtime", "devel"] = "base"
    apt: AptNameAxis = Field((), description="apt packages")
    provider: ProviderAxis = Field(
        ("apt",),
        description="where Python comes from: apt (the base, or this machine), conda or uv; a list is an order",
    )
    conda: CondaSettings = CondaSettings()
    user: UserNameText = "root"
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    exclude_newer: DateOrWordText = Field("auto", description="date limit of packages")
    allow_source: PackageNameAxis = Field((), description="built from source")
    wheelhouse: Names = Field((), description="folders with wheels, relative to this file")
    indexes: tuple[PrivateIndex, ...] = ()
    require: Literal["L0", "L1", "L2", "L3"] = Field("L2", description="proof below this level fails the run")
    smoke: SmokeSettings = SmokeSettings()
    budget: Budget = Field(Budget(), description="sizes that an image may not exceed")


def json_schema() -> dict[str, Any]:
    """JSON Schema of a matrix file, for editors."""
    schema = Matrix.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema
