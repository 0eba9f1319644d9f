"""Options that commands share. Typer reads the annotations of a command, so these are annotations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from builder.catalog import Catalog

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="a matrix, such as images/quickstart.yaml")]
SpecOrNone = Annotated[
    Path | None, typer.Argument(metavar="SPEC", help="a matrix, such as images/quickstart.yaml", show_default=False)
]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="PATTERN", help="image ids to take; may repeat")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="where everything that a run makes goes")]
Locks = Annotated[
    Path | None, typer.Option("--locks", metavar="DIR", help="folder of kept locks; default: locks/ beside the spec")
]
EngineName = Annotated[str, typer.Option("--engine", help="docker, in-place or auto (Docker where an engine answers)")]
InPlaceFlag = Annotated[
    bool, typer.Option("--in-place", help="an environment on this machine: no Docker; --engine in-place")
]
Prefix = Annotated[
    Path | None, typer.Option("--prefix", metavar="DIR", help="the environment in place; default: OUT/<name>/envs/<id>")
]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="prove the environment at --prefix, or the current one, as it is: read-only")
]
Installed = Annotated[
    Path | None,
    typer.Option("--installed", metavar="DIR", help="tell what has changed in a proven environment; needs no SPEC"),
]
Scripts = Annotated[
    list[str] | None, typer.Option("--script", metavar="SCRIPT", help="smoke scripts to run; default: all; may repeat")
]
Skip = Annotated[list[str] | None, typer.Option("--skip", metavar="SCRIPT", help="smoke scripts to leave out")]
UpTo = Annotated[
    str | None, typer.Option("--level", help="run the scripts up to this level, L1 ... L3, and require no more")
]
Require = Annotated[str | None, typer.Option("--require", help="L0 ... L3; default: what the spec says")]
FromEnv = Annotated[
    Path | None,
    typer.Option(
        "--from-env",
        metavar="PREFIX|FILE",
        help="write the spec and lock of an existing environment: a prefix, or the output of pip freeze or conda list",
    ),
]
FromEnvName = Annotated[str, typer.Option("--name", help="with --from-env: the spec is written to NAME.yaml")]
FromEnvPython = Annotated[
    str | None,
    typer.Option("--python", metavar="X.Y", help="with --from-env: the Python, where a list does not tell it"),
]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress on standard error")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="every line of the build")]
Facts = Annotated[Path | None, typer.Option("--facts", metavar="FILE", help="rows of your own over the shipped facts")]


def open_catalog(facts: Path | None) -> Catalog:
    """The shipped facts, with the rows of `--facts` over them."""
    from builder.catalog import Catalog  # noqa: PLC0415 - not at start-up

    catalog = Catalog.shipped()
    return catalog.with_overlay(facts) if facts is not None else catalog
