"""The fuzz harness itself: it runs, finds what raises, and what it found once stays found."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from builder.inputs import parse
from builder.inputs.reading import Reader

PATH = Path(__file__).resolve().parents[2] / "bin" / "fuzz_inputs.py"


@pytest.fixture
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_inputs", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(fuzz: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    arguments = ["fuzz_inputs.py", "--engine", "mutate", "--seconds", "1", "--keep", str(folder), *more]
    monkeypatch.setattr(sys, "argv", arguments)
    return int(fuzz.main())


def test_a_second_of_it_finds_nothing(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fuzz, tmp_path, monkeypatch, "--slow", "20") == 0
    assert "0 kinds of failure" in capsys.readouterr().out


def test_what_raises_is_kept_and_counted(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(fuzz, "parse", broken)
    assert run(fuzz, tmp_path, monkeypatch) == 1
    assert len(list(tmp_path.glob("crash-*"))) == 1
    assert "FAIL KeyError" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "dependencies: [python=1.0]\n",
        "dependencies: [python=5.10, pytorch=2.0.1]\n",
        "dependencies: [python=3]\n",
        "dependencies: ['python=3.9.1.2']\n",
    ],
)
def test_pythons_that_do_not_exist(text: str) -> None:
    """Found by both engines: `1.0` is a version, and no Python."""
    env = parse("conda", text, "environment.yml", reader=Reader(is_offline=True))
    assert isinstance(env.to_json(), dict)
