"""`torchproof remove`: an environment that torchproof made, and nothing else."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from test_in_place import World, make_wheel

from builder.errors import UsageError
from builder.place import Place


def remove(*arguments: str, answer: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "builder", "remove", *arguments],
        input=answer,
        stdin=subprocess.DEVNULL if answer is None else None,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )


@pytest.fixture
def made(tmp_path: Path) -> Path:
    world = World(tmp_path)
    world.require("10-one.txt", make_wheel(world.wheels, "alpha", "1.0"))
    return Path(world.build(venv=tmp_path / "env").reference)


def test_environment_and_what_lies_beside_it_go(made: Path) -> None:
    done = remove("--prefix", str(made), "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{made} is removed: small, built, not proven"
    assert not made.is_symlink()
    assert not Place(made).store.exists()


def test_nobody_to_ask_is_no_yes(made: Path) -> None:
    done = remove("--prefix", str(made))
    assert done.returncode == 2
    assert "error[not-confirmed]" in done.stderr
    assert (made / "bin/python").exists()


@pytest.mark.parametrize("kind", ["venv", "file", "foreign link", "nothing"])
def test_what_torchproof_did_not_make_stays(tmp_path: Path, kind: str) -> None:
    prefix = tmp_path / "theirs"
    if kind == "venv":
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    elif kind == "file":
        prefix.write_text("mine", encoding="utf-8")
    elif kind == "foreign link":
        (tmp_path / "real").mkdir()
        prefix.symlink_to("real")
    done = remove("--prefix", str(prefix), "--yes")
    assert done.returncode == 2
    assert "error[prefix-not-ours]" in done.stderr
    assert ("there is no such folder" in done.stderr) is (kind == "nothing")
    assert (prefix.exists() or prefix.is_symlink()) is (kind != "nothing")


def test_busy_environment_stays(made: Path) -> None:
    with (Place(made).store / "lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        done = remove("--prefix", str(made), "--yes")
    assert done.returncode == 2
    assert "error[prefix-busy]" in done.stderr
    assert (made / "bin/python").exists()


def test_the_environment_that_runs_torchproof_stays(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(made))
    with pytest.raises(UsageError) as caught:
        Place(made).refuse_removal()
    assert caught.value.code == "prefix-in-use"


def test_removal_that_was_cut_off_is_ended_by_the_next(made: Path) -> None:
    made.unlink()  # the first thing that a removal does
    done = remove("--prefix", str(made), "--yes")
    assert done.returncode == 0, done.stderr
    assert "what a removal left that was cut off" in done.stdout
    assert not Place(made).store.exists()
