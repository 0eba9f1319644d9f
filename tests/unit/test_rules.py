"""Each rule has an input where it speaks (docs/errors.md, test_check_docs.py) and one where it must be silent."""

from __future__ import annotations

from typing import Any

import pytest
from checking import codes, judged

BASE = "FROM nvidia/cuda:12.1.1-devel-ubuntu22.04\n"

# code -> (pins, what else is said) of a good neighbour of the example in the docs.
SILENT: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("gpu-not-covered", ("torch==1.12.1+cu113",), {"gpus": "RTX 4090"}),
    ("gpu-not-covered", ("torch==2.9.0",), {"gpus": "B300"}),
    ("gpu-not-covered", ("torch==2.5.1",), {"gpus": "P40"}),
    ("gpu-unknown", ("torch==2.6.0",), {"gpus": "NVIDIA GeForce RTX 3080 Ti Laptop GPU"}),
    ("gpu-code-unknown", ("torch==2.11.0+cu129",), {"gpus": "RTX 4090"}),
    ("cpu-build-for-gpu", ("torch==2.6.0+cpu",), {}),
    ("cpu-build-for-gpu", ("torch==2.12.0",), {"gpus": "GH200", "arch": "aarch64"}),
    ("driver-too-old", ("torch==2.6.0",), {"driver": "525.60.13"}),
    ("driver-too-old", ("torch==2.6.0",), {"driver": "590.44"}),
    ("driver-too-old", ("torch==2.1.2+cu118",), {"driver": "470.57.02"}),
    ("driver-without-gpu", (), {"gpus": "RTX 4090", "driver": "525.60.13"}),
    ("compat-libs", (), {"dockerfile": BASE + "RUN pip install torch==2.1.2\n", "gpus": "A100", "driver": "525.60.13"}),
    ("compat-libs", (), {"dockerfile": BASE + "RUN pip install torch==2.1.2\n", "gpus": "4090", "driver": "550.54"}),
    ("compat-libs-forced", (), {"dockerfile": BASE + "RUN ldconfig\n", "gpus": "A100", "driver": "580.65"}),
    ("driver-too-old", ("torch==2.13.0+cu130",), {"gpus": "Jetson Thor", "driver": "580.00", "arch": "aarch64"}),
    ("driver-too-old", ("torch==2.1.0+cu121",), {"os": "Windows 11", "driver": "531.14"}),
    ("driver-without-gpu", (), {"gpus": "GTX 1080 Ti", "os": "Windows 11", "driver": "581.80"}),
    ("no-wheel-for-system", ("triton==2.2.0",), {"os": "Ubuntu 22.04"}),
    ("no-wheel-for-system", ("triton==2.2.0; platform_system == 'Linux'",), {"os": "Windows 11"}),
    ("no-wheel-for-system", (), {"dockerfile": "FROM python:3.11-slim\nRUN pip install torch==2.6.0\n"}),
    ("extension-gpu", ("torch==2.4.1", "flash-attn==2.6.3"), {"gpus": "RTX 3090"}),
    ("extension-gpu", ("torch==1.13.1", "flash-attn==1.0.9"), {"gpus": "T4"}),
    ("library-of-torch", ("torch==2.5.1", "ctranslate2==4.5.0"), {}),
    ("library-of-torch", ("torch==2.3.1", "ctranslate2==4.4.0"), {}),
    ("library-of-torch", ("torch==2.5.1", "ctranslate2==4.4.0", "nvidia-cudnn-cu12==8.9.7.29"), {}),
    ("cuda-library-pin", ("torch==2.3.1", "tensorflow==2.15.0"), {}),
    ("precision-unsupported", ("torch==2.6.0",), {"gpus": "RTX 3060", "precisions": "bf16"}),
    ("precision-unsupported", ("torch==2.6.0",), {"gpus": "L40S", "precisions": "fp8"}),
    ("precision-slow", ("torch==2.6.0",), {"gpus": "P100", "precisions": "fp16"}),
    ("base-image-missing", (), {"dockerfile": "FROM nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04\n"}),
    ("base-image-missing", (), {"dockerfile": "ARG TAG\nFROM nvidia/cuda:${TAG}\n"}),
    ("base-image-missing", (), {"dockerfile": "FROM pytorch/pytorch:2.4.1-cuda12.1-cudnn9-runtime\n"}),
    ("base-image-gone", (), {"dockerfile": "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04\n"}),
    ("system-library-missing", (), {"dockerfile": "FROM python:3.11\nRUN pip install opencv-python==4.10.0.84\n"}),
    (
        "system-library-missing",
        (),
        {"dockerfile": "FROM python:3.11-slim\nRUN pip install opencv-python-headless==4.10.0.84\n"},
    ),
    ("system-python-managed", (), {"dockerfile": BASE + "RUN pip install torch==2.1.2\n"}),
    ("label-without-index", ("torch==2.1.0+cu118",), {}),
    ("label-without-index", ("torch==2.1.0+cu118",), {"indexes": ("default", "cu118")}),
    ("torch-no-variant", ("torch==2.5.1",), {"indexes": "cu121"}),
    ("torch-none-fits", ("torch>=2.5",), {"indexes": "cu126"}),
    ("index-not-used", ("torch",), {"indexes": "cu126"}),
    (
        "conda-channel-ended",
        (),
        {"conda": "channels: [pytorch, nvidia]\ndependencies: [pytorch=2.5.1, pytorch-cuda=12.4]\n"},
    ),
    (
        "conda-no-variant",
        (),
        {"conda": "channels: [pytorch, nvidia]\ndependencies: [pytorch=2.0.1, pytorch-cuda=11.8]\n"},
    ),
    ("conda-mkl", (), {"conda": "channels: [pytorch, nvidia]\ndependencies: [pytorch=2.0.1, mkl=2024.0]\n"}),
    ("conda-mkl", (), {"conda": "channels: [pytorch, nvidia]\ndependencies: [pytorch=2.5.1]\n"}),
    (
        "conda-cpu-solve",
        (),
        {
            "dockerfile": "FROM mambaorg/micromamba:1\nENV CONDA_OVERRIDE_CUDA=12.4\n"
            "RUN micromamba install -y -c conda-forge python=3.11 pytorch\n",
            "gpus": "A100",
        },
    ),
    ("no-wheel-for-python", ("torch==2.2.0",), {"python": "3.12"}),
    ("source-build", ("transformers==4.27.4",), {"python": "3.11"}),
    ("glibc-too-old", ("torch==2.6.0",), {"glibc": "2.17"}),
    ("torch-family-pair", ("torch==1.10.0", "torchvision==0.11.0"), {}),
    ("torch-family-pair", ("torch==2.13.0", "torchaudio==2.11.0"), {}),
    ("torch-family-variant", ("torch==2.6.0+cu124", "torchvision==0.21.0"), {}),
    ("native-library-missing", ("torch==2.8.0+cu129", "bitsandbytes==0.47.0"), {}),
    ("extension-abi", ("torch==2.5.1", "flash-attn==2.7.3+cu12torch2.5cxx11abiFALSE"), {}),
    ("extension-torch-pin", ("torch==2.3.0", "xformers==0.0.26.post1"), {}),
    ("nvcc-missing", (), {"dockerfile": BASE + "RUN pip install torch==2.1.2 deepspeed==0.12.6\n"}),
    (
        "nvcc-missing",
        (),
        {
            "dockerfile": BASE.replace("\n", " AS build\n")
            + "RUN python3 -m venv /venv && /venv/bin/pip install torch==2.1.2 deepspeed==0.12.6\n"
            "FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04\nCOPY --from=build /venv /venv\n"
        },
    ),
    (
        "toolkit-differs",
        (),
        {
            "dockerfile": "FROM nvidia/cuda:12.3.2-devel-ubuntu22.04\nRUN pip install torch==2.1.2\n"
            "RUN pip install --no-build-isolation git+https://github.com/facebookresearch/detectron2.git\n"
        },
    ),
    (
        "arch-list-missing",
        (),
        {
            "dockerfile": BASE + "ENV TORCH_CUDA_ARCH_LIST=8.6\nRUN pip install torch==2.1.2\n"
            "RUN pip install --no-build-isolation git+https://github.com/facebookresearch/detectron2.git\n"
        },
    ),
    ("pin-conflict", ("diffusers==0.27.2", "transformers==4.38.2", "huggingface-hub==0.21.4"), {}),
    (
        "torch-replaced",
        (),
        {"dockerfile": "FROM python:3.11\nRUN pip install torch==2.4.1\nRUN pip install accelerate==0.34.2\n"},
    ),
    ("cuda-library-pin", ("torch==2.2.0", "nvidia-nccl-cu12==2.19.3"), {}),
    ("cuda-majors-mixed", ("torch==2.1.2", "nvidia-cudnn-cu12==8.9.2.26"), {}),
    ("library-path-shadows", ("torch==2.4.1",), {"env": "LD_LIBRARY_PATH=/opt/cudnn/lib"}),
    ("numpy-abi", ("torch==2.3.1", "numpy==2.0.2"), {"python": "3.11"}),
    ("numpy-abi", ("torch==1.13.1", "numpy"), {"python": "3.8"}),
    ("protobuf-major", ("tensorboard==2.8.0", "protobuf==3.20.3"), {}),
    ("pkg-resources", ("torch==2.4.1", "setuptools==82.0.0"), {"python": "3.11"}),
    ("onnxruntime-both", ("onnxruntime==1.23.2",), {}),
    ("onnxruntime-cuda", ("torch==2.6.0", "onnxruntime-gpu==1.20.2"), {}),
    ("onnxruntime-cuda", ("torch==1.13.1", "onnxruntime==1.17.1"), {"gpus": "RTX 3090"}),
    ("onnxruntime-cudnn", ("torch==2.4.1", "onnxruntime-gpu==1.19.2"), {}),
    ("onnxruntime-library", ("torch==2.14.1", "onnxruntime-gpu==1.31.1"), {}),
    ("onnxruntime-library", ("torch==2.15.0", "onnxruntime-gpu==1.31.1", "nvidia-curand"), {}),
    ("onnxruntime-library", ("torch==2.15.0", "onnxruntime-gpu[cuda,cudnn]==1.31.1"), {}),
    ("onnxruntime-preload", ("torch==2.14.1", "onnxruntime-gpu[cuda,cudnn]==1.31.1"), {}),
    ("onnxruntime-preload", ("torch==2.15.0", "onnxruntime-gpu==1.31.1"), {}),
    ("onnx-ir-too-new", ("onnx==1.15.0", "onnxruntime==1.17.1"), {}),
    ("opset-too-low", ("torch==2.4.1", "transformers==4.45.1"), {"opset": 17}),
    ("onnxscript-missing", ("torch==2.8.0", "onnx==1.18.0"), {}),
    ("transformers-torch-floor", ("torch==2.0.1", "transformers==4.51.3"), {}),
    ("torch-load-gate", ("torch==2.6.0", "transformers==4.53.0"), {}),
    ("dependency-undeclared", ("transformers[torch]==4.41.2", "datasets", "evaluate"), {}),
    ("wsl-too-old", ("torch==2.6.0",), {"os": "Windows 11 build 22631 + WSL2"}),
    ("shared-memory", (), {"dockerfile": 'FROM python:3.11\nCMD ["python", "train.py", "--num_workers", "0"]\n'}),
]


