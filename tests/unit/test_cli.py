"""The command as a person or a script calls it: what goes to which stream, and the exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_line import lock_of  # the folder of tests is on the path

from builder import cli, lockfile
from builder.catalog import Catalog
from builder.line import plan

SPEC = "axes: {torch: 2.6.0, python: 3.11, transformers: 4.48.1, base: 'debian:12'}\n"
IMAGE = "torch2.6.0-cu124-py311"


@dataclass(frozen=True)
class Called:
    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., Called]


@pytest.fixture
def torchproof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command in this process, as its entry point is called; Docker is out of reach."""

    def call(*arguments: str, cwd: Path, **env: str) -> Called:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["torchproof", *arguments])
        for name, value in {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "COLUMNS": "200", **env}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Called(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m.yaml").write_text(SPEC)
    return tmp_path


@pytest.fixture
def locked(folder: Path) -> Path:
    (resolution,) = plan(folder / "m.yaml", Catalog.shipped()).resolutions
    lockfile.write(lock_of(resolution), folder / "locks" / f"{IMAGE}.lock")
    return folder


def test_version_and_help(torchproof: Call, tmp_path: Path) -> None:
    assert torchproof("--version", cwd=tmp_path).stdout.startswith("torchproof ")
    shown = torchproof("--help", cwd=tmp_path)
    assert shown.returncode == 0
    for command in ("schema", "resolve", "lock", "render", "build", "smoke", "verify", "facts"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [("verfy",), ("build",), ("verify", "--nope", "m.yaml"), ("facts", "show", "torch"), ("lock", "m.yaml", "extra")],
)
def test_a_wrong_call_is_exit_2_with_a_hint_and_no_traceback(
    torchproof: Call, folder: Path, arguments: tuple[str, ...]
) -> None:
    found = torchproof(*arguments, cwd=folder)
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr.startswith("error[usage]: ")
    assert "hint: `torchproof" in found.stderr
    assert "Traceback" not in found.stderr


def test_schema_is_json(torchproof: Call, folder: Path) -> None:
    assert json.loads(torchproof("schema", cwd=folder).stdout)["title"] == "torchproof matrix"


def test_resolve_tells_each_choice_with_its_facts(torchproof: Call, folder: Path) -> None:
    found = torchproof("resolve", "m.yaml", cwd=folder)
    assert found.returncode == 0
    assert found.stdout.startswith(f"{IMAGE}\n")
    assert "(verified-from-metadata: " in found.stdout
    document = json.loads(torchproof("resolve", "m.yaml", "--json", cwd=folder).stdout)
    assert document["images"][0]["requirements"][0]["text"] == "torch==2.6.0"


def test_a_misspelled_key_is_exit_2_with_its_line(torchproof: Call, folder: Path) -> None:
    (folder / "m.yaml").write_text("axes:\n  torhc: 2.6.0\n")
    found = torchproof("verify", "m.yaml", cwd=folder)
    assert found.returncode == 2
    assert "m.yaml:2: axes.torhc: no such key; did you mean `torch`?" in found.stderr
    assert found.stdout == ""


def test_an_impossible_pair_is_exit_4(torchproof: Call, folder: Path) -> None:
    (folder / "m.yaml").write_text("axes: {torch: 2.6.0, variant: cu128, python: 3.11}\n")
    found = torchproof("resolve", "m.yaml", cwd=folder)
    assert found.returncode == 4
    assert "error[torch-no-variant]" in found.stderr
    assert "hint: with `variant: cu124`" in found.stderr


def test_a_pattern_that_matches_nothing_is_exit_3(torchproof: Call, folder: Path) -> None:
    found = torchproof("resolve", "m.yaml", "--only", "torch9*", cwd=folder)
    assert found.returncode == 3
    assert f"the matrix has 1 images: {IMAGE}" in found.stderr


def test_lock_check_is_silent_about_nothing_and_exit_5_about_something(torchproof: Call, locked: Path) -> None:
    current = torchproof("lock", "--check", "m.yaml", cwd=locked)
    assert (current.returncode, current.stdout) == (0, f"{locked}/locks/{IMAGE}.lock: current\n")
    (locked / "m.yaml").write_text(SPEC + "gpus: [T4]\n")
    stale = torchproof("lock", "--check", "m.yaml", cwd=locked)
    assert stale.returncode == 5
    assert "error[lock-stale]: 1 of 1 locks are stale" in stale.stderr


def test_lock_check_misses_a_lock_that_is_not_there(torchproof: Call, folder: Path) -> None:
    found = torchproof("lock", "--check", "m.yaml", cwd=folder)
    assert found.returncode == 5
    assert "there is no " in found.stderr


def test_render_writes_what_the_lock_says_without_network_or_engine(torchproof: Call, locked: Path) -> None:
    found = torchproof("render", "m.yaml", "-o", "ctx", cwd=locked)
    assert (found.returncode, found.stdout) == (0, f"ctx/{IMAGE}\n")
    assert (locked / "ctx" / IMAGE / "Dockerfile").is_file()
    assert json.loads((locked / "ctx" / "docker-bake.json").read_text())["target"]


def test_render_without_a_lock_is_exit_2(torchproof: Call, folder: Path) -> None:
    found = torchproof("render", "m.yaml", cwd=folder)
    assert found.returncode == 2
    assert "error[lock-missing]" in found.stderr


def test_an_edited_lock_is_not_believed(torchproof: Call, locked: Path) -> None:
    path = locked / "locks" / f"{IMAGE}.lock"
    path.write_text(path.read_text().replace("sha256", "sha257", 1))
    found = torchproof("render", "m.yaml", cwd=locked)
    assert found.returncode == 2
    assert "error[lock-unreadable]" in found.stderr


def test_no_engine_is_exit_6_where_docker_is_asked_for(torchproof: Call, locked: Path) -> None:
    found = torchproof("verify", "m.yaml", "--engine", "docker", "-q", cwd=locked)
    assert found.returncode == 6
    assert "error[engine-not-running]" in found.stderr
    assert "/nonexistent/docker.sock" in found.stderr


def test_facts_are_listed_and_shown(torchproof: Call, folder: Path) -> None:
    assert "torch\n" in torchproof("facts", "list", cwd=folder).stdout
    shown = torchproof("facts", "show", "torch", "2.6.0", cwd=folder).stdout
    assert "torch 2.6.0 cu124: architectures sm_50..sm_90" in shown
    assert torchproof("facts", "show", "torch", "99", cwd=folder).returncode == 2


def test_colour_is_for_terminals_and_no_color_is_kept(torchproof: Call, folder: Path) -> None:
    (folder / "m.yaml").write_text("axes: {torch: 2.6.0, variant: cu128}\n")
    assert "\x1b[" not in torchproof("resolve", "m.yaml", cwd=folder).stderr
    forced = torchproof("resolve", "m.yaml", cwd=folder, FORCE_COLOR="1").stderr
    assert "\x1b[" in forced
    assert "\x1b[" not in torchproof("resolve", "m.yaml", cwd=folder, FORCE_COLOR="1", NO_COLOR="1").stderr


def test_a_reader_that_leaves_is_no_traceback(torchproof: Call, folder: Path) -> None:
    command = f"{sys.executable} -m builder resolve m.yaml | true"
    found = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert "Traceback" not in found.stderr
