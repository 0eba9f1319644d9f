"""Conda environment files, specs, and the lists that conda writes."""

from __future__ import annotations

import pytest

from builder.environment import Environment, Origin, Request
from builder.inputs import matchspec, parse
from builder.inputs.kinds import detect
from builder.inputs.reading import Reader

HERE = Origin("environment.yml", 1)


def env(text: str, files: dict[str, str] | None = None) -> Environment:
    return parse("conda", text, "environment.yml", reader=Reader(files=files or {}, is_offline=True))


def spec(text: str) -> Request:
    found = matchspec.parse(text, HERE)
    assert isinstance(found, Request), found
    return found


@pytest.mark.parametrize(
    ("text", "name", "asks", "build"),
    [
        ("pytorch", "torch", "", None),
        ("pytorch=2.0.1", "torch", "==2.0.1", None),
        ("pytorch==2.0.1", "torch", "==2.0.1", None),
        ("pytorch=2.5", "torch", "==2.5.*", None),
        ("pytorch=2", "torch", "==2.*", None),
        ("pytorch=1.12.*", "torch", "==1.12.*", None),
        ("pytorch==1.12.*", "torch", "==1.12.*", None),
        ("pytorch 1.12.*", "torch", "==1.12.*", None),
        ("pytorch 1.12.1", "torch", "==1.12.1", None),
        ("pytorch >= 1.13", "torch", ">=1.13", None),
        ("pytorch>=2.2.0,<2.3", "torch", "<2.3,>=2.2.0", None),
        ("pytorch >=1.8, <1.9", "torch", "<1.9,>=1.8", None),
        ("pytorch=1.9.0=py3.8_cuda11.1_cudnn8.0.5_0", "torch", "==1.9.0", "py3.8_cuda11.1_cudnn8.0.5_0"),
        ("pytorch=2.1=*cuda*", "torch", "==2.1.*", "*cuda*"),
        ("pytorch=*=*cuda*", "torch", "", "*cuda*"),
        ("pytorch * cuda*", "torch", "", "cuda*"),
        ("pytorch 2.0.1 py3.10_cuda11.8_cudnn8.7.0_0", "torch", "==2.0.1", "py3.10_cuda11.8_cudnn8.7.0_0"),
        ("pytorch[version='>=2.0,<2.2',build=*cuda*]", "torch", "<2.2,>=2.0", "*cuda*"),
        ('pytorch[version="2.0.1"]', "torch", "==2.0.1", None),
        ("pytorch~=2.1", "torch", "~=2.1", None),
        ("pytorch!=2.0", "torch", "!=2.0", None),
        ("python=3.9|3.10", "python", "==3.10.*", None),
        ("openssl=1.1.1k=h27cfd23_0", "openssl", "", "h27cfd23_0"),
        ("tzdata=2021a", "tzdata", "==2021a0", None),
        ("pytorch-gpu=2.7.1", "torch", "==2.7.1", None),
        ("pytorch-lightning", "pytorch-lightning", "", None),
        ("sel(linux): pytorch=2.0.1", "torch", "==2.0.1", None),
        ("pytorch=2.0.1 # [linux]", "torch", "==2.0.1", None),
    ],
)
def test_specs(text: str, name: str, asks: str, build: str | None) -> None:
    found = spec(text)
    assert (found.name, found.asks, found.build) == (name, asks, build)


@pytest.mark.parametrize(
    ("text", "channel"),
    [
        ("pytorch::pytorch=2.0.1", "pytorch"),
        ("conda-forge/linux-64::cudatoolkit==11.3.*", "conda-forge/linux-64"),
        ("nvidia/label/cuda-11.8.0::cuda", "nvidia/label/cuda-11.8.0"),
        ("https://conda.example/pytorch::torchvision", "https://conda.example/pytorch"),
        ("pytorch[channel=conda-forge]", "conda-forge"),
        ("pytorch", None),
    ],
)
def test_channels_of_specs(text: str, channel: str | None) -> None:
    assert spec(text).channel == channel


