"""The line, from a matrix to a report: each stage a function, what one wrote the next one reads.

    plan      spec -> Resolutions             (no network, no engine)
    locked    Resolution -> ImageLock         (package index, unless a current lock is there)
    rendered  ImageLocks -> folder of build contexts
    built     folder -> BuiltImages           (engine)
    proven    BuiltImages -> RunReport        (engine)

What stops one image does not stop the others: it becomes that image's error in the report.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import uv

from builder import __version__, conda_forge, image_checks, lockfile, render, smoke, spec, staleness, verdict
from builder import lock as locking
from builder.catalog import Catalog
from builder.engine import Budget, BuildPlan, BuildTarget, BuiltImage, Engine, Limits
from builder.errors import BuildError, StaleLockError, TorchproofError, UsageError
from builder.level0 import checks_of_pins
from builder.lockfile import ImageLock
from builder.resolution import Resolution
from builder.resolve import Host, resolve_all
from builder.results import CheckResult, ImageLayer, ImageReport, Level, RunReport
from builder.scripts import SCRIPTS
from builder.sources import Sources
from builder.spec import LoadedMatrix


class Progress(Protocol):
    """Who is told what happens; the command line shows it on standard error."""

    def stage(self, name: str, image_id: str | None = None) -> None: ...

    def line(self, text: str) -> None: ...


class BaseProvider(Protocol):
    """Makes or finds the base of a lock. The named contexts that a build needs for it, such as
    `{"debian:bookworm": "docker-image://..."}`; empty when FROM names it well enough.
    """

    def contexts(self, lock: ImageLock, on_line: Callable[[str], None]) -> Mapping[str, str]: ...

    def digest(self, resolution: Resolution) -> str | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    loaded: LoadedMatrix
    resolutions: tuple[Resolution, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Folders:
    """`locks` is where locks are kept beside the matrix; `out` holds all that a run makes."""

    locks: Path
    out: Path

    def lock_files(self, image_id: str) -> tuple[Path, Path]:
        """The kept lock, which must be current; and the run's own, which is made anew when it is not."""
        return self.locks / f"{image_id}.lock", self.out / "locks" / f"{image_id}.lock"


@dataclass(kw_only=True)
class Work:
    """One image on its way down the line; `error` says what stopped it."""

    resolution: Resolution
    lock: ImageLock | None = None
    image: BuiltImage | None = None
    error: TorchproofError | None = None
    stage: str = "resolve"
    checks: list[CheckResult] = field(default_factory=list)
    layers: tuple[ImageLayer, ...] = ()


def plan(path: Path, catalog: Catalog, *, patterns: Sequence[str] = (), host: Host | None = None) -> Plan:
    """Load, select, resolve. A selection is made before conflicts are told: what is not asked for may be broken."""
    loaded = spec.load(path)
    resolutions = resolve_all(loaded.cells, catalog, host=host)
    chosen = spec.select([resolution.image_id for resolution in resolutions], patterns)
    return Plan(loaded=loaded, resolutions=tuple(r for r in resolutions if r.image_id in chosen))


def locked(
    resolution: Resolution,
    folders: Folders,
    sources: Sources,
    bases: BaseProvider | None,
    progress: Progress,
    *,
    is_strict: bool = True,
) -> ImageLock:
    """The lock beside the matrix when there is one (stale: an error, with `is_strict`); else the run's own."""
    kept, own = folders.lock_files(resolution.image_id)
    if kept.is_file():
        lock = lockfile.read(kept)
        reasons = staleness.staleness(lock, resolution)
        if not reasons:
            return lock
        if is_strict:
            raise stale(resolution, kept, reasons)
    if own.is_file():
        lock = lockfile.read(own)
        if not staleness.staleness(lock, resolution):
            progress.line(f"lock of an earlier run is current: {own}")
            return lock
    lock = made(resolution, sources, bases, progress)
    lockfile.write(lock, own)
    return lock


