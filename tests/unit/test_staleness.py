from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_lockfile import LOCK

from builder.lock import staleness
from builder.resolution import Base, Requirement, Resolution, TargetGpu

RESOLUTION = Resolution(
    image_id=LOCK.image_id,
    spec_name=LOCK.spec_name,
    spec_digest=LOCK.spec_digest,
    cell="axes",
    python=LOCK.python,
    arch=LOCK.arch,
    glibc=LOCK.glibc,
    base=LOCK.base,
    flavor=LOCK.flavor,
    torch=LOCK.torch,
    variant=LOCK.variant,
    variant_is_default=False,
    requirements=(Requirement(text="torch==2.6.0+cpu", index="torch"), Requirement(text="numpy<3", bound_only=True)),
    choices=(),
    gpus=LOCK.gpus,
    driver_floor=LOCK.driver_floor,
    apt=LOCK.apt,
    user=LOCK.user,
    exclude_newer=LOCK.exclude_newer,
    facts_generated=LOCK.facts_generated,
)


def test_current() -> None:
    assert staleness(LOCK, RESOLUTION) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image_id": "other"}, f"the lock is for `{LOCK.image_id}`"),
        ({"spec_digest": "e" * 64}, "the spec has changed since the lock was made"),
        ({"python": "3.12"}, "Python is 3.11 in the lock and would be 3.12 now"),
        ({"driver_floor": None}, "the driver floor is 550.54.14 in the lock and would be not set now"),
        (
            {"base": Base(kind="registry", reference="debian:13", python=None, glibc=None)},
            "the base is `bookworm` in the lock and would be `debian:13` now",
        ),
        ({"apt": ()}, "apt packages are libgl1 in the lock and would be none now"),
        (
            {"gpus": (*LOCK.gpus, TargetGpu(name="A100", compute_capability="8.0"))},
            "target GPUs are RTX 3090 in the lock and would be RTX 3090, A100 now",
        ),
        (
            {"requirements": (Requirement(text="torch==2.7.0"),)},
            "`torch==2.7.0` is asked for, and the lock has torch 2.6.0+cpu",
        ),
        (
            {"requirements": (Requirement(text="wandb"),)},
            "`wandb` is asked for, and the lock has no wandb",
        ),
        (
            {"requirements": (Requirement(text="numpy<2", bound_only=True),)},
            "`numpy<2` is asked for, and the lock has numpy 2.2.1",
        ),
        ({"facts_generated": "2026-02-01"}, "the facts of 2026-02-01 are newer than those of the lock (2026-01-01)"),
    ],
)
def test_reason(changes: dict[str, Any], reason: str) -> None:
    assert staleness(LOCK, replace(RESOLUTION, **changes)) == [reason]


def test_bound_on_an_absent_package_and_older_facts_are_no_reason() -> None:
    requirements = (*RESOLUTION.requirements, Requirement(text="protobuf<4", bound_only=True))
    assert staleness(LOCK, replace(RESOLUTION, requirements=requirements, facts_generated="2025-01-01")) == []
