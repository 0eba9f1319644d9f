"""Walks a shell script and says which simple commands run, with their words expanded.

No shell: control flow is followed as far as the variables are known; a branch that hangs on something unknown is walked
too, and its commands are marked as conditional. Commands are assumed to succeed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from builder.inputs.shell_words import MAX_VALUE, Expander, Token, is_known, tokens

MAX_FRAMES = 50
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_RESERVED = frozenset(
    {"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "case", "esac", "{", "}", "!", "function"}
)
_DECLARES = frozenset({"export", "declare", "local", "readonly", "typeset"})


@dataclass(frozen=True)
class SimpleCommand:
    """`words` with the offset of each in the script; `assignments` are those in front (`A=b pip install`)."""

    words: tuple[tuple[str, int], ...]
    offset: int
    assignments: dict[str, str] = field(default_factory=dict)
    is_conditional: bool = False
    redirects: tuple[tuple[str, str], ...] = ()
    heredoc: str | None = None
    piped_from: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(word for word, _ in self.words)


@dataclass
class _Frame:
    kind: str
    state: bool | None = True
    is_condition: bool = False
    any_true: bool = False
    any_unknown: bool = False
    subject: str | None = None


class Shell:
    """`variables` is changed as the script changes them; `cwd` follows `cd`."""

    def __init__(
        self,
        variables: dict[str, str | None],
        run: Callable[[SimpleCommand], None],
        *,
        cwd: str = "/",
        substitute: Callable[[str], str | None] | None = None,
    ) -> None:
        self.variables = variables
        self.exported: set[str] = set()
        self.cwd = cwd
        self._run = run
        self._expander = Expander(variables, substitute)
        self._frames: list[_Frame] = []
        self._words: list[Token] = []
        self._redirects: list[Token] = []
        self._held: SimpleCommand | None = None
        self._connector = ""
        self._negate = False
        self._status: bool | None = True
        self._is_assumed = False
        self._piped_from: tuple[str, ...] = ()

    def walk(self, script: str) -> None:
        for token in tokens(script):
            if token.kind == "word":
                self._word(token)
            elif token.kind == "redirect":
                self._redirects.append(token)
            elif token.kind == "heredoc":
                self._give(heredoc=token.text)
            else:
                self._operator(token.text)
        self._end("")
        self._give()

    # ---- structure

    def _word(self, token: Token) -> None:
        frame = self._frames[-1] if self._frames else None
        if self._words or (token.text not in _RESERVED and token.text != "for"):
            self._words.append(token)
            # `for x in a b` and `case x in` end without an operator before their next word.
            if token.text == "in" and self._words[0].text == "case" and len(self._words) > 2:
                self._open_case()
            return
        word = token.text
        if frame is not None and frame.kind == "case" and frame.is_condition and word != "esac":
            self._words.append(token)
        elif word in {"if", "while", "until"}:
            self._push(_Frame("if" if word == "if" else "loop", None, is_condition=True))
        elif word in {"for", "case"}:
            self._words.append(token)
        elif word == "!":
            self._negate = True
        elif frame is not None:
            self._reserved(word, frame)
        self._connector = "" if word != "!" else self._connector

    def _reserved(self, word: str, frame: _Frame) -> None:
        if word == "then":
            found = None if self._is_assumed else self._status
            frame.state = False if frame.any_true else None if frame.any_unknown and found is not False else found
            frame.any_true = frame.any_true or found is True
            frame.any_unknown = frame.any_unknown or found is None
            frame.is_condition = False
        elif word == "elif":
            frame.is_condition = True
        elif word == "else":
            frame.state = False if frame.any_true else None if frame.any_unknown else True
        elif word == "do":
            frame.is_condition = False
        elif word in {"fi", "done", "esac"}:
            self._frames.pop()
            self._status, self._is_assumed = True, True

    def _push(self, frame: _Frame) -> None:
        if len(self._frames) < MAX_FRAMES:
            self._frames.append(frame)

    def _operator(self, operator: str) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and frame.kind == "case":
            if frame.is_condition:
                self._pattern(operator, frame)
                return
            if operator == ";;":
                self._end("")
                frame.is_condition = True
                return
        self._end(operator)

    def _open_case(self) -> None:
        subject = " ".join(self._expander.words(self._words[1].text)) if len(self._words) > 1 else ""
        self._words = []
        self._push(_Frame("case", None, is_condition=True, subject=subject if is_known(subject) else None))

    def _pattern(self, operator: str, frame: _Frame) -> None:
        if operator != ")":
            return
        patterns = [self._expander.text(token.text) for token in self._words]
        self._words = []
        frame.is_condition = False
        if frame.any_true:
            frame.state = False
        elif frame.subject is None:
            frame.state = None
        else:
            frame.state = any(fnmatch.fnmatchcase(frame.subject[:500], pattern[:500]) for pattern in patterns)
            frame.any_true = frame.state

    def _end(self, operator: str) -> None:
        """The command before an operator is complete."""
        if self._words or self._redirects:
            self._command(operator)
        self._words, self._redirects, self._negate = [], [], False
        if operator in {"&&", "||"}:
            self._connector = operator
        elif operator != "\n" or self._connector == "":
            self._connector = ""
        if operator not in {"|", "|&"}:
            self._piped_from = ()

    # ---- one command

    def _command(self, operator: str) -> None:
        if self._words and self._words[0].text == "for":
            self._for()
            return
        run = self._runs()
        states = [run, *(frame.state for frame in self._frames if not frame.is_condition)]
        if False in states:
            return
        is_conditional = None in states
        words: list[tuple[str, int]] = []
        assignments: dict[str, str] = {}
        for token in self._words:
            match = _ASSIGNMENT.fullmatch(token.text) if not words else None
            if match is not None:
                assignments[match[1]] = self._expander.text(match[3])
            else:
                words += [(word, token.offset) for word in self._expander.words(token.text)]
        if not words:
            for name, value in assignments.items():
                self._assign(name, value, is_conditional=is_conditional)
            self._status, self._is_assumed = True, False
            return
        self._status, self._is_assumed = self._builtin(words, is_conditional=is_conditional)
        if self._negate and self._status is not None and not self._is_assumed:
            self._status = not self._status
        redirects = tuple((token.text, self._expander.text(token.target)) for token in self._redirects)
        self._give()
        self._held = SimpleCommand(
            words=tuple(words),
            offset=self._words[0].offset if self._words else 0,
            assignments=assignments,
            is_conditional=is_conditional,
            redirects=redirects,
            piped_from=self._piped_from,
        )
        self._piped_from = tuple(word for word, _ in words) if operator in {"|", "|&"} else ()

    def _give(self, heredoc: str | None = None) -> None:
        """Hands over the last command: held back until the next, because its heredoc comes behind the line."""
        held, self._held = self._held, None
        if held is None:
            return
        if heredoc is not None:
            held = SimpleCommand(
                held.words, held.offset, held.assignments, held.is_conditional, held.redirects, heredoc, held.piped_from
            )
        self._run(held)

    def _runs(self) -> bool | None:
        if self._connector == "&&":
            return self._status
        if self._connector == "||":
            if self._status is True:
                return None if self._is_assumed else False
            return True if self._status is False else None
        return True

    def _for(self) -> None:
        """The body is walked once with all values in the variable: `pip install $package` then names them all."""
        values = [word for token in self._words[3:] for word in self._expander.words(token.text)]
        if len(self._words) > 1:
            self.variables[self._words[1].text] = " ".join(values)[:MAX_VALUE]
        self._words = []
        self._push(_Frame("loop", True))

    def _assign(self, name: str, value: str, *, is_conditional: bool) -> None:
        if not is_conditional or self.variables.get(name) is None:
            self.variables[name] = value[:MAX_VALUE]

    def _builtin(self, words: list[tuple[str, int]], *, is_conditional: bool) -> tuple[bool | None, bool]:
        """Status, and whether it is only assumed."""
        name, rest = words[0][0], [word for word, _ in words[1:]]
        if name in _DECLARES:
            for word in rest:
                match = _ASSIGNMENT.fullmatch(word)
                if match is not None:
                    self._assign(match[1], match[3], is_conditional=is_conditional)
                self.exported.add(match[1] if match else word)
        elif name == "unset":
            for word in rest:
                self.variables.pop(word, None)
        elif name in {"cd", "pushd"} and rest:
            self.cwd = rest[-1] if rest[-1].startswith("/") else f"{self.cwd.rstrip('/')}/{rest[-1]}"[:1000]
        elif name in {"[", "test", "[["}:
            return _test([word for word in rest if word not in {"]", "]]"}]), False
        elif name in {"true", ":"}:
            return True, False
        elif name == "false":
            return False, False
        return True, True


def _test(words: list[str]) -> bool | None:
    if not all(is_known(word) for word in words):
        return None
    if words[:1] == ["!"]:
        found = _test(words[1:])
        return None if found is None else not found
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2 and words[0] in {"-n", "-z"}:
        return bool(words[1]) == (words[0] == "-n")
    if words == ["-z"]:
        return True
    if len(words) != 3:
        return None
    left, operator, right = words
    if operator in {"=", "=="}:
        return fnmatch.fnmatchcase(left[:500], right[:500]) if "*" in right else left == right
    if operator == "!=":
        return left != right
    numbers = {"-eq": "==", "-ne": "!=", "-gt": ">", "-lt": "<", "-ge": ">=", "-le": "<="}
    if operator in numbers and re.fullmatch(r"-?\d{1,9}", left) and re.fullmatch(r"-?\d{1,9}", right):
        a, b = int(left), int(right)
        results = {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b}
        return results[operator]
    return None
