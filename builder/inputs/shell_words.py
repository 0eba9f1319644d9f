"""Shell text -> tokens, and words -> their values. What cannot be known stands as `${NAME}` in the result."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

MAX_TOKENS = 50_000
# `ENV A=$A$A` doubles with every line; no value that matters here is longer.
MAX_VALUE = 4000
_OPERATORS = ("&&", "||", ";;", "|&", "&", "|", ";", "\n", "(", ")")
_REDIRECT = re.compile(r"(\d*|&)(>>|>\||>&|<&|<<<|<>|>|<)(?!\()|(\d*)<<-?")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([A-Za-z_][\w.-]*)['\"]?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(
    r"(?P<length>#)?(?P<name>[A-Za-z_]\w*)(?:(?P<op>:?[-+?=]|%%?|##?|//?|:)(?P<rest>.*))?", re.DOTALL
)

# A placeholder that no file can contain by accident, split back into `${NAME}` when a word is done.
UNKNOWN = re.compile("\ue000([^\ue001]*)\ue001")


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: word, operator, redirect (`target` is the raw word behind it), heredoc (`text` is the body)."""

    kind: str
    text: str
    offset: int
    target: str = ""


def tokens(text: str) -> Iterator[Token]:
    """Never fails: what does not close runs to the end."""
    position, count = 0, 0
    pending: list[tuple[str, bool]] = []
    at_word_start = True
    while position < len(text) and count < MAX_TOKENS:
        count += 1
        letter = text[position]
        if letter in " \t":
            position += 1
            at_word_start = True
            continue
        if text.startswith("\\\n", position):
            position += 2
            continue
        if letter == "#" and at_word_start:
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        heredoc = _HEREDOC.match(text, position)
        if heredoc is not None and not text.startswith("<<<", position):
            pending.append((heredoc[3], bool(heredoc[1])))
            position = heredoc.end()
            continue
        redirect = _REDIRECT.match(text, position) if letter in "<>&0123456789" else None
        if redirect is not None:
            begin = _skip_blanks(text, redirect.end())
            end = _word_end(text, begin)
            yield Token("redirect", redirect[0].strip("0123456789&"), position, text[begin:end])
            position = max(end, redirect.end())
            continue
        operator = next((each for each in _OPERATORS if text.startswith(each, position)), None)
        if operator is not None:
            yield Token("operator", operator, position)
            position += len(operator)
            at_word_start = True
            if operator == "\n":
                for name, is_indented in pending:
                    body, position = _body(text, position, name, is_indented=is_indented)
                    yield Token("heredoc", body, position)
                pending = []
            continue
        end = _word_end(text, position)
        if end == position:  # a letter that starts no word, such as a stray `)`
            position += 1
            continue
        yield Token("word", text[position:end], position)
        position = end
        at_word_start = False


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t":
        position += 1
    return position


def _body(text: str, position: int, name: str, *, is_indented: bool) -> tuple[str, int]:
    lines: list[str] = []
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        position = end + 1
        shown = line.lstrip("\t") if is_indented else line
        if shown.rstrip() == name:
            break
        lines.append(shown)
    return "\n".join(lines), min(position, len(text))


def _word_end(text: str, position: int) -> int:
    while position < len(text):
        letter = text[position]
        if letter in " \t\n;|&()" and not (letter == "(" and text[position - 1 : position] in {"<", ">"} and position):
            return position
        if letter in "<>" and not text.startswith("(", position + 1):
            return position
        if letter == "\\":
            position += 2
        elif letter == "'":
            end = text.find("'", position + 1)
            position = len(text) if end < 0 else end + 1
        elif letter in '"`':
            position = _closing_quote(text, position)
        elif letter == "$" and text[position + 1 : position + 2] in {"(", "{"}:
            position = closing(text, position + 1)
        elif letter == "(":
            position = closing(text, position)
        else:
            position += 1
    return min(position, len(text))


def _closing_quote(text: str, position: int) -> int:
    quote = text[position]
    position += 1
    while position < len(text):
        if text[position] == "\\":
            position += 2
        elif text[position] == quote:
            return position + 1
        elif quote == '"' and text.startswith(("$(", "${"), position):
            position = closing(text, position + 1)
        else:
            position += 1
    return len(text)


def closing(text: str, position: int) -> int:
    """Behind the bracket that closes the one at `position`; quotes inside are skipped."""
    pairs = {"(": ")", "{": "}"}
    opening = text[position]
    depth = 0
    while position < len(text):
        letter = text[position]
        if letter == "\\":
            position += 2
            continue
        if letter == "'":
            end = text.find("'", position + 1)
            position = len(text) if end < 0 else end + 1
            continue
        if letter == opening:
            depth += 1
        elif letter == pairs[opening]:
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(text)


Substitute = Callable[[str], "str | None"]


