"""What the tests of `check` share: one catalog, and options or a file in short form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.catalog import Catalog
from builder.check import CheckDocument, check
from builder.inputs import Options, load, parse
from builder.inputs.options import applied
from builder.inputs.options import parse as parse_options

CATALOG = Catalog.shipped()
ROOT = Path(__file__).resolve().parent.parent.parent
CASES = ROOT / "tests" / "data" / "cases"


def judged(*pins: str, hints: bool = False, catalog: Catalog = CATALOG, **said: Any) -> CheckDocument:
    """`dockerfile`, `conda`, `requirements` are texts; everything else is an option of `check`."""
    texts = {kind: said.pop(kind) for kind in ("dockerfile", "conda", "requirements") if kind in said}
    for name in ("gpus", "indexes", "precisions", "env"):
        if isinstance(said.get(name), str):
            said[name] = (said[name],)
    options = Options(pins=pins, **said)
    if not texts:
        return check(load([], options)[0].environment, catalog, hints=hints)
    ((kind, text),) = texts.items()
    environment = parse(kind, text, kind.capitalize(), options=options).merge(parse_options(options))
    return check(applied(environment, options), catalog, hints=hints)


def codes(*pins: str, **said: Any) -> set[str]:
    return {found.code for found in judged(*pins, **said).findings}
