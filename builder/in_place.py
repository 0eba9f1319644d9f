"""The engine's protocol on this machine without a container: a virtual environment, and checks as child processes."""

from __future__ import annotations

import errno
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from builder import disk, guard, installed, installed_record, lockfile
from builder.engine import BuildPlan, BuiltImage, EngineInfo, Limits
from builder.errors import BuildError, EngineError, PackageIndexError, TorchproofError, UsageError
from builder.in_place_install import (
    batches,
    install_arguments,
    install_environment,
    install_error,
    python_arguments,
    wanted_digest,
)
from builder.local_session import LocalSession, checked_environment
from builder.nvml import read_host_gpus
from builder.place import Place, mark, marker, remove_folder
from builder.processes import Redactor, hold_interrupts, sigterm_raises, stream
from builder.uv_tool import find_uv

_INSTALL_LIMIT_S = 3 * 3600.0

# What stays of uv's own settings. The index comes with the plan; the rest could change what gets installed, or where.
_UV_KEPT = re.compile(
    r"UV_(CACHE_DIR|LINK_MODE|CONCURRENT_\w+|HTTP_\w+|REQUEST_TIMEOUT|LOCK_TIMEOUT|SYSTEM_CERTS|NATIVE_TLS|OFFLINE"
    r"|PYTHON_\w+)"
)
_FOREIGN = ("VIRTUAL_ENV", "CONDA_PREFIX")
_FOREIGN_PREFIXES = ("PYTHON", "PIP_")


