"""Checks of the card, tried with stand-ins for torch: what no machine without a GPU can break for real."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from seeded import fault

from builder.scripts import TABLE

sys.path.insert(0, str(Path(__file__).parents[2] / "smoke_tests"))

WRITES_BYTECODE = sys.dont_write_bytecode
import _samples  # noqa: E402
import _train_more  # noqa: E402
import card  # noqa: E402
import distributed  # noqa: E402
import onnx_round_trip  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked  # noqa: E402

sys.dont_write_bytecode = WRITES_BYTECODE  # the scripts switch it for their own process


class Tensor:
    def cpu(self):
        return self


def mixed(error):
    """The check of mixed devices, with a model that ends so."""

    def model(**batch):
        if error is not None:
            raise RuntimeError(error)

    loop = SimpleNamespace(device="cuda", batches=[{"input_ids": Tensor()}], model=model)
    return _train_more.device_mix(SimpleNamespace(made={"loop": loop}))


def test_a_refused_batch_passes_when_the_error_names_the_devices():
    told = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    assert mixed(told).status == "passed"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(error, code, marks=fault("train_step", {"device_mix": code}))
        for error, code in ((None, "device-mix-accepted"), ("CUBLAS_STATUS_NOT_SUPPORTED", "device-mix-unclear"))
    ],
)
def test_a_batch_on_the_wrong_device(error, code):
    with pytest.raises(Failed) as failed:
        mixed(error)
    assert failed.value.code == code


def fake_torch(*, built_for="12.4", cards=1, has_nccl=True):
    return SimpleNamespace(
        __version__="2.6.0",
        version=SimpleNamespace(cuda=built_for),
        cuda=SimpleNamespace(is_available=lambda: cards > 0, device_count=lambda: cards),
        distributed=SimpleNamespace(is_nccl_available=lambda: has_nccl),
    )


def nccl(torch, monkeypatch, told=None):
    context = SimpleNamespace(stack=lambda name: torch, params={"rows": 8}, environment={})
    monkeypatch.setattr(distributed, "work", lambda ctx, backend, count: told or [[1.0, 2.0]] * count)
    monkeypatch.setattr(distributed, "gradients", lambda torch, params, rank, count: [1.0, 2.0])
    return distributed.nccl(context)


def test_nccl_on_one_and_on_four_cards(monkeypatch):
    for cards in (1, 4):
        assert nccl(fake_torch(cards=cards), monkeypatch).details["cards"] == cards


@fault("distributed", {"nccl": "gradients-differ"})
@fault("distributed", {"nccl": "nccl-missing"})
def test_nccl_that_is_missing_or_adds_up_wrong(monkeypatch):
    with pytest.raises(Failed) as failed:
        nccl(fake_torch(has_nccl=False), monkeypatch)
    assert failed.value.code == "nccl-missing"
    with pytest.raises(Failed) as failed:
        nccl(fake_torch(), monkeypatch, told=[[1.0, 2.5]])
    assert failed.value.code == "gradients-differ"


def test_nccl_without_a_card_or_in_a_cpu_build(monkeypatch):
    with pytest.raises(NotApplicable):
        nccl(fake_torch(built_for=None), monkeypatch)
    with pytest.raises(NotChecked):
        nccl(fake_torch(cards=0), monkeypatch)


@pytest.mark.parametrize("script", [one for one in TABLE if not one.on_host], ids=lambda script: script.name)
def test_the_level_of_a_script_is_the_lowest_of_its_checks(script):
    checks = importlib.import_module(script.name).script.checks
    levels = ["L2" if callable(check.level) else check.level for check in checks]
    assert script.level.value == min(levels)


class Card:
    """A stand-in for torch on a card whose products and whose capability are as told."""

    def __init__(self, off=0.0, capability=(9, 0)):
        self.cuda = SimpleNamespace(is_available=lambda: True, get_device_capability=lambda index: capability)
        self.off = off
        self.__version__ = "2.6.0"

    def randn(self, *shape, device):
        return Product(self.off)


class Product:
    """Multiplies to 1, or to 1 and an error once it is in bfloat16."""

    def __init__(self, off, value=1.0):
        self.off, self.value = off, value

    def double(self):
        return self

    def bfloat16(self):
        return Product(self.off, 1.0 + self.off)

    def __matmul__(self, other):
        return self

    def __sub__(self, other):
        return Product(self.off, self.value - other.value)

    def abs(self):
        return Product(self.off, abs(self.value))

    def max(self):
        return self.value


def on_card(torch, **params):
    return SimpleNamespace(stack=lambda name: torch, params={"device": "auto", **params}, environment={}, made={})


@fault("card", {"bfloat16": "bfloat16-wrong"})
def test_bfloat16_on_a_card():
    assert card.bfloat16(on_card(Card())).status == "passed"
    with pytest.raises(Failed) as failed:
        card.bfloat16(on_card(Card(off=0.2)))
    assert failed.value.code == "bfloat16-wrong"
    with pytest.raises(NotApplicable):
        card.bfloat16(on_card(Card(capability=(7, 5))))


def fast(reached, name="NVIDIA A100-SXM4-80GB"):
    context = on_card(None, expected_tflops={"A100-SXM4-80GB": [312.0, 124.8]})
    context.environment["gpu"] = {"name": name}
    context.made["tflops"] = reached
    return card.expected_speed(context)


def test_a_card_that_is_as_fast_as_it_should_be():
    assert fast(247.6).details["share"] == 0.794


@fault("card", {"expected_speed": "card-too-slow"})
def test_a_slow_card_is_the_hosts_fault():
    with pytest.raises(Failed) as failed:
        fast(100.0)
    assert (failed.value.code, failed.value.blame) == ("card-too-slow", "host")
    assert "32 % of what NVIDIA A100-SXM4-80GB can reach; a host in order reaches 125" in failed.value.message


def test_the_speed_of_a_card_that_nothing_is_known_of_is_told_and_not_judged():
    with pytest.raises(NotApplicable, match="no fact says how fast NVIDIA X9 should be; 3 TFLOP/s are told"):
        fast(3.0, name="NVIDIA X9")


def sampled(*values):
    return [{"at_s": 0.1, "utilization": value, "used_bytes": value * 2**26, "during": "a step"} for value in values]


@fault("card", {"samples": "card-idle"})
def test_samples_of_a_card_at_work_and_of_an_idle_one():
    judged = card.judge_samples(sampled(3, 60, 100))
    assert judged.message == "up to 100 % in use, 3 samples"
    assert judged.details["plot"] == ["utilization ▁▅█ 3 to 100 %", "memory      ▁▅█ 0.2 to 6.2 GiB"]
    with pytest.raises(NotChecked):
        card.judge_samples([])
    with pytest.raises(Failed) as failed:
        card.judge_samples(sampled(3))
    assert failed.value.code == "card-idle"


def test_a_plot_is_never_wider_than_a_terminal():
    lines = _samples.plot(sampled(*range(100), *range(100)))
    assert [line.split()[0] for line in lines] == ["utilization", "memory"]
    assert all(len(line) < 100 and len(line.split()[1]) == 60 for line in lines)
    assert _samples.plot([{"utilization": 0, "used_bytes": None}]) == ["utilization ▁ 0 to 0 %"]


@fault("card", {"others_on_card": "card-in-use"})
def test_other_processes_on_the_card_are_named(monkeypatch):
    class Nvml:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def processes(self, index):
            return [{"pid": 4242, "used_bytes": 2**30}, {"pid": 7, "used_bytes": None}]

    monkeypatch.setattr(card, "Nvml", Nvml)
    with pytest.raises(Failed) as failed:
        card.others_on_card(on_card(Card(), most_foreign_bytes=2**28))
    assert failed.value.code == "card-in-use"
    assert "4242 1024 MiB" in failed.value.message
    assert card.others_on_card(on_card(Card(), most_foreign_bytes=2**31)).status == "passed"


class NoNvml:
    def __enter__(self):
        raise card.NvmlError("`nvmlInit_v2` returned 9: Driver Not Loaded")

    def __exit__(self, *error):
        pass


def test_where_nvml_tells_nothing_nothing_is_claimed(monkeypatch):
    for module in (card, _samples, onnx_round_trip):
        monkeypatch.setattr(module, "Nvml", NoNvml)
    with pytest.raises(NotChecked, match="Driver Not Loaded"):
        card.others_on_card(on_card(Card(), most_foreign_bytes=0))
    with pytest.raises(NotChecked, match=r"no GPU in reach: .*Driver Not Loaded"):
        onnx_round_trip.needs_gpu()
    with _samples.Sampler("a step") as sampler:
        time.sleep(3 * _samples.PERIOD_S)
    assert sampler.rows == []


def test_a_driver_that_shows_no_card_is_no_card(monkeypatch):
    class Empty(NoNvml):
        def __enter__(self):
            return SimpleNamespace(devices=list)

    monkeypatch.setattr(onnx_round_trip, "Nvml", Empty)
    with pytest.raises(NotChecked, match="the driver shows no GPU"):
        onnx_round_trip.needs_gpu()