def made(resolution: Resolution, sources: Sources, bases: BaseProvider | None, progress: Progress) -> ImageLock:
    """A new lock. The base is asked for last: of two things out of reach, the wheels are the more telling."""
    lock = locking.lock(resolution, sources, on_line=progress.line)
    if resolution.provider != "apt":
        lock = replace(lock, provider=resolution.provider)
    if resolution.provider == "conda":
        from builder import conda_tool  # noqa: PLC0415 - an extra

        progress.line(f"solving the conda part for Python {resolution.python}, glibc {resolution.glibc}")
        lock = replace(lock, conda=conda_tool.solve(conda_tool.wanted_by(resolution), sources.environment))
    return replace(lock, base_digest=bases.digest(resolution)) if bases is not None else lock


def kept_lock(folders: Folders, resolution: Resolution) -> ImageLock:
    """The current lock of an image, made earlier; nothing is locked here."""
    kept, own = folders.lock_files(resolution.image_id)
    path = kept if kept.is_file() else own
    if not path.is_file():
        raise UsageError(
            "lock-missing",
            f"`{resolution.image_id}` has no lock",
            because=[f"neither {kept} nor {own} is there"],
            hint="make it with `torchproof lock`",
        )
    lock = lockfile.read(path)
    if reasons := staleness.staleness(lock, resolution):
        raise stale(resolution, path, reasons)
    return lock


def stale(resolution: Resolution, path: Path, reasons: Sequence[str]) -> StaleLockError:
    return StaleLockError(
        "lock-stale",
        f"the lock of `{resolution.image_id}` is older than what it was made from",
        because=list(reasons),
        conclusion="an image built from it would not be what the matrix asks for",
        hint=f"renew it with `torchproof lock`; it is in {path}",
    )


def forget_own_locks(folders: Folders, resolutions: Sequence[Resolution]) -> None:
    """A kept lock was just written: an older one of a run must not linger beside it."""
    for resolution in resolutions:
        _kept, own = folders.lock_files(resolution.image_id)
        own.unlink(missing_ok=True)


def rendered(
    locks: Sequence[ImageLock], name: str, folder: Path, *, link: bool, catalog: Catalog | None = None
) -> Path:
    """Write the contexts of `locks` and their bake file below `folder`; with the facts, also what conda-forge has."""
    folder.mkdir(parents=True, exist_ok=True)
    forges = [None if catalog is None else conda_forge.forge_build(lock, catalog) for lock in locks]
    contexts = [render.render(lock, link=link, forge=forge) for lock, forge in zip(locks, forges, strict=True)]
    render.write(contexts, folder, bake_file=render.bake(locks, name=name))
    return folder


