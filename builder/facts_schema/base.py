"""Field types and what every row and topic has."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from builder.versions import (
    ComputeCapability,
    CudaVariant,
    CudaVersion,
    DriverVersion,
    GlibcVersion,
    GpuCode,
    PythonVersion,
)


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
    notes: tuple[Note, ...] = ()

    @model_validator(mode="after")
    def _ids_once(self) -> Topic:
        ids = [note.id for note in self.notes]
        if twice := sorted({item for item in ids if ids.count(item) > 1}):
            raise ValueError(f"the note ids {', '.join(twice)} are used twice")
        return self
