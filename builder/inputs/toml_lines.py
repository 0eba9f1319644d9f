"""TOML with the lines of its array tables and keys, which `tomllib` does not keep."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any

# A lock of a large project has some MB; `tomllib` reads about 5 MB a second.
MAX_CHARACTERS = 12_000_000
MAX_NESTING = 60


class NotTomlError(ValueError):
    def __init__(self, why: str, line: int) -> None:
        super().__init__(why)
        self.why = why
        self.line = line


@dataclass
class TomlText:
    data: dict[str, Any]
    text: str
    _tables: dict[str, list[int]] = field(default_factory=dict)

    def table_line(self, name: str, number: int) -> int | None:
        """The line of the `number`-th `[[name]]`."""
        if name not in self._tables:
            header = re.compile(rf"(?m)^[ \t]*\[\[[ \t]*{re.escape(name)}[ \t]*\]\]")
            lines: list[int] = []
            line, last = 1, 0
            for match in header.finditer(self.text):
                line += self.text.count("\n", last, match.start())
                last = match.start()
                lines.append(line)
            self._tables[name] = lines
        found = self._tables[name]
        return found[number] if number < len(found) else None

    def line_of(self, snippet: str, after: str | None = None) -> int | None:
        """The first line with this text, behind the line that begins with `after`."""
        start = 0
        if after is not None:
            header = re.search(rf"(?m)^[ \t]*{re.escape(after)}", self.text)
            start = header.start() if header is not None else 0
        place = self.text.find(snippet, start)
        return None if place < 0 else self.text.count("\n", 0, place) + 1

    def key_line(self, key: str, after: str) -> int | None:
        """The line of `key = ...` behind the line that begins with `after`."""
        header = re.search(rf"(?m)^[ \t]*{re.escape(after)}", self.text)
        pattern = re.compile(rf"(?m)^[ \t]*[\"']?{re.escape(key)}[\"']?[ \t]*=")
        found = pattern.search(self.text, header.end() if header is not None else 0)
        return None if found is None else self.text.count("\n", 0, found.start()) + 1


def read(text: str) -> TomlText:
    """NotTomlError for everything that is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - most inputs are not TOML
    else:
        import tomli as tomllib  # noqa: PLC0415

    if len(text) > MAX_CHARACTERS:
        raise NotTomlError(f"it has {len(text):,} characters, more than {MAX_CHARACTERS:,}", 1)
    try:
        return TomlText(tomllib.loads(text), text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        line = re.search(r"line (\d+)", str(error))
        raise NotTomlError(
            str(error).split(" (at")[0] or "it is nested too deep", int(line[1]) if line else 1
        ) from None


def table(value: Any) -> dict[str, Any]:
    """The value if it is a table, else an empty one."""
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
