from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fakes import GOOD, LOCK, FakeEngine, check, result_document

from builder import scripts, smoke, verdict
from builder.engine import ExecResult, Limits
from builder.errors import UsageError
from builder.results import CheckResult, Level, ScriptReport

LIMITS = Limits(memory_bytes=2**30)
LOCKED = {package.name for package in LOCK.packages}
CONCERNED = [script.name for script in scripts.TABLE if script.concerns(LOCKED) and not script.on_host]
ENDED = ExecResult(argv=("python3",), exit_status=0, stdout=b"", stderr=b"warn\nlast words", seconds=1.0)


def read(result: ExecResult) -> CheckResult:
    (found,) = smoke.read_result("train_step", result, limits=LIMITS, time_limit_s=60).checks
    return found


def report(engine: FakeEngine) -> smoke.SmokeRun:
    return smoke.run(LOCK, engine.image("x"), engine, limits=LIMITS, time_limit_s=60, gpus=False, files={})


def test_scripts_run_in_order_each_with_the_whole_lock() -> None:
    engine = FakeEngine()
    run = report(engine)
    assert [found.script for found in run.scripts] == CONCERNED
    (session,) = engine.sessions
    assert session.requests[0]["packages"]["torch"] == "2.6.0"
    assert session.requests[0]["gpus"] == [{"name": "RTX 3090", "compute_capability": "8.6"}]
    assert session.requests[0]["schema_version"] == 1
    assert run.network_cut


def test_a_hanging_script_is_errored_and_its_last_words_are_kept() -> None:
    found = read(replace(ENDED, exit_status=None, timed_out=True))
    assert (found.status, found.code, found.level) == ("errored", "smoke-timeout", Level.L2)
    assert found.details["last_lines"] == ["warn", "last words"]
    assert "within 60 s" in found.message


def test_a_script_killed_for_memory_is_told_as_such() -> None:
    found = read(replace(ENDED, exit_status=137, out_of_memory=True))
    assert (found.status, found.code) == ("errored", "smoke-out-of-memory")
    assert "memory limit of 1 GiB" in found.message


@pytest.mark.parametrize(
    "stdout",
    [
        b"",
        b"Traceback (most recent call last):",
        b"{",
        b"[]",
        b"{}",
        GOOD["probe"],  # a result of another script
        result_document("train_step"),  # of no check
        b"loading...\n" + GOOD["train_step"],
        GOOD["train_step"] + b"\n{}",
        GOOD["train_step"].replace(b'"schema_version": 1', b'"schema_version": 2'),
        GOOD["train_step"].replace(b'"passed"', b'"fine"'),
        b"\xff\xfe\x00",
    ],
)
def test_rubbish_is_never_a_pass(stdout: bytes) -> None:
    found = read(replace(ENDED, stdout=stdout))
    assert (found.status, found.code) == ("errored", "smoke-bad-output")


def test_a_good_result_with_a_bad_exit_status_is_not_believed() -> None:
    assert read(replace(ENDED, stdout=GOOD["train_step"], exit_status=139)).code == "smoke-died"


def test_a_failed_check_comes_with_status_1_and_is_kept_as_it_is() -> None:
    document = result_document(
        "train_step", check("train_step.x", level="L2", status="failed", code="loss-not-falling")
    )
    found = read(replace(ENDED, stdout=document, exit_status=1))
    assert (found.status, found.code) == ("failed", "loss-not-falling")


def test_on_a_gpu_host_the_training_step_runs_on_the_cpu_too() -> None:
    engine = FakeEngine(has_gpu=True)
    report(engine)
    (session,) = engine.sessions
    settings = [request["params"] for request in session.requests]
    first = CONCERNED.index("train_step")
    assert settings[first : first + 2] == [{"device": "cpu"}, {}]
    assert len(settings) == len(CONCERNED) + 1


def test_one_broken_script_does_not_hide_the_others() -> None:
    engine = FakeEngine(answers={**GOOD, "train_step": replace(ENDED, stdout=b"rubbish")})
    run = report(engine)
    assert [check.code for check in run.checks if check.status == "errored"] == ["smoke-bad-output"]
    assert len(run.scripts) == len(CONCERNED)


def test_the_session_is_left_whatever_happens() -> None:
    engine = FakeEngine(answers={})
    with pytest.raises(KeyError):
        report(engine)
    assert engine.removed == ["x"]


def test_cards_are_those_that_the_scripts_saw() -> None:
    gpu = {"name": "NVIDIA H200", "compute_capability": "9.0"}
    engine = FakeEngine(answers={**GOOD, "probe": result_document("probe", check("probe.versions"), gpu=gpu)})
    assert [(card.name, card.compute_capability) for card in report(engine).ran_on] == [("NVIDIA H200", "9.0")]
    assert report(FakeEngine()).ran_on == ()


def test_the_shipped_scripts_are_sent_and_parse_on_the_oldest_python() -> None:
    import ast  # noqa: PLC0415

    files = smoke.smoke_files()
    assert {f"{script}.py" for script in scripts.SENT} <= set(files)
    for name, content in files.items():
        ast.parse(content, filename=name, feature_version=(3, 7))
        assert b"import builder" not in content
        assert b"from builder" not in content


def test_a_report_survives_its_own_json() -> None:
    document = json.loads(GOOD["probe"])
    assert json.loads(ScriptReport.model_validate(document).model_dump_json())["checks"][0]["id"] == "probe.versions"


def test_a_level_a_name_and_a_skip_choose_scripts() -> None:
    assert scripts.chosen() == scripts.SCRIPTS
    assert all(scripts.BY_NAME[name].level is Level.L1 for name in scripts.chosen(level=Level.L1))
    assert scripts.chosen(only=["train_step", "probe"]) == ("probe", "train_step")
    assert scripts.chosen(only=["train_step", "probe"], skip=["probe"]) == ("train_step",)
    assert "vram_peak" in scripts.chosen(level=Level.L2)
    assert "vram_peak" not in scripts.chosen(level=Level.L1)
    with pytest.raises(UsageError, match="`train` is no smoke script"):
        scripts.chosen(only=["train"])


def test_what_was_left_out_is_not_proven_and_what_does_not_concern_holds_nothing_back() -> None:
    below = CheckResult(id="x.y", level=Level.L0, status="passed", message="")
    passed = [below, below.model_copy(update={"level": Level.L1}), below.model_copy(update={"level": Level.L2})]
    everything = scripts.not_run(scripts.SCRIPTS, LOCKED)
    assert {check.id for check in everything} == {f"{name}.ran" for name in scripts.SENT if name not in CONCERNED}
    assert {check.code for check in everything} == {"not-applicable"}
    assert verdict.level_of([*passed, *everything]) is Level.L2
    without = scripts.not_run(scripts.chosen(skip=["train_step"]), LOCKED)
    assert verdict.level_of([*passed, *without]) is Level.L1
    assert "left out" in verdict.why_not([*passed, *without], Level.L2)


def test_a_script_that_does_not_concern_the_image_is_not_started() -> None:
    engine = FakeEngine()
    report(engine)
    assert "onnx_round_trip" not in CONCERNED
    assert len(engine.sessions[0].requests) == len(CONCERNED)