class Expander:
    """Values of words. `variables`: name -> value, None where it is declared but not known here."""

    def __init__(self, variables: Mapping[str, str | None], substitute: Substitute | None = None) -> None:
        self._variables = variables
        self._substitute = substitute

    def words(self, raw: str) -> list[str]:
        """An unquoted value with blanks gives several words, an empty one gives none."""
        parts = self._parts(raw, 0)
        words: list[str] = []
        current: str | None = None
        for text, is_split in parts:
            if not is_split:
                current = (current or "") + text
                continue
            pieces = re.split(r"[ \t\n]+", text)
            for number, piece in enumerate(pieces):
                if number > 0 and current is not None:
                    words.append(current)
                    current = None
                if piece:
                    current = (current or "") + piece
        if current is not None:
            words.append(current)
        return [show(word) for word in words]

    def text(self, raw: str) -> str:
        """As one word, as in an assignment."""
        return show("".join(text for text, _ in self._parts(raw, 0))[:MAX_VALUE])

    def _parts(self, raw: str, depth: int) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        position = 0
        while position < len(raw):
            letter = raw[position]
            if letter == "\\":
                if not raw.startswith("\\\n", position):
                    found.append((raw[position + 1 : position + 2], False))
                position += 2
            elif letter == "'":
                end = raw.find("'", position + 1)
                end = len(raw) if end < 0 else end
                found.append((raw[position + 1 : end], False))
                position = end + 1
            elif letter == '"':
                end = _closing_quote(raw, position)
                inner = raw[position + 1 : end - 1 if raw[end - 1 : end] == '"' and end - 1 > position else end]
                found.append((self._quoted(inner, depth), False))
                position = end
            elif letter in "$`":
                text, position = self._dollar(raw, position, depth)
                found.append((text, True))
            else:
                end = position + 1
                while end < len(raw) and raw[end] not in "\\'\"$`":
                    end += 1
                found.append((raw[position:end], False))
                position = end
        return found

    def _quoted(self, raw: str, depth: int) -> str:
        found: list[str] = []
        position = 0
        while position < len(raw):
            letter = raw[position]
            if letter == "\\" and raw[position + 1 : position + 2] in {"$", "`", '"', "\\", "\n"}:
                found.append(raw[position + 1].strip("\n"))
                position += 2
            elif letter in "$`":
                text, position = self._dollar(raw, position, depth)
                found.append(text)
            else:
                found.append(letter)
                position += 1
        return "".join(found)

    def _dollar(self, raw: str, position: int, depth: int) -> tuple[str, int]:
        if raw[position] == "`":
            end = _closing_quote(raw, position)
            return self._command(raw[position + 1 : end - 1], raw[position:end]), end
        if raw.startswith("$((", position):
            end = closing(raw, position + 1)
            return _unknown(raw[position + 1 : end]), end
        if raw.startswith("$(", position):
            end = closing(raw, position + 1)
            return self._command(raw[position + 2 : end - 1], raw[position:end]), end
        if raw.startswith("${", position):
            end = closing(raw, position + 1)
            return self._parameter(raw[position + 2 : end - 1], depth), end
        name = _NAME.match(raw, position + 1)
        if name is None:
            return raw[position : position + 2], position + 2
        return self._value(name[0]), name.end()

    def _command(self, inner: str, shown: str) -> str:
        value = self._substitute(inner) if self._substitute is not None else None
        return _unknown(shown) if value is None else value

    def _value(self, name: str) -> str:
        value = self._variables.get(name)
        return _unknown(name) if value is None else value[:MAX_VALUE]

    def _parameter(self, inner: str, depth: int) -> str:
        match = _PARAMETER.fullmatch(inner)
        if match is None or depth > 10:
            return _unknown(inner)
        name, operator, rest = match["name"], match["op"], match["rest"] or ""
        value = self._variables.get(name)
        if match["length"]:
            return _unknown(inner) if value is None else str(len(value))
        if operator in {"-", ":-", "=", ":="}:
            is_set = value is not None and (value != "" or operator in {"-", "="})
            return str(value) if is_set else self._nested(rest, depth)
        if operator in {"+", ":+"}:
            is_set = value is not None and (value != "" or operator == "+")
            return self._nested(rest, depth) if is_set else ""
        if operator in {"?", ":?"}:
            return self._value(name)
        if value is None:
            return _unknown(name)
        if operator is None:
            return value
        return _edited(value, operator, self._nested(rest, depth))

    def _nested(self, raw: str, depth: int) -> str:
        return "".join(text for text, _ in self._parts(raw, depth + 1))[:MAX_VALUE]


def _edited(value: str, operator: str, rest: str) -> str:
    """`${X%pat}`, `${X#pat}`, `${X/a/b}`, `${X:1:2}`."""
    if operator in {"/", "//"}:
        old, _, new = rest.partition("/")
        return value[:MAX_VALUE].replace(old, new, -1 if operator == "//" else 1) if old else value
    if operator == ":":
        numbers = re.fullmatch(r"\s*(-?\d{1,6})(?::(-?\d{1,6}))?", rest)
        if numbers is None:
            return value
        start = int(numbers[1])
        if numbers[2] is None:
            return value[start:]
        length = int(numbers[2])
        return value[start:][:length]
    value = value[:2000]
    lengths = range(len(value) + 1)
    if operator in {"%", "%%"}:
        cuts = lengths if operator == "%%" else reversed(lengths)
        return next((value[:cut] for cut in cuts if fnmatch.fnmatchcase(value[cut:], rest)), value)
    cuts = reversed(lengths) if operator == "##" else lengths
    return next((value[cut:] for cut in cuts if fnmatch.fnmatchcase(value[:cut], rest)), value)


# Blanks inside a placeholder do not split words.
_HIDE = str.maketrans(" \t\n", "\ue002\ue003\ue004")
_UNHIDE = str.maketrans("\ue002\ue003\ue004", " \t\n")


def _unknown(name: str) -> str:
    return f"\ue000{name.translate(_HIDE)}\ue001"


def show(text: str) -> str:
    shown = UNKNOWN.sub(lambda match: f"${{{match[1]}}}" if _NAME.fullmatch(match[1]) else match[1], text)
    return shown.translate(_UNHIDE)


def is_known(text: str) -> bool:
    """Whether nothing in the word was left open."""
    return "$" not in text and "`" not in text
