"""Markers of the shipped facts: the short way of builder/shelf.py says what packaging says."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement

from builder.catalog_rows.packages import requirement
from builder.shelf import marker_holds
from builder.versions import PythonVersion

FACTS = Path(__file__).resolve().parents[2] / "builder" / "facts"


def words(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        yield from itertools.chain.from_iterable(map(words, node.values()))
    elif isinstance(node, list):
        yield from itertools.chain.from_iterable(map(words, node))


@cache
def shipped() -> tuple[str, ...]:
    files = (json.loads((FACTS / name).read_text(encoding="utf-8")) for name in ("packages.json", "torch.json"))
    return tuple(sorted(filter(is_requirement, set(itertools.chain.from_iterable(map(words, files))))))


def is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def packaging_says(marker: Marker, python: str, arch: str, extras: tuple[str, ...]) -> bool:
    values = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.99",
        "python_version": python,
        "sys_platform": "linux",
    }
    return any(marker.evaluate({**values, "extra": extra}) for extra in extras or ("",))


def test_every_shipped_requirement_reads_the_same() -> None:
    texts = shipped()
    assert len(texts) > 1000
    for text in texts:
        theirs, ours = Requirement(text), requirement(text)
        assert ours.name == re.sub(r"[-_.]+", "-", theirs.name).lower()
        assert ours.extras == theirs.extras
        assert ours.specifier == theirs.specifier
        assert (ours.marker is None) is (theirs.marker is None)


EXTRA = (
    'python_version >= "3.8" and python_version < "3.12"',
    'python_full_version == "3.11.*"',
    'sys_platform >= "l"',
    "extra == 'My_Extra'",
    '"3.10" <= python_version',
    'platform_machine == "aarch64" or python_version == "3.13"',
    'python_version not in "3.9 3.10"',
)


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
@pytest.mark.parametrize("extras", [(), ("my-extra",), ("cuda", "torch")])
def test_every_marker_is_answered_the_same(arch: str, extras: tuple[str, ...]) -> None:
    markers = sorted({str(wanted.marker) for wanted in map(Requirement, shipped()) if wanted.marker})
    assert len(markers) > 100
    wrong = [
        (text, python)
        for text, python in itertools.product((*markers, *EXTRA), ("3.8", "3.10", "3.13"))
        if marker_holds(requirement(f"name; {text}"), PythonVersion.parse(python), arch, extras)
        is not packaging_says(Marker(text), python, arch, extras)
    ]
    assert wrong == []
