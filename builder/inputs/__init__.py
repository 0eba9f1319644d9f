"""A user's files and options -> `Environment`: the part of the tool that reads other tools' files.

    load(files, options)        everything together; what the command line calls
    read(path, options)         one file
    parse(kind, text, file)     text of a known kind, without touching a disk

One module a kind; each is imported when a file of its kind turns up, so that a check of a requirements file imports
neither YAML nor TOML nor pydantic. Parsers never raise: what is not understood is in `Environment.unparsed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.environment import Environment, Kind
from builder.errors import UsageError
from builder.inputs.kinds import detect
from builder.inputs.options import Options, applied
from builder.inputs.options import parse as parse_options
from builder.inputs.reading import MAX_BYTES, Reader, decode


@dataclass(frozen=True)
class Loaded:
    """`name` tells the environments of one call apart: a cell's label, or "" for the one that files and pins make."""

    name: str
    environment: Environment


def load(files: Sequence[str | Path], options: Options | None = None) -> list[Loaded]:
    """All files that are no specs as one environment, in order, then the options; each cell of a spec as its own.

    UsageError for a file that does not exist or cannot be read, SpecError for a broken spec; nothing else is raised.
    """
    options = options or Options()
    asked = parse_options(options)
    together: Environment | None = None
    cells: list[Loaded] = []
    for file in files:
        text = _text(str(file))
        kind = detect(str(file), text)
        if kind == "spec":
            from builder.inputs import specs  # noqa: PLC0415 - imports pydantic

            cells += [Loaded(label, applied(env.merge(asked), options)) for label, env in specs.load(str(file), text)]
            continue
        found = parse(kind, text, str(file), options=options)
        together = found if together is None else together.merge(found)
    if together is not None or not cells:
        merged = asked if together is None else together.merge(asked)
        return [Loaded("", applied(merged, options)), *cells]
    return cells


def read(path: str | Path, options: Options | None = None) -> Environment:
    """One file that is no spec."""
    text = _text(str(path))
    return parse(detect(str(path), text), text, str(path), options=options)


def parse(
    kind: Kind, text: str, file: str, *, reader: Reader | None = None, options: Options | None = None
) -> Environment:
    """`reader` serves the files that this one names; without one they are read relative to `file`."""
    reader = reader or Reader()
    options = options or Options()
    arch = "aarch64" if (options.arch or "").lower() in {"aarch64", "arm64"} else "x86_64"
    if kind == "requirements":
        from builder.inputs import requirements  # noqa: PLC0415

        return requirements.parse(text, file, reader, variables=options.variables)
    if kind == "dockerfile":
        from builder.inputs import dockerfile  # noqa: PLC0415

        return dockerfile.parse(text, file, reader, variables=options.variables, arch=arch)
    if kind == "conda":
        from builder.inputs import conda  # noqa: PLC0415

        return conda.parse(text, file, reader, variables=options.variables)
    if kind == "conda-explicit":
        from builder.inputs import conda_lists  # noqa: PLC0415

        return conda_lists.parse(text, file)
    if kind == "conda-lock":
        from builder.inputs import conda_lists  # noqa: PLC0415

        return conda_lists.parse_conda_lock(text, file, arch=arch)
    if kind == "pyproject":
        from builder.inputs import pyproject  # noqa: PLC0415

        return pyproject.parse(text, file)
    if kind in {"uv-lock", "pylock", "poetry-lock"}:
        from builder.inputs import locks  # noqa: PLC0415

        return locks.parse(text, file, kind)
    raise ValueError(kind)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError("input-not-found", f"`{path}` does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("input-unreadable", f"`{path}` cannot be read: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError("input-unreadable", f"`{path}` has more than {MAX_BYTES:,} bytes")
    return decode(raw)


__all__ = ["Loaded", "Options", "detect", "load", "parse", "parse_options", "read"]
