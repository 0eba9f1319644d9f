"""`check` without the command line library: what cli_check.py's command and the quick start of __main__.py both run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ConflictError, UsageError
from builder.inputs import Options, load

if TYPE_CHECKING:
    from builder.catalog import Catalog
    from builder.check import CheckDocument

# Option -> (field of Options, may repeat). Flags and --facts are handled by `quick`.
OPTIONS = {
    "--pin": ("pins", True),
    "--python": ("python", False),
    "--gpu": ("gpus", True),
    "--driver": ("driver", False),
    "--os": ("os", False),
    "--glibc": ("glibc", False),
    "--index": ("indexes", True),
    "--arch": ("arch", False),
    "--date": ("date", False),
    "--env": ("env", True),
    "--precision": ("precisions", True),
    "--opset": ("opset", False),
}
FLAGS = frozenset({"--json", "--fix", "--write"})


def quick(words: Sequence[str]) -> int | None:
    """The exit status of `torchproof check WORDS`; None: something that the command line library should see.

    The library and its types cost three times the check itself, so plain words are read here.
    """
    files: list[str] = []
    said: dict[str, Any] = {}
    flags: set[str] = set()
    facts: str | None = None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in FLAGS:
            flags.add(word)
        elif name in OPTIONS or name == "--facts":
            text = value if equals else next(rest, None)
            if text is None or (not equals and text.startswith("--")):
                return None
            if name == "--facts":
                facts = text
                continue
            field, repeats = OPTIONS[name]
            said[field] = (*said.get(field, ()), text) if repeats else text
        elif word.startswith("-"):
            return None
        else:
            files.append(word)
    if "opset" in said:
        if not str(said["opset"]).isdigit():
            return None
        said["opset"] = int(said["opset"])
    return run(
        files,
        Options(**said),
        facts=None if facts is None else Path(facts),
        as_json="--json" in flags,
        fix="--fix" in flags,
        write="--write" in flags,
    )


def run(files: Sequence[str], options: Options, *, facts: Path | None, as_json: bool, fix: bool, write: bool) -> int:
    """Prints; returns the exit status."""
    from datetime import date  # noqa: PLC0415

    from builder.catalog import Catalog  # noqa: PLC0415
    from builder.check import check  # noqa: PLC0415

    machine = (options.gpus, options.driver, options.python, options.precisions)
    if not files and not options.pins and not any(machine):
        raise UsageError(
            "nothing-to-check", "there is nothing to check", hint="name a file, or give --pin torch==2.6.0"
        )
    if write and not fix:
        raise UsageError("write-without-fix", "--write changes nothing without --fix", hint="say --fix --write")
    catalog = Catalog.shipped()
    if facts is not None:
        catalog = catalog.with_overlay(facts)
    today = date.today()  # noqa: DTZ011  (a day is enough for the age of the facts)
    documents = [check(each.environment, catalog, name=each.name, today=today) for each in load(files, options)]
    if fix:
        _fix(documents, catalog, write=write)
    elif as_json:
        _out(json.dumps(_json(documents), ensure_ascii=False, indent=1))
    else:
        _say(documents)
    is_bad = any(document.verdict == "incompatible" for document in documents)
    return ConflictError.exit_status if is_bad else 0


def _out(text: str) -> None:
    from builder.cli_output import print_data  # noqa: PLC0415

    print_data(text)


def _json(documents: list[CheckDocument]) -> dict[str, Any]:
    """One environment is the document itself; the cells of a spec stand in `cells` under the worst verdict."""
    if len(documents) == 1 and not documents[0].name:
        return documents[0].to_json()
    order = ("incompatible", "unknown", "compatible")
    verdict = min((document.verdict for document in documents), key=order.index, default="compatible")
    cells = [document.to_json() for document in documents]
    return {
        "schema_version": 1,
        "verdict": verdict,
        "findings": [found for cell in cells for found in cell["findings"]],
        "cells": cells,
    }


def _say(documents: list[CheckDocument]) -> None:
    from builder.check_text import text  # noqa: PLC0415

    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        from builder.cli_output import print_styled  # noqa: PLC0415

        print_styled(text(documents))
    else:
        _out(text(documents))


def _fix(documents: list[CheckDocument], catalog: Catalog, *, write: bool) -> None:
    from builder.edits import diffs, written  # noqa: PLC0415

    changed = [found for document in documents for found in diffs(document, catalog)]
    if not changed:
        _out("nothing to change: no hint of a change to a file was found to hold")
    for each in changed:
        _out(each.diff)
    if write:
        for path in written(changed):
            _out(f"written: {path}")
