"""The image as a whole: each check passes on a clean image and fails with its own code on one with its fault."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import pytest
from fakes import LOCK, FakeEngine, package, saved_image
from seeded import fault

from builder import image_checks, layers, render, verdict
from builder.engine import BuiltImage
from builder.errors import EngineError
from builder.report import largest
from builder.results import CheckResult, ImageLayer, Level

LABELS = render.labels(LOCK)
IMAGE = replace(FakeEngine().image(f"torchproof/sample:{LOCK.image_id}"), size_bytes=3 * 2**30)
CLEAN: Mapping[str, bytes] = {"etc/os-release": b"debian"}


class Engine(FakeEngine):
    """A stand-in that saves the tar it was given."""

    def __init__(self, data: bytes, *, error: EngineError | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.data, self.error = data, error

    @contextmanager
    def saved(self, image: BuiltImage) -> Iterator[IO[bytes]]:
        if self.error:
            raise self.error
        yield io.BytesIO(self.data)


def checked(*parts: Mapping[str, bytes] | bytes, image: BuiltImage = IMAGE, **more: Any) -> dict[str, CheckResult]:
    budget = more.pop("budget_bytes", None)
    data = saved_image(*(parts or (CLEAN,)), **{"labels": LABELS, **more})
    found, _ = image_checks.run(LOCK, image, Engine(data), budget_bytes=budget)
    assert {check.level for check in found} == {Level.L1}
    return {check.id: check for check in found}


def codes(checks: Mapping[str, CheckResult]) -> dict[str, str | None]:
    return {name: check.code for name, check in checks.items() if check.status == "failed"}


def test_a_clean_image_passes() -> None:
    checks = checked(budget_bytes=4 * 2**30)
    assert {check.status for check in checks.values()} == {"passed"}
    assert (
        verdict.level_of([*checks.values(), CheckResult(id="p", level=Level.L0, status="passed", message="")]) == "L1"
    )


@fault("image", {"secrets": "secret-in-layer", "leftovers": "leftover-in-layer"})
def test_a_secret_and_a_leftover_are_told_with_layer_and_path() -> None:
    parts = [CLEAN, {"run/secrets/ca": b"x"}, {"root/.cache/pip/x": b"x"}, {"root/.cache/.wh.pip": b""}]
    checks = checked(*parts, steps=("", "RUN a", "RUN pip install x", "RUN rm -r /root/.cache"))
    assert codes(checks) == {"image.secrets": "secret-in-layer", "image.leftovers": "leftover-in-layer"}
    assert checks["image.secrets"].message == "1 secret in the image: run/secrets/ca in layer 1 (RUN a)"
    rows = checks["image.leftovers"].details["findings"]
    assert rows == [{"layer": 2, "step": "RUN pip install x", "where": "root/.cache/pip/x"}]


PROXY = {"usr/local/share/ca-certificates/proxy.crt": b"x"}
STEPS = ("", "RUN curl", "RUN apt-get update && apt-get install -y --no-install-recommends python3", "COPY /layer/ /")


@fault("image", {"secrets": "secret-in-layer"})
@pytest.mark.parametrize("number", [2, 3])
def test_a_certificate_in_a_layer_of_the_build(number: int) -> None:
    parts = [PROXY if place == number else CLEAN for place in range(4)]
    checks = checked(*parts, steps=STEPS)
    assert codes(checks) == {"image.secrets": "secret-in-layer"}
    assert f"proxy.crt in layer {number} (" in checks["image.secrets"].message


@pytest.mark.parametrize("number", [0, 1])
def test_a_certificate_of_the_base_is_told_and_does_not_fail(number: int) -> None:
    parts = [PROXY if place == number else CLEAN for place in range(4)]
    found = checked(*parts, steps=STEPS)["image.secrets"]
    assert found.status == "passed"
    assert found.message.endswith("the base brings 1 certificate: usr/local/share/ca-certificates/proxy.crt")


@fault("image", {"secrets": "secret-in-layer"})
def test_a_key_of_the_base_fails() -> None:
    checks = checked({"etc/ssl/private/own.key": b"x"}, CLEAN, steps=("", "COPY /layer/ /"))
    assert codes(checks) == {"image.secrets": "secret-in-layer"}


@fault("image", {"secrets": "secret-in-layer"})
def test_a_token_among_the_variables() -> None:
    checks = checked(env=("HF_TOKEN=hf_abc",))
    assert codes(checks) == {"image.secrets": "secret-in-layer"}
    assert "hf_abc" not in str(checks)


def test_a_layer_that_cannot_be_read_is_not_passed() -> None:
    checks = checked(CLEAN, b"\x28\xb5\x2f\xfd" + b"x" * 2000)
    assert codes(checks) == {}
    for name in ("image.secrets", "image.leftovers"):
        assert (checks[name].status, checks[name].code) == ("not-checked", None)
        assert "1 layer could not be read" in checks[name].message


def test_a_finding_counts_also_where_another_layer_cannot_be_read() -> None:
    checks = checked({"run/secrets/ca": b"x"}, b"\x28\xb5\x2f\xfd" + b"x" * 2000)
    assert codes(checks) == {"image.secrets": "secret-in-layer"}


@fault("image", {"labels": "label-mismatch"})
@pytest.mark.parametrize(
    "labels",
    [
        {**LABELS, "io.torchproof.lock": "sha256:" + "0" * 64},
        {**LABELS, "org.opencontainers.image.version": "2.5.1"},
        {key: value for key, value in LABELS.items() if key != "io.torchproof.variant"},
        {},
    ],
    ids=["another-lock", "another-torch", "no-variant", "none"],
)
def test_labels_that_are_not_those_of_the_lock(labels: dict[str, str]) -> None:
    assert codes(checked(labels=labels)) == {"image.labels": "label-mismatch"}


def test_another_version_of_torchproof_is_no_mismatch() -> None:
    assert codes(checked(labels={**LABELS, "io.torchproof.version": "0.0.1"})) == {}


@fault("image", {"labels": "tag-mismatch"})
@pytest.mark.parametrize(
    "tag", ["torch2.5.1-cu124-py311", "torch2.6.0-cu118-py311", "torch2.6.0-cu124-py310", "latest"]
)
def test_a_tag_that_says_something_else_than_the_image_holds(tag: str) -> None:
    image = replace(IMAGE, reference=f"registry.example.org:5000/torchproof/sample:{tag}")
    assert codes(checked(image=image)) == {"image.labels": "tag-mismatch"}


@pytest.mark.parametrize("tag", ["torch2.6.0-cu124-py311", "torch2.6.0-cu124-py311-ort1.20"])
def test_a_tag_may_say_more(tag: str) -> None:
    assert codes(checked(image=replace(IMAGE, reference=f"torchproof/sample:{tag}"))) == {}


@fault("image", {"size": "image-over-budget"})
def test_a_budget() -> None:
    checks = checked({"a": b"x" * 2**21}, budget_bytes=2**30, steps=("RUN make big",))
    assert codes(checks) == {"image.size": "image-over-budget"}
    assert checks["image.size"].message == ("the image takes 3.00 GiB, the budget is 1.00 GiB; largest: 2 MiB the base")
    assert checks["image.size"].expected == f"<= {2**30}"
    assert codes(checked(budget_bytes=3 * 2**30)) == {}


def test_without_a_budget_the_size_is_told_and_not_judged() -> None:
    size = checked()["image.size"]
    assert (size.status, size.code) == ("not-checked", "not-applicable")
    assert size.measured == 3 * 2**30


@fault("image", {"size": "image-over-budget"})
def test_in_place_there_are_no_layers_but_there_is_a_size() -> None:
    engine = FakeEngine(kind="in-place")
    found, told = image_checks.run(LOCK, IMAGE, engine, budget_bytes=2**30)
    assert told == ()
    by_name = {check.id: check for check in found}
    assert codes(by_name) == {"image.size": "image-over-budget"}
    assert "the environment takes" in by_name["image.size"].message
    for name in ("image.secrets", "image.leftovers", "image.labels"):
        assert (by_name[name].status, by_name[name].code) == ("not-checked", "not-applicable")
        assert "no layers" in by_name[name].message


@pytest.mark.parametrize(
    "engine",
    [
        Engine(b"no tar at all"),
        Engine(saved_image(CLEAN)[:700]),
        Engine(b"", error=EngineError("engine-lost", "the Docker engine stopped answering")),
    ],
    ids=["rubbish", "cut-off", "engine-gone"],
)
def test_an_image_that_cannot_be_saved_is_errored_and_its_size_still_judged(engine: Engine) -> None:
    found, _ = image_checks.run(LOCK, IMAGE, engine, budget_bytes=4 * 2**30)
    assert [(check.status, check.code) for check in found] == [*[("errored", "image-not-read")] * 3, ("passed", None)]
    assert {check.blame for check in found[:3]} == {"tool"}


def test_layers_of_a_lock_are_told_by_what_they_hold() -> None:
    lock = replace(LOCK, packages=(*LOCK.packages, replace(package("torchvision", "0.21.0"), source="torch-index")))
    steps = ("", "RUN apt-get update && apt-get install -y --no-install-recommends python3", *["COPY /layer/ /"] * 5)
    saved = layers.read(io.BytesIO(saved_image(*[{"a": b"x" * 2**21}] * 6, {"b": b""}, steps=steps)))
    told = image_checks.described(lock, saved)
    assert [layer.holds for layer in told] == [
        "the base",
        None,
        "CUDA libraries",
        "the torch family",
        "the torch family",
        "everything else",
        "the guard",
    ]
    assert (
        largest(told, 3)
        == "2 MiB the base; 2 MiB RUN apt-get update && apt-get install -y --no-i…; 2 MiB CUDA libraries; 4 smaller"
    )


def test_layers_of_another_form_are_told_by_their_steps() -> None:
    saved = layers.read(io.BytesIO(saved_image(CLEAN, CLEAN, steps=("FROM x", "COPY /layer/ /"))))
    assert [layer.holds for layer in image_checks.described(LOCK, saved)] == ["the base", None]
    assert largest([ImageLayer(digest="x", size_bytes=5, step="RUN a")]) == ""
