"""YAML read as text: every scalar stays what the person typed (3.10 is not 3.1), and every value knows its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder.errors import SpecError

KeyPath = tuple[str | int, ...]

# A spec is a page long. Far larger input is a mistake, and YAML aliases could make a small file explode.
MAX_BYTES = 1_000_000
MAX_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class YamlText:
    """`data` is made of dicts, lists and strings only; `lines` maps a key path to its line, counted from 1."""

    file: str
    data: Any
    lines: dict[KeyPath, int]

    def where(self, path: KeyPath) -> str:
        """`file:line: key.path[0]`; the nearest enclosing value when the path itself does not stand in the file."""
        shown = path
        while shown and shown not in self.lines:
            shown = shown[:-1]
        line = self.lines.get(shown, 1)
        return f"{self.file}:{line}: {key_path(path)}" if path else f"{self.file}:{line}"


def key_path(path: KeyPath) -> str:
    """(`axes`, `torch`, 1) as `axes.torch[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read(path: Path, *, shown_as: str | None = None) -> YamlText:
    """The file as text values; SpecError when it cannot be read or is not YAML."""
    name = shown_as or str(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise SpecError("spec-not-found", f"`{name}` does not exist") from None
    except OSError as error:
        raise SpecError("spec-unreadable", f"`{name}` cannot be read: {error.strerror or error}") from None
    return parse(raw, name)


def parse(raw: bytes, name: str) -> YamlText:
    if len(raw) > MAX_BYTES:
        raise SpecError("spec-unreadable", f"`{name}` has {len(raw):,} bytes; a spec may have {MAX_BYTES:,}")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError("spec-unreadable", f"`{name}` is not UTF-8 text (byte {error.start})") from None
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SpecError("spec-not-yaml", f"`{place}` is not YAML: {problem}") from None
    # Every value gets a line of its own, so the count of lines is the count of values, aliases written out.
    lines: dict[KeyPath, int] = {}
    data = {} if node is None else _value(node, (), lines, name, frozenset())
    return YamlText(name, data, lines)


def _value(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str, above: frozenset[int]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(lines) > MAX_VALUES:
        raise SpecError("spec-unreadable", f"`{name}` has more than {MAX_VALUES:,} values, aliases counted in")
    if id(node) in above:
        raise SpecError("spec-not-yaml", f"`{name}:{line}` refers to itself through an alias")
    inside = above | {id(node)}
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), lines, name, inside) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        raise SpecError("spec-not-yaml", f"`{name}:{line}` holds something that is neither text, list nor mapping")
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key_line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise SpecError("spec-not-yaml", f"`{name}:{key_line}` has a key that is not plain text")
        key = str(key_node.value)
        if key in result:
            first = lines[(*path, key)]
            raise SpecError(
                "spec-duplicate-key",
                f"`{name}:{key_line}` sets `{key_path((*path, key))}` a second time; it is set on line {first}",
            )
        lines[(*path, key)] = key_line
        result[key] = _value(value_node, (*path, key), lines, name, inside)
    return result
