"""The stacks that `bin/smoke_sweep.py` runs the smoke scripts on: what a person installed then, and installs today."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """`python` is what uv takes; `backend` the CUDA variant of the PyTorch index, or None for the package index."""

    name: str
    python: str
    packages: tuple[str, ...]
    backend: str | None = None
    until: str | None = None  # packages uploaded later are not taken: what a person had then
    expected: tuple[str, ...] = field(default=())  # codes of faults that this stack is known to have
    note: str = ""  # what a reader of its failures has to know


COMMON = ("pip", "tensorboard", "datasets", "accelerate")

# In the order of their age; docs/smoke-tests.md takes its seconds from the last, which is what `make verify` builds.
STACKS = (
    Stack(
        name="oldest",
        python="3.7",
        until="2022-08-15",
        packages=(
            "torch==1.12.1",
            "transformers==4.18.0",
            "onnxruntime==1.8.1",
            "onnx==1.9.0",
            "numpy==1.21.6",
            "protobuf==3.19.4",
            "tensorboard==2.9.1",
            "datasets==2.1.0",
            "setuptools==59.8.0",
            "pip",
        ),
    ),
    Stack(
        name="torch-1.12",
        python="3.9",
        until="2023-01-16",
        packages=(
            "torch==1.12.1",
            "transformers==4.25.1",
            "onnxruntime==1.13.1",
            "onnx==1.13.0",
            "numpy==1.24.1",
            "protobuf==3.20.3",
            "tensorboard==2.11.2",
            "datasets==2.8.0",
            "setuptools==66.0.0",
            "pip",
        ),
    ),
    Stack(
        name="torch-1.13",
        python="3.9",
        until="2023-02-01",
        packages=(
            "torch==1.13.1",
            "transformers==4.26.0",
            "onnxruntime==1.13.1",
            "onnx==1.13.0",
            "numpy==1.24.1",
            "protobuf==3.20.3",
            "tensorboard==2.11.2",
            "datasets==2.8.0",
            "setuptools==66.0.0",
            "pip",
        ),
    ),
    Stack(
        name="torch-2.0",
        python="3.10",
        until="2023-08-15",
        packages=(
            "torch==2.0.1",
            "transformers==4.31.0",
            "onnxruntime==1.15.1",
            "onnx==1.14.0",
            "numpy==1.25.2",
            "accelerate==0.21.0",
            "datasets==2.14.4",
            "tensorboard==2.14.0",
            "pip",
        ),
        backend="cpu",
    ),
    Stack(
        name="torch-2.1",
        python="3.10",
        until="2024-03-01",
        packages=(
            "torch==2.1.2",
            "transformers==4.36.2",
            "onnxruntime==1.16.3",
            "onnx==1.15.0",
            "numpy==1.26.4",
            "accelerate==0.25.0",
            "datasets==2.16.1",
            "tensorboard==2.15.1",
            "pip",
        ),
        backend="cpu",
    ),
    Stack(
        name="torch-2.1-numpy-2",
        python="3.10",
        packages=(
            "torch==2.1.2",
            "transformers==4.36.2",
            "onnxruntime==1.19.2",
            "onnx==1.16.2",
            "numpy==2.0.2",
            "accelerate==0.25.0",
            "pip",
        ),
        backend="cpu",
        expected=("numpy-abi",),
        note="torch 2.1 was built with numpy 1, and its metadata lets numpy 2 in. The export fails for the same reason."
        " Its torch.compile needs setuptools, which its metadata does not ask for; other stacks here have it.",
    ),
    Stack(
        name="torch-2.4",
        python="3.11",
        until="2024-10-10",
        packages=(
            "torch==2.4.1",
            "transformers==4.44.2",
            "onnxruntime==1.19.2",
            "onnx==1.16.2",
            "numpy==1.26.4",
            "accelerate==0.34.2",
            "datasets==3.0.1",
            "tensorboard==2.17.1",
            "pip",
        ),
        backend="cpu",
    ),
    Stack(
        name="torch-2.6-cu124",
        python="3.11",
        packages=(
            "torch==2.6.0",
            "transformers==4.48.1",
            "onnxruntime-gpu==1.21.0",
            "onnx==1.17.0",
            "onnxscript",
            "numpy==2.2.6",
            *COMMON,
        ),
    ),
    Stack(
        name="newest",
        python="3.13",
        packages=("torch", "transformers", "onnxruntime-gpu", "onnx", "onnxscript", "numpy", "wandb", *COMMON),
        expected=("provider-unresolved",),
        note="torch 2.15 no longer asks for libcurand, which the CUDA provider of onnxruntime-gpu needs. With"
        " nvidia-curand installed the check passes, and tells that onnxruntime.preload_dlls() has to be called.",
    ),
    Stack(
        name="torch-2.13-cpu",
        python="3.11",
        packages=("torch==2.13.0", "transformers", "onnxruntime", "onnx", "onnxscript", "numpy", *COMMON),
        backend="cpu",
    ),
)
