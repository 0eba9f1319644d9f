from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder import verdict
from builder.resolution import TargetGpu
from builder.results import CheckResult, ImageReport, Level


def check(level: str, status: str = "passed", code: str | None = None, name: str = "a.b") -> CheckResult:
    return CheckResult.model_validate(
        {"id": name, "level": level, "status": status, "code": code, "message": f"{status} it is"}
    )


def image(checks: list[CheckResult], **more: Any) -> ImageReport:
    return ImageReport(image_id="x", stage="smoke", checks=tuple(checks), level=verdict.level_of(checks), **more)


FULL = [check("L0"), check("L1"), check("L2"), check("L3")]


def test_levels_are_ordered() -> None:
    levels = [Level.NONE, Level.L0, Level.L1, Level.L2, Level.L3]
    assert [level.rank for level in levels] == list(range(5))
    for one, other in itertools.combinations(levels, 2):
        assert one < other
        assert other > one
        assert one <= other
        assert not one >= other


def test_the_level_is_the_highest_at_which_all_passed() -> None:
    assert verdict.level_of(FULL) is Level.L3
    assert verdict.level_of(FULL[:3]) is Level.L2
    assert verdict.level_of([]) is Level.NONE


@pytest.mark.parametrize("status", ["failed", "errored", "not-checked"])
@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L3"])
def test_one_check_that_did_not_pass_keeps_its_level_from_being_reached(level: str, status: str) -> None:
    reached = verdict.level_of([*FULL, check(level, status, "x")])
    assert reached < Level(level)


def test_what_does_not_concern_the_image_holds_nothing_back() -> None:
    assert verdict.level_of([*FULL, check("L1", "not-checked", verdict.NOT_APPLICABLE)]) is Level.L3


def test_a_level_at_which_nothing_passed_is_not_reached() -> None:
    assert verdict.level_of([check("L0"), check("L1", "not-checked", verdict.NOT_APPLICABLE)]) is Level.L0


_checks = st.builds(
    check,
    st.sampled_from(["L0", "L1", "L2", "L3"]),
    st.sampled_from(["passed", "failed", "errored", "not-checked"]),
    st.sampled_from([None, verdict.NOT_APPLICABLE]),
)


@given(st.lists(_checks), _checks)
def test_another_check_that_did_not_pass_never_raises_the_level(checks: list[CheckResult], more: CheckResult) -> None:
    if more.status != "passed":
        assert verdict.level_of([*checks, more]) <= verdict.level_of(checks)


def test_a_card_is_proven_by_a_run_on_it_or_on_its_capability() -> None:
    targets = [
        TargetGpu(name="RTX 3090", compute_capability="8.6"),
        TargetGpu(name="A40", compute_capability="8.6"),
        TargetGpu(name="V100", compute_capability="7.0"),
    ]
    ran = [TargetGpu(name="NVIDIA GeForce RTX 3090", compute_capability="8.6")]
    levels = [(v.gpu, v.level, v.reason is None) for v in verdict.per_gpu(FULL, targets, ran_on=ran)]
    assert levels == [("RTX 3090", Level.L3, True), ("A40", Level.L3, True), ("V100", Level.L2, False)]


def test_without_a_run_on_a_card_the_reason_is_told() -> None:
    checks = [*FULL[:3], check("L3", "not-checked", name="vram_peak.loop")]
    (found,) = verdict.per_gpu(checks, [TargetGpu(name="T4", compute_capability="7.5")], ran_on=())
    assert (found.level, found.reason) == (Level.L2, "not checked, not-checked it is")


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (image(FULL[:3], required=Level.L2), 0),
        (image(FULL[:2], required=Level.L2), 9),
        (image([*FULL[:3], check("L3", "failed", "x")], required=Level.L2), 8),
        (image([*FULL[:3], check("L3", "errored", "x")], required=Level.L2), 8),
        (image(FULL[:3], required=Level.L3), 9),
        (image([], required=Level.L2, error={"exit_status": 7}), 7),
    ],
)
def test_exit_status_of_an_image(report: ImageReport, status: int) -> None:
    assert verdict.image_status(report) == status
    assert verdict.exit_status([image(FULL, required=Level.L2), report]) == status


def test_the_gravest_image_decides_in_the_order_of_the_line() -> None:
    bad_lock = image([], error={"exit_status": 5})
    bad_build = image([], error={"exit_status": 7})
    assert verdict.exit_status([bad_build, bad_lock]) == 5
    assert verdict.exit_status([]) == 0
