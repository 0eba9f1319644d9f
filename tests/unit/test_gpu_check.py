"""bin/gpu_check.sh: says that there is no card, keeps to its time, and never takes an old result for a new one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from builder import smoke

ROOT = Path(__file__).resolve().parents[2]

# Smoke scripts that end as told, in place of those that need a card.
SCRIPT = """
import json, sys, time
checks = CHECKS
time.sleep(SECONDS)
with open(sys.argv[sys.argv.index("--result") + 1], "w") as stream:
    json.dump({"checks": [dict(zip(("id", "status", "code", "message"), check)) for check in checks]}, stream)
"""
PROBE = [("probe.gpu_usable", "passed", None, "RTX 3090")]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "bin" / "gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "smoke").mkdir()
    return tmp_path


def write(folder: Path, name: str, checks: Any, seconds: float = 0.0) -> None:
    text = SCRIPT.replace("CHECKS", repr(checks)).replace("SECONDS", str(seconds))
    (folder / "smoke" / f"{name}.py").write_text(text)


def ran(script: ModuleType, folder: Path, *names: str, **options: Any) -> tuple[int, dict[str, Any]]:
    runs = [(name, name, 20.0, {}) for name in ("probe", "card", "train_step")]
    status = script.main([str(folder / "out"), *names], runs=runs, smoke_tests=str(folder / "smoke"), **options)
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["exit_status"] == status
    return status, {row["run"]: row for row in summary["runs"]}


def test_a_torch_that_is_not_there_is_no_missing_card(script: ModuleType, folder: Path) -> None:
    write(folder, "probe", [("probe.torch_imports", "failed", "import-failed", "no module named torch"), *PROBE])
    status, rows = ran(script, folder)
    assert (status, rows) == (1, {"probe": rows["probe"]})
    assert rows["probe"]["message"] == "no module named torch"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a card")
def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    """With a torch that knows nothing but that there is no card."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.6.0'")
    (tmp_path / "torch" / "version.py").write_text("cuda = None")
    (tmp_path / "torch-2.6.0.dist-info").mkdir()
    (tmp_path / "torch-2.6.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n")
    command = ["sh", ROOT / "bin" / "gpu_check.sh", sys.executable, tmp_path / "out"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 3, done.stdout
    assert "probe            no card" in done.stdout
    assert json.loads((tmp_path / "out" / "probe.json").read_text())["script"] == "probe"
    assert not (tmp_path / "out" / "card.json").exists()


def test_what_passes_fails_and_breaks(script: ModuleType, folder: Path) -> None:
    write(folder, "probe", PROBE)
    write(folder, "card", [("card.speed", "passed", None, "71 TFLOP/s")])
    write(folder, "train_step", [("train_step.run", "passed", None, "ran")])
    assert ran(script, folder)[0] == 0
    write(folder, "card", [("card.samples", "failed", "card-idle", "0 % in use")])
    status, rows = ran(script, folder)
    assert (status, rows["card"]["message"]) == (1, "card.samples [card-idle] 0 % in use")
    assert rows["train_step"]["outcome"] == "passed"
    (folder / "smoke" / "card.py").write_text("raise SystemExit(5)")
    status, rows = ran(script, folder)
    assert (status, rows["card"]["outcome"]) == (2, "errored")
    assert rows["card"]["message"] == "it ended with status 5 and no result; see card.log"


def test_names_choose_and_the_probe_always_runs(script: ModuleType, folder: Path) -> None:
    for name in ("probe", "card", "train_step"):
        write(folder, name, PROBE)
    assert list(ran(script, folder, "card")[1]) == ["probe", "card"]
    assert script.main([str(folder / "out"), "cards"], runs=[("card", "card", 5, {})]) == 2


def test_it_keeps_to_its_time(script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "GRACE_S", 0.5)
    monkeypatch.setattr(script, "LEAST_S", 0.2)
    write(folder, "probe", PROBE)
    write(folder, "card", PROBE, seconds=60)
    write(folder, "train_step", PROBE)
    started = time.monotonic()
    status, rows = ran(script, folder, budget_s=2.0)
    assert time.monotonic() - started < 5
    assert status == 2
    assert rows["card"]["message"] == "it did not end; see card.log"
    assert rows["train_step"]["outcome"] == "not started"


def test_the_card_is_judged_by_what_the_host_would_hand_over(script: ModuleType) -> None:
    assert script.expected_tflops() == smoke.expected_tflops()


def test_all_runs_are_of_scripts_that_exist(script: ModuleType) -> None:
    assert {run[1] for run in script.RUNS} <= {path.stem for path in (ROOT / "smoke_tests").glob("*.py")}
    assert script.BUDGET_S <= 360
