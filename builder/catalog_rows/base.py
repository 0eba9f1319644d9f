"""What all rows share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from builder.versions import GpuCode, PythonVersion

Confidence = Literal["verified-from-metadata", "from-source", "from-memory"]
Arch = Literal["x86_64", "aarch64"]
Raw = Mapping[str, Any]


class Row:
    """`raw` is one row as it stands in the file; `table` gives source and confidence to rows without their own."""

    def __init__(self, raw: Raw, table: Raw | None = None) -> None:
        self._raw = raw
        self._table: Raw = table or {}

    @property
    def source(self) -> str:
        return str(self._raw["source"] if "source" in self._raw else self._table["source"])

    @property
    def confidence(self) -> Confidence:
        own = self._raw["confidence"] if "confidence" in self._raw else self._table["confidence"]
        return cast("Confidence", own)

    def cite(self, what: str) -> str:
        """`what (confidence: source)`."""
        return f"{what} ({self.confidence}: {self.source})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'fact', '')}>"


class Note(Row):
    """What no table says; `id` is stable."""

    @property
    def id(self) -> str:
        return str(self._raw["id"])

    @property
    def text(self) -> str:
        return str(self._raw["fact"])

    @property
    def fact(self) -> str:
        return self.cite(f"note {self.id}: {self.text}")


def pythons(texts: Iterable[str]) -> tuple[PythonVersion, ...]:
    return tuple(PythonVersion.parse(text) for text in texts)


def codes(texts: Iterable[str] | None) -> tuple[GpuCode, ...] | None:
    return None if texts is None else tuple(GpuCode.parse(text) for text in texts)


def span(items: Sequence[object]) -> str:
    """`a..z`, or the items themselves where there are at most two."""
    return f"{items[0]}..{items[-1]}" if len(items) > 2 else ", ".join(map(str, items)) or "none"


def cuda_library(package: str) -> str:
    """`nvidia-cuda-runtime-cu12` -> `cudart`: the name of its part in the package cuda-toolkit."""
    short = re.sub(r"-cu\d+$", "", package.removeprefix("nvidia-").removeprefix("cuda-"))
    return {"runtime": "cudart"}.get(short, short)