def built(
    works: Sequence[Work],
    name: str,
    folders: Folders,
    engine: Engine,
    sources: Sources,
    bases: BaseProvider | None,
    progress: Progress,
    *,
    catalog: Catalog | None = None,
) -> None:
    """Build every image that has a lock: in one bake, so that equal stages run once. When that bake fails, one by
    one: finished stages are cached, and what failed is told from what was only stopped with it.
    """
    ready = [work for work in works if work.error is None and work.lock is not None]
    if not ready:
        return
    contexts_folder = rendered(
        [work.lock for work in ready if work.lock],
        name,
        folders.out / "context",
        link=engine.info().supports_link,
        catalog=catalog,
    )
    secrets_folder = folders.out / ".secrets"
    try:
        contexts: dict[str, str] = {"uv": str(uv_folder(folders.out))}
        secrets = sources.build_secrets(
            secrets_folder, variant=_one_variant(ready), indexes=[i for w in ready for i in w.resolution.indexes]
        )
        for work in ready:
            work.stage = "build"
            try:
                if bases is not None and work.lock is not None:
                    contexts.update(bases.contexts(work.lock, progress.line))
                if work.lock is not None and work.lock.provider == "conda" and engine.kind == "docker":
                    from builder import conda_stage  # noqa: PLC0415 - an extra

                    contexts.update(conda_stage.contexts(work.lock, folders.out / "conda", sources.environment))
            except TorchproofError as error:
                work.error = error
        ready = [work for work in ready if work.error is None]
        wheelhouse = folders.out / "wheelhouse"
        _stage_wheels(ready, sources, wheelhouse)
        ready = [work for work in ready if work.error is None]
        contexts["wheelhouse"] = str(wheelhouse)

        def bake(some: Sequence[Work], log: str) -> Mapping[str, BuiltImage]:
            targets = tuple(
                BuildTarget(image_id=work.resolution.image_id, tag=render.tag(name, work.resolution.image_id))
                for work in some
            )
            build_plan = BuildPlan(
                folder=contexts_folder,
                bake_file="docker-bake.json",
                targets=targets,
                contexts=contexts,
                secrets=secrets,
                log_file=folders.out / "logs" / f"{log}.log",
                # Only in place, where each image is built alone.
                python=some[0].resolution.python,
                variant=some[0].resolution.variant,
                provider=some[0].resolution.provider,
                installed_bytes=_installed_bytes(some),
            )
            return engine.build(build_plan, progress.line)

        if not ready:
            return
        images: dict[str, BuiltImage] = {}
        alone = engine.kind == "in-place" or len(ready) == 1
        if not alone:
            try:
                images.update(bake(ready, "build"))
            except TorchproofError as error:
                progress.line(f"building one by one, to tell what failed from what was stopped with it: {error.what}")
                alone = True
        if alone:
            for work in ready:
                progress.stage("build", work.resolution.image_id)
                try:
                    images.update(bake([work], f"build-{work.resolution.image_id}"))
                except TorchproofError as error:
                    work.error = error
        for work in ready:
            work.image = images.get(work.resolution.image_id)
            if work.image is None and work.error is None:
                work.error = BuildError("build-no-image", f"the build of `{work.resolution.image_id}` left no image")
    finally:
        shutil.rmtree(secrets_folder, ignore_errors=True)


def _installed_bytes(works: Sequence[Work]) -> int | None:
    """At least what the wheels weigh; they grow when unpacked, by how much is not known before. None: not told."""
    sizes = [package.size for work in works if work.lock for package in work.lock.packages]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _one_variant(works: Sequence[Work]) -> str | None:
    """A mirror of the PyTorch index has one address a variant; None when the images differ in it."""
    variants = {work.resolution.variant for work in works if not work.resolution.variant_is_default}
    return variants.pop() if len(variants) == 1 else None


def _stage_wheels(works: Sequence[Work], sources: Sources, wheelhouse: Path) -> None:
    """All locked files of local folders, in one folder: each image's own step checks their hashes again."""
    shutil.rmtree(wheelhouse, ignore_errors=True)
    wheelhouse.mkdir(parents=True)
    for work in works:
        if work.lock is None:
            continue
        part = wheelhouse.with_name("wheelhouse.part")
        try:
            staged = sources.with_folders(work.resolution.wheelhouses).stage_wheelhouse(work.lock, part)
            for file in staged:
                target = wheelhouse / file.name
                if not target.exists():
                    shutil.move(file, target)
        except TorchproofError as error:
            work.error = error
        finally:
            shutil.rmtree(part, ignore_errors=True)


def uv_folder(out: Path) -> Path:
    """A folder with nothing but the uv binary: a named context is sent whole."""
    folder = out / ".uv"
    target = folder / "uv"
    source = Path(uv.find_uv_bin())
    if not target.is_file() or target.stat().st_size != source.stat().st_size:
        folder.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copy2(source, target)
    return folder