class InPlaceEngine:
    """Environments below `folder`, one for each image id; or the one environment at `prefix`.

    With `proves_first`, what was built lies beside its place until `settle` says that it was proven.
    """

    kind: Literal["in-place"] = "in-place"

    def __init__(
        self, folder: Path, *, environ: Mapping[str, str], prefix: Path | None = None, proves_first: bool = False
    ) -> None:
        self._folder = folder
        self._prefix = prefix
        self._proves_first = proves_first
        self._places: dict[str, Place] = {}
        self._holds: dict[Place, ExitStack] = {}
        self._lock_fds: dict[Place, int] = {}
        self._environ = {name: value for name, value in environ.items() if _is_kept(name)}

    def info(self) -> EngineInfo:
        gpus = read_host_gpus()
        uv = subprocess.run([find_uv(), "--version"], capture_output=True, text=True, check=False, timeout=60)
        return EngineInfo(kind="in-place", version=uv.stdout.strip() or "uv", gpus=gpus.names, gpu_reason=gpus.reason)

    def build(self, plan: BuildPlan, on_line: Callable[[str], None]) -> Mapping[str, BuiltImage]:
        """Each environment is made beside its place and takes it when complete: a failure leaves the old one."""
        plan.log_file.parent.mkdir(parents=True, exist_ok=True)
        with plan.log_file.open("w", encoding="utf-8") as log_file:
            redact = Redactor.of_files(plan.secrets.values())

            def note(line: str) -> None:
                text = redact(line)
                log_file.write(f"{text}\n")
                log_file.flush()
                on_line(text)

            try:
                return {target.image_id: self._build(plan, target.image_id, note) for target in plan.targets}
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise disk.full_disk(plan, str(error)) from error

    def _build(self, plan: BuildPlan, image_id: str, note: Callable[[str], None]) -> BuiltImage:
        started = time.monotonic()
        context = plan.folder / image_id if (plan.folder / image_id).is_dir() else plan.folder
        place = self._place(plan, image_id)
        place.refuse_foreign(image_id)
        place.prefix.parent.mkdir(parents=True, exist_ok=True)
        self._hold(place)
        wanted = wanted_digest(context, plan)
        current = place.current()
        for folder, words in ((current, "already installed in"), (place.candidate(wanted), "found complete beside")):
            if folder is not None and _is_intact(folder, wanted):
                note(f"{image_id}: {words} {place.prefix}")
                with suppress(OSError):  # where it may not be written to, files.guard tells that there is none
                    guard.install(folder, context / "constraints.txt")
                return self._settled(self._built(image_id, folder, started, plan.log_file), place)
        fresh = place.candidate(wanted)
        if fresh == current:
            # The same lock over files that were changed since: never touched where it is in use.
            fresh = fresh.with_name(f"{fresh.name}-again")
        place.clean(fresh)
        done = _done(fresh, wanted) or ()
        disk.refuse_full(plan, context, place.prefix.parent, self._environ, image_id, done=done)
        with sigterm_raises():
            try:
                self._install_sound(plan, context, fresh, image_id, wanted, note)
                guard.install(fresh, context / "constraints.txt")
            except (TorchproofError, OSError) as error:
                # What was downloaded is worth keeping when only the index went away; nothing else is.
                if not isinstance(error, PackageIndexError):
                    with hold_interrupts():
                        remove_folder(fresh)
                self._release(place)
                raise
        lock = context / "torchproof.lock"
        lock_digest = lockfile.digest(lockfile.read(lock)) if lock.is_file() else None
        record = installed_record.take(
            fresh, image_id=image_id, lock_digest=lock_digest, digest=str(marker(fresh)["digest"])
        )
        installed_record.keep(fresh, record, wanted=wanted)
        return self._settled(self._built(image_id, fresh, started, plan.log_file, record.digest), place)

    def _place(self, plan: BuildPlan, image_id: str) -> Place:
        if len(plan.targets) == 1 and (plan.venv or self._prefix):
            return Place(plan.venv or self._prefix or self._folder)
        if self._prefix:
            raise UsageError(
                "one-prefix",
                f"{len(plan.targets)} images cannot all be built into {self._prefix}",
                hint="choose one with --only",
            )
        return Place(self._folder / image_id)

    def _hold(self, place: Place) -> None:
        """Until the environment is settled, or this process ends."""
        if place not in self._holds:
            self._holds[place] = ExitStack()
            try:
                self._lock_fds[place] = self._holds[place].enter_context(place.held())
            except TorchproofError:
                del self._holds[place]
                raise

    def _release(self, place: Place) -> None:
        self._lock_fds.pop(place, None)
        self._holds.pop(place, ExitStack()).close()

    def _settled(self, image: BuiltImage, place: Place) -> BuiltImage:
        self._places[image.reference] = place
        return image if self._proves_first else self.settle(image, is_proven=True)

    def settle(self, image: BuiltImage, *, is_proven: bool) -> BuiltImage:
        """Let a proven environment take its place. One that was not proven stays beside, to be looked at; a run of
        another lock removes it.
        """
        place = self._places.pop(image.reference, None)
        if place is None:
            return image
        folder = Path(image.reference)
        try:
            if is_proven and place.current() != folder:
                place.switch(folder)
            elif is_proven:
                place.clean()  # a switch that was cut off before it had cleaned up
        finally:
            self._release(place)
        return replace(image, reference=str(place.prefix)) if is_proven else image

    def place_of(self, image: BuiltImage) -> Path | None:
        """Found by where it lies: the store is named after its place."""
        store = Path(image.reference).parent
        if not store.name.endswith(".torchproof"):
            return None
        return store.parent / store.name.removesuffix(".torchproof").removeprefix(".")

    def _install_sound(
        self, plan: BuildPlan, context: Path, fresh: Path, image_id: str, wanted: str, note: Callable[[str], None]
    ) -> None:
        """Install, and hold every file against its hash. uv's cache and all environments made from it share their
        files: whoever edits a module in one has edited all of them, and the next installation gets it, too.
        """
        self._install(plan, context, fresh, image_id, wanted, note)
        damaged = installed_record.damaged(fresh)
        if not damaged:
            return
        note(f"{image_id}: changed in uv's cache, so fetched again: {', '.join(damaged)}")
        env = install_environment(self._environ, plan)
        self._uv(["cache", "clean", "--quiet", *damaged], context, env, plan, image_id, note)
        remove_folder(fresh)
        self._install(plan, context, fresh, image_id, wanted, note)
        if damaged := installed_record.damaged(fresh):
            files = [f"{name}: {path}" for name, paths in damaged.items() for path in paths]
            raise BuildError(
                "files-damaged",
                f"`{image_id}` cannot be installed in place",
                because=(f"{len(files)} files are not what their wheels say they are", f"the first is {files[0]}"),
                hint="the wheel itself, or the disk, is broken",
            )

    def _install(
        self, plan: BuildPlan, context: Path, fresh: Path, image_id: str, wanted: str, note: Callable[[str], None]
    ) -> None:
        env = install_environment(self._environ, plan)
        done = _done(fresh, wanted)
        if done is None:
            remove_folder(fresh)
            fresh.parent.mkdir(parents=True, exist_ok=True)
            if plan.provider == "conda":
                self._make_conda(context, fresh, image_id, env, note)
            else:
                # Relocatable: scripts find their Python beside them, so they work by way of the link, too.
                make = ["venv", "--quiet", "--no-project", "--relocatable", *python_arguments(plan), str(fresh)]
                self._uv(make, context, env, plan, image_id, note)
            done = ()
            mark(fresh, wanted=wanted, done=[], digest=installed.digest(fresh))
        elif done:
            note(f"{image_id}: continuing after {done[-1]}")
        files = [f for f in sorted((context / "requirements").glob("[0-9][0-9]-*.txt")) if f.name not in done]
        for batch in batches(files, is_here=disk.is_here(context, plan, self._environ)):
            note(f"{image_id}: {', '.join(file.name for file in batch)}")
            arguments = install_arguments(batch[0], plan, env)
            arguments += [word for file in batch[1:] for word in ("-r", str(file))]
            self._uv(
                ["pip", "install", "--python", str(fresh / "bin/python"), *arguments],
                context,
                env,
                plan,
                image_id,
                note,
            )
            done = (*done, *(file.name for file in batch))
            mark(fresh, wanted=wanted, done=done, digest=installed.digest(fresh))

    def _built(
        self, image_id: str, prefix: Path, started: float, log_file: Path | None, digest: str | None = None
    ) -> BuiltImage:
        return BuiltImage(
            image_id=image_id,
            reference=str(prefix),
            digest=digest or installed.digest(prefix),
            digest_kind="installed-files",
            size_bytes=installed.size_bytes(prefix),
            seconds=time.monotonic() - started,
            log_file=log_file,
        )

    def _make_conda(
        self, context: Path, fresh: Path, image_id: str, env: Mapping[str, str], note: Callable[[str], None]
    ) -> None:
        from builder import conda_tool  # noqa: PLC0415 - an extra

        lock = lockfile.read(context / "torchproof.lock")
        note(f"{image_id}: {len(lock.conda or ())} conda packages")
        conda_tool.create(lock, fresh, env)

    def _uv(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        plan: BuildPlan,
        image_id: str,
        note: Callable[[str], None],
    ) -> None:
        lines: list[str] = []

        def take(line: str) -> None:
            lines.append(line)
            note(line)

        status = stream(
            [str(find_uv()), *arguments],
            cwd=cwd,
            env=env,
            on_line=take,
            limit_s=_INSTALL_LIMIT_S,
            pass_fds=list(self._lock_fds.values()),
        )
        if status != 0:
            # The redactor has seen the lines that went to the log; these are the same ones again.
            redact = Redactor.of_files(plan.secrets.values())
            raise install_error(status, redact("\n".join(lines)), arguments[0], plan, image_id)

    def image(self, reference: str) -> BuiltImage:
        """An environment that was built earlier, by its image id or its folder."""
        name = reference.rpartition(":")[2]
        prefix = self._prefix or (self._folder / name if (self._folder / name).is_dir() else Path(reference))
        if not _is_complete(prefix):
            raise EngineError(
                "environment-not-found",
                f"there is no environment `{reference}`",
                because=(f"{prefix} was not built by torchproof",),
                hint="build it first with `torchproof build`",
            )
        return self._built(prefix.name, prefix, time.monotonic(), None)

    @contextmanager
    def session(
        self, image: BuiltImage, smoke_files: Mapping[str, bytes], limits: Limits, *, gpus: bool
    ) -> Iterator[LocalSession]:
        """Children of this process in a folder of their own; both are gone when the block is left."""
        prefix = Path(image.reference)
        found = read_host_gpus()
        if gpus and not found.names:
            raise EngineError(
                "gpu-not-passed",
                f"`{image.image_id}` cannot be started with a GPU",
                because=(found.reason or "this machine has none",),
            )
        if installed.digest(prefix) != image.digest:
            raise TorchproofError(
                "environment-changed",
                f"`{image.image_id}` is not what was built",
                because=(f"packages in {prefix} were changed after the build",),
                hint="build it again",
            )
        with sigterm_raises(), tempfile.TemporaryDirectory(prefix="torchproof-session-") as temporary:
            root = Path(temporary)
            environment = checked_environment(self._environ, prefix=prefix, scratch=root / "scratch", gpus=gpus)
            session = LocalSession(root, prefix, limits=limits, environment=environment, has_gpu=gpus)
            try:
                session.prepare(smoke_files)
                yield session
            finally:
                with hold_interrupts():
                    session.kill_all()

    def remove(self, image: BuiltImage) -> None:
        Place(Path(image.reference)).remove()


def _is_kept(name: str) -> bool:
    if name.startswith("UV_"):
        return bool(_UV_KEPT.fullmatch(name))
    return name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)


def _is_complete(prefix: Path) -> bool:
    return "image_id" in marker(prefix)


def _is_intact(prefix: Path, wanted: str) -> bool:
    """Made to the end from the same lock, and unchanged since."""
    found = marker(prefix)
    return _is_complete(prefix) and found.get("wanted") == wanted and found.get("digest") == installed.digest(prefix)


def _done(folder: Path, wanted: str) -> tuple[str, ...] | None:
    """The groups that an interrupted run finished here; None where nothing can be built on.

    A group that was cut off leaves a distribution without a record, which changes the digest, or files that the same
    group writes again.
    """
    found = marker(folder)
    done = found.get("done")
    if found.get("wanted") != wanted or not isinstance(done, list) or found.get("digest") != installed.digest(folder):
        return None
    return tuple(str(name) for name in done)
