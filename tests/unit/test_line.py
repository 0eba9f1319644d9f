from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import GOOD, FakeEngine, Told, check, package, result_document
from seeded import fault

from builder import line, lockfile, render, scripts
from builder.catalog import Catalog
from builder.engine import Limits
from builder.engines import Chosen
from builder.errors import BuildError, PackageIndexError, StaleLockError, UsageError
from builder.line import Folders
from builder.lockfile import ImageLock
from builder.resolution import Resolution
from builder.results import ImageReport, Level, RunReport
from builder.run import Run
from builder.sources import Sources

CATALOG = Catalog.shipped()
SOURCES = Sources(environment={}, proxies={})
SPEC = "axes: {torch: [2.6.0, 2.5.1], python: 3.11, transformers: 4.48.1, base: 'debian:12'}\ngpus: [RTX 3090]\n"
NEW, OLD = "torch2.6.0-cu124-py311", "torch2.5.1-cu124-py311"


def lock_of(resolution: Resolution, **changed: Any) -> ImageLock:
    """A lock that fits the resolution; its files have made-up hashes, which a fake engine never asks for."""
    versions = {"numpy": "1.26.4", "onnx": "1.17.0", "pip": "25.0", "torch": resolution.torch, "transformers": "4.48.1"}
    lock = ImageLock(
        image_id=resolution.image_id,
        spec_name=resolution.spec_name,
        spec_digest=resolution.spec_digest,
        facts_generated=resolution.facts_generated,
        python=resolution.python,
        arch=resolution.arch,
        glibc=resolution.glibc,
        torch=resolution.torch,
        variant=resolution.variant,
        flavor=resolution.flavor,
        user=resolution.user,
        driver_floor=resolution.driver_floor,
        exclude_newer=resolution.exclude_newer,
        exclude_newer_applied=True,
        apt=resolution.apt,
        allow_source=resolution.allow_source,
        base=resolution.base,
        base_digest=None,
        gpus=resolution.gpus,
        packages=tuple(package(name, version) for name, version in sorted(versions.items())),
    )
    return replace(lock, **changed)


@pytest.fixture
def plan(tmp_path: Path) -> line.Plan:
    (tmp_path / "m.yaml").write_text(SPEC)
    return line.plan(tmp_path / "m.yaml", CATALOG)


@pytest.fixture
def folders(plan: line.Plan, tmp_path: Path) -> Folders:
    folders = Folders(locks=tmp_path / "locks", out=tmp_path / "out")
    for resolution in plan.resolutions:
        lockfile.write(lock_of(resolution), folders.lock_files(resolution.image_id)[0])
    return folders


def run(plan: line.Plan, folders: Folders, engine: FakeEngine, told: Told | None = None) -> RunReport:
    one = Run(
        plan=plan,
        folders=folders,
        chosen=Chosen(engine=engine, bases=None, host=None),
        sources=SOURCES,
        progress=told or Told(),
        catalog=CATALOG,
        spec=Path("m.yaml"),
        required=Level.L2,
    )
    one.lock_all()
    one.build_all()
    return one.smoke_all()


def image(report: RunReport, image_id: str) -> ImageReport:
    return next(found for found in report.images if found.image_id == image_id)


def test_the_whole_line_with_locks_that_are_kept(plan: line.Plan, folders: Folders) -> None:
    engine, told = FakeEngine(), Told()
    report = run(plan, folders, engine, told)
    assert report.exit_status == 0
    assert [found.level for found in report.images] == [Level.L2, Level.L2]
    assert len(engine.plans) == 1  # one bake, so that equal stages run once
    assert told.stages == [f"lock {NEW}", f"lock {OLD}", f"smoke {NEW}", f"smoke {OLD}"]
    (gpu,) = image(report, NEW).gpus
    assert (gpu.gpu, gpu.level) == ("RTX 3090", Level.L2)


def test_what_is_rendered_is_what_the_lock_says(plan: line.Plan, folders: Folders) -> None:
    engine = FakeEngine()
    run(plan, folders, engine)
    folder = engine.plans[0].folder
    for resolution in plan.resolutions:
        expected = render.render(lock_of(resolution)).files
        for name, content in expected.items():
            assert (folder / resolution.image_id / name).read_bytes() == content


def test_secrets_are_gone_when_the_build_is_over(plan: line.Plan, folders: Folders) -> None:
    seen: list[str] = []

    class Looking(FakeEngine):
        def build(self, plan: Any, on_line: Any) -> Any:
            seen.append(plan.secrets["index"].read_text())
            return super().build(plan, on_line)

    engine = Looking()
    run(plan, folders, engine)
    assert len(seen) == 1
    assert not engine.plans[0].secrets["index"].exists()
    assert not (folders.out / ".secrets").exists()


