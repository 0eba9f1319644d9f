"""bin/import_facts.py: the same bytes again, nothing foreign overwritten, nothing unsound let in."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import builder

ROOT = Path(builder.__file__).resolve().parent.parent
SHIPPED = ROOT / "builder" / "facts"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_facts", ROOT / "bin" / "import_facts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@pytest.fixture
def sheets(tmp_path: Path) -> Path:
    """The shipped content written back as sheets: JSON is YAML, so a file copied is a sheet."""
    folder = tmp_path / "sheets"
    folder.mkdir()
    for path in SHIPPED.glob("*.json"):
        content = json.loads(path.read_text())
        content.pop("generated_by")
        (folder / f"{path.stem}.yaml").write_text(json.dumps(content))
    return folder


def edit(sheets: Path, topic: str, **changes: Any) -> None:
    path = sheets / f"{topic}.yaml"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_shipped_files_come_out_again(script: ModuleType, sheets: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert script.main([str(sheets), "--to", str(target)]) == 0
    assert script.main([str(sheets), "--to", str(target)]) == 0
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in SHIPPED.iterdir()
    }


def test_a_file_of_other_origin_is_left_alone(
    script: ModuleType, sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "gpus.json").write_text('{"mine": true}')
    assert script.main([str(sheets), "--to", str(target)]) == 2
    assert "was not written by this script" in capsys.readouterr().err
    assert (target / "gpus.json").read_text() == '{"mine": true}'
    # Nothing was half done either.
    assert [path.name for path in target.iterdir()] == ["gpus.json"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"conda": {"last_official": 2.5}}, "conda.last_official: 2.5 is a number with a point"),
        ({"conda": {"see": "https://example.org/x"}}, "conda.see: `https://` must not enter the facts"),
        (
            {"conda": {"last_official": "2.5.1", "arch_note": "x", "confidence": "from-source"}},
            "conda.source: Field req",
        ),
    ],
)
def test_what_is_refused(
    script: ModuleType, sheets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Any, said: str
) -> None:
    edit(sheets, "torch", **changes)
    assert script.main([str(sheets), "--to", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sheet_that_is_not_there(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path)]) == 2
    assert "cuda_driver.yaml" in capsys.readouterr().err


def test_sentences_cut_at_a_comma_are_joined(script: ModuleType) -> None:
    cut = yaml.safe_load("leaf: {value: share of the host, set by it, source: [a], note: one, two, three}")
    assert script.mended(cut) == {
        "leaf": {"value": "share of the host, set by it", "source": ["a"], "note": "one, two, three"}
    }


def test_keys_are_ordered_as_versions(script: ModuleType) -> None:
    assert list(script.ordered({"1.10": 0, "1.9": 0, "cu118": 0, "cu92": 0})) == ["1.9", "1.10", "cu92", "cu118"]
