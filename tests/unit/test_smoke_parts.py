"""Checks of the card, tried with stand-ins for torch: what no machine without a GPU can break for real."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.scripts import TABLE

sys.path.insert(0, str(Path(__file__).parents[2] / "smoke_tests"))

WRITES_BYTECODE = sys.dont_write_bytecode
import _train_more  # noqa: E402
import distributed  # noqa: E402
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
    ("error", "code"), [(None, "device-mix-accepted"), ("CUBLAS_STATUS_NOT_SUPPORTED", "device-mix-unclear")]
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


@pytest.mark.parametrize("script", TABLE, ids=lambda script: script.name)
def test_the_level_of_a_script_is_the_lowest_of_its_checks(script):
    checks = importlib.import_module(script.name).script.checks
    levels = ["L2" if callable(check.level) else check.level for check in checks]
    assert script.level.value == min(levels)