@pytest.mark.parametrize(
    ("build", "variant", "asks_for_cuda"),
    [
        ("py3.8_cuda11.1_cudnn8.0.5_0", "cu111", True),
        ("py3.9_cuda10.2_cudnn7.6.5_0", "cu102", True),
        ("cuda120py310h0b0f5d2_301", "cu120", True),
        ("cuda112py39ha0cca9b_200", "cu112", True),
        ("cuda126_mkl_py312_h30b5a27_300", "cu126", True),
        ("py38_cu111", "cu111", False),
        ("cpu_py310h8e9c5a2_0", "cpu", False),
        ("py3.8_cpu_0", "cpu", False),
        ("cpu_mkl_py312_h06c5d5b_100", "cpu", False),
        ("*cuda*", "None", True),
        ("gpu_py38", "None", True),
        ("h6bb024c_0", "None", False),
        (None, "None", False),
    ],
)
def test_what_a_build_string_says(build: str | None, variant: str, asks_for_cuda: bool) -> None:
    assert str(matchspec.build_variant(build)) == variant
    if build is not None:
        assert spec(f"pytorch=2.0.1={build}").asks_for_cuda == asks_for_cuda


@pytest.mark.parametrize(
    "text", ["", "=2.0", "pytorch=2.0=b=c=d", "pytorch>=", "{{ name }}", "pytorch @ file:///x", "a b c d", "x" * 2000]
)
def test_what_is_no_spec_is_left_out(text: str) -> None:
    assert not isinstance(matchspec.parse(text, HERE), Request)


def test_channels_pip_section_and_order_of_installs() -> None:
    found = env(
        "name: a\nchannels:\n  - pytorch\n  - nodefaults\nchannel_priority: strict\ndependencies:\n  - python=3.10.4\n"
        "  - pytorch=1.11.0\n  - pip\n  - pip:\n      - torch==2.0.0  # again\n      - --extra-index-url https://download.pytorch.org/whl/cu117\n"
        "      - -e .\n      - -r req.txt\nvariables:\n  CUDA_HOME: /usr/local/cuda\nprefix: /opt/conda/envs/a\n"
        "platforms: [linux-64]\n",
        {"req.txt": "transformers==4.30.0\n"},
    )
    conda, pip = found.steps
    assert (conda.channels, conda.channel_priority) == (("pytorch", "nodefaults"), "strict")
    assert [index.kind for index in pip.indexes.all] == ["default", "torch"]
    assert [str(found.in_force()[name].request.origin) for name in ("torch", "transformers", "pip")] == [
        "environment.yml:11",
        "req.txt:1",
        "environment.yml:9",
    ]
    assert str(found.python.version) == "3.10.4"  # type: ignore[union-attr]
    assert found.platforms == ("linux-64",)
    assert found.variable("CUDA_HOME").value == "/usr/local/cuda"  # type: ignore[union-attr]
    assert found.unparsed == ()


def test_a_file_without_channels_uses_the_defaults() -> None:
    assert env("dependencies: [python=3.12]\n").steps[0].channels == ("defaults",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dependencies:\n  - numpy: 1.26\n  - pytorch=2.0.1\n", "no colon"),
        ("dependencies:\n  - [a, b]\n  - pytorch=2.0.1\n", "neither a spec nor a pip list"),
        ("dependencies:\n  - pytorch=2.0.1\npip:\n  - transformers\n", "belongs inside"),
        ("dependencies:\n  - pytorch=2.0.1\n  - pip:\n    - {a: b}\n", "not a requirement"),
        ("channels: [a]\n# pytorch=2.0.1\n", "no `dependencies:`"),
        ("dependencies:\n  - pytorch=2.0.1\n - x\n", "not YAML from here on"),
        ("pytorch=2.0.1\n", "no keys such as"),
        ("- pytorch=2.0.1\n", "no keys such as"),
        ("", "no keys such as"),
    ],
)
def test_slips_are_named_and_the_rest_is_read(text: str, why: str) -> None:
    found = env(text)
    assert any(why in left_out.why for left_out in found.unparsed), found.unparsed
    if "pytorch=2.0.1" in text and "#" not in text:
        assert str(found.in_force()["torch"].version) == "2.0.1"


def test_templates_and_selectors_do_not_break_the_file() -> None:
    found = env("{% set v = 1 %}\ndependencies:\n  - pytorch=2.0.1  # [linux]\n  - '{{ extra }}'\n")
    assert str(found.in_force()["torch"].version) == "2.0.1"
    assert [left_out.why for left_out in found.unparsed] == ["it is a template"]


