"""What the rules share: the finding, the changes that may mend it, and how a fact becomes a premise and a source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from builder.catalog_rows.base import Arch
from builder.explain import joined
from builder.outcome import Outcome
from builder.versions import PythonVersion

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True)
class Change:
    """One thing changed, for a hint that is tried: fixes.py applies it and checks again.

    `pin`: the package gets this version or range; `add`, `remove`: a package; `variant`: torch's CUDA variant;
    `python`, `driver`: the machine; `index`: the wheel index of a variant is written into the file.
    """

    kind: Literal["pin", "add", "remove", "variant", "python", "driver", "index"]
    name: str
    value: str

    @property
    def says(self) -> str:
        texts = {
            "pin": f"use {self.name} {self.value.removeprefix('==')}",
            "add": f"add `{self.name}{self.value}`",
            "remove": f"remove {self.name}",
            "variant": f"take torch from the {self.value} index",
            "python": f"use Python {self.value}",
            "driver": f"use driver {self.value} or newer",
            "index": f"name the {self.value} index in the file",
        }
        return texts[self.kind]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`because` holds the premises; `conclusion` follows. `tries`: changes worth trying for a hint, best first.

    `is_unknown`: the facts do not say, so that without an error the verdict is "unknown". `hint` is for advice that is
    no change of the input; where `tries` has one that works, that one is shown.
    """

    code: str
    severity: Severity
    subject: str
    because: tuple[str, ...]
    conclusion: str
    hint: str | None = None
    facts: tuple[str, ...] = ()
    is_unknown: bool = False
    tries: tuple[Change, ...] = ()


Rule = Callable[[Outcome], Iterable[Finding]]

_CITATION = re.compile(r"(.*) \(((?:verified-from-metadata|from-source|from-memory): .*)\)", re.DOTALL)


# `note three-part: Two-part version tags ended with 11.1. ...`: the first sentence is the premise.
_NOTE = re.compile(r"note [\w.-]+: (.*)", re.DOTALL)
_SENTENCE_END = re.compile(r"\.(?= [A-Z'`]|$)")
_OPENING = re.compile(r"(?:The|A|An|From|No|Images|Two-part|Tag|One) ")


def _sentence(text: str) -> str:
    match = _NOTE.fullmatch(text)
    if match is None:
        return text
    first = _SENTENCE_END.split(match[1], maxsplit=1)[0]
    return first[0].lower() + first[1:] if _OPENING.match(first) else first


def finding(
    code: str,
    severity: Severity,
    subject: str,
    because: Iterable[str],
    conclusion: str,
    *,
    hint: str | None = None,
    tries: Iterable[Change] = (),
    is_unknown: bool = False,
) -> Finding:
    """Citations in `because` are taken apart: the sentence is the premise, the source goes to `facts`."""
    premises: list[str] = []
    sources: list[str] = []
    for text in because:
        match = _CITATION.fullmatch(text)
        premises.append(_sentence(match[1] if match else text))
        if match and match[2] not in sources:
            sources.append(match[2])
    return Finding(
        code=code,
        severity=severity,
        subject=subject,
        because=tuple(filter(None, premises)),
        conclusion=conclusion,
        hint=hint,
        facts=tuple(sources),
        is_unknown=is_unknown,
        tries=tuple(tries),
    )


def pythons_text(pythons: Iterable[PythonVersion]) -> str:
    return joined([str(python) for python in sorted(pythons)], limit=10) or "none"


def asked_gpus(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """(name, origin) of every GPU asked for."""
    for ask, _ in outcome.gpus:
        yield ask.name, str(ask.origin)


def arch_words(arch: Arch) -> str:
    return "" if arch == "x86_64" else f" on {arch}"
