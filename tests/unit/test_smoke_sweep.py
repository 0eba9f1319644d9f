"""What the sweep over stacks tells of a stack: `all passed` only where nothing up to L2 is left open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bin"))

import smoke_stacks
import smoke_sweep

WHOLE = smoke_stacks.Stack(name="whole", python="3.11", packages=())
BROKEN = smoke_stacks.Stack(name="broken", python="3.11", packages=(), expected=("numpy-abi",))
ABI = {"id": "probe.numpy_conversion", "status": "failed", "code": "numpy-abi"}
LOST = {"id": "trainer.ran", "status": "errored", "code": "no-result"}
OPEN = {"id": "compile.compiles", "status": "not-checked", "code": None}


@pytest.mark.parametrize(
    ("stack", "bad", "unproven", "told"),
    [
        (WHOLE, [], [], "all passed"),
        (WHOLE, [], [OPEN], "none failed, 1 not checked: compile.compiles"),
        (WHOLE, [ABI], [OPEN], "1 failed: probe.numpy_conversion"),
        (WHOLE, [ABI, LOST], [], "2 failed or errored: probe.numpy_conversion, trainer.ran"),
        (BROKEN, [ABI], [], "told as broken, as it is: numpy-abi; 1 failed: probe.numpy_conversion"),
        (BROKEN, [LOST], [], "1 errored: trainer.ran"),
        (BROKEN, [], [], "passed, and should have failed with numpy-abi"),
    ],
)
def test_outcome_of_a_stack(stack, bad, unproven, told):
    assert smoke_sweep.outcome(stack, bad, unproven) == told


def test_a_script_that_says_nothing_is_an_errored_check(tmp_path):
    document = smoke_sweep.ran(Path("/bin/false"), "probe", tmp_path, "3.11", "cpu", {"torch": "2.13.0"})
    assert [(check["id"], check["status"], check["code"], check["level"]) for check in document["checks"]] == [
        ("probe.ran", "errored", "no-result", "L1")
    ]


def test_a_stack_that_cannot_be_installed_says_why(tmp_path, monkeypatch):
    def fails(*_args, **_kwargs):
        raise subprocess.CalledProcessError(1, "uv", stderr="error: no solution\n  cause: no torch==9.9\n")

    monkeypatch.setattr(smoke_sweep, "installed", fails)
    entry = smoke_sweep.measured(WHOLE, tmp_path, from_package_index=True)
    assert entry["outcome"] == "not installed: error: no solution cause: no torch==9.9"
    row = next(line for line in smoke_sweep.page([entry]).splitlines() if line.startswith("| whole"))
    assert len(row.split(" | ")) == len(smoke_sweep.COLUMNS)


def test_the_page_tells_what_failed_and_what_is_open():
    entry = {
        "name": "broken",
        "date": "2026-11-30",
        "scripts": [{"script": "probe", "seconds": 2.5}],
        "packages": {"torch": "2.1.2", "onnxruntime-gpu": "1.16.3"},
        "outcome": "1 failed",
        "failures": [{**ABI, "message": "cannot exchange arrays"}],
        "not_checked": [{"id": "compile.compiles", "message": "no compiler"}],
    }
    page = smoke_sweep.page([entry, {**entry, "name": "torch-2.1-numpy-2"}])
    assert "\n\ntorch-2.1-numpy-2: torch 2.1 was built with numpy 1" in page
    assert "1.16.3 (gpu)" in page
    assert "## What failed\n\n- broken: `probe.numpy_conversion` [numpy-abi] cannot exchange arrays\n- torch" in page
    assert "- broken: `compile.compiles` no compiler\n" in page