def test_text_that_is_no_mapping_still_gives_its_specs() -> None:
    found = env("pytorch=2.5.1 with pytorch-cuda")
    assert set(found.in_force()) == {"torch", "pytorch-cuda"}


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "dependencies: &a [*a]\n",
        "[" * 5000,
        "{a: " * 5000,
        "- " * 5000 + "x",
        "? " * 5000 + "x",
        "a: !!python/object/apply:os.system [x]\n",
        "dependencies: [!!binary x, 2024-01-01, 3.10]\n",
        "\t\t: :\n",
        "dependencies:\n" + "  - a\n" * 20_000,
    ],
)
def test_hostile_yaml_is_bounded(text: str) -> None:
    assert isinstance(env(text).to_json(), dict)


def test_numbers_in_yaml_keep_their_zeros() -> None:
    found = env("dependencies: [pytorch=1.10, 'python=3.10']\n")
    assert found.to_json()["python"] == "3.10"
    assert found.to_json()["packages"]["torch"]["specifier"] == "==1.10.*"


EXPLICIT = """\
# This file may be used to create an environment using:
# $ conda create --name <env> --file <this file>
# platform: linux-64
@EXPLICIT
https://conda.example/pkgs/main/linux-64/python-3.8.10-h12debd9_8.tar.bz2#0123456789abcdef0123456789abcdef
https://conda.example/pytorch/linux-64/pytorch-1.9.0-py3.8_cuda11.1_cudnn8.0.5_0.tar.bz2
https://conda.example/conda-forge/noarch/pytorch-lightning-1.5.10-pyhd8ed1ab_0.conda#sha256:00
not an address
"""


def test_explicit_lists() -> None:
    assert detect("list.txt", EXPLICIT) == "conda-explicit"
    found = parse("conda-explicit", EXPLICIT, "list.txt")
    torch = found.in_force()["torch"].request
    assert (str(torch.version), str(torch.variant), torch.channel) == ("1.9.0", "cu111", "pytorch")
    assert torch.files == ("pytorch-1.9.0-py3.8_cuda11.1_cudnn8.0.5_0.tar.bz2",)
    assert found.in_force()["pytorch-lightning"].request.hashes == ("sha256:00",)
    assert (found.is_lock, found.platforms, str(found.python.version)) == (True, ("linux-64",), "3.8.10")  # type: ignore[union-attr]
    assert [left_out.text for left_out in found.unparsed] == ["not an address"]


def test_exported_lists_are_no_requirements_files() -> None:
    text = EXPLICIT[: EXPLICIT.index("@EXPLICIT")] + (
        "pytorch=1.9.0=py3.8_cuda11.1_cudnn8.0.5_0\npython=3.8.10=h12debd9_8\nfoo=1.0=pypi_0\nnumpy>=1.20\n"
    )
    assert detect("requirements.txt", text) == "conda-explicit"
    found = parse("conda-explicit", text, "requirements.txt")
    assert set(found.in_force()) == {"torch", "numpy"}
    assert not found.is_lock


CONDA_LOCK = """\
version: 1
metadata:
  platforms: [linux-64, osx-arm64]
package:
  - name: pytorch
    version: 2.0.1
    manager: conda
    platform: linux-64
    url: https://conda.example/pytorch/linux-64/pytorch-2.0.1-py3.10_cuda11.8_cudnn8.7.0_0.tar.bz2
    hash: {md5: aa, sha256: bb}
  - name: pytorch
    version: 2.0.0
    manager: conda
    platform: osx-arm64
    url: https://conda.example/pytorch/osx-arm64/pytorch-2.0.0-py3.10_0.tar.bz2
  - {name: python, version: 3.10.12, manager: conda, platform: linux-64}
  - {name: Transformers, version: 4.30.0, manager: pip, platform: linux-64, url: "https://x.example/transformers-4.30.0-py3-none-any.whl"}
  - {name: broken, manager: pip}
"""


def test_conda_lock_takes_the_packages_of_one_platform() -> None:
    assert detect("conda-lock.yml", CONDA_LOCK) == "conda-lock"
    found = parse("conda-lock", CONDA_LOCK, "conda-lock.yml")
    torch = found.in_force()["torch"].request
    assert (str(torch.version), str(torch.variant), torch.hashes) == ("2.0.1", "cu118", ("md5:aa", "sha256:bb"))
    assert found.in_force()["transformers"].request.installer == "pip"
    assert len(found.unparsed) == 1
