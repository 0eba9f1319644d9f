"""Proving an environment that somebody else made: read-only, nothing is installed, nothing is moved."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder import installed, installed_record
from builder.engine import BuildPlan, BuiltImage
from builder.errors import EngineError, UsageError
from builder.in_place import InPlaceEngine
from builder.local_session import find_python
from builder.lockfile import ImageLock
from builder.results import CheckResult, Level

_ASK = (
    "import json, os, sys; print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'prefix': sys.prefix, "
    "'is_base': sys.prefix == sys.base_prefix}))"
)
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An environment on this machine. `is_base`: other environments are made from it."""

    prefix: Path
    python: str
    is_base: bool


def find(prefix: Path | None, environ: Mapping[str, str]) -> Found:
    """The environment at `prefix`, or the current one: the activated one, else that of `python3`."""
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    where = prefix or (Path(active) if active else None)
    python = find_python(where) if where is not None else Path("python3")
    try:
        asked = subprocess.run(
            [python, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=True, env={**environ}
        )
        answer = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(
            "no-environment",
            f"{where or 'the current environment'} is no environment that can be proven",
            because=(f"its Python, {python}, does not run: {error}",),
            hint="name one with --prefix",
        ) from None
    # A link stays as it was named; what Python says is the place behind it.
    return Found(prefix=where or Path(answer["prefix"]), python=answer["python"], is_base=bool(answer["is_base"]))


class AdoptedEngine(InPlaceEngine):
    """The engine's protocol over an environment that stays as it is."""

    def __init__(self, found: Found, *, environ: Mapping[str, str]) -> None:
        super().__init__(found.prefix.parent, environ=environ, prefix=found.prefix)
        self._found = found

    def build(self, plan: BuildPlan, on_line: Callable[[str], None]) -> Mapping[str, BuiltImage]:
        if len(plan.targets) != 1:
            raise UsageError("one-prefix", "one environment cannot be several images", hint="choose one with --only")
        image_id = plan.targets[0].image_id
        if plan.python and not self._found.python.startswith(plan.python):
            raise EngineError(
                "python-differs",
                f"{self._found.prefix} is not `{image_id}`",
                because=(f"its Python is {self._found.python}", f"the lock is for Python {plan.python}"),
            )
        on_line(f"{image_id}: adopted {self._found.prefix}, read-only")
        return {image_id: self._built(image_id, self._found.prefix, time.monotonic(), None)}

    def image(self, reference: str) -> BuiltImage:
        return self._built(reference, self._found.prefix, time.monotonic(), None)

    def remove(self, image: BuiltImage) -> None:
        """Not ours to remove."""


def checks_against(lock: ImageLock, prefix: Path) -> list[CheckResult]:
    """`adopted.versions`: what is installed is what the lock names; `adopted.files`: it is as its wheels brought it."""
    return [_versions(lock, prefix), _files(prefix, {package.name for package in lock.packages})]


def _versions(lock: ImageLock, prefix: Path) -> CheckResult:
    """What is installed in an environment that somebody else made is what the lock names."""
    have: dict[str, str] = {
        canonicalize_name(name): version for name, (version, _) in installed.records(prefix).items()
    }
    wrong = []
    for package in lock.packages:
        version = have.get(package.name)
        if version is None:
            wrong.append(f"{package.name} {package.version} is not installed")
        elif not _is_same(version, package.version):
            wrong.append(f"{package.name} is {version}, the lock has {package.version}")
    more = sorted(set(have) - {package.name for package in lock.packages})
    return CheckResult(
        id="adopted.versions",
        level=Level.L1,
        status="failed" if wrong else "passed",
        code="environment-differs" if wrong else None,
        message=_shown(wrong)
        if wrong
        else f"all {len(lock.packages)} locked packages are installed, {len(more)} more are",
        blame="image" if wrong else None,
        details={"differences": wrong, "not_in_the_lock": more},
    )


def _files(prefix: Path, names: set[str]) -> CheckResult:
    """Every file is as the environment's own RECORD files say; which wheel it came from cannot be told any more."""
    own = installed_record.take(prefix, image_id="")
    found = installed_record.changes(own, prefix)
    parts = (found.changed_files, found.missing_files)
    wrong = [f"{name}: {path}" for part in parts for name, paths in part.items() if name in names for path in paths]
    return CheckResult(
        id="adopted.files",
        level=Level.L1,
        status="failed" if wrong else "passed",
        code="files-changed" if wrong else None,
        message=f"changed after their installation: {_shown(wrong)}" if wrong else "every file is as its RECORD says",
        blame="image" if wrong else None,
        details={"files": wrong[:200]},
    )


def _shown(texts: list[str]) -> str:
    more = f", and {len(texts) - _MOST_SHOWN} more" if len(texts) > _MOST_SHOWN else ""
    return "; ".join(texts[:_MOST_SHOWN]) + more


def _is_same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other