@pytest.mark.parametrize(("code", "pins", "said"), SILENT, ids=[f"{row[0]}-{n}" for n, row in enumerate(SILENT)])
def test_is_silent_beside_the_fault(code: str, pins: tuple[str, ...], said: dict[str, Any]) -> None:
    assert code not in codes(*pins, **said)


def test_ptx_needs_the_driver_of_its_toolkit() -> None:
    """onnxruntime and conda builds aside, no torch build of the facts runs a card by PTX alone with an old driver."""
    assert "ptx-needs-newer-driver" not in codes("torch==2.6.0", gpus="RTX 4090", driver="525.60.13")


def test_a_branch_alone_is_neither_new_nor_old_enough() -> None:
    (found,) = judged("torch==2.6.0", driver="525").findings
    assert (found.code, found.severity) == ("driver-too-old", "warning")


def test_unknown_versions_are_unknown() -> None:
    assert judged("torch==9.9.9").verdict == "unknown"
    assert judged("torch==2.6.0", gpus="RTX 3999").verdict == "unknown"


@pytest.mark.parametrize(
    ("code", "pins", "said"),
    [
        ("base-image-missing", (), {"dockerfile": "FROM nvidia/cuda\nRUN true\n"}),
        ("not-on-index", ("pytorch==2.6.0",), {}),
        ("extension-gpu", ("torch==2.4.1", "flash-attn==2.6.3"), {"gpus": "T4"}),
        ("extension-gpu", ("vllm==0.6.3",), {"gpus": "P100"}),
        ("precision-unsupported", ("torch==2.6.0",), {"gpus": "A100", "precisions": "fp8"}),
        ("precision-unsupported", ("torch==2.6.0",), {"gpus": "T4", "precisions": "bf16-mixed"}),
        ("no-wheel-for-system", (), {"dockerfile": "FROM python:3.11-alpine\nRUN pip install torch==2.1.2\n"}),
        ("no-wheel-for-system", ("torch==2.6.0",), {"os": "Alpine 3.18"}),
        ("cpu-build-for-gpu", ("torch==2.6.0",), {"os": "macOS 14", "gpus": "RTX 3090"}),
        ("library-of-torch", ("torch==2.3.1", "ctranslate2==4.5.0"), {}),
        ("library-of-torch", ("torch==2.5.1+cu118", "ctranslate2==4.5.0"), {}),
        ("cuda-library-pin", (), {"requirements": "torch==2.1.2\ntensorflow[and-cuda]==2.15.0\n"}),
        ("torch-no-variant", ("torch==2.1.2+cu121",), {"arch": "aarch64"}),
        ("torch-no-variant", ("torch==2.1.2+cu121",), {"gpus": "GH200"}),
        ("cpu-build-for-gpu", ("torch==2.9.1",), {"gpus": "DGX Spark", "indexes": "default"}),
        ("glibc-too-old", (), {"dockerfile": "FROM centos:7\nRUN python3.11 -m pip install torch==2.7.1\n"}),
        ("gpu-not-covered", ("torch==2.9.1+cu128",), {"arch": "aarch64", "gpus": "Jetson Thor"}),
        ("gpu-not-covered", ("torch==2.9.1+cu126",), {"arch": "aarch64", "gpus": "Jetson AGX Orin"}),
        ("gpu-not-covered", ("torch==2.9.1+cu130",), {"arch": "aarch64", "gpus": "T4G"}),
        ("driver-too-old", ("torch==2.1.0+cu121",), {"os": "Windows 10", "driver": "456.71"}),
        ("driver-too-old", ("torch==2.1.0+cu121",), {"driver": "512.95 (Windows)"}),
        ("driver-without-gpu", (), {"gpus": "GTX 1080 Ti", "os": "Windows 11", "driver": "591.44"}),
        ("glibc-too-old", ("torch==2.9.1",), {"os": "Amazon Linux 2", "python": "3.11"}),
        ("glibc-too-old", ("torch==2.9.1",), {"os": "Red Hat Enterprise Linux 7.9", "python": "3.11"}),
    ],
)
def test_speaks(code: str, pins: tuple[str, ...], said: dict[str, Any]) -> None:
    found = [each for each in judged(*pins, **said).findings if each.code == code]
    assert [each.severity for each in found] == ["error"]


