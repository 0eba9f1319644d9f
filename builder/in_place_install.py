"""How uv is asked to install one group of a lock in place, and what its failures mean."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from builder.bake import Fault, fault_of, no_managed_python
from builder.engine import BuildPlan
from builder.errors import BuildError, EngineError, PackageIndexError, StaleLockError, TorchproofError

_TAIL_LINES = 20


def install_environment(environ: Mapping[str, str], plan: BuildPlan) -> dict[str, str]:
    """What uv is started with: nothing of the user's that could change what is installed, and the plan's secrets."""
    env = {**environ, "NO_COLOR": "1", "UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1"}
    if plan.provider == "uv":
        env["UV_PYTHON_DOWNLOADS"] = "automatic"
    env.setdefault("UV_PYTHON_DOWNLOADS", "never")
    if "index" in plan.secrets:
        env |= read_exports(plan.secrets["index"].read_text(encoding="utf-8"))
    if "ca" in plan.secrets:
        env["SSL_CERT_FILE"] = str(plan.secrets["ca"].resolve())
    return env


def python_arguments(plan: BuildPlan) -> list[str]:
    managed = ["--managed-python"] if plan.provider == "uv" else []
    return [*managed, "--python", plan.python or "python3"]


def batches(files: Sequence[Path], *, is_here: bool) -> list[list[Path]]:
    """The files of requirements that are installed in one call each. Every call costs as much as linking a thousand
    files, so all files of one index go together, unless something has to be fetched: then each group that is complete
    is worth keeping, in case the next is cut off.
    """
    found: list[list[Path]] = []
    for file in files:
        is_alone = not is_here or "source" in file.stem
        if not is_alone and found and _index_of(found[-1][-1]) == _index_of(file):
            found[-1].append(file)
        else:
            found.append([file])
    return found


def _index_of(file: Path) -> str:
    return file.stem.partition("@")[2] or "default"


def install_arguments(file: Path, plan: BuildPlan, env: Mapping[str, str]) -> list[str]:
    """Arguments of `uv pip install` for one group; a file `NN-group@index.txt` comes from that index alone."""
    arguments = ["--no-deps", "--require-hashes", "-r", str(file)]
    if "wheelhouse" in plan.contexts:
        arguments += ["--find-links", plan.contexts["wheelhouse"]]
    index = _index_of(file)
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


def wanted_digest(context: Path, plan: BuildPlan) -> str:
    """Digest of everything that decides what gets installed."""
    total = hashlib.sha256(f"{plan.python}\0{plan.variant}\0{plan.provider}\0".encode())
    explicit = context / "conda-explicit.txt"
    if explicit.is_file():
        total.update(explicit.read_bytes())
    for file in sorted((context / "requirements").glob("*.txt")):
        total.update(f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def install_error(status: int | None, text: str, step: str, plan: BuildPlan, image_id: str) -> TorchproofError:
    what = f"`{image_id}` cannot be installed in place"
    detail = "\n".join(text.splitlines()[-_TAIL_LINES:]) or None
    where = f"the whole log is in {plan.log_file}"
    if status is None:
        return BuildError("build-timeout", what, because=("uv did not end in time",), detail=detail, hint=where)
    fault = fault_of(text)
    if step == "venv" and plan.provider == "uv" and fault is not Fault.DISK_FULL:
        return no_managed_python(what, plan.python, here="here", apt="this machine's own", detail=detail)
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
            hint=f"install Python {plan.python}, let it come from elsewhere (`provider: conda`, `provider: uv`), or "
            "build with a Docker engine, whose images bring their own",
            detail=detail,
        )
    because = (f"`uv {step}` ended with status {status}",)
    return BuildError("build-step-failed", what, because=because, detail=detail, hint=where)
