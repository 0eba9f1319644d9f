"""Why a lock no longer is what its spec and the facts would give, in words."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.lockfile import ImageLock
from builder.resolution import Resolution

_SAME_NAME = (
    ("python", "Python"),
    ("arch", "the architecture"),
    ("glibc", "glibc"),
    ("torch", "torch"),
    ("variant", "the CUDA variant"),
    ("flavor", "the flavor"),
    ("user", "the user"),
    ("driver_floor", "the driver floor"),
    ("exclude_newer", "the date limit"),
)


def staleness(lock: ImageLock, resolution: Resolution) -> list[str]:
    """Reasons, the user's own changes first; empty when the lock is as good as new."""
    reasons: list[str] = []
    if lock.image_id != resolution.image_id:
        reasons.append(f"the lock is for `{lock.image_id}`")
    if lock.spec_digest != resolution.spec_digest:
        reasons.append("the spec has changed since the lock was made")
    for name, words in _SAME_NAME:
        before, now = getattr(lock, name), getattr(resolution, name)
        if before != now:
            reasons.append(f"{words} is {before or 'not set'} in the lock and would be {now or 'not set'} now")
    if lock.base != resolution.base:
        reasons.append(
            f"the base is `{lock.base.reference}` in the lock and would be `{resolution.base.reference}` now"
        )
    for words, old, new in (
        ("apt packages", lock.apt, resolution.apt),
        (
            "packages built from source",
            lock.allow_source,
            tuple(sorted({canonicalize_name(name) for name in resolution.allow_source})),
        ),
        ("target GPUs", tuple(gpu.name for gpu in lock.gpus), tuple(gpu.name for gpu in resolution.gpus)),
    ):
        if sorted(old) != sorted(new):
            reasons.append(
                f"{words} are {', '.join(old) or 'none'} in the lock and would be {', '.join(new) or 'none'} now"
            )
    if (lock.provider or "apt") != resolution.provider:
        reasons.append(
            f"Python comes from {lock.provider or 'apt'} in the lock and would come from {resolution.provider}"
        )
    reasons += _unmet(lock, resolution)
    if lock.facts_generated < resolution.facts_generated:  # dates as YYYY-MM-DD sort as text
        reasons.append(
            f"the facts of {resolution.facts_generated} are newer than those of the lock "
            f"({lock.facts_generated or 'no date'})"
        )
    return reasons


def _unmet(lock: ImageLock, resolution: Resolution) -> list[str]:
    reasons: list[str] = []
    for wanted in resolution.requirements:
        requirement = Requirement(wanted.text)
        locked = lock.package(requirement.name)
        if locked is None:
            if not wanted.bound_only:
                reasons.append(f"`{wanted.text}` is asked for, and the lock has no {requirement.name}")
        elif not requirement.specifier.contains(Version(locked.version), prereleases=True):
            reasons.append(f"`{wanted.text}` is asked for, and the lock has {requirement.name} {locked.version}")
    return reasons
