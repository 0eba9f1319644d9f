"""Each check that can fail has a fault that a test seeds; `pytest -m fault` runs them and counts those caught."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from seeded import Count, registry, shared

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent


def seeded_by_the_tests() -> set[str]:
    """`check=code` of every test that is marked, as pytest collects them; nothing is run."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "fault", "--list-faults", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {shared(line.removeprefix("fault ")) for line in done.stdout.splitlines() if line.startswith("fault ")}


def test_every_check_that_can_fail_has_a_seeded_fault_of_a_code_of_its_own() -> None:
    seeded, known = seeded_by_the_tests(), registry()
    assert len(known) > 70
    checks = {text.partition("=")[0] for text in seeded}
    assert [check for check in known if check not in checks] == []
    # What a mark promises is a code that the page lists for this check.
    assert sorted(text for text in seeded if text.partition("=")[2] not in known.get(text.partition("=")[0], ())) == []


def test_a_promised_code_that_was_not_seen_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        (ROOT / "tests" / "conftest.py")
        .read_text()
        .replace("Path(__file__).resolve().parent.parent", f"Path({str(ROOT)!r})")
    )
    pytester.makepyfile(
        """
        from seeded import fault, observe

        @fault("files", {"records": "file-missing"})
        def test_seen():
            observe("files", {"records": {"status": "failed", "code": "file-missing"}})

        @fault("files", {"records": "file-missing"})
        def test_not_seen():
            observe("files", {"records": {"status": "failed", "code": "file-changed"}})
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "ignore")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*faults that were not seen*", "files.records *2*1*", "1 of * checks had a fault seeded*"]
    )


def test_the_table_counts_what_was_seeded_caught_and_not_run() -> None:
    count = Count()
    count.add(["files.records=file-missing", "onnx_round_trip.dynamo.opset=ir-too-high"], "passed")
    count.add(["files.records=file-changed"], "failed")
    count.add(["files.records=file-changed"], "skipped")
    rows = [line.split() for line in count.lines()]
    assert ["files.records", "3", "1", "1"] in rows
    assert ["onnx_round_trip.torchscript.opset", "1", "1"] in rows
    assert ["all", "4", "2", "1"] in rows
