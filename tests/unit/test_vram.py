"""VRAM estimates without torch: models, closed form, cards, searches, points, text."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.catalog import Catalog
from builder.errors import ConflictError, UsageError
from builder.versions import CudaVersion
from builder.vram import calibration, fit, models, offsets, parameters, points, report, smallest, smoke_estimate, stack
from builder.vram.allocator import OutOfMemoryError
from builder.vram.analytic import analytic
from builder.vram.estimate import VramEstimate, estimate
from builder.vram.events import PHASE, Event, Trace, replay
from builder.vram.loop import TrainingLoop
from builder.vram.models import Model
from builder.vram.rule import rule_of_thumb

MIB, GIB = 2**20, 2**30


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog.shipped()


def loop(**changes: Any) -> TrainingLoop:
    return TrainingLoop(**{"batch": 8, "seq": 128, **changes})


def sized(model: Model, changes: TrainingLoop) -> int:
    assert model.architecture is not None
    return analytic(model.architecture, changes).peak_bytes


# --- models


@pytest.mark.parametrize(
    ("name", "head", "count"),
    [
        # Counts as transformers builds them; tests/stack compares every family with the model itself.
        ("bert-base-uncased", "classifier", 109_483_778),
        ("bert-base", "mlm", 109_514_298),
        ("roberta-large", "classifier", 355_361_794),
        ("gpt2", "lm", 124_439_808),
        ("t5-small", "seq2seq", 60_506_624),
        ("vit-base", "classifier", 85_800_194),
        ("llama-2-7b", "lm", 6_738_415_616),
        ("tinyllama-1.1b", "lm", 1_100_048_384),
        ("qwen2.5-0.5b", "lm", 494_032_768),
    ],
)
def test_parameter_counts(catalog: Catalog, name: str, head: Any, count: int) -> None:
    model = models.find(name, catalog)
    assert model.architecture is not None
    assert parameters.count(model.architecture, head).total == count


def test_every_known_model_is_readable(catalog: Catalog) -> None:
    for row in catalog.raw("vram_models")["models"]:
        for name in (row["name"], *row["aliases"]):
            found = models.find(name.upper(), catalog)
            assert found.name == row["name"]
            assert (found.architecture is not None) == (found.model_type in models.FAMILIES)


def test_a_config_of_ones_own(catalog: Catalog, tmp_path: Path) -> None:
    config = {"model_type": "bert", "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 1024}))
    for place in (tmp_path, tmp_path / "config.json"):
        found = models.find(str(place), catalog)
        assert found.architecture is not None
        assert (found.architecture.layers, found.architecture.hidden) == (3, 256)


def test_sizes_given_by_hand(catalog: Catalog) -> None:
    found = models.find("bert", catalog, sizes={"hidden": 512, "layers": 4, "heads": 8}).architecture
    assert found is not None
    assert (found.hidden, found.layers, found.heads) == (512, 4, 8)
    assert models.find("gpt2", catalog, sizes={"layers": 3}).config["n_layer"] == 3
    assert models.find("bert-base", catalog, sizes={"hidden": 384}).config["intermediate_size"] == 1536


@pytest.mark.parametrize(
    ("name", "sizes", "code", "word"),
    [
        ("bert-bsae", {}, "vram-unknown-model", "bert-base"),
        ("bert-base", {"heads": 7}, "vram-bad-model", "768 does not divide into 7 heads"),
        ("bert-base", {"heads": 7}, "vram-bad-model", "6 heads divide 768"),
        ("missing.json", {}, "vram-bad-config", "cannot be read"),
    ],
)
def test_impossible_models(catalog: Catalog, name: str, sizes: dict[str, int], code: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        models.find(name, catalog, sizes=sizes)
    assert caught.value.code == code
    assert word in str(caught.value)


@pytest.mark.parametrize("text", ["not json", "[]", "{}", '{"model_type": "bert", "hidden_size": "wide"}'])
def test_a_config_that_says_nothing(catalog: Catalog, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        models.find(str(tmp_path), catalog)
    assert caught.value.code == "vram-bad-config"


def test_a_sequence_longer_than_the_model(catalog: Catalog) -> None:
    models.check_length(models.find("roberta-base", catalog), loop(seq=512))
    with pytest.raises(UsageError, match="cannot take 1024 tokens"):
        models.check_length(models.find("bert-base", catalog), loop(seq=1024))


@pytest.mark.parametrize("changes", [{"batch": 0}, {"precision": "fp8"}, {"optimizer": "lion"}, {"lora_rank": -1}])
def test_impossible_loops(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        loop(**changes)
    assert caught.value.code == "vram-bad-loop"


# --- the closed form


def test_the_rule_of_thumb() -> None:
    assert rule_of_thumb(parameters=100, batch=2, seq=3, hidden=5) == 4 * 100 + 8 * 2 * 3 * 5


@pytest.mark.parametrize(
    ("changes", "mib"),
    [
        # Peak allocated of the traced layer, in MiB, workspaces aside (tests/stack holds the two together on a grid).
        ({"batch": 32, "seq": 512, "precision": "fp32", "head": "mlm", "zero_grad": "keep"}, 19103),
        ({"batch": 32, "seq": 512, "head": "mlm", "zero_grad": "keep"}, 13896),
        ({"batch": 32, "seq": 128}, 3050),
    ],
)
def test_bert_base_against_its_trace(catalog: Catalog, changes: dict[str, Any], mib: int) -> None:
    assert sized(models.find("bert-base", catalog), loop(**changes)) / MIB == pytest.approx(mib, rel=0.02)


LESS = [
    ({"precision": "fp32"}, {"precision": "bf16"}),
    ({"precision": "bf16"}, {"precision": "bf16-pure"}),
    ({"attention": "eager"}, {"attention": "sdpa"}),
    ({}, {"checkpointing": True}),
    ({"zero_grad": "keep"}, {"zero_grad": "none"}),
    ({"steps": 2}, {"steps": 1}),
    ({}, {"optimizer": "adam8bit"}),
    ({}, {"optimizer": "sgd"}),
    ({"optimizer": "sgd-momentum"}, {"optimizer": "sgd"}),
    ({}, {"lora_rank": 8}),
    ({}, {"frozen": "backbone"}),
    ({}, {"frozen": "embeddings"}),
    ({"accumulation": 4}, {}),
    ({"seq": 512}, {"seq": 256}),
]


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "t5-small", "tinyllama"])
@pytest.mark.parametrize(("more", "less"), LESS)
def test_what_takes_less(catalog: Catalog, name: str, more: dict[str, Any], less: dict[str, Any]) -> None:
    model = models.find(name, catalog)
    if name == "tinyllama" and "frozen" in less:
        pytest.skip("its head is a table of its own, its embeddings are small beside it")
    base = {"batch": 16, "seq": 512}
    if less == {"frozen": "backbone"} and name in ("gpt2", "t5-small"):
        with pytest.raises(UsageError, match="nothing of"):
            sized(model, loop(**base, **less))
        return
    assert sized(model, loop(**{**base, **less})) < sized(model, loop(**{**base, **more}))


@pytest.mark.parametrize(("name", "head"), [("gpt2", "mlm"), ("t5-small", "classifier"), ("vit-base", "lm")])
def test_a_head_that_the_family_does_not_have(catalog: Catalog, name: str, head: Any) -> None:
    with pytest.raises(UsageError) as caught:
        sized(models.find(name, catalog), loop(head=head))
    assert caught.value.code == "vram-no-such-head"


def test_outputs_that_outlive_their_step(catalog: Catalog) -> None:
    """A plain loop lets go of logits, keys and values when it has new ones: the optimizer works beside them."""
    model = models.find("gpt2", catalog)
    assert model.architecture is not None
    moments = {kind: analytic(model.architecture, loop(outputs=kind)).moments for kind in ("step", "loop")}
    logits = 2 * loop().batch * loop().seq * 50257
    held = moments["loop"]["optimizer"]["outputs of the last step"]
    assert held > logits
    assert moments["step"]["optimizer"]["outputs of the last step"] == 0
    assert moments["loop"]["end of forward"]["outputs of the last step"] == held


def test_moments_of_a_step(catalog: Catalog) -> None:
    model = models.find("bert-base", catalog)
    assert model.architecture is not None
    assert analytic(model.architecture, loop(batch=1)).moment == "optimizer"
    assert analytic(model.architecture, loop(batch=64, seq=512)).moment == "backward"
    assert analytic(model.architecture, loop(batch=32, seq=512, head="mlm")).moment == "loss"
    found = analytic(model.architecture, loop(batch=1))
    assert found.peak_bytes == max(sum(terms.values()) for terms in found.moments.values())


def test_speed(catalog: Catalog) -> None:
    model = models.find("bert-base", catalog)
    card = offsets.card("RTX 3090", catalog)
    closed = loop(batch=32, seq=512)
    estimate(model, closed, card, layer="analytic")
    started = time.perf_counter()
    for _ in range(20):
        estimate(model, closed, card, layer="analytic")
    assert (time.perf_counter() - started) / 20 < 0.005
    started = time.perf_counter()
    fit.fit(loop(batch=4096, seq=512), lambda changed: estimate(model, changed, card, layer="analytic"))
    assert time.perf_counter() - started < 0.05


# --- cards


def test_offsets_and_workspaces(catalog: Catalog) -> None:
    hopper = offsets.card("H100", catalog)
    assert hopper.is_calibrated
    assert hopper.workspace == 32 * MIB
    assert hopper.total == 81559 * MIB
    assert offsets.card("L40S", catalog).offset == 876 * MIB
    borrowed = offsets.card("RTX 4090", catalog)
    assert not borrowed.is_calibrated
    assert "borrowed from L40S" in borrowed.source
    assert offsets.card("A100", catalog).spread == 500 * MIB


def test_a_row_counts_on_its_side_of_lazy_loading(catalog: Catalog) -> None:
    assert offsets.card("V100", catalog, cuda=CudaVersion.parse("11.3")).offset == 1343 * MIB
    assert not offsets.card("V100", catalog).is_calibrated


def test_a_card_of_several_sizes_is_the_smallest_and_says_so(catalog: Catalog) -> None:
    small, large = offsets.card("A100", catalog), offsets.card("A100 80GB", catalog)
    assert (small.total, large.total) == (40960 * MIB, 81920 * MIB)
    found = estimate(models.find("bert-base", catalog), loop(), small, layer="analytic")
    assert any("say `A100 80GB`" in note for note in found.notes)


@pytest.mark.parametrize(("name", "code"), [("RTX 9999", "unknown-gpu"), ("sm_86", "gpu-without-memory")])
def test_cards_that_are_none(catalog: Catalog, name: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        offsets.card(name, catalog)
    assert caught.value.code == code


def test_a_calibrated_card(catalog: Catalog, tmp_path: Path) -> None:
    found = {
        "gpu": "NVIDIA GeForce RTX 3090",
        "name": "RTX 3090",
        "compute_capability": "8.6",
        "torch": "2.6.0+cu126",
        "cuda": "12.6",
        "driver": "560.35",
        "idle_bytes": 300 * MIB,
        "context_bytes": 560 * MIB,
        "used_bytes": 900 * MIB,
        "reserved_bytes": 64 * MIB,
        "workspace_bytes": 2 * 9 * MIB,
    }
    path = tmp_path / "offsets.yaml"
    path.write_text(calibration.overlay_text(calibration.overlay(found)))
    card = offsets.card("RTX 3090", catalog.with_overlay(path))
    assert card.is_calibrated
    assert (card.offset, card.workspace) == (836 * MIB, 9 * MIB)
    assert "836 MiB" in calibration.text(found)


def test_calibrating_without_a_card() -> None:
    with pytest.raises(Exception, match="no card can be measured here") as caught:
        calibration.measure(None, 0)
    assert caught.value.exit_status == 6  # type: ignore[attr-defined]


# --- estimates and searches


def closed_form(catalog: Catalog, gpu: str = "RTX 3090") -> fit.Estimator:
    model, card = models.find("bert-large", catalog), offsets.card(gpu, catalog)
    return lambda changed: estimate(model, changed, card, layer="analytic")


def test_verdicts(catalog: Catalog) -> None:
    judged = closed_form(catalog)
    assert judged(loop(batch=1)).verdict == "fits"
    assert judged(loop(batch=512, seq=512)).verdict == "does-not-fit"
    largest, _ = fit.largest_batch(loop(seq=512), judged)
    assert judged(loop(batch=largest + 1, seq=512)).verdict == "too-close-to-call"


@pytest.mark.parametrize("start", [1, 7, 40, 3000])
def test_the_largest_batch_does_not_depend_on_the_one_asked_for(catalog: Catalog, start: int) -> None:
    judged = closed_form(catalog)
    largest, best = fit.largest_batch(loop(batch=start, seq=512), judged)
    assert best is not None
    assert best.verdict == "fits"
    assert best.loop.batch == largest
    assert judged(loop(batch=largest + 1, seq=512)).verdict != "fits"
    assert largest == fit.largest_batch(loop(batch=16, seq=512), judged)[0]


def test_changes_come_in_the_order_of_harm(catalog: Catalog) -> None:
    found = fit.fit(loop(batch=64, seq=512, precision="fp32"), closed_form(catalog))
    names = [change.name.split(":")[0].split(" ")[0] for change in found.changes]
    order = ["accumulation", "half", "gradient", "sequence", "8-bit"]
    assert names
    assert names == sorted(names, key=order.index)
    assert all(change.estimate.verdict == "fits" for change in found.changes)
    accumulated = found.changes[0].loop
    assert accumulated.batch * accumulated.accumulation == 64
    tried = [change.name.split(":")[0].split(" ")[0] for change in found.tried]
    assert tried == order, "a change that is not enough is told with its numbers too"
    assert "does not fit" in report.fit_text(found)


def test_adapters_where_no_change_of_the_loop_is_enough(catalog: Catalog) -> None:
    model, card = models.find("llama-2-7b", catalog), offsets.card("RTX 3090", catalog)
    found = fit.fit(loop(batch=4, seq=512), lambda changed: estimate(model, changed, card, layer="analytic"))
    assert [change.loop.lora_rank for change in found.changes] == [fit.ADAPTER_RANK]
    assert found.largest == 0


@pytest.mark.parametrize(("gpu", "fits"), [("RTX 3090", True), ("GTX 1050 2GB", False)])
def test_a_model_that_needs_every_change_or_a_larger_card(catalog: Catalog, gpu: str, fits: bool) -> None:
    model, card = models.find("tinyllama", catalog), offsets.card(gpu, catalog)
    asked = loop(batch=8, seq=2048, precision="fp32")
    found = fit.fit(asked, lambda changed: estimate(model, changed, card, layer="analytic"))
    assert bool(found.changes) is fits
    assert report.fit_text(found)


def test_the_smallest_card(catalog: Catalog) -> None:
    found = smallest.smallest_cards(models.find("bert-large", catalog), loop(batch=16, seq=512), catalog)
    totals = [fitting.estimate.card.total for fitting in found]
    assert totals == sorted(totals)
    assert all(fitting.estimate.verdict == "fits" for fitting in found)
    assert totals[0] < 24 * GIB
    assert found[0].name in smallest.text(found)
    with pytest.raises(ConflictError, match="no card trains `llama-2-13b`"):
        smallest.smallest_cards(models.find("llama-2-13b", catalog), loop(batch=512, seq=4096), catalog)


def test_text_and_json(catalog: Catalog) -> None:
    found = closed_form(catalog)(loop())
    text = report.text(found)
    for word in ("peak allocated", "peak reserved", "driver view", "rule of thumb", "RTX 3090, 24.00 GiB: fits"):
        assert word in text
    document = json.loads(json.dumps(found.as_json()))
    assert document["peak_allocated"]["bytes"] == sum(document["terms_bytes"].values())
    assert document["gpu"]["is_calibrated"] is False
    assert any(note.startswith("uncalibrated") for note in document["notes"])
    table = report.table_text(["batch 8"], ["seq 128"], [[found]], "bert-large")
    assert f"{found.driver.value / GIB:.2f}" in table


def test_old_stacks_say_so(catalog: Catalog) -> None:
    changed, is_old = stack.as_of(loop(), "1.12.1")
    assert is_old
    assert (changed.attention, changed.zero_grad, changed.optimizer) == ("eager", "keep", "adamw-single")
    assert stack.as_of(loop(), "2.0.0") == (loop(), False)
    found = estimate(models.find("bert-base", catalog), changed, offsets.card("V100", catalog), is_old_stack=True)
    assert found.layer == "analytic"
    assert any("out of the calibrated range" in note for note in found.notes)


def test_no_closed_form(catalog: Catalog) -> None:
    with pytest.raises(UsageError) as caught:
        estimate(models.find("whisper-tiny", catalog), loop(), offsets.unknown_card(catalog), layer="analytic")
    assert caught.value.code == "vram-no-closed-form"


# --- replays


def trace_of(*sizes: int) -> Trace:
    events = [Event(0, PHASE, "forward 1")]
    events += [Event(number, size) for number, size in enumerate(sizes, 1)]
    events += [Event(number, 0) for number in range(1, len(sizes) + 1)]
    return Trace(events=events, categories={1: "weights"})


def test_replay() -> None:
    found = replay(trace_of(30 * MIB, 600, 5 * MIB), keeps_samples=True)
    assert found.peak_allocated == 35 * MIB + 1024
    assert found.peak_reserved == 52 * MIB
    assert found.terms["weights"] == 30 * MIB
    assert found.peak_phase == "forward 1"
    assert found.samples[-1].alive == (0,) * 8


def test_replay_at_a_limit() -> None:
    with pytest.raises(OutOfMemoryError):
        replay(trace_of(30 * MIB, 40 * MIB), capacity=60 * MIB)


# --- published points


def row(**changes: Any) -> dict[str, Any]:
    return {
        "id": "a-point",
        "batch": 8,
        "seq": 512,
        "model": "bert-base (BertConfig defaults, MaskedLM)",
        "precision": "fp16 autocast + GradScaler",
        "attention": "sdpa (flash kernel)",
        "grads": "never zeroed",
        "optimizer": "torch.optim.Adam, foreach default",
        "framework": "torch 2.6.0+cu126, transformers 4.49.0",
        "gpu": "L40S",
        "measured_mib": 6025,
        "measured_what": "peak device memory in use as polled from NVML",
        **changes,
    }


def test_a_point_is_read() -> None:
    found = points.read(row())
    assert isinstance(found, points.Point)
    assert (found.model, found.group, found.cuda, found.is_old) == ("bert-base", "BERT", "12.6", False)
    assert (found.loop.head, found.loop.optimizer, found.loop.zero_grad) == ("mlm", "adam", "keep")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": "resnet50 (torchvision)"}, "cuDNN"),
        ({"seq": "not stated"}, "seq is not stated"),
        ({"precision": "unstated"}, "precision is not stated"),
        ({"measured_what": "Trainer metrics, plus a CPU delta by a slip"}, "CPU delta"),
        ({"measured_what": "unstated"}, "what was measured is not clear"),
    ],
)
def test_a_point_that_cannot_be_used_says_why(changes: dict[str, Any], word: str) -> None:
    found = points.read(row(**changes))
    assert isinstance(found, points.Unusable)
    assert word in found.reason


def test_every_shipped_point_is_used_or_has_a_reason(catalog: Catalog) -> None:
    read = [points.read(point) for point in catalog.raw("vram_measured")["points"]]
    used = [point for point in read if isinstance(point, points.Point)]
    assert len(read) == 162
    assert {point.group for point in used} == {"BERT", "T5", "Reformer", "Whisper", "old stacks"}
    for point in used:
        models.find(point.model, catalog)


def test_the_closed_form_against_published_readings(catalog: Catalog) -> None:
    errors = []
    for raw in catalog.raw("vram_measured")["points"]:
        point = points.read(raw)
        if isinstance(point, points.Point) and point.group == "BERT":
            card = offsets.card(point.gpu, catalog, cuda=CudaVersion.parse(str(point.cuda)))
            found = estimate(models.find(point.model, catalog), point.loop, card, layer="analytic")
            errors.append(abs(found.driver.value / MIB / point.measured_mib - 1))
    errors.sort()
    assert len(errors) == 29
    assert errors[len(errors) // 2] <= 0.03
    assert errors[int(0.9 * len(errors))] <= 0.08


# --- the smoke test


DESCRIBED = smoke_estimate.LOOP


def test_the_smoke_tests_loop_as_an_image_will_describe_it() -> None:
    new = smoke_estimate.description(DESCRIBED, {"torch": "2.6.0+cu124", "transformers": "4.48.1"})
    assert (new["attention"], new["optimizer"]) == ("sdpa", "adamw")
    old = smoke_estimate.description(DESCRIBED, {"torch": "1.13.1+cu117", "transformers": "4.30.0"})
    assert (old["attention"], old["optimizer"]) == ("eager", "adamw-single")


def test_the_smoke_tests_request(catalog: Catalog) -> None:
    described = smoke_estimate.description(DESCRIBED, {"torch": "2.6.0+cu124", "transformers": "4.48.1"})
    sent = smoke_estimate.params(described, "RTX 3090", catalog, layer="analytic")
    assert sent["estimate_bytes"] == sum(sent["estimate_terms"].values())
    assert sent["estimate_bytes"] < sent["estimate_reserved_bytes"]
    assert (sent["tolerance"], sent["reserved_tolerance"]) == (0.10, 0.15)
    assert sent["estimate_of"]["attention"] == "sdpa"
    assert smoke_estimate.params(described, "no such card", catalog, layer="analytic") == {}


def test_the_smoke_tests_loop_is_the_scripts_own() -> None:
    source = (Path(__file__).resolve().parents[2] / "smoke_tests" / "vram_peak.py").read_text()
    for name, value in smoke_estimate.LOOP.items():
        shown = "False" if value is False else json.dumps(value)
        assert re.search(rf'^        "{name}": {re.escape(shown)},', source, re.MULTILINE), name


def test_an_estimate_can_be_compared(catalog: Catalog) -> None:
    found: VramEstimate = closed_form(catalog)(loop())
    assert replace(found, verdict=None) != found