def test_a_later_step_that_swaps_a_library_is_a_risk_only() -> None:
    text = "FROM python:3.11\nRUN pip install torch==2.1.2\nRUN pip install 'tensorflow[and-cuda]==2.15.0'\n"
    found = [each for each in judged(dockerfile=text).findings if each.code == "cuda-library-pin"]
    assert [each.severity for each in found] == ["warning"]


def test_cublas_of_the_image_beside_that_of_the_wheel() -> None:
    text = "FROM nvidia/cuda:11.3.1-cudnn8-{}-ubuntu20.04\nRUN pip install torch=={}\n"
    (found,) = [each for each in judged(dockerfile=text.format("runtime", "1.13.1")).findings if "shadows" in each.code]
    assert (found.code, found.severity) == ("library-path-shadows", "warning")
    assert "library-path-shadows" not in codes(dockerfile=text.format("runtime", "2.0.1"))
    assert "library-path-shadows" not in codes(dockerfile=text.format("runtime", "1.13.1").replace("11.3.1", "11.7.1"))


def test_a_note_is_told_by_its_first_sentence() -> None:
    (found,) = judged(dockerfile="FROM nvidia/cuda:12.1-runtime-ubuntu22.04\n").findings
    assert "two-part version tags (11.1-devel-...) ended with 11.1; use x.y.z" in found.because
    assert any("README" in source for source in found.facts)


