"""Environments that somebody else made: proven as they are, never changed; and what changed in one of ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from seeded import fault

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes import LOCK
from test_in_place import CHECKOUT, World, make_wheel

from builder import adopted, installed_record
from builder.cli_in_place import tell_changes
from builder.engine import Limits
from builder.errors import EngineError, PackageIndexError, UsageError
from builder.in_place_install import batches, install_environment, install_error, python_arguments
from builder.lockfile import ImageLock, LockedPackage
from builder.place import Place
from builder.uv_tool import find_uv


def _venv(prefix: Path, *wheels: Path) -> Path:
    subprocess.run([find_uv(), "venv", "--quiet", "--python", sys.executable, prefix], check=True)
    for wheel in wheels:
        asked = [
            find_uv(),
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-deps",
            "--python",
            prefix / "bin/python",
            wheel,
        ]
        subprocess.run(asked, check=True)
    return prefix


def _lock(*wheels: Path) -> ImageLock:
    packages = []
    for wheel in sorted(wheels):
        name, version = wheel.name.split("-")[:2]
        data = wheel.read_bytes()
        packages.append(
            LockedPackage(
                name=name,
                version=version,
                filename=wheel.name,
                sha256=hashlib.sha256(data).hexdigest(),
                size=len(data),
                kind="wheel",
                source="index",
                group="rest",
            )
        )
    return replace(LOCK, packages=tuple(packages))


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "no-index").mkdir()
    return World(tmp_path)


def _snapshot(prefix: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(prefix.rglob("*"))
        if "__pycache__" not in path.parts
    }


def test_adopted_environment_is_run_and_stays_as_it_is(world: World) -> None:
    wheel = make_wheel(world.wheels, "alpha", "1.0")
    prefix = _venv(world.root / "theirs", wheel)
    found = adopted.find(prefix, world.environ)
    assert found.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert not found.is_base
    before = _snapshot(prefix)
    engine = adopted.AdoptedEngine(found, environ=world.environ)
    image = engine.build(world.plan(python=found.python), world.lines.append)["small"]
    with engine.session(image, {"s.py": b"import alpha; print(alpha.VALUE)"}, Limits(), gpus=False) as session:
        result = session.run([*session.python(), f"{session.smoke_folder}/s.py"], timeout_s=30)
    assert result.stdout == b"1\n"
    engine.remove(image)
    assert engine.settle(image, is_proven=True) == image
    assert _snapshot(prefix) == before


@fault("adopted", {"versions": "environment-differs", "files": "files-changed"})
def test_adopted_environment_is_held_against_its_lock(world: World) -> None:
    alpha, beta = make_wheel(world.wheels, "alpha", "1.0"), make_wheel(world.wheels, "beta", "1.0")
    prefix = _venv(world.root / "theirs", alpha, beta)
    assert [check.status for check in adopted.checks_against(_lock(alpha, beta), prefix)] == ["passed", "passed"]
    newer = make_wheel(world.wheels, "beta", "2.0")
    missing = make_wheel(world.wheels, "gamma", "1.0")
    versions, files = adopted.checks_against(_lock(alpha, newer, missing), prefix)
    assert versions.code == "environment-differs"
    assert "beta is 1.0, the lock has 2.0" in versions.message
    assert "gamma 1.0 is not installed" in versions.message
    assert files.status == "passed"
    module = next(prefix.glob("lib/python3*/site-packages/alpha.py"))
    text = module.read_text(encoding="utf-8")
    module.unlink()  # a link into uv's cache must not be written through
    module.write_text(f"{text}# edited\n", encoding="utf-8")
    _, files = adopted.checks_against(_lock(alpha, beta), prefix)
    assert files.code == "files-changed"
    assert "alpha: alpha.py" in files.message


def test_current_environment_is_the_activated_one(world: World) -> None:
    prefix = _venv(world.root / "active")
    assert adopted.find(None, {**world.environ, "VIRTUAL_ENV": str(prefix)}).prefix == prefix
    with pytest.raises(UsageError) as caught:
        adopted.find(world.root / "nothing", world.environ)
    assert caught.value.code == "no-environment"


def test_lock_of_another_python_is_refused(world: World) -> None:
    found = adopted.find(_venv(world.root / "theirs"), world.environ)
    with pytest.raises(EngineError) as caught:
        adopted.AdoptedEngine(found, environ=world.environ).build(world.plan(python="3.5"), world.lines.append)
    assert caught.value.code == "python-differs"


@pytest.mark.parametrize(("mark", "words"), [("lib/python3.11/EXTERNALLY-MANAGED", "PEP 668"), ("condabin", "conda")])
def test_base_environment_is_never_installed_into(world: World, mark: str, words: str) -> None:
    prefix = world.root / "base"
    (prefix / "conda-meta").mkdir(parents=True)
    (prefix / mark).mkdir(parents=True)
    before = _snapshot(prefix)
    with pytest.raises(UsageError) as caught:
        world.build(venv=prefix)
    assert caught.value.code == "base-environment"
    assert words in str(caught.value)
    assert _snapshot(prefix) == before


def test_changes_are_told_file_by_file(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.require("10-one.txt", make_wheel(world.wheels, "alpha", "1.0"), make_wheel(world.wheels, "beta", "1.0"))
    world.require("20-two.txt", make_wheel(world.wheels, "gamma", "1.0"))
    prefix = Path(world.build().reference)
    assert tell_changes(prefix, as_json=False) == 0
    assert "nothing has changed: 3 packages" in capsys.readouterr().out
    site = next(prefix.glob("lib/python3*/site-packages"))
    (site / "alpha.py").unlink()
    (site / "alpha.py").write_text("VALUE = 3\n", encoding="utf-8")
    shutil.rmtree(site / "beta-1.0.dist-info")
    (site / "gamma-1.0.dist-info").rename(site / "gamma-1.1.dist-info")
    (site / "delta-1.0.dist-info").mkdir()
    (site / "stray.py").write_text("", encoding="utf-8")
    assert tell_changes(prefix, as_json=True) == 5
    told = json.loads(capsys.readouterr().out)
    assert told["is_changed"] is True
    assert told["changes"] == {
        "added": {"delta": "1.0"},
        "removed": {"beta": "1.0"},
        "versions": {"gamma": ["1.0", "1.1"]},
        "changed_files": {"alpha": ["alpha.py"]},
        "missing_files": {},
        "strange_files": ["beta.py", "stray.py"],
    }
    assert tell_changes(prefix, as_json=False) == 5
    assert "changed  alpha: alpha.py" in capsys.readouterr().out


def test_nothing_is_known_about_a_folder_without_a_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        installed_record.read(tmp_path)
    assert caught.value.code == "record-missing"
    (tmp_path / installed_record.RECORD_NAME).write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        installed_record.read(tmp_path)
    assert caught.value.code == "record-unreadable"


def test_path_that_two_packages_bring_is_no_change(world: World) -> None:
    """The file that came last is there; its package's hash is right."""
    site_file = "shared.txt"
    prefix = world.root / "env"
    site = prefix / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (site / site_file).write_text("two", encoding="utf-8")
    for name in ("one", "two"):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        digest = hashlib.sha256(name.encode()).digest()
        import base64  # noqa: PLC0415

        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        (info / "RECORD").write_text(f"{site_file},sha256={text},3\n", encoding="utf-8")
    assert installed_record.damaged(prefix) == {}
    (site / site_file).write_text("three", encoding="utf-8")
    assert sorted(installed_record.damaged(prefix)) == ["one", "two"]


