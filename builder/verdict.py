"""Checks -> levels. What counts as proven, and for which card; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from builder.resolution import TargetGpu
from builder.results import CheckResult, GpuVerdict, ImageReport, Level

# A check that does not concern this image (torchvision in an image without it) holds nothing back. Every other
# not-checked does: what was not looked at is not proven.
NOT_APPLICABLE = "not-applicable"

LADDER = (Level.L0, Level.L1, Level.L2, Level.L3)


def level_of(checks: Iterable[CheckResult]) -> Level:
    """The highest level at which every required check of it and of those below passed.

    A level without a single passed check is not reached: nothing was proven there.
    """
    found = list(checks)
    reached = Level.NONE
    for level in LADDER:
        here = [check for check in found if check.level is level]
        passed = [check for check in here if check.status == "passed"]
        open_ = [check for check in here if check.status != "passed" and not is_not_applicable(check)]
        if open_ or not passed:
            return reached
        reached = level
    return reached


def is_not_applicable(check: CheckResult) -> bool:
    return check.status == "not-checked" and check.code == NOT_APPLICABLE


def per_gpu(
    checks: Sequence[CheckResult], targets: Sequence[TargetGpu], *, ran_on: Sequence[TargetGpu]
) -> tuple[GpuVerdict, ...]:
    """A target is proven at L3 only by a run on a card of its own name or, failing that, of its compute capability."""
    reached = level_of(checks)
    verdicts = []
    for target in targets:
        level, reason = reached, None
        if reached is Level.L3 and not any(_same_card(target, card) for card in ran_on):
            level = Level.L2
            reason = f"ran on {', '.join(card.name for card in ran_on) or 'no GPU'}, not on this card"
        elif reached < Level.L3:
            reason = why_not(checks, Level.L3)
        verdicts.append(
            GpuVerdict(gpu=target.name, compute_capability=target.compute_capability, level=level, reason=reason)
        )
    return tuple(verdicts)


def _same_card(target: TargetGpu, card: TargetGpu) -> bool:
    return target.name == card.name or target.compute_capability == card.compute_capability


def why_not(checks: Sequence[CheckResult], level: Level) -> str:
    """The first thing that keeps `level` from being reached, in words."""
    for step in LADDER:
        here = [check for check in checks if check.level is step]
        for check in here:
            if check.status in ("failed", "errored"):
                return f"{check.id} {check.status}: {check.message}"
        for check in here:
            if check.status == "not-checked" and not is_not_applicable(check):
                return f"not checked, {check.message}"
        if not any(check.status == "passed" for check in here):
            return f"no check of {step.value} ran"
        if step is level:
            break
    return "nothing"


def exit_status(images: Sequence[ImageReport]) -> int:
    """The status of a run: the gravest of its images'. Errors of the line itself come first, in its order."""
    statuses = {image_status(image) for image in images}
    for status in (1, 2, 4, 5, 6, 7, 8, 9):
        if status in statuses:
            return status
    return 0


def image_status(image: ImageReport) -> int:
    if image.error is not None:
        return int(image.error["exit_status"])
    if image.failed:
        return 8
    if image.level < image.required:
        return 9
    return 0
