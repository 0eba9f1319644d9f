"""`check` as a process would see it: exit status, one JSON document, text in the form of the style guide."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checking import CATALOG, ROOT, judged

from builder.check_command import quick
from builder.errors import UsageError

FAULT = ["--pin", "torch==2.6.0", "--gpu", "RTX 5090", "--driver", "570.124"]


def test_incompatible_is_exit_4_with_proof_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick(FAULT) == 4
    out = capsys.readouterr().out
    assert out.startswith("error[gpu-not-covered]: torch 2.6.0 cu124\n\n  because --gpu asks for RTX 5090\n  and ")
    assert "\n\nhint: use torch 2.8.0\n" in out
    assert out.endswith("✗ incompatible: torch 2.6.0 cu124, RTX 5090 and driver 570.124\n")


def test_compatible_and_unknown_are_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick(["--pin", "torch==2.6.0", "--gpu=RTX 4090"]) == 0
    assert quick(["--pin", "torch==9.9.9"]) == 0
    assert "– unknown: torch 9.9.9" in capsys.readouterr().out


def test_json_is_one_document_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick([*FAULT, "--json", "--pin", "torchvision==0.21.0"]) == 4
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(document) == {"schema_version", "verdict", "findings", "environment"}
    (found,) = document["findings"]
    assert set(found) == {"code", "severity", "subject", "because", "conclusion", "hint", "facts"}
    assert found["facts"]
    environment = document["environment"]
    assert environment["packages"]["torch"] == {"version": "2.6.0", "variant": "cu124", "origin": "--pin"}
    assert environment["gpus"] == ["RTX 5090"]
    assert environment["unparsed"] == []


def test_what_was_not_understood_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("torch==2.6.0\ntorch ==== 1\n")
    quick([str(file)])
    assert "1 line was not understood, the rest was checked" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["--bogus"], ["--pin"], ["--opset", "x"], ["-h"], ["--gpu", "--json"]])
def test_words_of_another_form_are_left_to_the_library(words: list[str]) -> None:
    assert quick(words) is None


@pytest.mark.parametrize("words", [[], ["missing.txt"], ["--pin", "torch", "--write"]])
def test_usage_errors(words: list[str]) -> None:
    with pytest.raises(UsageError):
        quick(words)


def test_an_unreadable_file_is_exit_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "builder", "check", "missing.txt"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 2
    assert "error[input-not-found]" in done.stderr


def test_a_plain_start_loads_neither_pydantic_nor_the_library() -> None:
    code = (
        "import sys; sys.argv = ['torchproof', 'check', '--pin', 'torch==2.6.0', '--json']\n"
        "from builder.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'pydantic', 'typer', 'rich', 'yaml', 'jinja2', 'docker'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_plain_check_reads_no_marker_grammar(tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("torch==2.6.0\ntransformers==4.49.0\npeft>=0.14  # adapters\ndatasets\nnumpy<3\n")
    code = (
        f"import sys; sys.argv = ['torchproof', 'check', {str(listed)!r}, '--python', '3.11', '--json']\n"
        "from builder.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'packaging.requirements', 'packaging.markers', 'packaging.tags', 'logging'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_cells_of_a_spec_stand_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick([str(ROOT / "images" / "quickstart.yaml"), "--json"]) in {0, 4}
    document = json.loads(capsys.readouterr().out)
    assert document["cells"]
    assert all(cell["name"] for cell in document["cells"])


def test_old_facts_warn() -> None:
    from datetime import timedelta  # noqa: PLC0415

    from builder.check import OLD_AFTER_DAYS, check  # noqa: PLC0415

    env = judged("torch==2.6.0").outcome.env
    later = CATALOG.generated + timedelta(days=OLD_AFTER_DAYS + 1)
    (found,) = check(env, CATALOG, today=later).findings
    assert (found.code, found.severity) == ("facts-old", "warning")
    assert str(OLD_AFTER_DAYS + 1) in found.because[0]
    assert not check(env, CATALOG, today=CATALOG.generated).findings
