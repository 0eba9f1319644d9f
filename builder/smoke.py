"""BuiltImage -> ImageReport: sends the smoke scripts in, reads one JSON document each back, never believes the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from builder.engine import BuiltImage, Engine, ExecResult, Limits, Session
from builder.lockfile import ImageLock
from builder.resolution import TargetGpu
from builder.resources import SMOKE_TESTS, walk
from builder.results import CheckResult, Level, ScriptReport
from builder.scripts import BY_NAME, SENT, Script

# The host waits longer than the script's own limit: a script that ends itself says more than one that is killed.
GRACE_S = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeRun:
    scripts: tuple[ScriptReport, ...]
    checks: tuple[CheckResult, ...]
    ran_on: tuple[TargetGpu, ...]
    network_cut: bool


def smoke_files() -> dict[str, bytes]:
    """The scripts, as they are sent into an image."""
    return {name: content for name, content in walk(SMOKE_TESTS) if name.endswith(".py")}


def run(
    lock: ImageLock,
    image: BuiltImage,
    engine: Engine,
    *,
    limits: Limits,
    time_limit_s: float,
    gpus: bool,
    scripts: Sequence[str] = SENT,
    params: Mapping[str, Mapping[str, Any]] | None = None,
    files: Mapping[str, bytes] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> SmokeRun:
    """Run `scripts` one after another in one session. `files` replaces the shipped scripts (tests do this).

    A script that does not concern the image is not started.
    """
    reports: list[ScriptReport] = []
    checks: list[CheckResult] = []
    locked = {package.name for package in lock.packages}
    scripts = [name for name in scripts if name not in BY_NAME or _is_sent(BY_NAME[name], locked)]
    with engine.session(image, files if files is not None else smoke_files(), limits, gpus=gpus) as session:
        network_cut = session.network_cut
        for script, own in _rounds(scripts, has_gpu=session.has_gpu):
            on_step(script)
            if script == "vram_peak":
                own = {**own, **_vram_params(lock, has_gpu=session.has_gpu)}  # noqa: PLW2901 - completed
            if script == "card" and session.has_gpu:
                own = {**own, "expected_tflops": expected_tflops()}  # noqa: PLW2901
            settings = {**own, **(params or {}).get(script, {})}
            request = json.dumps(_request(lock, session, time_limit_s, settings))
            request_file = session.put(f"{script}.request.json", request.encode())
            argv = [*session.python(), f"{session.smoke_folder}/{script}.py", "--request", request_file]
            result = session.run(argv, timeout_s=time_limit_s + GRACE_S)
            report = read_result(script, result, limits=limits, time_limit_s=time_limit_s)
            reports.append(report)
            checks.extend(report.checks)
    return SmokeRun(scripts=tuple(reports), checks=tuple(checks), ran_on=_cards(reports), network_cut=network_cut)


def _is_sent(script: Script, locked: Collection[str]) -> bool:
    return not script.on_host and script.concerns(locked)


def _vram_params(lock: ImageLock, *, has_gpu: bool) -> dict[str, Any]:
    """What memory is judged by: made here with what this Python has, so that the image needs nothing for it."""
    from builder.vram import smoke_estimate  # noqa: PLC0415 - may import torch

    live = smoke_estimate.live_bytes_params()
    if not has_gpu:
        return live
    from builder.catalog import Catalog  # noqa: PLC0415 - only where there is a GPU

    described = smoke_estimate.description(
        smoke_estimate.LOOP, {package.name: package.version for package in lock.packages}
    )
    return {**live, **smoke_estimate.params(described, lock.gpus[0].name if lock.gpus else None, Catalog.shipped())}


def expected_tflops() -> dict[str, list[float]]:
    """Of every board that the facts know, since the card at hand is known to the script alone."""
    from builder.catalog import Catalog  # noqa: PLC0415 - only where there is a GPU

    rows = Catalog.shipped().matmul_speeds()
    return {name: [row.tflops, row.least_tflops] for row in rows for name in row.names}


def _rounds(scripts: Sequence[str], *, has_gpu: bool) -> list[tuple[str, dict[str, Any]]]:
    """Where there is a GPU the training step runs on the CPU first: L2 is a statement of its own."""
    rounds: list[tuple[str, dict[str, Any]]] = []
    for script in scripts:
        if script == "train_step" and has_gpu:
            rounds.append((script, {"device": "cpu"}))
        rounds.append((script, {}))
    return rounds


def _request(lock: ImageLock, session: Session, time_limit_s: float, params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "image_id": lock.image_id,
        "python": lock.python,
        "packages": {package.name: package.version for package in lock.packages},
        "variant": lock.variant,
        "gpus": [{"name": gpu.name, "compute_capability": gpu.compute_capability} for gpu in lock.gpus],
        "scratch": session.scratch,
        "time_limit_s": time_limit_s,
        "params": dict(params),
    }


def read_result(script: str, result: ExecResult, *, limits: Limits, time_limit_s: float) -> ScriptReport:
    """One report, whatever came back: one that hangs, dies or prints rubbish is an errored check."""
    tail = _tail(result.stderr)
    if result.timed_out:
        message = f"{script} did not end within {time_limit_s:.0f} s and was stopped"
        return _errored(script, "smoke-timeout", message, result, tail)
    if result.out_of_memory:
        message = f"{script} was killed at the memory limit of {limits.memory_bytes / 2**30:.3g} GiB"
        return _errored(script, "smoke-out-of-memory", message, result, tail)
    try:
        document = json.loads(result.stdout)
    except ValueError:
        what = "printed nothing" if not result.stdout.strip() else "printed something that is not one JSON document"
        message = f"{script} {what} and ended with status {result.exit_status}"
        return _errored(script, "smoke-bad-output", message, result, _tail(result.stdout) + tail)
    try:
        report = ScriptReport.model_validate(document, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{script} printed a result that breaks the contract at {'.'.join(map(str, first['loc']))}"
        return _errored(script, "smoke-bad-output", f"{message}: {first['msg']}", result, tail)
    if report.script != script or not report.checks:
        message = f"{script} printed a result of {report.script!r} with {len(report.checks)} checks"
        return _errored(script, "smoke-bad-output", message, result, tail)
    failed = any(check.status in ("failed", "errored") for check in report.checks)
    if not failed and result.exit_status != 0:
        message = f"{script} reported no failure but ended with status {result.exit_status}"
        return _errored(script, "smoke-died", message, result, tail)
    return report


def _errored(script: str, code: str, message: str, result: ExecResult, tail: str) -> ScriptReport:
    check = CheckResult(
        id=f"{script}.ran",
        # What the script would have proven first.
        level=BY_NAME[script].level if script in BY_NAME else Level.L1,
        status="errored",
        code=code,
        message=message,
        seconds=result.seconds,
        blame="host" if code == "smoke-out-of-memory" else "image",
        details={"exit_status": result.exit_status, "last_lines": tail.splitlines()},
    )
    return ScriptReport(schema_version=1, script=script, seconds=result.seconds, checks=(check,))


def _tail(output: bytes, lines: int = 20) -> str:
    text = output.decode("utf-8", "replace").strip()
    return "\n".join(line[:400] for line in text.splitlines()[-lines:])


def _cards(reports: Sequence[ScriptReport]) -> tuple[TargetGpu, ...]:
    """The cards that the scripts saw, as they reported them."""
    for report in reports:
        gpu = report.environment.get("gpu")
        if isinstance(gpu, dict) and gpu.get("name"):
            capability = str(gpu.get("compute_capability", ""))
            return (TargetGpu(name=str(gpu["name"]), compute_capability=capability),)
    return ()
