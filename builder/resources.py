"""Where templates, sample matrices and smoke scripts are, in a checkout, an install or a zip."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def _root() -> Traversable:
    package = files("builder")
    data = package / "_data"
    if data.is_dir():
        return data
    from pathlib import Path  # noqa: PLC0415 - only a checkout gets here

    return Path(__file__).resolve().parent.parent


TEMPLATES: Traversable = _root() / "templates"
IMAGES: Traversable = _root() / "images"
SMOKE_TESTS: Traversable = _root() / "smoke_tests"
FACTS: Traversable = files("builder") / "facts"


def walk(folder: Traversable, *, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """(relative path, bytes) of every file below `folder`, sorted by name; compiled files are left out."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name == "__pycache__" or entry.name.endswith(".pyc"):
            continue
        if entry.is_dir():
            yield from walk(entry, prefix=f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_bytes()
