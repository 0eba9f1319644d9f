"""Environment: merging, what is in force at the end, markers, the JSON block."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.environment import Environment
from builder.inputs import Options, load, parse, parse_options
from builder.inputs.reading import Reader


def requirements(text: str, **files: str) -> Environment:
    return parse("requirements", text, "requirements.txt", reader=Reader(files=files, is_offline=True))


def dockerfile(text: str) -> Environment:
    return parse("dockerfile", text, "Dockerfile", reader=Reader(is_offline=True))


def in_force(env: Environment, name: str) -> str:
    state = env.in_force()[name]
    return str(state.version) if state.version is not None else str(state.specifier)


def test_an_empty_environment_has_every_key_of_the_contract() -> None:
    assert Environment().to_json() == {
        "python": None,
        "arch": None,
        "glibc": None,
        "driver": None,
        "gpus": [],
        "packages": {},
        "unparsed": [],
    }


def test_a_later_pin_replaces_an_earlier_one() -> None:
    env = dockerfile("FROM python:3.10\nRUN pip install torch==2.1.0\nRUN pip install torch==2.2.0\n")
    state = env.in_force()["torch"]
    assert (str(state.version), str(state.request.origin)) == ("2.2.0", "Dockerfile:3")
    assert [str(request.version) for request in state.replaced] == ["2.1.0"]


@pytest.mark.parametrize(
    ("second", "left"),
    [
        ("torch", "2.1.0+cu118"),
        ("'torch>=2.0'", "2.1.0+cu118"),
        ("torch==2.1.0", "2.1.0+cu118"),
        ("'torch>=2.2'", ">=2.2"),
        ("-U torch", ""),
        ("torch==2.1.0+cu121", "2.1.0+cu121"),
        ("-U 'torch<2.3'", "<2.3"),
    ],
)
def test_a_later_install_keeps_what_satisfies_it(second: str, left: str) -> None:
    env = dockerfile(f"FROM python:3.10\nRUN pip install torch==2.1.0+cu118\nRUN pip install {second}\n")
    assert in_force(env, "torch") == left


def test_the_torch_of_the_base_image_is_the_first_step() -> None:
    env = dockerfile("FROM pytorch/pytorch:2.1.2-cuda12.1-cudnn8-runtime\nRUN pip install transformers torch\n")
    state = env.in_force()["torch"]
    assert (str(state.version), str(state.variant)) == ("2.1.2", "cu121")
    assert env.steps[state.request.step].installer == "base-image"


def test_uninstalled_packages_are_gone() -> None:
    env = dockerfile("FROM python:3.10\nRUN pip install torch==2.1.0 flax\nRUN pip uninstall -y flax\n")
    assert set(env.in_force()) == {"torch"}


def test_two_lines_of_one_file_hold_together() -> None:
    env = requirements("torch>=2.0\ntorch<2.2\n")
    assert env.in_force()["torch"].specifier == SpecifierSet(">=2.0,<2.2")


def test_a_constraint_decides_the_version_but_installs_nothing() -> None:
    env = requirements("-c limits.txt\ntorch\n", **{"limits.txt": "torch==2.8.0\nflax==0.7\n"})
    assert in_force(env, "torch") == "2.8.0"
    assert "flax" not in env.in_force()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (Options(python="3.7"), {"old"}),
        (Options(python="3.12"), {"new"}),
        (Options(), {"old", "new"}),
        (Options(os="Windows 11", python="3.12"), {"new", "win"}),
        (Options(arch="aarch64", python="3.12"), {"new", "arm"}),
    ],
)
def test_markers_are_judged_for_the_machine_asked_about(options: Options, names: set[str]) -> None:
    text = (
        "old ; python_version < '3.8'\nnew ; python_version >= '3.8'\nwin ; sys_platform == 'win32'\n"
        "arm ; platform_machine == 'aarch64'\nextra ; extra == 'gpu'\n"
    )
    env = requirements(text).merge(parse_options(options))
    assert set(env.in_force()) == names


def test_a_marker_that_cannot_be_read_counts_as_holding() -> None:
    assert set(requirements("torch ; python_verion < 'x'\n").in_force()) == {"torch"}


def test_options_win_over_files_and_keep_what_the_file_said() -> None:
    env = parse("conda", "dependencies: [python=3.9, numpy]\n", "environment.yml")
    merged = env.merge(parse_options(Options(python="3.11", gpus=("T4",), driver="535.54.03")))
    assert [str(ask.version) for ask in merged.pythons] == ["3.11", "3.9"]
    assert merged.to_json()["python"] == "3.11"
    assert merged.to_json()["driver"] == "535.54.03"
    assert merged.to_json()["gpus"] == ["T4"]


def test_steps_are_renumbered_when_environments_are_merged() -> None:
    merged = requirements("torch==2.1.0\n").merge(requirements("torch==2.2.0\nnumpy\n"))
    assert [step.number for step in merged.steps] == [0, 1]
    assert [merged.step_of(request).number for request in merged.requests] == [0, 1, 1]
    assert in_force(merged, "torch") == "2.2.0"


def test_json_names_version_variant_and_origin() -> None:
    env = requirements("# head\ntorch==2.1.0+cu118\nnumpy<2\n")
    assert env.to_json()["packages"] == {
        "torch": {"version": "2.1.0", "variant": "cu118", "origin": "requirements.txt:2"},
        "numpy": {"specifier": "<2", "variant": None, "origin": "requirements.txt:3"},
    }


def test_pins_without_an_index_leave_it_unspecified(tmp_path: Path) -> None:
    (loaded,) = load([], Options(pins=("torch==2.1.0",)))
    assert loaded.environment.steps[0].indexes.primary.kind == "unspecified"
    file = tmp_path / "requirements.txt"
    file.write_text("torch==2.1.0\n")
    (loaded,) = load([file])
    assert loaded.environment.steps[0].indexes.primary.kind == "default"


def test_variable_is_what_the_image_has_at_the_end() -> None:
    env = dockerfile("FROM python:3.10\nARG A=build\nENV A=1\nENV A=2 B=$A\n")
    assert (env.variable("A").value, env.variable("B").value) == ("2", "1")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("torch==2.1.0+cu118", "cu118"),
        ("--index-url https://download.pytorch.org/whl/cu121\ntorch", "cu121"),
        ("--extra-index-url https://download.pytorch.org/whl/cu121\ntorch", "None"),
        ("torch", "None"),
    ],
)
def test_stated_variant_of_pip_installs(text: str, variant: str) -> None:
    assert str(requirements(text + "\n").stated_variant("torch")) == variant


@pytest.mark.parametrize(
    ("spec", "variant"),
    [
        ("pytorch-cuda=11.8", "cu118"),
        ("conda-forge::cudatoolkit==11.3.*", "cu113"),
        ("cudatoolkit=10.2.89", "cu102"),
        ("cpuonly", "cpu"),
        ("cuda-version=12.6", "cu126"),
        ("cuda-version>=12", "None"),
    ],
)
def test_stated_variant_of_conda_companions(spec: str, variant: str) -> None:
    env = parse("conda", f"dependencies:\n  - pytorch=2.0.1\n  - {spec}\n", "environment.yml")
    assert str(env.stated_variant("torch")) == variant
    assert env.to_json()["packages"]["torch"]["version"] == "2.0.1"


def test_version_of_in_force_is_a_version() -> None:
    assert requirements("torch==2.1\n").in_force()["torch"].version == Version("2.1.0")