def proven(
    works: Sequence[Work],
    engine: Engine,
    progress: Progress,
    *,
    limits: Limits,
    time_limit_s: float,
    scripts: Sequence[str] = SCRIPTS,
    files: Mapping[str, bytes] | None = None,
    budget: Budget | None = None,
) -> dict[str, smoke.SmokeRun]:
    """Run the smoke scripts in every image that was built, and look at the image as a whole."""
    budget = budget or Budget()
    params = {"files": {"budget_bytes": budget.packages_bytes}} if budget.packages_bytes else {}
    runs: dict[str, smoke.SmokeRun] = {}
    has_gpu = bool(engine.info().gpus)
    for work in works:
        if work.error is not None or work.image is None or work.lock is None:
            continue
        image_id = work.resolution.image_id
        work.stage = "smoke"
        progress.stage("smoke", image_id)
        try:
            runs[image_id] = smoke.run(
                work.lock,
                work.image,
                engine,
                limits=limits,
                time_limit_s=time_limit_s,
                gpus=has_gpu,
                scripts=scripts,
                params=params,
                files=files,
                on_step=lambda script: progress.line(f"running {script}"),
            )
            if "image" in scripts:
                if engine.kind == "docker":
                    progress.line("reading the layers of the image")
                found, work.layers = image_checks.run(work.lock, work.image, engine, budget_bytes=budget.image_bytes)
                work.checks += found
        except TorchproofError as error:
            work.error = error
    return runs


def image_report(work: Work, run: smoke.SmokeRun | None, *, engine: Engine | None, required: Level) -> ImageReport:
    """What is known about one image after the line, whatever point it reached."""
    checks = list(work.checks)
    if work.lock is not None:
        checks = [*checks_of_pins(work.resolution, work.lock), *checks]
    if run is not None:
        checks += run.checks
    image, lock = work.image, work.lock
    stage = work.stage if work.stage in ("resolve", "lock", "build") else "smoke"
    return ImageReport(
        image_id=work.resolution.image_id,
        stage=stage,  # type: ignore[arg-type]  # one of the four by the line above
        engine=engine.kind if engine is not None and image is not None else None,
        reference=image.reference if image else None,
        digest=image.digest if image else None,
        digest_kind=image.digest_kind if image else None,
        size_bytes=image.size_bytes if image else None,
        layers=image.layers if image else (),
        image_layers=work.layers,
        build_seconds=round(image.seconds, 1) if image else None,
        build_log=str(image.log_file) if image and image.log_file else None,
        lock_digest=lockfile.digest(lock) if lock else None,
        spec_digest=work.resolution.spec_digest,
        base=_base(work, engine),
        python=work.resolution.python,
        variant=work.resolution.variant,
        packages={package.name: package.version for package in lock.packages} if lock else {},
        source_built=tuple(package.name for package in lock.packages if package.kind == "sdist") if lock else (),
        level=verdict.level_of(checks) if work.error is None else Level.NONE,
        required=required,
        gpus=verdict.per_gpu(checks, work.resolution.gpus, ran_on=run.ran_on if run else ()),
        checks=tuple(checks),
        scripts=run.scripts if run else (),
        network_cut=run.network_cut if run else None,
        choices=tuple(
            {"subject": c.subject, "asked": c.asked, "value": c.value, "because": list(c.because)}
            for c in work.resolution.choices
        ),
        warnings=work.resolution.warnings,
        error=_error(work.error) if work.error else None,
    )


def _base(work: Work, engine: Engine | None) -> str | None:
    """What the image stands on; in place that is this machine, whatever the lock says."""
    if work.lock is None or engine is None:
        return None
    return "this machine" if engine.kind == "in-place" else render.base_reference(work.lock)


def _error(error: TorchproofError) -> dict[str, object]:
    return {"code": error.code, "what": error.what, "exit_status": error.exit_status, "text": str(error)}


def run_report(
    images: Sequence[ImageReport],
    *,
    spec_file: str,
    started: float,
    engine: Engine | None,
    catalog: Catalog,
    engine_reason: str | None = None,
) -> RunReport:
    info = engine.info() if engine is not None else None
    return RunReport(
        tool_version=__version__,
        spec=spec_file,
        started=datetime.fromtimestamp(started, tz=timezone.utc).isoformat(timespec="seconds"),
        seconds=round(time.time() - started, 1),
        engine=info.kind if info else None,
        engine_version=info.version if info else None,
        engine_reason=engine_reason,
        host_gpus=info.gpus if info else (),
        host_gpu_reason=info.gpu_reason if info else "no engine was used",
        facts_generated=str(catalog.generated),
        exit_status=verdict.exit_status(images),
        images=tuple(images),
    )
