from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from builder import report, verdict
from builder.atomic import write_whole
from builder.results import CheckResult, GpuVerdict, ImageLayer, ImageReport, Level, RunReport


def check(
    name: str, level: str, status: str = "passed", code: str | None = None, message: str = "", **more: Any
) -> CheckResult:
    document = {"id": name, "level": level, "status": status, "code": code, "message": message or f"{name} {status}"}
    return CheckResult.model_validate({**document, **more})


PASSED = [check("pins.fit", "L0"), check("probe.versions", "L1"), check("train_step.loss_falls", "L2", message="fell")]
OPEN = check("vram_peak.loop", "L3", "not-checked", message="no GPU in reach")


def run(*checks: CheckResult, error: dict[str, Any] | None = None, **more: Any) -> RunReport:
    image = ImageReport(
        image_id="torch2.6.0-cu124-py311",
        stage="smoke",
        engine="docker",
        reference="torchproof/x:torch2.6.0",
        digest="sha256:" + "1" * 64,
        digest_kind="image-id",
        size_bytes=2**30,
        build_seconds=12.3,
        base="debian:bookworm",
        python="3.11",
        packages={"torch": "2.6.0", "numpy": "2.0.1"},
        lock_digest="2" * 64,
        checks=checks,
        level=verdict.level_of(checks) if error is None else Level.NONE,
        gpus=(GpuVerdict(gpu="RTX 3090", compute_capability="8.6", level=Level.L2, reason="no GPU in reach"),),
        error=error,
        **more,
    )
    return RunReport(
        tool_version="0.1.0",
        spec="x.yaml",
        started="2026-11-30T00:00:00+00:00",
        seconds=20.0,
        engine="docker",
        engine_version="26",
        host_gpu_reason="this machine has no NVIDIA device",
        facts_generated="2026-11-30",
        exit_status=verdict.exit_status([image]),
        images=(image,),
    )


def test_a_proven_image_says_what_on_what_and_what_was_not_looked_at() -> None:
    text = report.text(run(*PASSED, OPEN))
    assert text.startswith("torch2.6.0-cu124-py311: proven to L2 CPU run\n")
    assert "digest      sha256:1111" in text
    assert "– L3 GPU run   not checked: 0 of 1 checks passed" in text
    assert "not checked: vram_peak.loop: no GPU in reach" in text
    assert "for RTX 3090 (8.6): L2 CPU run; not further: no GPU in reach" in text
    assert "this machine has no NVIDIA device" in text
    assert text.rstrip().endswith("exit 0")


def test_layers_are_told_from_the_largest() -> None:
    sizes = ((110, "", "the base"), (700, "COPY /layer/ /", "the torch family"), (48, "RUN apt-get update", None))
    layers = tuple(
        ImageLayer(digest="sha256:1", size_bytes=size * 2**20, step=step, holds=holds) for size, step, holds in sizes
    )
    text = report.text(run(*PASSED, image_layers=layers))
    assert "  layers      700 MiB the torch family; 110 MiB the base; 48 MiB RUN apt-get update\n" in text


PLOT = ["utilization ▁▄███ 3 to 98 %", "memory      ▁▂▅██ 0.4 to 6.1 GiB"]


def test_a_card_at_work_is_shown_as_a_small_plot() -> None:
    card = check("card.samples", "L3", message="up to 98 % in use, 5 samples", details={"plot": PLOT})
    lines = report.text(run(*PASSED, card)).splitlines()
    place = lines.index("      card.samples: up to 98 % in use, 5 samples")
    assert lines[place + 1 : place + 3] == [f"          {line}" for line in PLOT]


def test_a_slow_host_is_not_told_as_a_bad_image() -> None:
    slow = check("card.expected_speed", "L3", "failed", "card-too-slow", "20 TFLOP/s", blame="host")
    idle = check("card.samples", "L3", "failed", "card-idle", "at most 3 %", blame="host", details={"plot": PLOT})
    text = report.text(run(*PASSED, slow, idle))
    assert (
        "[card-too-slow] card.expected_speed: 20 TFLOP/s\n          this is about the host, not about the image" in text
    )
    assert "          utilization ▁▄███ 3 to 98 %\n" in text


def test_a_failure_names_the_check_its_code_and_what_was_measured() -> None:
    bad = check(
        "train_step.weights_change", "L2", "failed", "weights-frozen", "nothing moved", measured=0, expected="> 0"
    )
    text = report.text(run(*PASSED, bad))
    assert "not proven, train_step.weights_change failed (holds up to L1 files)" in text
    assert "✗ failed [weights-frozen] train_step.weights_change: nothing moved" in text
    assert "measured 0, expected > 0" in text
    assert "proven to" not in text.splitlines()[0]


def test_not_checked_is_never_shown_as_passed() -> None:
    text = report.text(run(*PASSED[:2], check("train_step.loss_falls", "L2", "not-checked", message="skipped")))
    assert "proven to L1 files only; L2 CPU run is required" in text
    assert "✓ L2" not in text
    assert "exit 9" in text


def test_a_stopped_line_shows_its_error_and_no_level() -> None:
    error = {"code": "index-unreachable", "what": "cannot be locked", "exit_status": 6, "text": "error[x]: cannot"}
    text = report.text(run(error=error))
    assert "not proven, stopped at" in text
    assert "error[x]: cannot" in text
    assert "exit 6" in text


def test_json_reads_back_as_the_same_report() -> None:
    one = run(*PASSED, OPEN)
    assert RunReport.model_validate_json(report.json_text(one)) == one
    assert json.loads(report.json_text(one))["schema_version"] == 1


def test_junit_counts_agree_with_its_cases() -> None:
    bad = check("a.b", "L1", "failed", "x")
    broken = check("c.d", "L1", "errored", "y", message="control \x1b[31m characters \x00 and <tags>")
    suite = ET.fromstring(report.junit(run(*PASSED, OPEN, bad, broken))).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert suite.attrib["tests"] == str(len(cases)) == "6"
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.attrib[key] == str(len([case for case in cases if case.find(tag) is not None])) == "1"


def test_junit_of_a_stopped_line_is_an_error_and_never_empty() -> None:
    error = {"code": "build-step-failed", "what": "x", "exit_status": 7, "text": "t"}
    suite = ET.fromstring(report.junit(run(error=error))).find("testsuite")
    assert suite is not None
    assert (suite.attrib["tests"], suite.attrib["errors"]) == ("1", "1")


def test_files_are_written_whole(tmp_path: Path) -> None:
    names = [path.name for path in report.write(run(*PASSED, OPEN), tmp_path / "out")]
    assert names == ["report.json", "junit.xml", "summary.txt"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)


def test_a_write_that_is_cut_off_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = write_whole(tmp_path / "a.txt", "old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builder.atomic.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
