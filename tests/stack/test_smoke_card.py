"""What the scripts do on a card, with a stand-in for it: every branch but the ones that need its numbers."""

from __future__ import annotations

import shutil

import pytest
from card_stand_in import torch_on_a_card
from seeded import fault
from smoke_faults import make_nvml
from stacks import codes, facts
from test_smoke_scripts import SMALL_BERT

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def card(python, tmp_path, monkeypatch):
    """The scripts find a driver's library that tells of a card, and torch says that it can use one."""
    if not facts(python)["compiles"]:
        pytest.skip("the stand-in needs torch 2")
    if facts(python)["gpu"]:
        pytest.skip("this machine has a card")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make a stand-in for the driver's library")
    folder = tmp_path / "driver"
    folder.mkdir()
    make_nvml(folder / "libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


@fault("train_step", {"on_gpu": "not-on-gpu", "device_mix": "device-mix-accepted"})
def test_the_training_step_on_a_card(run):
    # Small, since a CPU multiplies fp16 slowly.
    small = {"layers": 1, "hidden": 32, "batch": 8, "seq": 16, "vocab": 64, "learning_rate": 5e-3}
    document, checks = run("train_step", params=small, stand_in=torch_on_a_card())
    assert document["environment"]["device"] == "cuda"
    assert document["environment"]["gpu"] == {"name": "NVIDIA GeForce RTX 3090", "compute_capability": "8.6"}
    assert checks["run"]["message"] == "40 steps ran on cuda in fp16"
    assert {check["level"] for check in checks.values()} == {"L3"}
    # fp16 with loss scaling, checkpoints, seeds: all pass. Where the tensors really are is found out.
    assert codes(checks) == {"on_gpu": "not-on-gpu", "device_mix": "device-mix-accepted"}
    assert checks["scale_kept"]["status"] == checks["checkpoint"]["status"] == "passed"
    assert checks["half_precision_used"]["measured"] == ["torch.float16"]


def test_memory_of_a_loop_on_a_card(run):
    params = {**SMALL_BERT, "estimate_bytes": 920 * 2**20, "estimate_reserved_bytes": 950 * 2**20}
    _, checks = run("vram_peak", params=params, stand_in=torch_on_a_card())
    assert codes(checks) == {}
    assert checks["loop"]["measured"]["peak_allocated_bytes"] == 900 * 2**20
    assert {checks[name]["status"] for name in ("allocated", "reserved", "driver_view")} == {"passed"}


@fault(
    "vram_peak",
    {"allocated": "vram-estimate-off", "reserved": "vram-reserved-off", "driver_view": "driver-view-off"},
)
def test_memory_that_is_not_as_estimated(run):
    params = {**SMALL_BERT, "estimate_bytes": 750 * 2**20, "estimate_reserved_bytes": 800 * 2**20}
    _, checks = run("vram_peak", params=params, stand_in=torch_on_a_card(free_after_mib=12000))
    assert codes(checks) == {
        "allocated": "vram-estimate-off",
        "reserved": "vram-reserved-off",
        "driver_view": "driver-view-off",
    }


CARD = {"matrix": 64, "seconds": 0.6, "layers": 1, "hidden": 32, "heads": 2, "vocab": 128, "batch": 4, "seq": 16}


def test_all_checks_of_a_card(run):
    speeds = {"GeForce RTX 3090": [1e-3, 1e-9]}
    document, checks = run("card", params={**CARD, "expected_tflops": speeds}, stand_in=torch_on_a_card())
    assert codes(checks) == {}
    assert {check["status"] for check in checks.values()} == {"passed"}, checks
    assert document["environment"]["gpu"]["name"] == "NVIDIA GeForce RTX 3090"
    assert checks["others_on_card"]["message"] == "2 other processes, 64 MiB"
    assert "samples a second in float16" in checks["training_speed"]["message"]
    told = checks["samples"]["details"]
    assert {row["during"] for row in told["samples"]} == {"a product of two matrices", "a training step"}
    assert told["plot"][0].endswith("97 to 97 %")
    assert told["plot"][1].endswith("5.0 to 5.0 GiB")


@fault("card", {"others_on_card": "card-in-use", "expected_speed": "card-too-slow"})
def test_a_card_that_is_slow_in_use_or_unknown(run):
    params = {**CARD, "expected_tflops": {"GeForce RTX 3090": [71.0, 28.4]}, "most_foreign_bytes": 2**20}
    _, checks = run("card", params=params, stand_in=torch_on_a_card())
    assert codes(checks) == {"others_on_card": "card-in-use", "expected_speed": "card-too-slow"}
    assert {checks[name]["blame"] for name in codes(checks)} == {"host"}
    _, checks = run("card", params=CARD, stand_in=torch_on_a_card())
    assert checks["expected_speed"]["code"] == "not-applicable"


@fault("card", {"speed": "kernel-failed"})
def test_a_card_on_which_nothing_runs(run):
    fails = (
        torch_on_a_card()
        + """
    def fails(*args):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
    card.synchronize = fails
    """
    )
    _, checks = run("card", params=CARD, stand_in=fails)
    assert codes(checks) == {"speed": "kernel-failed"}
    assert checks["samples"]["status"] == checks["expected_speed"]["status"] == "not-checked"


@fault("card", {"training_speed": "kernel-failed"})
def test_a_card_on_which_training_fails(run):
    fails = (
        torch_on_a_card()
        + """
    def out_of_memory(*args, **kwargs):
        raise RuntimeError("CUDA out of memory")
    torch.optim.AdamW.step = out_of_memory
    """
    )
    _, checks = run("card", params=CARD, stand_in=fails)
    assert codes(checks) == {"training_speed": "kernel-failed"}
    assert checks["samples"]["status"] == "passed"


def test_a_provider_that_is_asked_for_is_told_to_have_run(run):
    _, checks = run("onnx_round_trip", params={"provider": "CPUExecutionProvider"})
    assert checks["cuda_provider"]["status"] == "passed"
    assert checks["cuda_provider"]["measured"].keys() == {"CPUExecutionProvider"}
