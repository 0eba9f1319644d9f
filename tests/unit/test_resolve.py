from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import spec, yaml_lines
from builder.catalog import Catalog
from builder.errors import ConflictError, SpecError
from builder.explain import CellConflicts
from builder.resolution import Resolution
from builder.resolve import Host, resolve, resolve_all
from builder.resources import IMAGES, walk

CATALOG = Catalog.shipped()
SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.yaml"))


def matrix(text: str) -> spec.LoadedMatrix:
    return spec.from_text(yaml_lines.parse(text.encode(), "m.yaml"), folder=Path("/m"), stem="m")


def resolved(text: str, host: Host | None = None) -> list[Resolution]:
    return resolve_all(matrix(text).cells, CATALOG, host=host)


def one(text: str, host: Host | None = None) -> Resolution:
    (resolution,) = resolved(text, host)
    return resolution


def conflict(text: str) -> str:
    with pytest.raises(ConflictError) as caught:
        resolved(text)
    assert caught.value.exit_status == 4
    return str(caught.value)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    scenario: dict[str, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    if "error" in scenario:
        assert conflict(scenario["spec"]) == scenario["error"].rstrip()
        return
    resolution = one(scenario["spec"])
    found = {"base": resolution.base.reference}
    for key, expected in scenario["resolves"].items():
        assert (found.get(key) or str(getattr(resolution, key))) == expected, key


def texts(resolution: Resolution) -> list[str]:
    return [requirement.text for requirement in resolution.requirements]


def test_samples_resolve() -> None:
    ids: list[str] = []
    for name, content in walk(IMAGES):
        if name.endswith(".yaml"):
            ids += [resolution.image_id for resolution in resolved(content.decode())]
    assert set(ids) == {
        "torch1.12.0-cu116-py39",
        "torch1.12.1-cu102-py39",
        "torch1.12.1-cu113-py38",
        "torch2.13.0-cpu-py311",
        "torch2.5.1-cu124-py311",
        "torch2.6.0-cu124-py311",
    }


def test_each_choice_names_facts_with_their_source() -> None:
    resolution = one("axes: {torch: 2.6.0, python: 3.11, onnxruntime-gpu: auto, packages: {torchvision: auto}}")
    for choice in resolution.choices:
        assert choice.because, choice.subject
    sourced = [reason for choice in resolution.choices for reason in choice.because if "(verified-" in reason]
    assert len(sourced) >= 5
    assert {choice.subject for choice in resolution.choices} >= {"torch", "variant", "python", "base", "torchvision"}


@pytest.mark.parametrize(
    ("axes", "added"),
    [
        ("torch: 2.15.0, onnxruntime-gpu: 1.31.1", ["nvidia-curand~=10.0"]),
        ("torch: 2.15.0, onnxruntime-gpu: 1.27.0", ["nvidia-curand~=10.0"]),  # its own extra names it with -cu13
        ("torch: 2.15.0, onnxruntime-gpu: 1.31.1, packages: {nvidia-curand: 10.4.0.35}", ["nvidia-curand==10.4.0.35"]),
        ("torch: 2.14.1, onnxruntime-gpu: 1.31.1", []),
        ("torch: 2.6.0, onnxruntime-gpu: auto", []),
        ("torch: 2.15.0", []),
    ],
)
def test_libraries_that_the_runtime_loads_and_torch_does_not_ask_for_are_added(axes: str, added: list[str]) -> None:
    resolution = one(f"axes: {{{axes}, python: 3.12}}")
    assert [each.text for each in resolution.requirements if each.text.startswith("nvidia-")] == added


def test_builds_that_are_not_the_indexes_own_come_from_the_torch_index_only() -> None:
    resolution = one("axes: {torch: 2.6.0, variant: cu118, python: 3.11, packages: {torchvision: auto}}")
    by_name = {requirement.text.split("=")[0]: requirement for requirement in resolution.requirements}
    assert (by_name["torch"].text, by_name["torch"].index) == ("torch==2.6.0+cu118", "torch")
    assert (by_name["torchvision"].text, by_name["torchvision"].index) == ("torchvision==0.21.0", "torch")
    assert by_name["transformers"].index == "default"
    own = one("axes: {torch: 2.6.0, variant: cu124, python: 3.11}")
    assert own.requirements[0].text == "torch==2.6.0"
    assert own.requirements[0].index == "default"


def test_numpy_is_bounded_where_the_torch_build_needs_numpy_1() -> None:
    assert "numpy<2" in texts(one("axes: {torch: 2.1.2, python: 3.11}"))
    assert "numpy<2" not in texts(one("axes: {torch: 2.6.0, python: 3.11}"))


def test_numpy_2_beside_an_old_torch_is_a_conflict() -> None:
    assert "error[numpy-abi]" in conflict("axes: {torch: 2.1.2, python: 3.11, packages: {numpy: 2.0.1}}")
    assert one("axes: {torch: 2.1.2, python: 3.11, packages: {numpy: 1.26.4}}")


def test_the_exporter_gets_what_it_needs_only_where_something_reads_its_files() -> None:
    new = texts(one("axes: {torch: 2.13.0, python: 3.11, onnxruntime: auto}"))
    assert any(text.startswith("onnxscript>=") for text in new)
    assert "onnx" in new
    assert not [text for text in texts(one("axes: {torch: 2.13.0, python: 3.11}")) if text.startswith("onnx")]
    assert not [
        text for text in texts(one("axes: {torch: 2.6.0, python: 3.11, onnxruntime: auto}")) if "script" in text
    ]


def test_an_old_stack_is_limited_to_its_time_and_a_new_one_is_not() -> None:
    old = one("axes: {torch: 1.12.1, python: 3.9, transformers: 4.25.1}")
    assert old.exclude_newer == "2023-01-15"
    assert one("axes: {torch: 2.15.0}").exclude_newer is None
    assert one("axes: {torch: 1.12.1, python: 3.9}\nexclude_newer: none").exclude_newer is None
    assert one("axes: {torch: 1.12.1, python: 3.9}\nexclude_newer: 2022-10-01").exclude_newer == "2022-10-01"


def test_both_onnxruntimes_in_one_image_are_a_conflict() -> None:
    assert "error[onnxruntime-both]" in conflict(
        "axes: {torch: 2.6.0, python: 3.11, onnxruntime: auto, onnxruntime-gpu: auto}"
    )


def test_a_cpu_build_serves_no_card() -> None:
    assert "error[cpu-build-for-gpu]" in conflict("axes: {torch: 2.6.0, variant: cpu, python: 3.11}\ngpus: [T4]")


def test_auto_never_takes_the_cpu_build() -> None:
    assert one("axes: {torch: 2.6.0}").variant == "cu124"


def test_a_driver_below_the_floor_is_a_conflict_and_minor_version_compatibility_holds() -> None:
    text = "axes: {{torch: 2.6.0, variant: cu124, python: 3.11}}\ndriver: '{}'"
    assert "error[driver-too-old]" in conflict(text.format("520.61.05"))
    assert one(text.format("525.60.13")).driver_floor == "525.60.13"


def test_same_major_code_runs_on_a_later_minor() -> None:
    assert one("axes: {torch: 1.12.1, variant: cu113, python: 3.8}\ngpus: [RTX 4090]")


def test_a_transformers_that_switches_torch_off_is_a_conflict() -> None:
    assert "error[transformers-torch-floor]" in conflict("axes: {torch: 2.2.2, python: 3.11, transformers: 5.2.0}")
    assert "error[transformers-no-python]" in conflict("axes: {torch: 2.6.0, python: 3.9, transformers: 5.2.0}")
    assert "error[transformers-yanked]" in conflict("axes: {torch: 2.6.0, python: 3.11, transformers: 4.57.0}")


def test_a_family_member_of_another_torch_is_a_conflict() -> None:
    text = conflict("axes: {torch: 2.6.0, python: 3.11, packages: {torchvision: 0.20.0}}")
    assert "error[torch-family-pair]" in text
    assert "with `packages.torchvision: 0.21.0`" in text


def test_a_base_with_another_python_or_an_old_glibc_is_a_conflict() -> None:
    assert "error[base-python]" in conflict("axes: {torch: 2.6.0, python: 3.12, base: 'debian:12'}")
    old = "axes: {torch: 2.7.1, python: 3.9, base: docker.io/library/python:3.9-centos}"
    assert one(old).base.glibc is None
    bionic = "axes: {torch: 2.7.1, python: 3.9, base: 'nvidia/cuda:11.8.0-base-ubuntu18.04'}"
    assert "error[glibc-too-old]" in conflict(bionic)


def test_a_local_base_needs_its_python_said() -> None:
    assert "error[base-python-unknown]" in conflict("axes: {torch: 2.6.0, base: 'local:mine'}")
    resolution = one("axes: {torch: 2.6.0, base: 'local:mine', python: 3.11}")
    assert (resolution.base.kind, resolution.glibc) == ("local", "2.17")


def test_devel_takes_the_toolkits_own_image() -> None:
    resolution = one("axes: {torch: 2.6.0, variant: cu124, python: 3.10}\nflavor: devel")
    assert re.fullmatch(r"docker.io/nvidia/cuda:12\.4\.\d+-(cudnn-)?devel-ubuntu22\.04", resolution.base.reference)


def test_unknown_gpus_are_told_with_the_nearest_names() -> None:
    with pytest.raises(SpecError) as caught:
        resolved("axes: {torch: 2.6.0}\ngpus: [RTX 3095, A100]")
    assert caught.value.exit_status == 2
    assert "m.yaml:2: gpus: no GPU `RTX 3095` in the facts; did you mean `RTX 3090`" in str(caught.value)


def test_in_place_the_python_and_glibc_are_the_machines() -> None:
    host = Host(pythons=("3.12",), glibc="2.31")
    resolution = one("axes: {torch: 2.6.0, python: auto, base: 'debian:12'}", host)
    assert (resolution.python, resolution.glibc) == ("3.12", "2.31")
    assert one("axes: {torch: 2.6.0, python: 3.11}", host).python == "3.11"


def test_images_that_share_an_id_are_told_apart_by_what_differs() -> None:
    ids = [r.image_id for r in resolved("axes: {torch: 2.6.0, python: 3.11, transformers: [4.48.1, 4.49.0]}")]
    assert ids == ["torch2.6.0-cu124-py311-transformers4.48.1", "torch2.6.0-cu124-py311-transformers4.49.0"]
    same = resolved("axes: {torch: [2.6.0, 2.6], python: 3.11}")
    assert [r.image_id for r in same] == ["torch2.6.0-cu124-py311"]


@pytest.mark.parametrize(
    "text",
    [
        "axes: {torch: 2.6.0, variant: cu128, python: 3.11}",
        "axes: {torch: 2.1.2, python: 3.13}",
        "axes: {torch: 2.6.0, python: 3.11, transformers: 9.9.9}",
        "axes: {torch: 2.2.2, python: 3.11, transformers: 5.2.0}",
        "axes: {torch: 2.6.0, python: 3.12, base: 'debian:12'}",
        "axes: {torch: 2.6.0, python: 3.11, packages: {torchaudio: 2.5.1}}",
        "axes: {torch: 1.12.1, variant: cu113, python: 3.9}\ngpus: [H100]",
        "axes: {torch: 2.6.0, variant: cu124, python: 3.11}\ndriver: '470.57'",
        "axes: {torch: 2.13.0, variant: cu126, python: 3.11, onnxruntime-gpu: 1.30.0}",
    ],
)
def test_every_hint_resolves(text: str) -> None:
    cell = matrix(text).cells[0]
    result = resolve(cell, CATALOG)
    assert isinstance(result, CellConflicts)
    assert result.hint is not None
    changed = yaml.load(text, Loader=yaml.BaseLoader)
    for key, value in re.findall(r"`([\w.\-]+): ([^`]+)`", result.hint):
        target, *rest = key.split(".")
        if target == "packages":
            changed["axes"]["packages"][rest[0]] = value
        elif target in ("driver", "provider"):
            changed[target] = value
        else:
            changed["axes"][target] = value
    assert resolved(yaml.safe_dump(changed))
