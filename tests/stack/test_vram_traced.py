"""The traced estimate: equal to a real run where it must be, and every rule about CUDA makes a difference.

Runs in this Python where torch (2.6 or newer) and transformers are installed beside torchproof; nothing needs a GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the traced estimate needs torch beside torchproof")
transformers = pytest.importorskip("transformers", reason="the traced estimate needs transformers beside torchproof")

from builder.catalog import Catalog  # noqa: E402
from builder.vram import models, offsets, parameters, plot, points, smoke_estimate, traced  # noqa: E402
from builder.vram.analytic import analytic  # noqa: E402
from builder.vram.estimate import estimate  # noqa: E402
from builder.vram.events import Trace, replay  # noqa: E402
from builder.vram.loop import TrainingLoop  # noqa: E402

if traced.why_not() is not None:
    pytest.skip(str(traced.why_not()), allow_module_level=True)

from builder.vram.tracing import contexts, kernels, run, tracker  # noqa: E402
from builder.vram.tracing.emulation import CudaBehaviour  # noqa: E402
from builder.vram.tracing.tracker import Tracker  # noqa: E402

pytestmark = [pytest.mark.stack, pytest.mark.filterwarnings("ignore")]
MIB = 2**20
RECORDED = Path(__file__).parent.parent / "data" / "vram_traces.json"
CATALOG = Catalog.shipped()


def loop(**changes: Any) -> Any:
    return TrainingLoop(**{"batch": 8, "seq": 128, **changes})


def find(name: Any, **sizes: Any) -> Any:
    return models.find(name, CATALOG, sizes=sizes)


def allocated(model: Any, changes: Any, **options: Any) -> Any:
    return replay(run.trace(model, changes, **options)).peak_allocated


# --- a trace is a run


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "distilbert"])
def test_a_trace_counts_what_a_real_run_has_alive(name: Any, attention: Any) -> None:
    sizes = {"hidden": 64, "layers": 2, "heads": 2, "intermediate": 128, "vocab": 200}
    if name == "t5" and attention == "sdpa":
        pytest.skip("T5 has no fused attention in transformers 4")
    model = find(name, **sizes)
    changes = loop(batch=2, seq=32, precision="fp32", optimizer="adamw-single", attention=attention, mask="full")
    counts = [traced.native_live_bytes(model, changes, device=device) for device in ("meta", "cpu")]
    assert counts[0] == counts[1] > 0


def test_the_smoke_test_counts_as_the_host_does() -> None:
    """Counted by `vram_peak.live_bytes` with torch 2.6 and 2.13, transformers 4.41, 4.44, 4.48, 4.57 and 5.0."""
    assert smoke_estimate.live_bytes(smoke_estimate.LIVE_BYTES_STEP) == 9_825_808


@pytest.mark.parametrize("row", json.loads(RECORDED.read_text())["traces"], ids=lambda row: row["id"])
def test_releases_of_torch_agree(row: Any) -> None:
    """Recorded with torch 2.6.0 and transformers 4.48.1 (docs/vram.md says how)."""
    found = replay(traced.trace(find(row["model"]), TrainingLoop(**row["loop"])))
    assert found.peak_allocated == pytest.approx(row["peak_allocated"], rel=0.005)
    # One release more or less makes a small tensor (a slice that is the whole): the pool then breaks up otherwise.
    assert found.peak_reserved == pytest.approx(row["peak_reserved"], rel=0.05)


@pytest.mark.parametrize("name", ["bert-base", "gpt2", "t5-small", "llama-3.2-1b"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16-pure"])
def test_shortcuts_give_what_the_kernels_give(name: Any, precision: Any) -> None:
    model, changes = find(name, layers=1), loop(batch=2, seq=64, precision=precision)
    events = [run.trace(model, changes, takes_shortcuts=is_taken).events for is_taken in (True, False)]
    assert events[0] == events[1]


# --- the closed form is the trace


GRID = [
    ("bert-base", ("classifier", "mlm"), ("sdpa", "eager")),
    ("roberta-base", ("classifier",), ("sdpa",)),
    ("distilbert-base", ("classifier", "mlm"), ("sdpa",)),
    ("gpt2", ("lm",), ("sdpa", "eager")),
    ("t5-small", ("seq2seq",), ("eager",)),
    ("vit-base", ("classifier",), ("sdpa",)),
    ("llama-3.2-1b", ("lm",), ("sdpa",)),
]
CASES = [
    (name, head, attention, precision, size)
    for name, heads, attentions in GRID
    for head, attention, precision, size in itertools.product(
        heads, attentions, ("fp32", "fp16", "bf16-pure"), ((2, 64), (8, 128), (16, 512))
    )
]


@pytest.mark.parametrize(("name", "head", "attention", "precision", "size"), CASES)
def test_the_closed_form_is_within_six_percent(name: Any, head: Any, attention: Any, precision: Any, size: Any) -> None:
    model = find(name)
    changes = loop(batch=size[0], seq=size[1], head=head, attention=attention, precision=precision)
    found = traced.trace(model, changes)
    counted = parameters.count(model.architecture, model.architecture.head(changes.head))
    assert counted.total == found.parameters
    closed = analytic(model.architecture, changes).peak_bytes
    assert closed == pytest.approx(replay(found).peak_allocated, rel=0.06)


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpointing": True},
        {"checkpointing": True, "precision": "fp32"},
        {"accumulation": 3},
        {"lora_rank": 8},
        {"frozen": "backbone"},
        {"frozen": "embeddings"},
        {"zero_grad": "keep"},
        {"steps": 1},
        {"optimizer": "sgd"},
        {"optimizer": "sgd-momentum"},
        {"optimizer": "adamw-single"},
        {"optimizer": "adamw-fused"},
        {"optimizer": "adam8bit"},
        {"optimizer": "adafactor"},
        {"optimizer": "adafactor-hf"},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(4, 64), (32, 256)])
def test_the_closed_form_over_loops(changes: Any, size: Any) -> None:
    model = find("bert-base")
    asked = loop(batch=size[0], seq=size[1], **changes)
    closed = analytic(model.architecture, asked).peak_bytes
    assert closed == pytest.approx(replay(traced.trace(model, asked)).peak_allocated, rel=0.06)


WIDE_HEADS = {"hidden": 1024, "layers": 4, "heads": 4, "intermediate": 2816, "vocab": 32001}
ODD: list[tuple[str, dict[str, int], dict[str, Any]]] = [
    ("bert-base", {"layers": 4}, {"seq": 1, "batch": 3}),
    ("bert-base", {"layers": 4, "vocab": 30001}, {"head": "mlm", "seq": 200, "batch": 13}),
    ("bert-base", {"layers": 4}, {"batch": 512, "seq": 64, "attention": "eager"}),
    ("bert-base", {"layers": 4}, {"mask": "padded", "seq": 512, "precision": "fp32"}),
    ("bert-base", {"layers": 4}, {"mask": "padded", "seq": 512, "checkpointing": True}),
    ("bert-base", {"layers": 4}, {"head": "mlm", "frozen": "backbone"}),
    ("bert-base", {"layers": 4}, {"head": "mlm", "outputs": "dropped", "batch": 32}),
    ("no dropout", {"layers": 4}, {"seq": 256}),
    ("roberta-base", {"layers": 4}, {"lora_rank": 8, "checkpointing": True, "batch": 32, "seq": 256}),
    ("gpt2", {"layers": 4}, {"outputs": "loop", "seq": 512}),
    ("gpt2", {"layers": 4}, {"head": "classifier", "seq": 512}),
    ("t5-small", {}, {"target_seq": 16, "seq": 512, "attention": "eager"}),
    ("flan-t5-small", {}, {"precision": "fp16-pure", "batch": 16}),
    ("flan-t5-small", {}, {"lora_rank": 64, "checkpointing": True}),
    ("vit-base", {"layers": 4}, {"checkpointing": True, "batch": 32, "precision": "fp32"}),
    ("llama", WIDE_HEADS, {"seq": 512, "attention": "eager", "precision": "bf16"}),
    ("llama", WIDE_HEADS, {"seq": 512, "checkpointing": True, "precision": "bf16"}),
    ("mistral", WIDE_HEADS, {"seq": 200, "head": "classifier", "precision": "bf16-pure"}),
    ("qwen2.5-0.5b", {"layers": 4}, {"seq": 256, "lora_rank": 8, "optimizer": "adam8bit"}),
    ("smollm2-135m", {"layers": 4}, {"seq": 128, "optimizer": "adafactor-hf", "precision": "bf16-pure"}),
]


@pytest.mark.parametrize(("name", "sizes", "changes"), ODD, ids=str)
def test_the_closed_form_where_few_look(name: Any, sizes: Any, changes: Any) -> None:
    """Lengths of one, odd vocabularies, wide heads, shared keys, no dropout, adapters over checkpoints."""
    if name == "no dropout":
        config = {**find("bert-base", **sizes).config, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = models.from_config(config)
    else:
        model = find(name, **sizes)
    asked = loop(**changes)
    found = traced.trace(model, asked)
    closed = analytic(model.architecture, asked)
    assert (closed.parameters, closed.trained) == (found.parameters, found.trained)
    assert closed.peak_bytes == pytest.approx(replay(found).peak_allocated, rel=0.06)


# --- rules about CUDA: each is switched off once


def bert(**changes: Any) -> Any:
    return find("bert-base", layers=2), loop(batch=32, seq=256, **changes)


def peak_of(work: Any, half: Any = torch.float16, switched_off: Any = ()) -> Any:
    """Peak of what `work` allocates beside its inputs."""
    found = Trace()
    mode = Tracker(found, "meta")
    with mode, CudaBehaviour(half, switched_off=frozenset(switched_off)):
        kept = work()
    del kept
    return replay(found).peak_allocated


def test_fp16_softmax_writes_fp32_without_a_copy_and_bfloat16_copies() -> None:
    n = 4 * MIB
    half, brain = (torch.empty(4, n // 4, device="meta", dtype=t) for t in (torch.float16, torch.bfloat16))
    assert peak_of(lambda: torch.softmax(half, -1)) == 4 * n
    assert peak_of(lambda: torch.softmax(half, -1), switched_off=["softmax"]) == 8 * n
    assert peak_of(lambda: torch.softmax(brain, -1), half=torch.bfloat16) == 8 * n


def test_the_loss_under_autocast_keeps_half_log_probabilities() -> None:
    model, changes = bert(head="mlm")
    with_rule = allocated(model, changes)
    assert abs(allocated(model, changes, switched_off=frozenset({"cross_entropy"})) / with_rule - 1) > 0.02


def test_each_consumer_casts_for_itself_and_weights_are_cast_once() -> None:
    n = 4 * MIB
    x = torch.empty(4, n // 4, device="meta", requires_grad=True) * 1.0
    w = torch.empty(1, n // 4, device="meta", requires_grad=True)
    call = torch.nn.functional.linear
    one = peak_of(lambda: call(x, w))
    three = peak_of(lambda: [call(x, w) for _ in range(3)])
    assert three - one == pytest.approx(2 * 2 * n, abs=4096), "two more half copies of x, none of w"
    assert peak_of(lambda: [call(x, w) for _ in range(3)], switched_off=["weight_cache"]) - three == pytest.approx(
        2 * 2 * (n // 4), abs=4096
    )


def test_dropout_keeps_one_byte_an_element() -> None:
    model, changes = bert(precision="fp32", attention="eager")
    assert allocated(model, changes, switched_off=frozenset({"dropout"})) > 1.02 * allocated(model, changes)


def test_attention_is_fused() -> None:
    model, changes = bert(precision="fp32")
    assert allocated(model, changes, switched_off=frozenset({"attention"})) > 1.02 * allocated(model, changes)
    eager = allocated(model, changes.with_(attention="eager"))
    assert eager > 1.02 * allocated(model, changes)


def test_a_mask_of_ones_is_dropped_and_a_padded_one_goes_to_another_kernel() -> None:
    model, changes = bert(mask="full")
    full = allocated(model, changes)
    assert full == pytest.approx(allocated(model, changes.with_(mask="none")), rel=0.002)
    assert allocated(model, changes.with_(mask="padded")) > full + 32 * 256 * 256 * 2


def test_old_cards_have_no_flash_kernel() -> None:
    model, changes = bert()
    names = [run.trace(model, changes, capability=c).operators for c in ((7, 0), (8, 0))]
    assert names[0] > 0
    brain = changes.with_(precision="bf16")
    assert allocated(model, brain, capability=(7, 0)) > 1.02 * allocated(model, brain)


def test_kept_gradients_and_steps_count() -> None:
    model = find("bert-base")
    changes = loop(batch=32, seq=128)
    base = allocated(model, changes)
    assert allocated(model, changes.with_(zero_grad="keep")) > base + 300 * MIB
    assert allocated(model, changes.with_(steps=1)) < base - 700 * MIB


def test_small_batches_peak_in_the_optimizer_which_foreach_makes_larger() -> None:
    model = find("bert-base")
    changes = loop(batch=2, seq=64)
    lists = replay(run.trace(model, changes))
    assert lists.peak_phase.startswith("optimizer")
    single = allocated(model, changes.with_(optimizer="adamw-single"))
    fused = allocated(model, changes.with_(optimizer="adamw-fused"))
    assert lists.peak_allocated > 1.02 * single > 1.02 * fused


def test_gradients_of_one_tensor_are_added_in_place(monkeypatch: Any) -> None:
    model = find("bert-base", layers=1)
    changes = loop(batch=1, seq=64, head="mlm", optimizer="none")
    with_rule = allocated(model, changes)
    monkeypatch.setattr(tracker, "is_accumulation", lambda *_: False)
    assert allocated(model, changes) > 1.02 * with_rule


@pytest.mark.parametrize("name", ["gpt2", "t5-small"])
def test_decoders_return_keys_and_values(name: Any) -> None:
    changes = loop(batch=16, seq=512)
    assert allocated(find(name), changes) > 1.01 * allocated(find(name), changes.with_(use_cache=False))


def test_workspaces_come_with_the_first_product_of_each_thread() -> None:
    model, changes = bert()
    found = replay(run.trace(model, changes, workspace=32 * MIB))
    assert found.terms["workspaces"] == 64 * MIB
    assert replay(run.trace(model, changes, workspace=0)).terms["workspaces"] == 0
    assert found.peak_allocated - allocated(model, changes, workspace=0) == 64 * MIB


def sizes(model: Any, changes: Any) -> Counter[int]:
    return Counter(event.size for event in run.trace(model, changes).events)


@pytest.mark.parametrize(
    ("changes", "kernel", "scratch"),
    [
        ({"precision": "fp16"}, "_flash_backward", 16 * 12 * 512 * 64 * 4),
        ({"precision": "fp32"}, "_efficient_backward", 16 * 12 * 500 * 64 * 4),
        ({"precision": "fp32", "mask": "padded"}, "_efficient_backward", 16 * 12 * 500 * 64 * 4),
        ({"precision": "fp32", "optimizer": "none"}, "_embedding_backward", (16 * 500 // 10 + 16 * 500) * 768 * 4),
    ],
)
def test_kernels_take_scratch_that_no_operator_shows(changes: Any, kernel: Any, scratch: int, monkeypatch: Any) -> None:
    """Heads of 64 in 12: flash rounds 500 rows up to 512, the other kernel does not; partial sums of the embedding."""
    model, work = find("bert-base", layers=1), loop(batch=16, seq=500, steps=1, **changes)
    with_rule = sizes(model, work)
    monkeypatch.setattr(kernels, kernel, lambda *_: ())
    assert (with_rule - sizes(model, work))[scratch] == 1


def test_few_indices_are_added_without_a_sort(monkeypatch: Any) -> None:
    model, work = find("bert-base", layers=1), loop(batch=6, seq=512, steps=1, optimizer="none")
    partial = (3072 // 10 + 3072) * 768 * 4
    with_rule = sizes(model, work)
    monkeypatch.setattr(kernels, "UNSORTED_INDICES", 0)
    assert (sizes(model, work) - with_rule)[partial] == 1


def test_what_is_computed_again_is_computed_under_autocast(monkeypatch: Any) -> None:
    model, changes = bert(precision="fp16", checkpointing=True)
    with_rule = allocated(model, changes)

    @contextlib.contextmanager
    def unknown(*_: Any, **__: Any) -> Any:
        yield

    monkeypatch.setattr(contexts, "backward_pass", unknown)
    assert abs(allocated(model, changes) / with_rule - 1) > 0.02


# --- the whole


def test_speed() -> None:
    model, card = find("bert-base"), offsets.card("RTX 3090", CATALOG)
    estimate(model, loop(), card, layer="traced")
    took = []
    for _ in range(3):
        # Processor time: a busy machine must not fail it.
        started = time.process_time()
        estimate(model, loop(batch=32, seq=512), card, layer="traced")
        took.append(time.process_time() - started)
    assert min(took) <= 1.0


@pytest.mark.parametrize(
    "name",
    [
        "milabench-l40s-bert-fp16-b32",
        "milabench-h100-bert-fp32-b128",
        "milabench-h100-t5-b8",
        "milabench-h200-bert-fp32-b32",
    ],
)
def test_published_readings(name: Any) -> None:
    raw = next(point for point in CATALOG.raw("vram_measured")["points"] if point["id"] == name)
    point = points.read(raw)
    assert isinstance(point, points.Point)
    card = offsets.card(point.gpu, CATALOG)
    found = estimate(find(point.model), point.loop, card, layer="traced")
    assert found.driver.value / MIB == pytest.approx(point.measured_mib, rel=0.003)
    assert found.driver.low / MIB < point.measured_mib < found.driver.high / MIB


def test_a_full_card_gives_cached_memory_back_before_it_gives_up() -> None:
    model, card = find("bert-base"), offsets.card("RTX 3060 12GB", CATALOG)
    seen = {estimate(model, loop(batch=b, seq=512), card, layer="traced").verdict for b in (8, 47, 50, 128)}
    assert {"fits", "does-not-fit"} < seen


@pytest.mark.parametrize("name", ["whisper-tiny", "opt-125m", "gpt-neo-125m", "electra-base", "albert-base-v2"])
def test_families_without_a_closed_form(name: Any) -> None:
    found = estimate(find(name), loop(batch=2), offsets.unknown_card(CATALOG), layer="traced")
    assert found.allocated.value > 12 * found.parameters
    assert found.verdict is None


def test_a_picture(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    found = estimate(find("bert-base", layers=2), loop(), offsets.card("RTX 3060", CATALOG), layer="traced")
    for kind in ("png", "svg"):
        file = tmp_path / f"memory.{kind}"
        plot.draw(found, file)
        assert file.stat().st_size > 5000
    text = (tmp_path / "memory.svg").read_text()
    assert "<svg" in text
    assert found.trace is not None
    samples = plot.last_step(replay(found.trace, keeps_samples=True).samples)
    assert [name for name, _, _ in plot.phases(samples)] == ["forward", "backward", "optimizer"]