def test_a_build_that_was_never_published_is_no_hint() -> None:
    for found in judged("torch==2.15.0", gpus="V100", driver="570.86", hints=True).findings:
        assert "cu126" not in (found.hint or "")
    assert "torch-no-variant" in codes("torch==2.15.0+cu126")


@pytest.mark.parametrize("text", ["535", "R535", "nvidia-driver-535", "Driver Version: 535.129.03", "535.129.03"])
def test_drivers_as_people_write_them(text: str) -> None:
    env = judged("torch==2.6.0", driver=text).outcome.env
    assert env.driver is not None
    assert env.driver.version.branch == 535


@pytest.mark.parametrize(
    "said", [{"driver": "12.4"}, {"python": "three"}, {"glibc": "old"}, {"arch": "mips"}, {"pins": "torch 2.6.0"}]
)
def test_what_is_asked_and_not_understood_is_never_compatible(said: dict[str, Any]) -> None:
    pins = ("numpy==1.26.4", said.pop("pins", "torch==2.6.0"))
    document = judged(*pins, **said)
    assert document.verdict == "unknown"
    assert "option-not-read" in {found.code for found in document.findings}


@pytest.mark.parametrize("said", [{"gpus": "T4"}, {"driver": "440.33.01"}, {"os": "CentOS 7"}])
def test_torch_before_the_facts_is_unknown_where_the_host_matters(said: dict[str, Any]) -> None:
    document = judged("torch==1.5.1", python="3.6", **said)
    assert document.verdict == "unknown"
    assert judged("torch==1.5.1", python="3.6").verdict == "compatible"


