"""The command line: reads options and the environment, calls the line, prints, exits. Nothing else prints or exits."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder import __version__
from builder.errors import TorchproofError, UsageError

# Modules of the line are imported by the commands that need them: `torchproof --help` must not wait for them.
if TYPE_CHECKING:
    from rich.console import Console

    from builder.engine import Limits
    from builder.engines import Chosen
    from builder.line import Folders, Plan, Work
    from builder.lockfile import ImageLock
    from builder.results import RunReport
    from builder.sources import Sources
    from builder.terminal import Reporter

app = typer.Typer(
    name="torchproof",
    help="Builds GPU training environments from a matrix and proves that they train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
facts_app = typer.Typer(help="What torchproof knows about the world, with source and confidence.", no_args_is_help=True)
app.add_typer(facts_app, name="facts")

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="a matrix, such as images/quickstart.yaml")]
Only = Annotated[list[str] | None, typer.Option("--only", metavar="PATTERN", help="image ids to take; may repeat")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="where everything that a run makes goes")]
Locks = Annotated[
    Path | None, typer.Option("--locks", metavar="DIR", help="folder of kept locks; default: locks/ beside the spec")
]
EngineName = Annotated[str, typer.Option("--engine", help="docker, in-place or auto (Docker where an engine answers)")]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress on standard error")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="every line of the build")]
Facts = Annotated[Path | None, typer.Option("--facts", metavar="FILE", help="rows of your own over the shipped facts")]

INTERRUPTED = 130


def main() -> None:
    """Entry point; the exit statuses are listed in docs/errors.md."""
    try:
        app(standalone_mode=False)
    except TorchproofError as error:
        _say_error(error)
        sys.exit(error.exit_status)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _stderr().print("interrupted; what was begun is removed, finished stages are kept for the next run")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe left. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:
        if _is_usage(error):
            _stderr().print(f"error[usage]: {_usage_text(error)}", markup=False, highlight=False)
            sys.exit(2)
        _say_internal(error)
        sys.exit(1)


def _is_usage(error: Exception) -> bool:
    """click's own errors: a bad option or a missing argument. typer carries click in different places over time."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage_text(error: Any) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "torchproof")
    return f"{error.format_message()}\n\nhint: `{command} --help` lists what there is"


def _say_internal(error: Exception) -> None:
    import traceback  # noqa: PLC0415 - only here

    _stderr().print(
        f"error[internal]: torchproof broke: {type(error).__name__}: {error}\n\n"
        + "".join(traceback.format_exception(error))
        + "\nhint: this is a fault of torchproof; please report it with the lines above",
        markup=False,
        highlight=False,
    )


def _say_error(error: TorchproofError) -> None:
    from builder.terminal import styled  # noqa: PLC0415

    _stderr().print(styled(str(error)), soft_wrap=True)


def _stderr() -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, no_color=True if os.environ.get("NO_COLOR") else None)


