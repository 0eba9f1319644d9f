"""What the command line says about environments in place, beyond a verdict."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from builder import installed_record
from builder.cli_output import print_data
from builder.errors import StaleLockError, UsageError
from builder.installed_record import Changes
from builder.place import Place, marker

if TYPE_CHECKING:
    from builder.catalog import Catalog
    from builder.engines import InPlace
    from builder.sources import Sources

_MOST_FILES = 20


def tell_changes(where: Path, *, as_json: bool) -> int:
    """Print what has changed since the environment was proven; the exit status is 5 when something has."""
    record = installed_record.read(where)
    prefix = where if where.is_dir() else Path(record.prefix)
    found = installed_record.changes(record, prefix)
    status = StaleLockError.exit_status if found else 0
    if as_json:
        document = {
            "schema_version": 1,
            "prefix": str(prefix),
            "image_id": record.image_id,
            "level": record.level,
            "digest": record.digest,
            "is_changed": bool(found),
            "changes": asdict(found),
        }
        print_data(json.dumps(document, indent=2, sort_keys=True))
        return status
    proven = f"proven {record.level}" if record.level and record.level != "none" else "built, not proven"
    print_data(f"{prefix}: {record.image_id}, {proven}, {record.digest}")
    if not found:
        print_data(f"nothing has changed: {len(record.packages)} packages, {_count(record.files)} files")
        return status
    for text in _lines(found):
        print_data(text)
    print_data("the verdict does not speak about this environment any more")
    return status


def _lines(found: Changes) -> Iterator[str]:
    for name, version in found.added.items():
        yield f"  added    {name} {version}"
    for name, version in found.removed.items():
        yield f"  removed  {name} {version}"
    for name, (before, now) in found.versions.items():
        yield f"  version  {name} {before} -> {now}"
    for word, files in (("changed ", found.changed_files), ("missing ", found.missing_files)):
        for name, paths in files.items():
            yield from _shown(f"  {word} {name}: ", paths)
    yield from _shown("  strange  ", found.strange_files)


def _shown(start: str, paths: tuple[str, ...]) -> Iterator[str]:
    yield from (f"{start}{path}" for path in paths[:_MOST_FILES])
    if len(paths) > _MOST_FILES:
        yield f"{start}and {len(paths) - _MOST_FILES} files more"


def _count(files: Mapping[str, Mapping[str, str]]) -> int:
    return sum(len(paths) for paths in files.values())


def export(
    where: Path,
    name: str,
    python: str | None,
    catalog: Catalog,
    sources: Sources,
    on_line: Callable[[str], None],
) -> None:
    """Write the spec and lock of an environment that exists into the current folder, and list what differs."""
    from builder import engines, existing, from_env  # noqa: PLC0415 - only here

    found = existing.read(where, os.environ)
    done = from_env.export(
        found, Path(), name, catalog, sources, python=python, host=engines.this_host(), on_line=on_line
    )
    print_data(f"{done.spec_file}: the spec of {done.lock.image_id}")
    print_data(f"{done.lock_file}: {len(done.lock.packages)} packages, {len(done.lock.conda or ())} of conda")
    if not done.differences:
        print_data("no differences: every package is locked in the version that is installed")
        return
    count = "1 difference" if len(done.differences) == 1 else f"{len(done.differences)} differences"
    print_data(f"{count} between {where} and the lock:")
    for text in done.differences:
        print_data(f"  {text}")


def remove(
    prefix: Annotated[Path, typer.Option("--prefix", metavar="DIR", help="an environment that torchproof made")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Remove an environment in place, with all that lies beside it. Nothing that torchproof did not make is touched."""
    place = Place(Path(os.path.abspath(prefix)))  # noqa: PTH100 - a link is kept as it is
    place.refuse_removal()
    current = place.current()
    what = "what a removal left that was cut off"
    if current is not None:
        found = marker(current)
        level = found.get("level")
        proven = f"proven {level}" if level and level != "none" else "built, not proven"
        what = f"{found.get('image_id', 'an unfinished environment')}, {proven}"
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "not-confirmed",
                f"{prefix} is not removed",
                because=("nobody is here to ask",),
                hint="say it with --yes",
            )
        typer.confirm(f"remove {prefix} ({what})?", abort=True, err=True)
    with place.held():
        place.remove()
    print_data(f"{prefix} is removed: {what}")


def wanted_engine(
    engine: str, flag: bool, prefix: Path | None, adopts: bool = False, *, proves_first: bool = False
) -> tuple[str, InPlace]:
    """The engine that the options mean, and what they say about an environment in place."""
    from builder.engines import InPlace  # noqa: PLC0415

    is_meant = flag or prefix is not None or adopts
    if is_meant and engine == "docker":
        raise UsageError("bad-engine", "an environment in place is not built by Docker", hint="leave out --engine")
    place = Path(os.path.abspath(prefix)) if prefix is not None else None  # noqa: PTH100 - a link is kept as it is
    return ("in-place" if is_meant else engine), InPlace(prefix=place, adopts=adopts, proves_first=proves_first)
