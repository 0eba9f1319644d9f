"""Options of `pip install`, `uv pip install`, `uv add` and of requirements files -> what they set.

Works on words with origins, so that one table serves commands and file lines alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from builder.environment import Index, IndexSettings, Origin
from builder.inputs import indexes

Word = tuple[str, Origin]

# Short options with a value; every other short option is a flag.
_SHORT_VALUE = {
    "r": "requirement", "c": "constraint", "e": "editable", "i": "index-url", "f": "find-links", "t": "target",
    "p": "python", "b": "build-option", "C": "config-settings", "P": "upgrade-package",
}  # fmt: skip
_SHORT_FLAG = {"U": "upgrade", "I": "ignore-installed"}
_ALIASES = {
    "default-index": "index-url",
    "requirements": "requirement",
    "constraints": "constraint",
    "no-dependencies": "no-deps",
}
# Every long option that takes a value of its own when no `=` stands in the word; all others are flags.
_VALUED = """
index-url extra-index-url index find-links requirement constraint editable hash no-binary only-binary python target
prefix root python-version platform abi implementation config-settings config-setting global-option install-option
build-option trusted-host cert client-cert proxy timeout retries exists-action cache-dir src log upgrade-strategy
progress-bar index-strategy torch-backend prerelease resolution keyring-provider exclude-newer extra group only-group
no-group link-mode directory project package python-platform override overrides build-constraint build-constraints
fork-strategy use-feature use-deprecated report default-timeout upgrade-package reinstall-package
no-build-isolation-package no-build-package no-binary-package refresh-package allow-insecure-host python-preference
bounds branch tag rev optional output-file no-emit-package
"""
_LONG_VALUE = frozenset(_VALUED.split())


@dataclass
class PipOptions:
    """`positional` are requirements; `editable`, `requirements` and `constraints` as given by -e, -r and -c."""

    primary: Index | None = None
    additive: list[Index] = field(default_factory=list)
    find_links: list[Index] = field(default_factory=list)
    no_index: bool = False
    pre: bool = False
    strategy: str | None = None
    torch_backend: str | None = None
    positional: list[Word] = field(default_factory=list)
    editable: list[Word] = field(default_factory=list)
    requirements: list[Word] = field(default_factory=list)
    constraints: list[Word] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    no_binary: list[str] = field(default_factory=list)
    only_binary: list[str] = field(default_factory=list)
    python: str | None = None
    target: str | None = None
    flags: set[str] = field(default_factory=set)
    broken: list[Word] = field(default_factory=list)  # an option whose value is missing

    @property
    def is_upgrade(self) -> bool:
        return bool(self.flags & {"upgrade", "force-reinstall", "ignore-installed", "reinstall"})

    def settings(self, before: IndexSettings) -> IndexSettings:
        """These options over what held before."""
        strategy: Literal["best-match", "first-index"] = before.strategy
        if self.strategy is not None:
            strategy = "best-match" if self.strategy.startswith("unsafe") else "first-index"
        return replace(
            before,
            primary=self.primary or before.primary,
            additive=_once(before.additive, self.additive),
            find_links=_once(before.find_links, self.find_links),
            no_index=before.no_index or self.no_index,
            pre=before.pre or self.pre,
            strategy=strategy,
            torch_backend=self.torch_backend or before.torch_backend,
        )


def _once(before: Iterable[Index], new: Iterable[Index]) -> tuple[Index, ...]:
    found = {(index.url, index.variant, index.kind): index for index in before}
    for index in new:
        found.setdefault((index.url, index.variant, index.kind), index)
    return tuple(found.values())


def parse(words: Sequence[Word]) -> PipOptions:
    """Every word after `install`; unknown options are flags, so that nothing is taken for a package by mistake."""
    found = PipOptions()
    position = 0
    while position < len(words):
        word, origin = words[position]
        position += 1
        if word == "--":
            found.positional.extend(words[position:])
            break
        if not word.startswith("-") or word == "-":
            if word:
                found.positional.append((word, origin))
            continue
        name, value, needs_value = _split(word)
        if needs_value and value is None:
            if position >= len(words):
                found.broken.append((word, origin))
                continue
            value = words[position][0]
            origin = words[position][1]
            position += 1
        _apply(found, name, value, origin)
    return found


def _split(word: str) -> tuple[str, str | None, bool]:
    """Name, value if it stands in the word, whether one is needed."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = name.lower().replace("_", "-")
        name = _ALIASES.get(name, name)
        return name, value if equals else None, not equals and name in _LONG_VALUE
    for position, letter in enumerate(word[1:], start=1):
        if letter in _SHORT_VALUE:
            value = word[position + 1 :].removeprefix("=")
            return _SHORT_VALUE[letter], value or None, not value
        if letter in _SHORT_FLAG:
            return _SHORT_FLAG[letter], None, False
    return word[1:], None, False


def _apply(found: PipOptions, name: str, value: str | None, origin: Origin) -> None:
    if value is None:
        found.flags.add(name)
        found.no_index = found.no_index or name == "no-index"
        found.pre = found.pre or name == "pre"
        return
    value = value.strip()
    if name == "index-url":
        found.primary = indexes.classify(value, origin)
    elif name in {"extra-index-url", "index"}:
        # uv: `--index name=https://...`
        address = value.partition("=")[2] if name == "index" and "://" not in value.partition("=")[0] else value
        found.additive.extend(indexes.classify(part, origin) for part in (address or value).split())
    elif name == "find-links":
        found.find_links.append(indexes.classify(value, origin))
    elif name in {"requirement", "constraint", "editable"}:
        target = {"requirement": found.requirements, "constraint": found.constraints, "editable": found.editable}
        target[name].append((value, origin))
    elif name == "hash":
        found.hashes.append(value)
    elif name in {"no-binary", "only-binary"}:
        target_list = found.no_binary if name == "no-binary" else found.only_binary
        target_list.extend(part.strip() for part in value.split(",") if part.strip())
    elif name in {"python", "python-version"}:
        found.python = value
    elif name in {"target", "prefix", "root"}:
        found.target = value
    elif name == "index-strategy":
        found.strategy = value
    elif name == "torch-backend":
        found.torch_backend = value
    elif name == "prerelease":
        found.pre = value == "allow"
    elif name in {"upgrade-package", "reinstall-package"}:
        found.flags.add("upgrade")
        found.positional.append((value, origin))


def words_of(line: str, origin: Origin) -> list[Word]:
    """Split as a shell would; by blanks where the quotes do not close."""
    try:
        parts = shlex.split(line)
    except ValueError:
        parts = line.split()
    return [(part, origin) for part in parts]
