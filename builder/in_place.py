"""The engine's protocol on this machine without a container: a virtual environment, and checks as child processes."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from builder import installed
from builder.bake import Fault, fault_of
from builder.engine import BuildPlan, BuiltImage, EngineInfo, Limits
from builder.errors import BuildError, EngineError, PackageIndexError, StaleLockError, TorchproofError, UsageError
from builder.local_session import LocalSession, checked_environment
from builder.nvml import read_host_gpus
from builder.processes import Redactor, hold_interrupts, sigterm_raises, stream
from builder.uv_tool import find_uv

_MARKER = ".torchproof.json"
_INSTALL_LIMIT_S = 3 * 3600.0
_TAIL_LINES = 20

# What stays of uv's own settings. The index comes with the plan; the rest could change what gets installed, or where.
_UV_KEPT = re.compile(
    r"UV_(CACHE_DIR|LINK_MODE|CONCURRENT_\w+|HTTP_\w+|REQUEST_TIMEOUT|LOCK_TIMEOUT|SYSTEM_CERTS|NATIVE_TLS|OFFLINE"
    r"|PYTHON_\w+)"
)
_FOREIGN = ("VIRTUAL_ENV", "CONDA_PREFIX")
_FOREIGN_PREFIXES = ("PYTHON", "PIP_")


class InPlaceEngine:
    """Environments below `folder`, one for each image id; a plan that names a `venv` gets it there."""

    kind: Literal["in-place"] = "in-place"

    def __init__(self, folder: Path, *, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in environ.items() if _is_kept(name)}

    def info(self) -> EngineInfo:
        gpus = read_host_gpus()
        uv = subprocess.run([find_uv(), "--version"], capture_output=True, text=True, check=False, timeout=60)
        return EngineInfo(kind="in-place", version=uv.stdout.strip() or "uv", gpus=gpus.names, gpu_reason=gpus.reason)

    def build(self, plan: BuildPlan, on_line: Callable[[str], None]) -> Mapping[str, BuiltImage]:
        """Each environment is made beside its place and moved there when complete: a failure leaves the old one."""
        plan.log_file.parent.mkdir(parents=True, exist_ok=True)
        with plan.log_file.open("w", encoding="utf-8") as log_file:
            redact = Redactor.of_files(plan.secrets.values())

            def note(line: str) -> None:
                text = redact(line)
                log_file.write(f"{text}\n")
                log_file.flush()
                on_line(text)

            return {target.image_id: self._build(plan, target.image_id, note) for target in plan.targets}

    def _build(self, plan: BuildPlan, image_id: str, note: Callable[[str], None]) -> BuiltImage:
        started = time.monotonic()
        context = plan.folder / image_id if (plan.folder / image_id).is_dir() else plan.folder
        prefix = plan.venv if plan.venv and len(plan.targets) == 1 else self._folder / image_id
        fresh, old = prefix.with_name(f"{prefix.name}.new"), prefix.with_name(f"{prefix.name}.old")
        if old.exists() and not prefix.exists():
            old.rename(prefix)  # a switch that was cut off between its two renames
        _refuse_foreign(prefix, image_id)
        wanted = _wanted(context, plan)
        marker = _marker(prefix)
        if marker.get("wanted") == wanted and marker.get("digest") == installed.digest(prefix):
            note(f"{image_id}: already installed in {prefix}")
            return self._built(image_id, prefix, str(marker["digest"]), started, plan.log_file)
        prefix.parent.mkdir(parents=True, exist_ok=True)
        _refuse_full_disk(plan, prefix.parent, image_id)
        with sigterm_raises():
            try:
                _remove_folder(fresh)
                self._install(plan, context, fresh, image_id, note)
                digest = installed.digest(fresh)
                (fresh / _MARKER).write_text(json.dumps({"wanted": wanted, "digest": digest}), encoding="utf-8")
                with hold_interrupts():
                    _remove_folder(old)
                    if prefix.exists():
                        prefix.rename(old)
                    fresh.rename(prefix)
            finally:
                with hold_interrupts():
                    _remove_folder(fresh)
                    if prefix.exists():
                        _remove_folder(old)
        return self._built(image_id, prefix, digest, started, plan.log_file)

    def _built(self, image_id: str, prefix: Path, digest: str, started: float, log_file: Path | None) -> BuiltImage:
        return BuiltImage(
            image_id=image_id,
            reference=str(prefix),
            digest=digest,
            digest_kind="installed-files",
            size_bytes=installed.size_bytes(prefix),
            seconds=time.monotonic() - started,
            log_file=log_file,
        )

    def _install(self, plan: BuildPlan, context: Path, fresh: Path, image_id: str, note: Callable[[str], None]) -> None:
        env = {**self._environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1"}
        env.setdefault("UV_PYTHON_DOWNLOADS", "never")
        if "index" in plan.secrets:
            env |= read_exports(plan.secrets["index"].read_text(encoding="utf-8"))
        if "ca" in plan.secrets:
            env["SSL_CERT_FILE"] = str(plan.secrets["ca"].resolve())
        # Relocatable: scripts find their Python beside them, so the environment survives the rename.
        make = ["venv", "--quiet", "--no-project", "--relocatable", "--python", plan.python or "python3", str(fresh)]
        self._uv(make, context, env, plan, image_id, note)
        for file in sorted((context / "requirements").glob("[0-9][0-9]-*.txt")):
            note(f"{image_id}: {file.name}")
            arguments = install_arguments(file, plan, env)
            self._uv(
                ["pip", "install", "--python", str(fresh / "bin/python"), *arguments],
                context,
                env,
                plan,
                image_id,
                note,
            )

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

        status = stream([str(find_uv()), *arguments], cwd=cwd, env=env, on_line=take, limit_s=_INSTALL_LIMIT_S)
        if status != 0:
            # The redactor has seen the lines that went to the log; these are the same ones again.
            redact = Redactor.of_files(plan.secrets.values())
            raise _install_error(status, redact("\n".join(lines)), arguments[0], plan, image_id)

    def image(self, reference: str) -> BuiltImage:
        """An environment that was built earlier, by its image id or its folder."""
        prefix = self._folder / reference if (self._folder / reference).is_dir() else Path(reference)
        marker = _marker(prefix)
        if "digest" not in marker:
            raise EngineError(
                "environment-not-found",
                f"there is no environment `{reference}`",
                because=(f"{prefix} was not built by torchproof",),
                hint="build it first with `torchproof build`",
            )
        return self._built(prefix.name, prefix, installed.digest(prefix), time.monotonic(), None)

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
        prefix = Path(image.reference)
        if _marker(prefix):
            _remove_folder(prefix)


def _is_kept(name: str) -> bool:
    if name.startswith("UV_"):
        return bool(_UV_KEPT.fullmatch(name))
    return name not in _FOREIGN and not name.startswith(_FOREIGN_PREFIXES)


def install_arguments(file: Path, plan: BuildPlan, env: Mapping[str, str]) -> list[str]:
    """Arguments of `uv pip install` for one group; a file `NN-group@index.txt` comes from that index alone."""
    arguments = ["--no-deps", "--require-hashes", "-r", str(file)]
    if "wheelhouse" in plan.contexts:
        arguments += ["--find-links", plan.contexts["wheelhouse"]]
    index = file.stem.partition("@")[2] or "default"
    if index == "torch":
        address = env.get("TORCHPROOF_TORCH_INDEX")
        if address:
            arguments += ["--default-index", address.replace("{variant}", plan.variant or "cpu")]
        else:
            arguments += ["--torch-backend", plan.variant or "cpu"]
    elif index != "default":
        address = env.get(f"TORCHPROOF_INDEX_{index.upper().replace('-', '_')}")
        if not address:
            raise PackageIndexError(
                "index-address-missing",
                f"`{file.name}` cannot be installed: the address of index `{index}` was not handed to the build",
            )
        arguments += ["--default-index", f"{index}={address}"]
    constraints = file.with_name("build-constraints.txt")
    if "source" in file.stem and constraints.is_file():
        arguments += ["--build-constraints", str(constraints), "--require-build-hashes"]
    return arguments


def read_exports(text: str) -> dict[str, str]:
    """Names and values of the lines `export NAME='value'`; other lines are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        with suppress(ValueError):
            words = shlex.split(line, comments=True)
            for word in words[1:] if words[:1] == ["export"] else []:
                name, equals, value = word.partition("=")
                if equals and name.isidentifier():
                    found[name] = value
    return found


