"""Topic transformers: one row a minor version, read from its last patch release."""

from __future__ import annotations

from datetime import date
from functools import cached_property
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.base import Raw, Row


class TorchFloor(NamedTuple):
    """`is_enforced`: the code itself refuses an older torch; otherwise it is only the bound of an extra."""

    version: Version
    is_enforced: bool
    fact: str


class TransformersMinor(Row):
    """`source` and `confidence` are those of the metadata; what the code does carries its own in `code_fact`."""

    def __init__(self, label: str, raw: Raw) -> None:
        super().__init__(raw)
        self.label = label
        self.version = Version(label)

    @cached_property
    def releases(self) -> tuple[Version, ...]:
        """Patches that are not yanked, newest first."""
        return tuple(sorted(map(Version, self._raw["releases"]), reverse=True))

    @cached_property
    def yanked(self) -> tuple[Version, ...]:
        return tuple(sorted(map(Version, self._raw["yanked"]), reverse=True))

    @property
    def latest(self) -> Version:
        return self.releases[0]

    @property
    def first_released(self) -> date:
        return date.fromisoformat(self._raw["first_released"])

    @property
    def last_released(self) -> date:
        return date.fromisoformat(self._raw["last_released"])

    @cached_property
    def python_requires(self) -> SpecifierSet:
        return SpecifierSet(self._raw["requires_python"])

    @cached_property
    def numpy(self) -> SpecifierSet:
        return SpecifierSet(self._raw["numpy"])

    @cached_property
    def tokenizers(self) -> SpecifierSet:
        return SpecifierSet(self._raw["tokenizers"])

    @cached_property
    def huggingface_hub(self) -> SpecifierSet:
        return SpecifierSet(self._raw["huggingface_hub"])

    @cached_property
    def safetensors(self) -> SpecifierSet | None:
        text = self._raw["safetensors"]
        return None if text is None else SpecifierSet(text)

    @cached_property
    def torch_extra(self) -> SpecifierSet:
        """What transformers[torch] asks for; a plain install asks for nothing."""
        return SpecifierSet(self._raw["torch_extra"])

    @cached_property
    def torch_floor(self) -> TorchFloor | None:
        enforced = self._raw["torch_floor_enforced_at_import"]
        if enforced is not None:
            return TorchFloor(Version(enforced), True, self.code_fact(f"switches PyTorch off below torch {enforced}"))
        bounds = [Version(item.version) for item in self.torch_extra if item.operator in {">=", "~=", ">"}]
        if not bounds:
            return None
        return TorchFloor(
            max(bounds), False, self.cite(f"transformers[torch] {self.label} asks for torch{self.torch_extra}")
        )

    @property
    def needs_torch_2_6_for_pickle(self) -> bool:
        """Loading a .bin checkpoint raises an error with an older torch."""
        return bool(self._raw["torch_load_pickle_needs_torch_2_6"])

    @property
    def has_onnx_module(self) -> bool:
        return bool(self._raw["has_transformers_onnx"])

    @property
    def changed_within(self) -> dict[str, dict[str, str]]:
        """Requirements that differ between the first and the last patch."""
        return dict(self._raw["changed_within_minor"] or {})

    def code_fact(self, what: str) -> str:
        code = Row({"source": self._raw["code_source"], "confidence": self._raw["code_confidence"]})
        return code.cite(f"transformers {self.label} {what}")

    @property
    def fact(self) -> str:
        return self.cite(f"transformers {self.label} needs Python {self.python_requires}")


class TransformersRelease(NamedTuple):
    version: Version
    is_yanked: bool
    minor: TransformersMinor
