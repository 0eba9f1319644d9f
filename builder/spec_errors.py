"""Faults that pydantic found in a spec -> one error with file, line, key path and the nearest valid value of each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from builder.errors import SpecError
from builder.spec_models import Axes, Budget, Cell, IncludedCell, Matrix, PrivateIndex, SmokeSettings
from builder.yaml_lines import KeyPath, YamlText


def spec_error(text: YamlText, error: ValidationError) -> SpecError:
    lines: list[str] = []
    for fault in error.errors():
        path = tuple(part for part in fault["loc"] if isinstance(part, int) or _stands_in_file(part, text))
        lines.append(f"{text.where(path)}: {_fault(fault, path)}")
    lines = sorted(dict.fromkeys(lines), key=_line_number)
    count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    return SpecError("spec-invalid", f"`{text.file}` has {count}", detail="\n".join(lines))


def _line_number(line: str) -> int:
    match = re.search(r":(\d+):", line)
    return int(match[1]) if match else 0


def _stands_in_file(part: str, text: YamlText) -> bool:
    """Pydantic adds parts of its own to a location (the member of a union); only keys of the file are shown."""
    return any(part in path for path in text.lines) or part in _all_keys()


def _all_keys() -> frozenset[str]:
    models = (Matrix, Axes, Cell, IncludedCell, PrivateIndex, SmokeSettings)
    return frozenset(info.alias or name for model in models for name, info in model.model_fields.items())


def _fault(fault: Mapping[str, Any], path: KeyPath) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        keys = _keys_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        nearest = f"; did you mean `{near[0]}`?" if near else f"; known here: {', '.join(keys)}"
        return f"no such key{nearest}"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = difflib.get_close_matches(str(fault["input"]), allowed, n=1, cutoff=0.4)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"`{fault['input']}` is not one of {', '.join(allowed)}{hint}"
    if kind == "value_error":
        return str(context.get("error", fault["msg"]))
    if kind == "missing":
        return "is missing"
    if kind in {"string_type", "tuple_type", "dict_type", "model_type", "model_attributes_type"}:
        wanted = {"string_type": "one value", "tuple_type": "a list"}.get(kind, "a mapping of keys")
        given = {"tuple": "a list", "dict": "a mapping", "str": "one value"}.get(type(fault["input"]).__name__, "that")
        return f"takes {wanted}, not {given}"
    return str(fault["msg"])


def _keys_at(path: KeyPath) -> list[str]:
    head = path[0] if path else None
    models: dict[str, type[BaseModel]] = {
        "axes": Axes,
        "include": IncludedCell,
        "exclude": Cell,
        "indexes": PrivateIndex,
        "smoke": SmokeSettings,
        "budget": Budget,
    }
    model = models.get(str(head), Matrix)
    return sorted(info.alias or name for name, info in model.model_fields.items())