def _wanted(context: Path, plan: BuildPlan) -> str:
    """Digest of everything that decides what gets installed."""
    total = hashlib.sha256(f"{plan.python}\0{plan.variant}\0".encode())
    for file in sorted((context / "requirements").glob("*.txt")):
        total.update(f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def _marker(prefix: Path) -> Mapping[str, object]:
    with suppress(OSError, ValueError):
        marker = json.loads((prefix / _MARKER).read_text(encoding="utf-8"))
        if isinstance(marker, dict):
            return marker
    return {}


def _refuse_foreign(prefix: Path, image_id: str) -> None:
    if prefix.exists() and not _marker(prefix) and (not prefix.is_dir() or any(prefix.iterdir())):
        raise UsageError(
            "prefix-not-ours",
            f"`{image_id}` is not built into {prefix}",
            because=("that folder has something in it which torchproof did not make",),
            hint="name another folder, or move that one away",
        )


def _refuse_full_disk(plan: BuildPlan, folder: Path, image_id: str) -> None:
    free = shutil.disk_usage(folder).free
    if plan.installed_bytes and plan.installed_bytes > free:
        raise BuildError(
            "disk-full",
            f"`{image_id}` does not fit on the disk",
            because=(
                f"its files take {plan.installed_bytes / 2**30:.1f} GiB",
                f"{folder} has {free / 2**30:.1f} GiB left",
            ),
            hint="free some space, or build into a folder on another disk",
        )


def _remove_folder(folder: Path) -> None:
    """Named so that a cut-off removal is never mistaken for an environment: the marker goes first."""
    if folder.exists():
        (folder / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _install_error(status: int | None, text: str, step: str, plan: BuildPlan, image_id: str) -> TorchproofError:
    what = f"`{image_id}` cannot be installed in place"
    detail = "\n".join(text.splitlines()[-_TAIL_LINES:]) or None
    where = f"the whole log is in {plan.log_file}"
    if status is None:
        return BuildError("build-timeout", what, because=("uv did not end in time",), detail=detail, hint=where)
    fault = fault_of(text)
    if fault is Fault.DISK_FULL:
        return BuildError("disk-full", what, because=("the disk is full",), detail=detail, hint=where)
    if fault is Fault.HASHES:
        because = ("a downloaded file is not the one that the lock names",)
        return StaleLockError("hash-mismatch", what, because=because, detail=detail, hint=where)
    if fault is Fault.NETWORK:
        because = ("a package could not be fetched",)
        return PackageIndexError("index-unreachable-in-build", what, because=because, detail=detail, hint=where)
    if step == "venv":
        return EngineError(
            "python-missing",
            what,
            because=(f"this machine has no usable Python {plan.python}", "an environment in place needs one"),
            hint=f"install Python {plan.python}, or build with a Docker engine, whose images bring their own",
            detail=detail,
        )
    because = (f"`uv {step}` ended with status {status}",)
    return BuildError("build-step-failed", what, because=because, detail=detail, hint=where)