def _python_of_all(env: dict[str, str]) -> str | None:
    """A Python that every user can start and that can import torchproof."""
    code = f"import builder.in_place, sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    for python in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        try:
            asked = subprocess.run(
                [python, "-c", code], user=65534, group=65534, env=env, check=False, cwd="/", capture_output=True
            )
        except OSError:
            continue
        if asked.returncode == 0:
            return python
    return None


def test_an_ordinary_user_builds_in_a_folder_of_their_own(world: World) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    home = Path("/tmp") / f"torchproof-user-{os.getpid()}"  # noqa: S108 - pytest's own folders are root's alone
    home.mkdir()
    try:
        wheel = make_wheel(home / "wheels", "alpha", "1.0")
        requirements = home / "context/requirements"
        requirements.mkdir(parents=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (requirements / "10-one.txt").write_text(f"alpha==1.0 --hash=sha256:{digest}\n", encoding="utf-8")
        (home / "driver.py").write_text(
            "import os, sys\n"
            "from pathlib import Path\n"
            "from builder.engine import BuildPlan, BuildTarget\n"
            "from builder.in_place import InPlaceEngine\n"
            f"home = Path({str(home)!r})\n"
            "engine = InPlaceEngine(home / 'envs', environ=os.environ, prefix=home / 'env')\n"
            "plan = BuildPlan(folder=home / 'context', bake_file='', targets=(BuildTarget(image_id='s', tag='s'),),\n"
            "    contexts={'wheelhouse': str(home / 'wheels')}, log_file=home / 'log', python='python3')\n"
            "print(engine.build(plan, print)['s'].reference, os.geteuid())\n",
            encoding="utf-8",
        )
        for folder, _, names in os.walk(home):
            for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118
                os.chown(path, 65534, 65534)
        paths = f"{CHECKOUT}:{sysconfig.get_path('purelib')}"
        env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": paths, "UV_OFFLINE": "1"}
        python = _python_of_all(env)
        if python is None:
            pytest.skip("another user cannot read this checkout, or no Python like the running one")
        done = subprocess.run(
            [python, home / "driver.py"],
            user=65534,
            group=65534,
            extra_groups=[],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            cwd=home,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == f"{home / 'env'} 65534"
    finally:
        shutil.rmtree(home)


def test_where_python_comes_from_decides_what_uv_is_asked(world: World) -> None:
    machine, managed = world.plan(python="3.11"), world.plan(python="3.11", provider="uv")
    assert python_arguments(machine) == ["--python", "3.11"]
    assert install_environment({}, machine)["UV_PYTHON_DOWNLOADS"] == "never"
    assert python_arguments(managed) == ["--managed-python", "--python", "3.11"]
    assert install_environment({}, managed)["UV_PYTHON_DOWNLOADS"] == "automatic"


def test_python_that_cannot_be_had_names_the_other_ways(world: World) -> None:
    text = "error: Failed to download https://mirror.example/python: dns error"
    error = install_error(2, text, "venv", world.plan(python="3.9", provider="uv"), "small")
    assert isinstance(error, PackageIndexError)
    assert error.code == "python-unreachable"
    assert "provider: apt" in str(error)
    assert "provider: conda" in str(error)


def test_files_of_one_index_go_together_when_nothing_is_fetched() -> None:
    files = [
        Path(name) for name in ("10-cuda.txt", "20-torch@torch.txt", "30-rest.txt", "31-more.txt", "40-source.txt")
    ]
    names = [[file.name for file in batch] for batch in batches(files, is_here=True)]
    assert names == [["10-cuda.txt"], ["20-torch@torch.txt"], ["30-rest.txt", "31-more.txt"], ["40-source.txt"]]
    assert all(len(batch) == 1 for batch in batches(files, is_here=False))


def test_place_of_a_link_that_is_not_ours_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "env").symlink_to("elsewhere")
    assert Place(tmp_path / "env").current() is None
    with pytest.raises(UsageError):
        Place(tmp_path / "env").refuse_foreign("small")
