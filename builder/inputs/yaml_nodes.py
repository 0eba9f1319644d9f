"""YAML of other tools -> text values with lines; forgiving where `yaml_lines` is strict, bounded where YAML is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# PyYAML without its C part reads some 50 KB a second, and both nest by recursion.
MAX_BYTES_C = 4_000_000
MAX_BYTES_PYTHON = 200_000
MAX_NODES = 200_000
MAX_NESTING = 64


@dataclass(slots=True)
class Text:
    """A scalar as typed (3.10 stays 3.10)."""

    value: str
    line: int


@dataclass(slots=True)
class Items:
    values: list[Value]
    line: int


@dataclass(slots=True)
class Mapping:
    """Keys in order; a key that is no text is left out, of equal keys the last one holds, as in YAML loaders."""

    values: dict[str, Value]
    line: int
    key_lines: dict[str, int] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        found = self.values.get(key)
        return found.value if isinstance(found, Text) else None

    def items(self, key: str) -> list[Value]:
        """The list under `key`; a lone value is a list of one."""
        found = self.values.get(key)
        if isinstance(found, Items):
            return found.values
        return [] if found is None or (isinstance(found, Text) and not found.value) else [found]


Value = Text | Items | Mapping


class NotYamlError(ValueError):
    """`line` counts from 1."""

    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


def read(text: str) -> Value | None:
    """The first document; None where there is none. NotYamlError in every other case."""
    import yaml  # noqa: PLC0415 - most inputs are not YAML

    loader: Any = getattr(yaml, "CBaseLoader", None)
    limit = MAX_BYTES_PYTHON if loader is None else MAX_BYTES_C
    if len(text) > limit:
        raise NotYamlError(f"it has {len(text):,} characters, more than {limit:,}", 1)
    deep = _too_deep(text)
    if deep is not None:
        raise NotYamlError(f"it is nested deeper than {MAX_NESTING}", deep)
    reader: Any = None
    try:
        reader = (loader or yaml.BaseLoader)(text)
        node = reader.get_node() if reader.check_node() else None
        return None if node is None else _Walk().value(node, 0)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, NotYamlError):
            raise
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error) or "it is not YAML"
        raise NotYamlError(str(why).splitlines()[0], mark.line + 1 if mark is not None else 1) from None
    finally:
        if reader is not None:
            reader.dispose()


def _too_deep(text: str) -> int | None:
    """The line where brackets or dashes nest too deep: the C reader would not survive it."""
    depth = 0
    for number, line in enumerate(text.split("\n"), start=1):
        depth += line.count("[") + line.count("{")
        if depth > MAX_NESTING:
            opened = _open_brackets(text)
            return number if opened > MAX_NESTING else None
        dashes = len(line) - len(line.lstrip(" -?:\t!&*"))
        if line[:dashes].count("-") + line[:dashes].count("?") + line[:dashes].count(":") > MAX_NESTING:
            return number
    return None


def _open_brackets(text: str) -> int:
    most = depth = 0
    for letter in text:
        if letter in "[{":
            depth += 1
            most = max(most, depth)
        elif letter in "]}" and depth:
            depth -= 1
    return most


class _Walk:
    """An alias stands for the whole node again, so the count of nodes is what bounds a small file with many aliases."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def value(self, node: Any, depth: int) -> Value:
        line = node.start_mark.line + 1
        self._left -= 1
        if self._left < 0:
            raise NotYamlError(f"it holds more than {MAX_NODES:,} values", line)
        if depth > MAX_NESTING:
            raise NotYamlError(f"it is nested deeper than {MAX_NESTING}", line)
        if node.id == "scalar":
            return Text(str(node.value), line)
        if node.id == "sequence":
            return Items([self.value(item, depth + 1) for item in node.value], line)
        found = Mapping({}, line)
        for key, item in node.value:
            if key.id == "scalar":
                found.values[str(key.value)] = self.value(item, depth + 1)
                found.key_lines[str(key.value)] = key.start_mark.line + 1
        return found
