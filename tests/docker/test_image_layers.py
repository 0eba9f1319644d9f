"""Layers, labels and tag of real images, as the engine saves them; the stack is not in them, so that they are small."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest
from fakes import LOCK
from seeded import fault

from builder import image_checks, render
from builder.docker_engine import DockerEngine
from builder.engine import BuiltImage
from builder.results import CheckResult

pytestmark = pytest.mark.docker

LABELS = "LABEL " + " ".join(f"{key}={json.dumps(value)}" for key, value in render.labels(LOCK).items())
# What one step leaves and the next removes: nothing of it is seen from inside.
HIDDEN = """
RUN mkdir -p /root/.cache/pip /run/secrets \\
 && echo x > /root/.cache/pip/http && echo x > /run/secrets/ca
RUN rm -r /root/.cache /run/secrets
"""


def checks(engine: DockerEngine, image: BuiltImage, **budget: int) -> dict[str, CheckResult]:
    # The tag that a run would have given it.
    named = replace(image, reference=f"torchproof/sample:{LOCK.image_id}")
    found, _ = image_checks.run(LOCK, named, engine, budget_bytes=budget.get("budget_bytes"))
    return {check.id: check for check in found}


def codes(found: dict[str, CheckResult]) -> dict[str, Any]:
    return {name: check.code for name, check in found.items() if check.status in ("failed", "errored")}


@fault("image", {"size": "image-over-budget", "labels": "tag-mismatch"})
def test_a_clean_image_passes_and_a_budget_is_judged(engine: DockerEngine, project: Any) -> None:
    image = project.build(LABELS)
    found = checks(engine, image, budget_bytes=2**30)
    assert {check.status for check in found.values()} == {"passed"}
    assert codes(checks(engine, image, budget_bytes=2**20)) == {"image.size": "image-over-budget"}
    tag, _ = image_checks.run(LOCK, image, engine)
    assert [check.code for check in tag if check.status == "failed"] == ["tag-mismatch"]


@fault("image", {"secrets": "secret-in-layer", "leftovers": "leftover-in-layer", "labels": "label-mismatch"})
def test_what_a_later_step_removed_is_found_with_its_layer(engine: DockerEngine, project: Any) -> None:
    image = project.build(f"{LABELS}{HIDDEN}ENV WANDB_API_KEY=abc123\nLABEL org.opencontainers.image.version=2.5.1")
    seen = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", image.reference, "ls", "/root/.cache"],
        capture_output=True,
        check=False,
    )
    assert seen.returncode != 0
    found = checks(engine, image)
    assert codes(found) == {
        "image.secrets": "secret-in-layer",
        "image.leftovers": "leftover-in-layer",
        "image.labels": "label-mismatch",
    }
    (row,) = found["image.leftovers"].details["findings"]
    assert (row["layer"], row["where"]) == (1, "root/.cache/pip/http")
    assert row["step"].startswith("RUN mkdir -p /root/.cache/pip")
    assert sorted(found["image.secrets"].measured) == [
        "run/secrets/ca",
        "step ENV WANDB_API_KEY=...",
        "variable WANDB_API_KEY=...",
    ]
    assert "abc123" not in str(found)


def test_an_image_that_is_gone_is_errored(engine: DockerEngine, project: Any) -> None:
    image = project.build(LABELS)
    found = checks(engine, replace(image, digest="sha256:" + "0" * 64))
    assert codes(found) == dict.fromkeys(("image.secrets", "image.leftovers", "image.labels"), "image-not-read")
    assert "the Docker engine refuses to save torchproof/sample" in found["image.secrets"].message
    assert found["image.size"].code == "not-applicable"


def test_a_stream_that_is_left_early_leaves_nothing_open(engine: DockerEngine, project: Any) -> None:
    image = project.build(LABELS)
    started = time.monotonic()
    with engine.saved(image) as stream:
        assert len(stream.read(1024)) == 1024
    assert engine.has_image(image.reference)
    assert time.monotonic() - started < 60
