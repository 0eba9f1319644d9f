"""Faults that tests put into environments, counted for each check: how many were seeded, how many were caught.

A test that seeds faults says for which checks and with which codes:

    @fault("files", {"records": "file-missing"})

It counts as caught when the test passes. What a test observed through `observe` is held against what it says: a code
that was promised and not seen fails the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

OBSERVED: set[str] = set()


def fault(script: str, expected: Mapping[str, str]) -> pytest.MarkDecorator:
    """`expected`: check -> the code that it ends with; `script` is empty where the names of checks are whole."""
    prefix = f"{script}." if script else ""
    return pytest.mark.fault(*(f"{prefix}{check}={code}" for check, code in expected.items()))


def faults(
    script: str, table: Mapping[str, Any], expected: Callable[[Any], Mapping[str, str]] = lambda row: row[1]
) -> list[Any]:
    """The names of a table of faults as parameters of a test, each with its mark."""
    return [pytest.param(name, marks=fault(script, expected(row)), id=name) for name, row in table.items()]


def observe(script: str, checks: Mapping[str, Mapping[str, Any]]) -> None:
    """Note every check that failed, with its code."""
    OBSERVED.update(f"{script}.{name}={check['code']}" for name, check in checks.items() if check["status"] == "failed")


def said_by(item: pytest.Item) -> list[str]:
    """`check=code` of every fault that a test seeds."""
    return [text for mark in item.iter_markers("fault") for text in mark.args]


def registry() -> dict[str, tuple[str, ...]]:
    """Every check that can fail, with its codes, in the order of docs/smoke-tests.md, which a test keeps up to date."""
    page = Path(__file__).resolve().parent.parent.joinpath("docs", "smoke-tests.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_.0-9]+)` \| L\S.*\| ([^|]*) \|[^|]*\|$", page, flags=re.MULTILINE)
    found = {check: tuple(re.findall(r"`([a-z0-9-]+)`", codes)) for check, codes in rows}
    return {check: codes for check, codes in found.items() if codes}


def shared(check: str) -> str:
    """The checks of the second exporter are the same functions as those of the first."""
    return check.replace(".dynamo.", ".torchscript.")


class Count:
    """check -> (seeded, caught, not run); checks of the registry come first, in its order."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}

    def add(self, texts: Iterable[str], outcome: str) -> None:
        for text in texts:
            row = self.rows.setdefault(shared(text.partition("=")[0]), [0, 0, 0])
            row[0] += 1
            row[1] += outcome == "passed"
            row[2] += outcome == "skipped"

    def lines(self) -> list[str]:
        known = registry()
        order = [*(name for name in known if name in self.rows), *(sorted(set(self.rows) - set(known)))]
        width = max(map(len, order), default=5)
        lines = [f"{'check':<{width}}  seeded  caught  not run"]
        for name in order:
            seeded, caught, skipped = self.rows[name]
            lines.append(f"{name:<{width}}  {seeded:>6}  {caught:>6}  {skipped or '':>7}")
        seeded, caught, skipped = (sum(row[place] for row in self.rows.values()) for place in range(3))
        missing = [name for name in known if name not in self.rows]
        lines.append(f"{'all':<{width}}  {seeded:>6}  {caught:>6}  {skipped or '':>7}")
        lines.append(f"{len(known) - len(missing)} of {len(known)} checks had a fault seeded in this run")
        return lines