@pytest.mark.parametrize(
    "name", ["CentOS 6.8", "RHEL 6", "Scientific Linux 7.9", "Ubuntu 14.04", "Debian 8", "Oracle Linux Server 7.9"]
)
def test_systems_older_than_every_wheel(name: str) -> None:
    assert "glibc-too-old" in codes("torch==2.8.0", python="3.10", os=name)


def test_a_system_without_facts_is_told_and_changes_no_verdict() -> None:
    document = judged("torch==2.8.0", os="Fedora 40")
    assert [(found.code, found.severity) for found in document.findings] == [("option-not-read", "info")]
    assert document.verdict == "compatible"
    for said in ({"os": "Fedora 40", "glibc": "2.39"}, {"os": "Ubuntu 22.04"}, {"os": "Windows 11"}, {"os": "Alpine"}):
        assert "option-not-read" not in codes("torch==2.8.0", python="3.11", **said)


def test_one_build_of_a_release_may_need_a_newer_system() -> None:
    said = {"python": "3.10", "os": "CentOS 7.9"}
    assert "glibc-too-old" not in codes("torch==2.6.0", **said)
    (found,) = judged("torch==2.6.0+cu126", hints=True, **said).findings
    assert (found.code, found.hint) == ("glibc-too-old", "take torch from the cu124 index")


def test_a_setup_with_architectures_of_its_own_needs_no_list() -> None:
    lines = BASE + "RUN pip install torch==2.1.2\nRUN pip install --no-build-isolation git+https://github.com/"
    assert "arch-list-missing" not in codes(dockerfile=lines + "NVIDIA/apex.git\n")
    assert "arch-list-missing" in codes(dockerfile=lines + "facebookresearch/detectron2.git\n")


def test_torch_of_a_repository_is_unknown() -> None:
    assert judged("torch @ git+https://github.com/pytorch/pytorch", gpus="A100").verdict == "unknown"


@pytest.mark.parametrize("pre", ["", "--pre\n"])
def test_a_nightly_index_holds_no_release(pre: str) -> None:
    text = f"{pre}--index-url https://wheels.example.org/whl/nightly/cu128\ntorch\n"
    document = judged(requirements=text, gpus="RTX 5090", driver="570.124.06")
    assert document.verdict == "unknown"
    assert document.outcome.version("torch") is None


def test_a_name_of_several_cards_is_judged_where_all_agree() -> None:
    assert judged("torch==2.12.0", gpus="RTX 6000").verdict == "compatible"
    assert judged("torch==2.6.0", gpus="RTX 6000").verdict == "unknown"
    assert "gpu-not-covered" in codes("torch==2.6.0+cu118", gpus="RTX PRO 6000 Blackwell")


@pytest.mark.parametrize(
    ("pins", "gpu", "hint"),
    [
        (
            ("torch==2.3.0+cu121", "torchvision==0.18.0+cu121"),
            "RTX 5090",
            "first torch with code for RTX 5090 is 2.7.0 cu128",
        ),
        (("torch==2.15.0", "torchvision==0.29.2"), "V100", "last torch with code for V100 is 2.14.1 cu126"),
    ],
)
def test_the_nearest_torch_with_code_is_named(pins: tuple[str, ...], gpu: str, hint: str) -> None:
    found = judged(*pins, gpus=gpu, indexes=("cu121",) if "+" in pins[0] else ("default",), hints=True).findings
    assert f"the {hint}" in {each.hint for each in found}


def test_a_conda_line_is_told_as_it_is_written() -> None:
    text = "channels: [conda-forge]\ndependencies: [pytorch-cpu=2.4.1]\n"
    (found,) = [each for each in judged(conda=text, gpus="A100").findings if each.code == "cpu-build-for-gpu"]
    assert "Conda:2 asks for pytorch-cpu=2.4.1" in found.because
