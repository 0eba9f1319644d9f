"""Text of a Dockerfile -> instructions, each character with its line: continuations, comments, heredocs, directives.

Written out because no maintained, permissively licensed parser knows heredocs (docs/decisions).
"""

from __future__ import annotations

import bisect
import json
import re
from dataclasses import dataclass, field

from builder.environment import Origin

_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(.+?)\s*$")
_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)([A-Za-z_][\w.-]*)\2")
_KEYWORD = re.compile(r"\s*([A-Za-z]+)(\s+|$)")
_FLAG = re.compile(r"--([a-z][\w-]*)(?:=(\"[^\"]*\"|'[^']*'|\S*))?(\s+|$)")
MAX_INSTRUCTIONS = 5000


@dataclass
class Source:
    """Text put together from lines of a file; `origin(offset)` says where a character came from."""

    file: str
    text: str = ""
    starts: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def origin(self, offset: int) -> Origin:
        place = bisect.bisect_right(self.starts, offset) - 1
        return Origin(self.file, self.lines[max(place, 0)] if self.lines else 1)

    def cut(self, start: int, end: int | None = None) -> Source:
        """The same characters with the same origins."""
        stop = len(self.text) if end is None else end
        first = max(bisect.bisect_right(self.starts, start) - 1, 0)
        cut = Source(self.file, self.text[start:stop])
        for begin, line in zip(self.starts[first:], self.lines[first:], strict=True):
            if begin >= stop and cut.starts:
                break
            cut.starts.append(max(begin - start, 0))
            cut.lines.append(line)
        return cut

    @classmethod
    def of(cls, file: str, pieces: list[tuple[str, int]]) -> Source:
        source, length, texts = cls(file), 0, []
        for text, line in pieces:
            source.starts.append(length)
            source.lines.append(line)
            texts.append(text)
            length += len(text)
        source.text = "".join(texts)
        return source


@dataclass(frozen=True)
class Heredoc:
    name: str
    body: Source
    is_quoted: bool


@dataclass(frozen=True)
class Instruction:
    """`value` has no flags (`--platform=...`) and no heredoc bodies; RUN text with bodies is `script`."""

    keyword: str
    value: Source
    origin: Origin
    flags: tuple[tuple[str, str], ...] = ()
    heredocs: tuple[Heredoc, ...] = ()
    script: Source | None = None

    def flag(self, name: str) -> str | None:
        return next((value for flag, value in self.flags if flag == name), None)

    @property
    def words_of_json(self) -> list[str] | None:
        """The exec form: `["pip", "install", "torch"]`."""
        text = self.value.text.strip()
        if not text.startswith("["):
            return None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, list) and all(isinstance(word, str) for word in found) else None


def instructions(text: str, file: str) -> list[Instruction]:
    lines = text.split("\n")
    escape, position = _directives(lines)
    found: list[Instruction] = []
    while position < len(lines) and len(found) < MAX_INSTRUCTIONS:
        pieces, position = _logical(lines, position, escape)
        if not pieces:
            continue
        instruction, position = _instruction(file, pieces, lines, position)
        if instruction is not None:
            found.append(instruction)
    return found


def _directives(lines: list[str]) -> tuple[str, int]:
    escape = "\\"
    for number, line in enumerate(lines):
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            return escape, number
        if match[1].lower() == "escape" and match[2] == "`":
            escape = "`"
    return escape, len(lines)


def _logical(lines: list[str], position: int, escape: str) -> tuple[list[tuple[str, int]], int]:
    """One logical line as pieces with line numbers; empty for a comment or a blank line."""
    pieces: list[tuple[str, int]] = []
    while position < len(lines):
        line = lines[position]
        position += 1
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            if pieces:
                continue  # a comment or blank line inside a continued instruction is skipped
            return [], position
        tail = line.rstrip(" \t")
        if tail.endswith(escape):
            pieces.append((tail[:-1], position))
            continue
        pieces.append((line, position))
        break
    return pieces, position


def _instruction(
    file: str, pieces: list[tuple[str, int]], lines: list[str], position: int
) -> tuple[Instruction | None, int]:
    source = Source.of(file, pieces)
    match = _KEYWORD.match(source.text)
    if match is None:
        return Instruction("", source, source.origin(0)), position
    keyword, start = match[1].upper(), match.end()
    heredocs: list[Heredoc] = []
    body_pieces: list[tuple[str, int]] = []
    if keyword in {"RUN", "COPY", "ADD"}:
        for mark in list(_HEREDOC.finditer(source.text, start))[:20]:
            heredoc, position, raw = _heredoc(file, mark, lines, position)
            heredocs.append(heredoc)
            body_pieces += raw
    flags: list[tuple[str, str]] = []
    while (flag := _FLAG.match(source.text, start)) is not None:
        flags.append((flag[1], (flag[2] or "").strip("'\"")))
        start = flag.end()
    value = source.cut(start)
    script = None
    if keyword == "RUN" and heredocs:
        script = _script(file, value, heredocs, body_pieces)
    origin = source.origin(match.start(1))
    return Instruction(keyword, value, origin, tuple(flags), tuple(heredocs), script), position


def _heredoc(
    file: str, mark: re.Match[str], lines: list[str], position: int
) -> tuple[Heredoc, int, list[tuple[str, int]]]:
    pieces: list[tuple[str, int]] = []
    raw: list[tuple[str, int]] = []
    while position < len(lines):
        line = lines[position]
        position += 1
        raw.append(("\n" + line, position))
        shown = line.lstrip("\t") if mark[1] else line
        if shown.rstrip() == mark[3]:
            break
        pieces.append((shown + "\n", position))
    return Heredoc(mark[3], Source.of(file, pieces), bool(mark[2])), position, raw


def _script(file: str, value: Source, heredocs: list[Heredoc], raw: list[tuple[str, int]]) -> Source | None:
    """What the shell runs. `RUN <<EOF` runs the body; `RUN cat <<EOF > f` runs the line with the body behind it."""
    command = _HEREDOC.sub("", value.text).strip()
    if not command or re.fullmatch(r"(/\S*/)?(ba|da|z)?sh(\s+-\w+)*", command):
        return heredocs[0].body
    if re.match(r"(/\S*/)?(python[\d.]*|perl|ruby|node)\b", command):
        return None
    pieces = [(value.text[begin:end], line) for begin, end, line in _pieces(value)]
    return Source.of(file, [*pieces, *raw])


def _pieces(source: Source) -> list[tuple[int, int, int]]:
    ends = [*source.starts[1:], len(source.text)]
    return [(begin, end, line) for begin, end, line in zip(source.starts, ends, source.lines, strict=True)]
