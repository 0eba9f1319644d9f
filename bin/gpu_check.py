"""What bin/gpu_check.sh runs: standard library only, Python 3.7 and newer, since it is the machine's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SMOKE_TESTS = os.path.join(ROOT, "smoke_tests")
FACTS = os.path.join(ROOT, "builder", "facts", "gpus.json")
BUDGET_S = 350.0  # of 6 minutes; the rest is for ending
GRACE_S = 10.0  # a script that ends itself at its limit says more than one that is stopped
LEAST_S = 15.0  # below it a run is not worth its start
PASSED, FAILED, ERRORED, NO_CARD = 0, 1, 2, 3

# (name of the run, script, seconds at most, parameters)
RUNS: Sequence[tuple[str, str, float, dict[str, Any]]] = (
    ("probe", "probe", 60, {}),
    ("train_step", "train_step", 60, {}),
    ("card", "card", 60, {}),
    ("distributed", "distributed", 75, {"limit_s": 60.0}),
    ("onnx_round_trip", "onnx_round_trip", 90, {}),
    ("vram-base-fp16", "vram_peak", 60, {}),
    ("vram-base-fp32", "vram_peak", 60, {"precision": "fp32"}),
    ("vram-long-eager", "vram_peak", 60, {"attention": "eager", "batch": 4, "seq": 512}),
    ("vram-sgd", "vram_peak", 60, {"optimizer": "sgd"}),
)


def main(
    arguments: Sequence[str],
    runs: Sequence[tuple[str, str, float, dict[str, Any]]] = RUNS,
    smoke_tests: str = SMOKE_TESTS,
    budget_s: float = BUDGET_S,
) -> int:
    folder = os.path.abspath(arguments[0] if arguments else "gpu-check")
    unknown = [name for name in arguments[1:] if name not in [run[0] for run in runs]]
    if unknown:
        say("unknown: {}; there are {}".format(", ".join(unknown), ", ".join(run[0] for run in runs)))
        return ERRORED
    os.makedirs(folder, exist_ok=True)
    started = time.monotonic()
    rows: list[dict[str, Any]] = []
    for name, script, limit_s, params in runs:
        # The probe always runs: it says whether there is a card.
        if arguments[1:] and name not in arguments[1:] and name != "probe":
            continue
        left_s = budget_s - (time.monotonic() - started) - GRACE_S
        if left_s < LEAST_S:
            rows.append({"run": name, "outcome": "not started", "message": "the time is up", "seconds": 0.0})
        else:
            rows.append(one(name, script, min(limit_s, left_s), params, folder, smoke_tests))
        say("{run:<16} {outcome:<12} {seconds:>5.1f} s  {message}".format(**rows[-1]))
        if rows[-1].get("is_last"):
            break
    status = status_of(rows)
    summary: dict[str, Any] = {"schema_version": 1, "python": sys.executable, "exit_status": status, "runs": rows}
    summary["seconds"] = round(time.monotonic() - started, 1)
    with open(os.path.join(folder, "summary.json"), "w") as stream:
        json.dump(summary, stream, indent=1)
    say("{:.0f} s, results in {}, exit {}".format(summary["seconds"], folder, status))
    return status


def one(
    name: str, script: str, limit_s: float, params: dict[str, Any], folder: str, smoke_tests: str
) -> dict[str, Any]:
    """Run one script; its row in the summary."""
    request, result = (os.path.join(folder, name + suffix) for suffix in (".request.json", ".json"))
    if script == "card":
        params = dict(params, expected_tflops=expected_tflops())
    with open(request, "w") as stream:
        json.dump({"schema_version": 1, "time_limit_s": limit_s, "params": params}, stream)
    if os.path.exists(result):
        os.remove(result)  # of an earlier run: it must not be taken for this one's
    command = [sys.executable, os.path.join(smoke_tests, script + ".py"), "--request", request, "--result", result]
    env = dict(os.environ, PYTHONPYCACHEPREFIX=os.path.join(folder, "pyc"), PYTHONDONTWRITEBYTECODE="")
    started = time.monotonic()
    row: dict[str, Any] = {"run": name}
    code: int | None
    with open(os.path.join(folder, name + ".log"), "w") as log:
        try:
            code = subprocess.call(command, stdout=log, stderr=log, env=env, timeout=limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            code = None
    row["seconds"] = round(time.monotonic() - started, 1)
    try:
        with open(result) as stream:
            checks = json.load(stream)["checks"]
    except (OSError, ValueError):
        how = "did not end" if code is None else "ended with status {} and no result".format(code)
        return dict(row, outcome="errored", message="it {}; see {}.log".format(how, name))
    return dict(row, **told(name, checks))


def told(name: str, checks: list[dict[str, Any]]) -> dict[str, Any]:
    bad = [check for check in checks if check["status"] in ("failed", "errored")]
    passed = sum(check["status"] == "passed" for check in checks)
    if name == "probe":
        for wanted, outcome in (("probe.torch_imports", "failed"), ("probe.gpu_usable", "no card")):
            found = [check for check in checks if check["id"] == wanted and check["status"] != "passed"]
            if found:
                return {"outcome": outcome, "is_last": True, "message": found[0]["message"]}
    outcome = "passed"
    if bad:
        outcome = "errored" if any(check["status"] == "errored" for check in bad) else "failed"
    words = ["{} [{}] {}".format(check["id"], check["code"], check["message"]) for check in bad]
    return {"outcome": outcome, "message": "; ".join(words) or "{} checks passed".format(passed), "passed": passed}


def status_of(rows: list[dict[str, Any]]) -> int:
    outcomes = {row["outcome"] for row in rows}
    if "no card" in outcomes:
        return NO_CARD
    if outcomes & {"errored", "not started"}:
        return ERRORED
    return FAILED if "failed" in outcomes else PASSED


def expected_tflops() -> dict[str, list[float]]:
    """As the host hands it to the script `card`, from the same facts."""
    with open(FACTS) as stream:
        rows = json.load(stream)["matmul_tflops"]
    found = {}
    for row in rows:
        peak = row["fp16_gflops"] / 1000.0
        for board in [row["name"]] + row["aliases"]:
            found[board] = [peak, peak * row["least_percent"] / 100.0]
    return found


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
