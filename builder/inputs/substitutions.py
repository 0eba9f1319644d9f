"""`$(echo $CUDA_VERSION | cut -d. -f1,2 | tr -d .)`: the few pure text pipelines that Dockerfiles compute names with.

Nothing is run: a command that is not in this list gives None, and the word stays open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder.inputs.shell_words import MAX_VALUE, Expander, is_known, tokens

_MAX_COMMANDS = 8
_SED = re.compile(r"s(?P<mark>[/|#,])(?P<old>.*)(?P=mark)(?P<new>.*)(?P=mark)(?P<all>g?)", re.DOTALL)
_RANGE = re.compile(r"(\d{0,4})(-?)(\d{0,4})")
_AWK_PRINT = re.compile(r"\{\s*print\s+((?:\$\d+|\"[^\"$]*\"|\s|,)+)\}")


def evaluate(inner: str, variables: Mapping[str, str | None], answers: Mapping[str, str]) -> str | None:
    """`answers` are commands with a fixed result, such as `uname -m`."""
    commands: list[list[str]] = [[]]
    expander = Expander(variables)
    for token in tokens(inner):
        if token.kind == "word":
            commands[-1] += expander.words(token.text)
        elif token.kind == "operator" and token.text == "|" and len(commands) < _MAX_COMMANDS:
            commands.append([])
        else:
            return None
    value = _source(commands[0], answers)
    for command in commands[1:]:
        if value is None or not command or not all(is_known(word) or command[0] == "awk" for word in command):
            return None
        value = _filtered(value[:MAX_VALUE], command[0], command[1:])
    return value


def _source(words: list[str], answers: Mapping[str, str]) -> str | None:
    if words[:1] in (["echo"], ["printf"]):
        text = " ".join(word for word in words[1:] if word not in {"-n", "-e", "%s"})
        return text if is_known(text) else None
    return answers.get(" ".join(words))


def _filtered(value: str, name: str, words: list[str]) -> str | None:
    if name == "tr" and len(words) == 2:
        if words[0] in {"-d", "--delete"}:
            return "".join(letter for letter in value if letter not in words[1])
        if len(words[0]) == len(words[1]) == 1:
            return value.replace(words[0], words[1])
    if name == "cut":
        return _cut(value, words)
    if name == "sed" and words and words[-1] and words[:-1] in ([], ["-e"], ["-E"], ["-r"]):
        return _sed(value, words[-1])
    if name == "awk":
        return _awk(value, words)
    if name in {"head", "tail"}:
        return value if "\n" not in value else None
    return None


def _cut(value: str, words: list[str]) -> str | None:
    """`-d. -f1,2`, `-d '.' -f 1-2`, `-c 1-3`."""
    options: dict[str, str] = {}
    waiting: str | None = None
    for word in words:
        if waiting is not None:
            options[waiting], waiting = word, None
        elif re.match(r"-[dfc]", word):
            waiting = word[1] if len(word) == 2 else None
            if waiting is None:
                options[word[1]] = word[2:]
        else:
            return None
    places = _places(options.get("f") or options.get("c") or "")
    if places is None:
        return None
    if "c" in options:
        return "".join(value[place - 1 : place] for place in places if place <= len(value))
    delimiter = options.get("d", "\t")
    if len(delimiter) != 1:
        return None
    parts = value.split(delimiter)
    return delimiter.join(parts[place - 1] for place in places if place <= len(parts))


def _places(text: str) -> list[int] | None:
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or not (match[1] or match[3]):
            return None
        first = int(match[1] or 1)
        last = int(match[3]) if match[3] else 50 if match[2] else first
        found += range(max(first, 1), min(last, first + 50) + 1)
    return found


def _sed(value: str, script: str) -> str | None:
    """One replacement of plain text, all occurrences with `g`."""
    match = _SED.fullmatch(script)
    if match is None:
        return None
    old = re.sub(r"\\([.\\/|#,-])", r"\1", match["old"])
    plain = re.sub(r"\\[.\\/|#,-]", "", match["old"])
    if not old or re.search(r"[.\\*^$\[\]+?(){}]", plain) or "\\" in match["new"] or "&" in match["new"]:
        return None
    return value.replace(old, match["new"], -1 if match["all"] else 1)


def _awk(value: str, words: list[str]) -> str | None:
    """`-F. '{print $1"."$2}'`."""
    separator = None
    rest = list(words)
    while rest and rest[0].startswith("-F"):
        flag = rest.pop(0)
        separator = flag[2:] or (rest.pop(0) if rest else "")
    match = _AWK_PRINT.fullmatch(rest[0]) if len(rest) == 1 else None
    if match is None or separator == "":
        return None
    parts = value.split(separator.replace("[.]", ".").replace("\\.", ".")) if separator is not None else value.split()
    found = []
    for piece in re.findall(r"\$\d+|\"[^\"]*\"|,", match[1]):
        if piece == ",":
            found.append(" ")
        elif piece.startswith('"'):
            found.append(piece[1:-1])
        else:
            place = int(piece[1:5])
            found.append(value if place == 0 else parts[place - 1] if place <= len(parts) else "")
    return "".join(found)
