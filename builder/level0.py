"""L0: what facts and lock prove before anything is built. Pure."""

from __future__ import annotations

from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.lockfile import ImageLock
from builder.resolution import Resolution
from builder.results import CheckResult, Level
from builder.verdict import NOT_APPLICABLE


def checks_of_pins(resolution: Resolution, lock: ImageLock) -> list[CheckResult]:
    """`pins.fit`: resolve found no conflict; `pins.locked`: every requirement is met by a hashed file; `pins.gpus` and
    `pins.driver`: facts about the target cards and their driver.
    """
    return [_fit(resolution), _locked(resolution, lock), _gpus(resolution), _driver(resolution)]


def _fit(resolution: Resolution) -> CheckResult:
    """Resolve found no conflict among the facts; where it finds one, the line stops there with exit 4."""
    facts = [fact for choice in resolution.choices for fact in choice.because]
    return CheckResult(
        id="pins.fit",
        level=Level.L0,
        status="passed",
        message=f"{len(resolution.choices)} choices hold together by {len(set(facts))} facts",
        details={"choices": {choice.subject: choice.value for choice in resolution.choices}},
    )


def _locked(resolution: Resolution, lock: ImageLock) -> CheckResult:
    """Every requirement of the matrix and of the facts is met by a locked file with its hash."""
    versions = {package.name: package.version for package in lock.packages}
    unmet = []
    for requirement in resolution.requirements:
        wanted = Pep508(requirement.text)
        have = versions.get(canonicalize_name(wanted.name))
        if have is None:
            if not requirement.bound_only:
                unmet.append(f"{requirement.text} is not in the lock")
        elif not wanted.specifier.contains(Version(have), prereleases=True):
            unmet.append(f"{requirement.text} is not met by {have}")
    wheels = sum(package.kind == "wheel" for package in lock.packages)
    if unmet:
        return CheckResult(
            id="pins.locked",
            level=Level.L0,
            status="failed",
            code="lock-incomplete",
            message="; ".join(unmet),
            blame="image",
        )
    sources = len(lock.packages) - wheels
    more = f" and {sources} source archives" if sources else ""
    return CheckResult(
        id="pins.locked",
        level=Level.L0,
        status="passed",
        message=f"{wheels} wheels{more} for Python {lock.python} and glibc {lock.glibc}, each with its sha256",
    )


def _gpus(resolution: Resolution) -> CheckResult:
    """By the facts the build has code for every target card; of a card that no fact knows, the probe tells in L1."""
    if not resolution.gpus:
        why = "no target GPU is stated"
    elif resolution.undecided_gpus:
        why = (
            f"no fact tells whether the build has code for {', '.join(resolution.undecided_gpus)}; probe.arch_list does"
        )
    else:
        return CheckResult(
            id="pins.gpus",
            level=Level.L0,
            status="passed",
            message=f"by the facts the build has code for {', '.join(gpu.name for gpu in resolution.gpus)}",
        )
    return CheckResult(id="pins.gpus", level=Level.L0, status="not-checked", code=NOT_APPLICABLE, message=why)


def _driver(resolution: Resolution) -> CheckResult:
    """The stated driver is new enough for the build; the rule itself stands in resolve."""
    if resolution.variant == "cpu":
        return CheckResult(
            id="pins.driver",
            level=Level.L0,
            status="not-checked",
            code=NOT_APPLICABLE,
            message="a CPU build needs no driver",
        )
    if resolution.driver_asked is None:
        return CheckResult(
            id="pins.driver",
            level=Level.L0,
            status="not-checked",
            code=NOT_APPLICABLE,
            message=f"no driver is stated; the image needs {resolution.driver_floor or 'an unknown driver'} or newer",
        )
    if resolution.driver_floor is None:
        return CheckResult(
            id="pins.driver",
            level=Level.L0,
            status="not-checked",
            message=f"no fact tells the driver that {resolution.variant} needs",
        )
    return CheckResult(
        id="pins.driver",
        level=Level.L0,
        status="passed",
        message=f"driver {resolution.driver_asked} is at least {resolution.driver_floor}",
        measured=resolution.driver_asked,
        expected=f">= {resolution.driver_floor}",
    )
