"""`check --fix`: the line changes, comments, order and spacing stay; what is written passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from checking import CATALOG

from builder.check import check
from builder.edits import diffs, written
from builder.inputs import Options, load


def fixed(file: Path, options: Options) -> str:
    document = check(load([file], options)[0].environment, CATALOG)
    written(diffs(document, CATALOG))
    after = check(load([file], options)[0].environment, CATALOG)
    assert after.verdict == "compatible", [found.code for found in after.findings]
    return file.read_bytes().decode()


CONDA = """channels: [pytorch, nvidia]
dependencies:
  - python=3.10
  - pytorch=2.0.1  # old
  - pytorch-cuda=11.8
"""
CASES = {
    "numpy bound": (
        "requirements.txt",
        "# stack\ntorch==2.0.1   # pinned\nnumpy  # any\n",
        "# stack\ntorch==2.0.1   # pinned\nnumpy<2  # any\n",
        Options(python="3.10"),
    ),
    "range keeps its lower end": (
        "requirements.txt",
        "torch==2.0.1\nnumpy<2\ntransformers[vision]>=4.30  # newest\n",
        "torch==2.0.1\nnumpy<2\ntransformers[vision]>=4.30,<=4.49.0  # newest\n",
        Options(python="3.10"),
    ),
    "a package is added after torch": (
        "requirements.txt",
        "torch==2.1.2\r\ntorchvision==0.16.2\r\n",
        "torch==2.1.2\r\nnumpy<2\r\ntorchvision==0.16.2\r\n",
        Options(python="3.10"),
    ),
    "labels and index move together": (
        "requirements.txt",
        "--index-url https://wheels.example.org/whl/cu128\ntorch==2.9.1+cu128\ntorchvision==0.24.1+cu128 # vision\n",
        "--index-url https://wheels.example.org/whl/cu126\ntorch==2.9.1+cu126\ntorchvision==0.24.1+cu126 # vision\n",
        Options(python="3.11", gpus=("P40",)),
    ),
    "a neighbour is moved to the next release that has the name": (
        "requirements.txt",
        "torch==2.1.2\nnumpy==1.26.4\ntransformers==4.39.3  # models\npeft==0.14.0 # lora\n",
        "torch==2.1.2\nnumpy==1.26.4\ntransformers==4.43.0  # models\npeft==0.14.0 # lora\n",
        Options(python="3.10"),
    ),
    "the asker is moved where its neighbour is held by torch": (
        "requirements.txt",
        "# 8 bit\nbitsandbytes==0.44.1  # old\ntorch==2.6.0\n",
        "# 8 bit\nbitsandbytes==0.45.1  # old\ntorch==2.6.0\n",
        Options(python="3.11"),
    ),
    "inside a RUN": (
        "Dockerfile",
        'FROM python:3.10\nRUN pip install \\\n    torch==2.1.2 \\\n    "numpy==2.0.2" \\\n    tqdm  # rest\n',
        'FROM python:3.10\nRUN pip install \\\n    torch==2.1.2 \\\n    "numpy==1.26.4" \\\n    tqdm  # rest\n',
        Options(),
    ),
    "in a conda file": (
        "environment.yml",
        f"{CONDA}  - mkl\n  - numpy=2.0.2\n",
        f"{CONDA}  - mkl=2024.0\n  - numpy=1.26.4\n",
        Options(),
    ),
}


@pytest.mark.parametrize(("name", "before", "after", "options"), CASES.values(), ids=list(CASES))
def test_fix(name: str, before: str, after: str, options: Options, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(before.encode())
    assert fixed(file, options) == after


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("torch==2.0.1\nnumpy\n")
    document = check(load([file], Options(python="3.10"))[0].environment, CATALOG)
    edits = diffs(document, CATALOG)
    assert "+numpy<2\n" in edits[0].diff
    file.write_text("torch==2.0.1\nnumpy\ntqdm\n")
    assert written(edits) == []
    assert file.read_text() == "torch==2.0.1\nnumpy\ntqdm\n"
