"""A lock or project file that a Dockerfile installs from, by its name."""

from __future__ import annotations

from builder.environment import Kind, Origin
from builder.inputs.draft import Draft

_LOCKS: dict[str, Kind] = {"uv.lock": "uv-lock", "poetry.lock": "poetry-lock"}


def read_into(text: str, file: str, draft: Draft, included_by: Origin) -> bool:
    """False where the file is of no kind that is read here."""
    name = file.rsplit("/", 1)[-1]
    if name in _LOCKS or (name.startswith("pylock.") and name.endswith(".toml")):
        from builder.inputs import locks  # noqa: PLC0415

        locks.read_into(text, file, _LOCKS.get(name, "pylock"), draft, included_by=included_by)
        return True
    if name == "pyproject.toml":
        from builder.inputs import pyproject  # noqa: PLC0415

        pyproject.read_into(text, file, draft, included_by=included_by)
        return True
    return False
