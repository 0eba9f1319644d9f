"""Ranked sets for cards, a driver and wishes; why the first is first and why the newer ones are out."""

from __future__ import annotations

import pytest
from checking import CATALOG, judged

from builder.errors import UsageError
from builder.recommend import Wish, recommend, text


def answer(*gpus: str, driver: str | None = None, torch: str | None = None, python: str | None = None) -> str:
    return text(recommend(Wish.parse(gpus=gpus, driver=driver, torch=torch, python=python), CATALOG))


def test_the_newest_that_still_runs_on_an_old_driver() -> None:
    shown = answer("RTX 3090", driver="470.57")
    assert shown.startswith("1. torch 2.7.1 cu118, ")
    assert "because its sm_86 code runs on RTX 3090 (compute capability 8.6)" in shown
    assert "cu118 needs driver 450.80.02, and 470.57 is there" in shown
    assert "torch 2.8.0: cu129, cu128 and cu126 need driver 525.60.13 or newer" in shown


def test_several_cards_must_all_be_served() -> None:
    shown = answer("V100", "RTX 5090", driver="575.57")
    assert shown.startswith("1. torch 2.10.0 cu128")
    assert "cu126 has no code for RTX 5090 (sm_120)" in shown


def test_required_torch_and_python_hold() -> None:
    found = recommend(Wish.parse(gpus=("T4",), driver=None, torch="2.4", python="3.12"), CATALOG)
    assert {(str(each.torch), each.python) for each in found.sets} == {("2.4.1", "3.12")}


@pytest.mark.parametrize(
    ("gpu", "driver"),
    [
        ("K80", "470.256.02"),
        ("P100", "535.104.05"),
        ("RTX 4090", "550.54.15"),
        ("B200", "580.65.06"),
        ("GB10", "580.95.05"),
        ("GH200", "570.124.06"),
        ("Jetson Thor", "580.00"),
    ],
)
def test_what_is_recommended_passes_the_check(gpu: str, driver: str) -> None:
    for each in recommend(Wish.parse(gpus=(gpu,), driver=driver, torch=None, python=None), CATALOG).sets:
        pins = [f"torch=={each.torch}+{each.variant}"]
        pins += [f"numpy{each.numpy}"] if each.numpy else []
        pins += [f"transformers=={each.transformers}"] if each.transformers else []
        pins += [f"onnxruntime-gpu=={each.onnxruntime_gpu}"] if each.onnxruntime_gpu else []
        pins += each.libraries
        document = judged(*pins, gpus=gpu, driver=driver, python=each.python)
        assert document.verdict == "compatible", [found.code for found in document.findings]


def test_nothing_serves() -> None:
    shown = answer("K80", "RTX 5090")
    assert shown.startswith("no torch of the facts serves all of this\n\neach card alone:\n  K80: torch 2.7.1 cu118\n")
    assert "\n\nall are out:\n  torch 2.15.0: cu134, cu132 and cu130 have no code for K80 (sm_37)\n" in shown


@pytest.mark.parametrize(
    ("gpu", "driver", "why"),
    [
        ("RTX 5090", "550.54", "RTX 5090: needs a driver of branch 570 or newer, and 550.54 is there"),
        ("K80", "510.47", "K80: is driven up to branch 470, and 510.47 is there"),
    ],
)
def test_a_driver_that_does_not_drive_the_card(gpu: str, driver: str, why: str) -> None:
    shown = answer(gpu, driver=driver)
    assert "1. torch" not in shown
    assert why in shown


def test_a_card_with_an_arm_processor_gets_builds_for_it() -> None:
    first = recommend(Wish.parse(gpus=("GB10",), driver=None, torch="2.9.1", python=None), CATALOG).sets[0]
    assert (first.arch, first.variant, first.is_default) == ("aarch64", "cu130", False)


def test_unknown_cards_get_the_nearest_names() -> None:
    with pytest.raises(UsageError) as caught:
        answer("RTX 3999")
    assert "RTX 3090" in str(caught.value)


def test_json_form() -> None:
    document = recommend(Wish.parse(gpus=("A100",), driver="550.54", torch=None, python=None), CATALOG).to_json()
    assert document["schema_version"] == 1
    assert document["sets"][0]["reasons"]
