"""The commands of the line: schema, resolve, lock, render, build, smoke, verify.

Modules of the line are imported by the commands that need them: `torchproof --help` must not wait for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli_options import (
    Adopt,
    EngineName,
    Facts,
    FromEnv,
    FromEnvName,
    FromEnvPython,
    InPlaceFlag,
    Installed,
    Json,
    Locks,
    Only,
    Out,
    Prefix,
    Quiet,
    Require,
    Scripts,
    Skip,
    Spec,
    SpecOrNone,
    UpTo,
    Verbose,
    open_catalog,
)
from builder.cli_output import print_data, print_styled, say_error, stderr
from builder.errors import TorchproofError, UsageError

if TYPE_CHECKING:
    from builder.engines import InPlace
    from builder.line import Folders, Plan
    from builder.results import RunReport
    from builder.run import Run
    from builder.sources import Sources
    from builder.terminal import Reporter


def register(app: typer.Typer) -> None:
    """In the order of the line, which is the order of the help page."""
    for command in (schema, resolve, lock, render, build, smoke, verify):
        app.command()(command)


# --- stages ----------------------------------------------------------------------------------------------------------


def schema() -> None:
    """Print the JSON Schema of a matrix, so that editors complete and check it."""
    from builder.spec_models import json_schema  # noqa: PLC0415

    print_data(json.dumps(json_schema(), indent=2))


def resolve(spec: Spec, only: Only = None, as_json: Json = False, facts: Facts = None) -> None:
    """Say what each image of SPEC becomes, and the facts behind each choice. Needs no network and no engine."""
    from dataclasses import asdict  # noqa: PLC0415

    plan = _plan(spec, only, facts)
    if as_json:
        print_data(json.dumps({"schema_version": 1, "images": [asdict(r) for r in plan.resolutions]}, indent=2))
        return
    for resolution in plan.resolutions:
        print_data(f"{resolution.image_id}\n")
        for choice in resolution.choices:
            asked = "" if choice.asked == choice.value else f" (asked: {choice.asked})"
            print_data(f"  {choice.subject:<16} {choice.value}{asked}")
            for reason in choice.because:
                print_data(f"  {'':<16}   {reason}")
        for warning in resolution.warnings:
            print_data(f"\n  warning: {warning}")
        print_data("")


def lock(
    spec: SpecOrNone = None,
    only: Only = None,
    locks: Locks = None,
    check: Annotated[bool, typer.Option("--check", help="only tell what is stale; exit 5 when something is")] = False,
    out: Out = Path("out"),
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
    from_env: FromEnv = None,
    name: FromEnvName = "exported",
    python: FromEnvPython = None,
) -> None:
    """Write one lock per image: every wheel of the target, exact, with its hash."""
    if from_env is not None:
        from builder import cli_in_place  # noqa: PLC0415

        with _reporter(quiet, verbose) as progress:
            cli_in_place.export(from_env, name, python, open_catalog(facts), _sources(), progress.line)
        return
    if spec is None:
        raise UsageError("no-spec", "lock needs a SPEC", hint="or --from-env PREFIX, for an environment that exists")
    from builder import line, lockfile  # noqa: PLC0415

    plan = _plan(spec, only, facts)
    folders = _folders(plan, locks, out, is_written=not check)
    if check:
        _check_locks(plan, folders)
        return
    sources = _sources()
    errors: list[TorchproofError] = []
    bases = _bases_or_none(folders)
    with _reporter(quiet, verbose) as progress:
        for resolution in plan.resolutions:
            progress.stage("lock", resolution.image_id)
            kept, _own = folders.lock_files(resolution.image_id)
            try:
                made = line.made(resolution, sources, bases, progress)
            except TorchproofError as error:
                errors.append(error)
                continue
            lockfile.write(made, kept)
            print_data(f"{kept}: {len(made.packages)} packages, sha256:{lockfile.digest(made)}")
    _raise_first(errors)
    line.forget_own_locks(folders, plan.resolutions)


def _check_locks(plan: Plan, folders: Folders) -> None:
    from builder import lockfile  # noqa: PLC0415
    from builder import staleness as stale_locks  # noqa: PLC0415
    from builder.errors import StaleLockError  # noqa: PLC0415

    stale: list[str] = []
    for resolution in plan.resolutions:
        kept, _own = folders.lock_files(resolution.image_id)
        if not kept.is_file():
            stale.append(f"{resolution.image_id}: there is no {kept}")
            continue
        reasons = stale_locks.staleness(lockfile.read(kept), resolution)
        stale += [f"{resolution.image_id}: {reason}" for reason in reasons]
        if not reasons:
            print_data(f"{kept}: current")
    if stale:
        raise StaleLockError(
            "lock-stale",
            f"{len({text.split(':')[0] for text in stale})} of {len(plan.resolutions)} locks are stale",
            detail="\n".join(stale),
            hint="renew them with `torchproof lock`",
        )


def render(
    spec: Spec,
    only: Only = None,
    locks: Locks = None,
    out: Out = Path("out"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="default: OUT/<name>/context")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="all, or conda: nothing that only Docker needs")] = "all",
    link: Annotated[bool, typer.Option(help="COPY --link; --no-link for engines without it")] = True,
    facts: Facts = None,
) -> None:
    """Write Dockerfile, hashed requirement files, conda environment and bake file from the locks of SPEC."""
    from builder import line  # noqa: PLC0415

    catalog = open_catalog(facts)
    plan = line.plan(spec, catalog, patterns=only or ())
    folders = _folders(plan, locks, out)
    found = [line.kept_lock(folders, resolution) for resolution in plan.resolutions]
    target = output or folders.out / ("conda" if form == "conda" else "context")
    if form == "conda":
        from builder import conda_forge  # noqa: PLC0415
        from builder import render as rendering  # noqa: PLC0415

        forges = [conda_forge.forge_build(one, catalog) for one in found]
        rendering.write(map(rendering.conda_context, found, forges), target)
    elif form == "all":
        line.rendered(found, plan.loaded.name, target, link=link, catalog=catalog)
    else:
        raise UsageError("bad-format", f"`{form}` is no format", hint="say all or conda")
    folder = target
    for one in found:
        print_data(str(folder / one.image_id))


def build(
    spec: Spec,
    only: Only = None,
    locks: Locks = None,
    out: Out = Path("out"),
    engine: EngineName = "auto",
    in_place: InPlaceFlag = False,
    prefix: Prefix = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """Lock where needed, render and build the images of SPEC, without running anything in them."""
    from builder import cli_in_place  # noqa: PLC0415

    wanted = cli_in_place.wanted_engine(engine, in_place, prefix)
    with _line(spec, only, locks, out, wanted[0], quiet, verbose, facts, wanted[1]) as run:
        run.lock_all()
        run.build_all()
        for work in run.works:
            if work.image is not None:
                print_data(f"{work.image.reference} {work.image.digest} {work.image.size_bytes / 2**30:.2f} GiB")
    _raise_first([work.error for work in run.works if work.error is not None])


def verify(
    spec: SpecOrNone = None,
    only: Only = None,
    locks: Locks = None,
    out: Out = Path("out"),
    engine: EngineName = "auto",
    in_place: InPlaceFlag = False,
    prefix: Prefix = None,
    adopt: Adopt = False,
    installed: Installed = None,
    script: Scripts = None,
    skip: Skip = None,
    level: UpTo = None,
    require: Require = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """The whole line: resolve, lock, render, build, smoke-test, and say what was proven."""
    from builder import cli_in_place  # noqa: PLC0415

    if installed is not None:
        raise typer.Exit(cli_in_place.tell_changes(installed, as_json=as_json))
    if spec is None:
        raise UsageError("no-spec", "verify needs a SPEC", hint="or --installed DIR, for an environment proven before")
    wanted = cli_in_place.wanted_engine(engine, in_place, prefix, adopt, proves_first=True)
    with _line(spec, only, locks, out, wanted[0], quiet, verbose, facts, wanted[1]) as run:
        _choose(run, script, skip, level, require)
        run.lock_all()
        run.build_all()
        report = run.smoke_all()
    _finish(report, run.folders.out, as_json)


def smoke(
    spec: Spec,
    only: Only = None,
    script: Scripts = None,
    skip: Skip = None,
    level: UpTo = None,
    locks: Locks = None,
    out: Out = Path("out"),
    engine: EngineName = "auto",
    in_place: InPlaceFlag = False,
    prefix: Prefix = None,
    require: Require = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """Run the smoke scripts in the images of SPEC as they were built last."""
    from builder import cli_in_place  # noqa: PLC0415

    wanted = cli_in_place.wanted_engine(engine, in_place, prefix)
    with _line(spec, only, locks, out, wanted[0], quiet, verbose, facts, wanted[1]) as run:
        _choose(run, script, skip, level, require)
        run.find_all()
        report = run.smoke_all()
    _finish(report, run.folders.out, as_json)


def _finish(report: RunReport, out: Path, as_json: bool) -> None:
    from builder import report as reports  # noqa: PLC0415

    written = reports.write(report, out)
    if as_json:
        print_data(reports.json_text(report))
    else:
        print_styled(reports.text(report))
        print_data(f"written: {', '.join(str(path) for path in written)}")
    raise typer.Exit(report.exit_status)


def _choose(run: Run, script: list[str] | None, skip: list[str] | None, level: str | None, require: str | None) -> None:
    """What is run and what is required. `--level` lowers what the spec requires; `--require` says it outright."""
    from builder import scripts  # noqa: PLC0415

    up_to = _level(level) if level else None
    run.scripts = scripts.chosen(only=script or (), skip=skip or (), level=up_to)
    if require:
        run.required = _level(require)
    elif up_to is not None:
        run.required = min(run.required, up_to)


def _level(text: str) -> Any:
    from builder.results import Level  # noqa: PLC0415

    if text not in ("L0", "L1", "L2", "L3"):
        raise UsageError("bad-level", f"`{text}` is not a level", hint="say L0, L1, L2 or L3")
    return Level(text)


@contextmanager
def _line(
    spec: Path,
    only: list[str] | None,
    locks: Path | None,
    out: Path,
    engine: str,
    quiet: bool,
    verbose: bool,
    facts: Path | None,
    in_place: InPlace,
) -> Iterator[Run]:
    """Everything that a run needs, in the order in which a fault is cheapest to tell: the spec comes first."""
    from builder import engines  # noqa: PLC0415
    from builder.run import Run  # noqa: PLC0415

    if engine not in ("docker", "in-place", "auto"):
        raise UsageError("bad-engine", f"`{engine}` is not an engine", hint="say docker, in-place or auto")
    catalog = open_catalog(facts)
    plan = _plan(spec, only, facts)
    folders = _folders(plan, locks, out)
    chosen = engines.choose(engine, folders.out, os.environ, in_place)
    if chosen.host is not None:
        plan = _plan(spec, only, facts, host=chosen.host)
    with _reporter(quiet, verbose) as progress:
        if chosen.why:
            progress.line(f"no Docker engine, building in place: {chosen.why}")
        sources = _sources()
        for name in sources.ignored:
            progress.line(f"{name} is not used: an additive index could swap a build of torch")
        yield Run(
            plan=plan,
            folders=folders,
            chosen=chosen,
            sources=sources,
            progress=progress,
            catalog=catalog,
            spec=spec,
            adopts=in_place.adopts,
            required=_level(plan.loaded.matrix.require),
        )


def _plan(spec: Path, only: list[str] | None, facts: Path | None, *, host: Any = None) -> Plan:
    from builder import line  # noqa: PLC0415

    return line.plan(spec, open_catalog(facts), patterns=only or (), host=host)


def _folders(plan: Plan, locks: Path | None, out: Path, *, is_written: bool = False) -> Folders:
    """Sample matrices of an installation are read-only: their locks need a folder of the user's."""
    from builder.line import Folders  # noqa: PLC0415

    beside = plan.loaded.folder / "locks"
    if is_written and locks is None and not os.access(plan.loaded.folder, os.W_OK):
        raise UsageError(
            "locks-read-only",
            f"locks cannot be written beside `{plan.loaded.file}`",
            because=[f"{plan.loaded.folder} is not writable"],
            hint="name a folder of your own with --locks",
        )
    return Folders(locks=locks or beside, out=(out / plan.loaded.name).resolve())


def _sources() -> Sources:
    from builder.sources import Sources, read_pip_config  # noqa: PLC0415

    return Sources.from_environment(os.environ, read_pip_config(os.environ))


def _bases_or_none(folders: Folders) -> Any:
    """Locking pins the digest of a registry's base when an engine is there to ask; without one it says nothing."""
    from builder import engines  # noqa: PLC0415

    return engines.choose("auto", folders.out, os.environ).bases


def _reporter(quiet: bool, verbose: bool) -> Reporter:
    from builder.terminal import Reporter  # noqa: PLC0415

    return Reporter(stderr(), is_quiet=quiet, is_verbose=verbose)


def _raise_first(errors: list[TorchproofError]) -> None:
    """All are told; the first, in the order of the images, decides the exit status."""
    if not errors:
        return
    for error in errors[1:]:
        say_error(error)
        stderr().print("")
    raise errors[0]