def test_a_build_that_fails_is_told_from_one_that_was_only_stopped_with_it(plan: line.Plan, folders: Folders) -> None:
    broken = BuildError("build-step-failed", "a step failed", detail="last lines", hint="the log")
    engine = FakeEngine(broken={OLD: broken})
    report = run(plan, folders, engine)
    assert image(report, NEW).level is Level.L2
    assert image(report, OLD).level is Level.NONE
    assert image(report, OLD).error is not None
    assert image(report, OLD).stage == "build"
    assert report.exit_status == 7
    assert [len(one.targets) for one in engine.plans] == [2, 1, 1]


def test_a_stale_kept_lock_stops_its_image_and_no_other(plan: line.Plan, folders: Folders) -> None:
    resolution = next(r for r in plan.resolutions if r.image_id == OLD)
    lockfile.write(lock_of(resolution, spec_digest="f" * 64), folders.lock_files(OLD)[0])
    report = run(plan, folders, FakeEngine())
    assert image(report, OLD).error is not None
    assert image(report, OLD).error["code"] == "lock-stale"  # type: ignore[index]
    assert image(report, NEW).level is Level.L2
    assert report.exit_status == 5


def test_without_a_lock_one_is_made_kept_for_the_next_run_and_used_again(
    plan: line.Plan, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def lock(resolution: Resolution, *_: Any, **__: Any) -> ImageLock:
        made.append(resolution.image_id)
        return lock_of(resolution)

    monkeypatch.setattr(line.locking, "lock", lock)
    for image_id in (NEW, OLD):
        folders.lock_files(image_id)[0].unlink()
    run(plan, folders, FakeEngine())
    run(plan, folders, FakeEngine())
    assert made == [NEW, OLD]


def test_an_index_out_of_reach_is_exit_6_and_nothing_is_built(
    plan: line.Plan, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(*_: Any, **__: Any) -> ImageLock:
        raise PackageIndexError("index-unreachable", "no index")

    monkeypatch.setattr(line.locking, "lock", lock)
    for image_id in (NEW, OLD):
        folders.lock_files(image_id)[0].unlink()
    engine = FakeEngine()
    assert run(plan, folders, engine).exit_status == 6
    assert engine.plans == []
    assert engine.sessions == []


def test_a_failed_check_is_exit_8_and_lowers_the_level(plan: line.Plan, folders: Folders) -> None:
    bad = result_document("train_step", check("train_step.x", level="L2", status="failed", code="loss-not-falling"))
    report = run(plan, folders, FakeEngine(answers={**GOOD, "train_step": bad}))
    assert report.exit_status == 8
    assert image(report, NEW).level is Level.L1


def test_a_check_that_was_not_run_is_exit_9(plan: line.Plan, folders: Folders) -> None:
    skipped = result_document("train_step", check("train_step.x", level="L2", status="not-checked"))
    report = run(plan, folders, FakeEngine(answers={**GOOD, "train_step": skipped}))
    assert report.exit_status == 9
    assert image(report, NEW).level is Level.L1


def test_in_place_each_image_is_built_alone_with_its_python(plan: line.Plan, folders: Folders) -> None:
    engine = FakeEngine(kind="in-place")
    report = run(plan, folders, engine)
    assert [(len(one.targets), one.python, one.variant) for one in engine.plans] == [(1, "3.11", "cu124")] * 2
    assert image(report, NEW).base == "this machine"


def test_the_images_of_an_earlier_run_are_found_and_nothing_is_built(plan: line.Plan, folders: Folders) -> None:
    engine = FakeEngine(labels={one.image_id: render.labels(lock_of(one)) for one in plan.resolutions})
    one = Run(
        plan=plan,
        folders=folders,
        chosen=Chosen(engine=engine, bases=None, host=None),
        sources=SOURCES,
        progress=Told(),
        catalog=CATALOG,
        spec=Path("m.yaml"),
        required=Level.L2,
    )
    one.find_all()
    report = one.smoke_all()
    assert report.exit_status == 0
    assert engine.plans == []
    assert image(report, NEW).reference == f"torchproof/m:{NEW}"


def test_smoke_without_a_lock_says_how_to_make_one(plan: line.Plan, folders: Folders) -> None:
    folders.lock_files(NEW)[0].unlink()
    with pytest.raises(UsageError, match="has no lock"):
        line.kept_lock(folders, plan.resolutions[0])


def test_a_stale_lock_is_no_lock_for_smoke(plan: line.Plan, folders: Folders) -> None:
    kept, _ = folders.lock_files(NEW)
    lockfile.write(lock_of(plan.resolutions[0], python="3.12"), kept)
    with pytest.raises(StaleLockError):
        line.kept_lock(folders, plan.resolutions[0])


@fault("pins", {"locked": "lock-incomplete"})
def test_l0_fails_when_the_lock_misses_a_requirement(plan: line.Plan, folders: Folders) -> None:
    resolution = plan.resolutions[0]
    lock = lock_of(resolution)
    short = replace(lock, packages=tuple(p for p in lock.packages if p.name != "transformers"))
    found = {check.id: check for check in line.checks_of_pins(resolution, short)}
    assert found["pins.locked"].status == "failed"
    assert "transformers==4.48.1 is not in the lock" in found["pins.locked"].message
    old = replace(lock, packages=(*short.packages, package("transformers", "4.40.0")))
    assert "is not met by 4.40.0" in line.checks_of_pins(resolution, old)[1].message


def test_l0_does_not_speak_for_a_card_that_no_fact_knows(plan: line.Plan) -> None:
    resolution = plan.resolutions[0]
    lock = lock_of(resolution)
    by_id = {check.id: check for check in line.checks_of_pins(resolution, lock)}
    assert (by_id["pins.gpus"].status, "RTX 3090" in by_id["pins.gpus"].message) == ("passed", True)
    unknown = replace(resolution, undecided_gpus=("RTX 3090",))
    by_id = {check.id: check for check in line.checks_of_pins(unknown, lock)}
    assert by_id["pins.gpus"].status == "not-checked"


def test_the_report_holds_the_choices_and_reads_back(plan: line.Plan, folders: Folders) -> None:
    report = run(plan, folders, FakeEngine())
    document = json.loads(report.model_dump_json())
    assert {choice["subject"] for choice in document["images"][0]["choices"]} >= {"torch", "variant", "python"}
    assert RunReport.model_validate(document) == report


def test_limits_reach_the_session(plan: line.Plan, folders: Folders) -> None:
    seen: list[Limits] = []

    class Looking(FakeEngine):
        def session(self, image: Any, smoke_files: Any, limits: Limits, *, gpus: bool) -> Any:
            seen.append(limits)
            return super().session(image, smoke_files, limits, gpus=gpus)

    run(plan, folders, Looking())
    assert seen[0].memory_bytes == 8 * 2**30


@fault("image", {"secrets": "secret-in-layer"})
def test_a_secret_in_a_layer_keeps_an_image_from_l1(plan: line.Plan, folders: Folders) -> None:
    report = run(plan, folders, FakeEngine(left_behind={"run/secrets/ca": b"x"}))
    assert report.exit_status == 8
    found = image(report, NEW)
    assert found.level is Level.L0
    assert [(check.id, check.code) for check in found.failed] == [("image.secrets", "secret-in-layer")]


def test_layers_of_an_image_are_in_its_report(plan: line.Plan, folders: Folders) -> None:
    found = image(run(plan, folders, FakeEngine()), NEW)
    assert [(layer.size_bytes, layer.holds) for layer in found.image_layers] == [(1, "the base")]


@pytest.mark.parametrize("kind", ["docker", "in-place"])
def test_a_budget_of_the_matrix_is_judged(tmp_path: Path, folders: Folders, kind: Any) -> None:
    (tmp_path / "m.yaml").write_text(SPEC + "budget: {image: 1GiB, packages: 512MiB}\n")
    engine = FakeEngine(kind=kind)
    report = run(line.plan(tmp_path / "m.yaml", CATALOG), folders, engine)
    size = next(check for check in image(report, NEW).checks if check.id == "image.size")
    assert (size.status, size.expected) == ("passed", f"<= {2**30}")
    (files,) = (one for one in engine.sessions[0].requests if one["params"].get("budget_bytes"))
    assert files["params"] == {"budget_bytes": 2**29}
    (tmp_path / "m.yaml").write_text(SPEC + "budget: {image: 512MiB}\n")
    report = run(line.plan(tmp_path / "m.yaml", CATALOG), folders, FakeEngine(kind=kind))
    assert [check.code for check in image(report, NEW).failed] == ["image-over-budget"]
    assert report.exit_status == 8


def test_left_out_by_choice_the_image_is_not_proven(plan: line.Plan, folders: Folders) -> None:
    one = Run(
        plan=plan,
        folders=folders,
        chosen=Chosen(engine=FakeEngine(), bases=None, host=None),
        sources=SOURCES,
        progress=Told(),
        catalog=CATALOG,
        spec=Path("m.yaml"),
        required=Level.L2,
        scripts=scripts.chosen(skip=["image"]),
    )
    one.lock_all()
    one.build_all()
    report = one.smoke_all()
    assert image(report, NEW).level is Level.L0
    assert [check.message for check in image(report, NEW).not_checked if check.id == "image.ran"] == [
        "image was left out of this run"
    ]