def _print(text: str) -> None:
    """Data, as it is."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def _print_styled(text: str) -> None:
    from rich.console import Console  # noqa: PLC0415

    from builder.terminal import styled  # noqa: PLC0415

    Console(no_color=True if os.environ.get("NO_COLOR") else None).print(styled(text), soft_wrap=True, end="")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        _print(f"torchproof {__version__}")
        raise typer.Exit


# --- stages ----------------------------------------------------------------------------------------------------------


@app.command()
def schema() -> None:
    """Print the JSON Schema of a matrix, so that editors complete and check it."""
    from builder.spec import json_schema  # noqa: PLC0415

    _print(json.dumps(json_schema(), indent=2))


@app.command()
def resolve(spec: Spec, only: Only = None, as_json: Json = False, facts: Facts = None) -> None:
    """Say what each image of SPEC becomes, and the facts behind each choice. Needs no network and no engine."""
    from dataclasses import asdict  # noqa: PLC0415

    plan = _plan(spec, only, facts)
    if as_json:
        _print(json.dumps({"schema_version": 1, "images": [asdict(r) for r in plan.resolutions]}, indent=2))
        return
    for resolution in plan.resolutions:
        _print(f"{resolution.image_id}\n")
        for choice in resolution.choices:
            asked = "" if choice.asked == choice.value else f" (asked: {choice.asked})"
            _print(f"  {choice.subject:<16} {choice.value}{asked}")
            for reason in choice.because:
                _print(f"  {'':<16}   {reason}")
        for warning in resolution.warnings:
            _print(f"\n  warning: {warning}")
        _print("")


@app.command()
def lock(
    spec: Spec,
    only: Only = None,
    locks: Locks = None,
    check: Annotated[bool, typer.Option("--check", help="only tell what is stale; exit 5 when something is")] = False,
    out: Out = Path("out"),
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """Write one lock per image: every wheel of the target, exact, with its hash."""
    from builder import line, lockfile  # noqa: PLC0415
    from builder import lock as locking  # noqa: PLC0415

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
                digest = bases.digest(resolution) if bases is not None else None
                made = locking.lock(resolution, sources, on_line=progress.line, base_digest=digest)
            except TorchproofError as error:
                errors.append(error)
                continue
            lockfile.write(made, kept)
            _print(f"{kept}: {len(made.packages)} packages, sha256:{lockfile.digest(made)}")
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
            _print(f"{kept}: current")
    if stale:
        raise StaleLockError(
            "lock-stale",
            f"{len({text.split(':')[0] for text in stale})} of {len(plan.resolutions)} locks are stale",
            detail="\n".join(stale),
            hint="renew them with `torchproof lock`",
        )


@app.command()
def render(
    spec: Spec,
    only: Only = None,
    locks: Locks = None,
    out: Out = Path("out"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="default: OUT/<name>/context")
    ] = None,
    link: Annotated[bool, typer.Option(help="COPY --link; --no-link for engines without it")] = True,
    facts: Facts = None,
) -> None:
    """Write Dockerfile, hashed requirement files, conda environment and bake file from the locks of SPEC."""
    from builder import line  # noqa: PLC0415

    plan = _plan(spec, only, facts)
    folders = _folders(plan, locks, out)
    found = [_kept_lock(folders, resolution) for resolution in plan.resolutions]
    folder = line.rendered(found, plan.loaded.name, output or folders.out / "context", link=link)
    for one in found:
        _print(str(folder / one.image_id))


def _kept_lock(folders: Folders, resolution: Any) -> ImageLock:
    from builder import line, lockfile, staleness  # noqa: PLC0415

    kept, own = folders.lock_files(resolution.image_id)
    path = kept if kept.is_file() else own
    if not path.is_file():
        raise UsageError(
            "lock-missing",
            f"`{resolution.image_id}` has no lock",
            because=[f"neither {kept} nor {own} is there"],
            hint="make it with `torchproof lock`",
        )
    found = lockfile.read(path)
    reasons = staleness.staleness(found, resolution)
    if reasons:
        raise line.stale(resolution, path, reasons)
    return found


@app.command()
def build(
    spec: Spec,
    only: Only = None,
    locks: Locks = None,
    out: Out = Path("out"),
    engine: EngineName = "auto",
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """Lock where needed, render and build the images of SPEC, without running anything in them."""
    with _line(spec, only, locks, out, engine, quiet, verbose, facts) as run:
        run.lock_all()
        run.build_all()
        for work in run.works:
            if work.image is not None:
                _print(f"{work.image.reference} {work.image.digest} {work.image.size_bytes / 2**30:.2f} GiB")
    _raise_first([work.error for work in run.works if work.error is not None])


@app.command()
def verify(
    spec: Spec,
    only: Only = None,
    locks: Locks = None,
    out: Out = Path("out"),
    engine: EngineName = "auto",
    require: Annotated[str | None, typer.Option("--require", help="L0 ... L3; default: what the spec says")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """The whole line: resolve, lock, render, build, smoke-test, and say what was proven."""
    with _line(spec, only, locks, out, engine, quiet, verbose, facts) as run:
        run.require = _level(require) if require else run.require
        run.lock_all()
        run.build_all()
        report = run.smoke_all()
    _finish(report, run.folders.out, as_json)


@app.command()
def smoke(
    spec: Spec,
    only: Only = None,
    script: Annotated[list[str] | None, typer.Option("--script", help="smoke scripts to run; default: all")] = None,
    locks: Locks = None,
    out: Out = Path("out"),
    engine: EngineName = "auto",
    require: Annotated[str | None, typer.Option("--require", help="L0 ... L3; default: what the spec says")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    facts: Facts = None,
) -> None:
    """Run the smoke scripts in the images of SPEC as they were built last."""
    with _line(spec, only, locks, out, engine, quiet, verbose, facts) as run:
        run.require = _level(require) if require else run.require
        run.scripts = tuple(script) if script else run.scripts
        run.find_all()
        report = run.smoke_all()
    _finish(report, run.folders.out, as_json)


def _finish(report: RunReport, out: Path, as_json: bool) -> None:
    from builder import report as reports  # noqa: PLC0415

    written = reports.write(report, out)
    if as_json:
        _print(reports.json_text(report))
    else:
        _print_styled(reports.text(report))
        _print(f"written: {', '.join(str(path) for path in written)}")
    raise typer.Exit(report.exit_status)


def _level(text: str) -> Any:
    from builder.results import Level  # noqa: PLC0415

    if text not in ("L0", "L1", "L2", "L3"):
        raise UsageError("bad-level", f"`{text}` is not a level", hint="say L0, L1, L2 or L3")
    return Level(text)


class _Run:
    """One matrix on its way down the line, as several commands share it."""

    def __init__(
        self, plan: Plan, folders: Folders, chosen: Chosen, sources: Sources, progress: Reporter, spec: Path, catalog: Any
    ) -> None:
        from builder.line import Work  # noqa: PLC0415
        from builder.smoke import SCRIPTS  # noqa: PLC0415

        self.plan = plan
        self.folders = folders
        self.chosen = chosen
        self.sources = sources
        self.progress = progress
        self.spec = spec
        self.catalog = catalog
        self.started = time.time()
        self.require = _level(plan.loaded.matrix.require)
        self.scripts: tuple[str, ...] = SCRIPTS
        self.works = [Work(resolution=resolution) for resolution in plan.resolutions]

    def lock_all(self) -> None:
        from builder import line  # noqa: PLC0415

        for work in self.works:
            self.progress.stage("lock", work.resolution.image_id)
            work.stage = "lock"
            try:
                work.lock = line.locked(
                    work.resolution,
                    self.folders,
                    self.sources,
                    self.chosen.bases,
                    self.progress,
                    is_strict=self.chosen.host is None,
                )
            except TorchproofError as error:
                work.error = error

    def build_all(self) -> None:
        from builder import line  # noqa: PLC0415

        if any(work.error is None for work in self.works):
            self.progress.stage("build", _names(self.works))
        line.built(
            self.works,
            self.plan.loaded.name,
            self.folders,
            self.chosen.engine,
            self.sources,
            self.chosen.bases,
            self.progress,
        )

    def find_all(self) -> None:
        """Locks and images as they are: nothing is locked or built."""
        from dataclasses import replace  # noqa: PLC0415

        from builder import render as rendering  # noqa: PLC0415

        for work in self.works:
            work.stage = "smoke"
            try:
                work.lock = _kept_lock(self.folders, work.resolution)
                reference = rendering.tag(self.plan.loaded.name, work.resolution.image_id)
                found = self.chosen.engine.image(reference)
                work.image = replace(found, image_id=work.resolution.image_id)
            except TorchproofError as error:
                work.error = error

    def smoke_all(self) -> RunReport:
        from builder import line  # noqa: PLC0415

        settings = self.plan.loaded.matrix.smoke
        runs = line.proven(
            self.works,
            self.chosen.engine,
            self.progress,
            limits=_limits(settings),
            time_limit_s=float(settings.time_limit),
            scripts=self.scripts,
        )
        images = [
            line.image_report(
                work, runs.get(work.resolution.image_id), engine=self.chosen.engine, required=self.require
            )
            for work in self.works
        ]
        return line.run_report(
            images,
            spec_file=str(self.spec),
            started=self.started,
            engine=self.chosen.engine,
            catalog=self.catalog,
            engine_reason=self.chosen.why,
        )


def _names(works: list[Work]) -> str:
    names = [work.resolution.image_id for work in works if work.error is None]
    return names[0] if len(names) == 1 else f"{len(names)} images"


def _limits(settings: Any) -> Limits:
    from builder.engine import Limits  # noqa: PLC0415
    from builder.spec import size_bytes  # noqa: PLC0415

    return Limits(memory_bytes=size_bytes(settings.memory), shm_bytes=size_bytes(settings.shm))


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
) -> Iterator[_Run]:
    """Everything that a run needs, in the order in which a fault is cheapest to tell: the spec comes first."""
    from builder import engines  # noqa: PLC0415

    if engine not in ("docker", "in-place", "auto"):
        raise UsageError("bad-engine", f"`{engine}` is not an engine", hint="say docker, in-place or auto")
    catalog = _catalog(facts)
    plan = _plan(spec, only, facts)
    folders = _folders(plan, locks, out)
    chosen = engines.choose(engine, folders.out, os.environ)
    if chosen.host is not None:
        plan = _plan(spec, only, facts, host=chosen.host)
    with _reporter(quiet, verbose) as progress:
        if chosen.why:
            progress.line(f"no Docker engine, building in place: {chosen.why}")
        sources = _sources()
        for name in sources.ignored:
            progress.line(f"{name} is not used: an additive index could swap a build of torch")
        yield _Run(plan, folders, chosen, sources, progress, spec, catalog)


def _plan(spec: Path, only: list[str] | None, facts: Path | None, *, host: Any = None) -> Plan:
    from builder import line  # noqa: PLC0415

    return line.plan(spec, _catalog(facts), patterns=only or (), host=host)


def _catalog(facts: Path | None) -> Any:
    from builder.catalog import Catalog  # noqa: PLC0415

    catalog = Catalog.shipped()
    return catalog.with_overlay(facts) if facts is not None else catalog


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

    return Reporter(_stderr(), is_quiet=quiet, is_verbose=verbose)


def _raise_first(errors: list[TorchproofError]) -> None:
    """All are told; the first, in the order of the images, decides the exit status."""
    if not errors:
        return
    for error in errors[1:]:
        _say_error(error)
        _stderr().print("")
    raise errors[0]


# --- facts -----------------------------------------------------------------------------------------------------------


@facts_app.command("list")
def facts_list(facts: Facts = None) -> None:
    """The topics, with their age."""
    from datetime import date  # noqa: PLC0415

    catalog = _catalog(facts)
    for topic in catalog.topics:
        _print(topic)
    _print(f"gathered {catalog.generated}, {catalog.age(date.today())} days ago")  # noqa: DTZ011 - a day is enough


@facts_app.command("show")
def facts_show(
    topic: Annotated[str, typer.Argument(help="torch, onnxruntime, transformers, gpu, driver or numpy")],
    name: Annotated[str, typer.Argument(help="a version, a card or a CUDA toolkit")],
    facts: Facts = None,
) -> None:
    """One row: what is known, how sure it is, and where it comes from."""
    catalog = _catalog(facts)
    shown = _SHOWN.get(topic)
    if shown is None:
        raise UsageError("facts-topic", f"`{topic}` has no rows to show", hint=f"say {', '.join(_SHOWN)}")
    lines = shown(catalog, name)
    if not lines:
        raise UsageError("facts-unknown", f"the facts have no {topic} `{name}`")
    for text in lines:
        _print(text)


def _show_torch(catalog: Any, name: str) -> list[str]:
    row = catalog.torch_release(name)
    if row is None:
        return []
    builds = [build.fact for build in row.builds()]
    companions = [c.fact for kind in ("torchvision", "torchaudio", "torchtext") for c in row.companions(kind)]
    return [row.fact, *builds, *companions, row.abi.fact, row.abi.glibc_fact, row.onnx_export.fact]


def _show_onnxruntime(catalog: Any, name: str) -> list[str]:
    row = catalog.onnxruntime_gpu(name)
    return [row.fact, row.index_fact, row.archs_fact, row.onnx.fact] if row is not None else []


def _show_transformers(catalog: Any, name: str) -> list[str]:
    row = catalog.transformers(name)
    if row is None:
        return []
    return [row.fact, *([row.torch_floor.fact] if row.torch_floor else [])]


def _show_driver(catalog: Any, name: str) -> list[str]:
    from builder.versions import CudaVersion  # noqa: PLC0415

    return [catalog.driver_floor(CudaVersion.parse(name)).fact]


_SHOWN: dict[str, Callable[[Any, str], list[str]]] = {
    "torch": _show_torch,
    "onnxruntime": _show_onnxruntime,
    "transformers": _show_transformers,
    "gpu": lambda catalog, name: [gpu.fact] if (gpu := catalog.gpu(name)) is not None else [],
    "driver": _show_driver,
    "numpy": lambda catalog, name: [row.fact] if (row := catalog.numpy_release(name)) is not None else [],
}


