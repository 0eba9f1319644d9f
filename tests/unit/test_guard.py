"""The guard of environments in place, with a real pip, a real uv and the wheels of this folder: no index is asked."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
from seeded import fault
from test_in_place import World, make_wheel

from builder import guard, installed_record
from builder.engine import BuiltImage
from builder.uv_tool import find_uv

CONSTRAINTS = "# what holds\nalpha==1.0\n"


def pip_wheel() -> Path | None:
    """The pip that Python itself carries for venvs."""
    import ensurepip  # noqa: PLC0415 - Debian has it in a package of its own

    folders = [Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")]
    return next((path for folder in folders for path in sorted(folder.glob("pip-*.whl"))), None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two packages, of which one is guarded; the wheel folder has a newer release of both."""
    try:
        pip = pip_wheel()
    except ImportError:
        pip = None
    if pip is None:
        pytest.skip("this Python carries no wheel of pip")
    world = World(tmp_path)
    (tmp_path / "no-index").mkdir()
    own = make_wheel(world.wheels, "alpha", "1.0")
    world.wheels.joinpath(pip.name).write_bytes(pip.read_bytes())
    world.require("10-one.txt", own, make_wheel(world.wheels, "beta", "1.0"), world.wheels / pip.name)
    (world.context / "constraints.txt").write_text(CONSTRAINTS)
    make_wheel(world.wheels, "alpha", "2.0")
    make_wheel(world.wheels, "beta", "2.0")
    needs = make_wheel(world.wheels, "gamma", "1.0")
    with zipfile.ZipFile(needs) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(needs, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content + b"Requires-Dist: alpha>=2\n" * name.endswith("METADATA"))
    return world


def call(world: World, *argv: str, **env: str) -> tuple[int, str]:
    kept = {name: value for name, value in world.environ.items() if not name.startswith(("PIP_", "UV_C", "VIRTUAL"))}
    done = subprocess.run(
        argv, env={**kept, "HOME": str(world.root), **env}, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def pip(world: World, image: BuiltImage, *wanted: str) -> tuple[int, str]:
    python = f"{image.reference}/bin/python"
    options = ["--disable-pip-version-check", "--no-index", "--find-links", str(world.wheels)]
    return call(world, python, "-m", "pip", "install", *options, *wanted)


def version(image: BuiltImage, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{name}'))"
    return subprocess.run(
        [f"{image.reference}/bin/python", "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_pip_refuses_what_would_replace_it_says_why_and_lets_all_else_through(world: World) -> None:
    image = world.build()
    for wanted in (["alpha==2.0"], ["-U", "alpha", "gamma"], ["gamma"]):
        status, said = pip(world, image, *wanted)
        assert status != 0, wanted
        assert "The user requested (constraint) alpha==1.0" in said
    assert version(image, "alpha") == "1.0"
    assert pip(world, image, "beta==2.0")[0] == 0
    assert version(image, "beta") == "2.0"


def test_without_the_guard_it_would_be_replaced(world: World) -> None:
    """What the test above shows is the guard, and not the folder of wheels."""
    (world.context / "constraints.txt").unlink()
    image = world.build()
    assert pip(world, image, "alpha==2.0")[0] == 0
    assert version(image, "alpha") == "2.0"


def test_a_folder_with_a_blank_in_its_name_is_guarded_too(world: World) -> None:
    image = world.build(venv=world.root / "my envs" / "one")
    status, said = pip(world, image, "alpha==2.0")
    assert status != 0
    assert "(constraint) alpha==1.0" in said


def uv(world: World, image: BuiltImage, *, activated: bool) -> tuple[int, str]:
    uv = [str(find_uv()), "pip", "install", "--no-index", "--find-links", str(world.wheels), "alpha==2.0"]
    if not activated:
        return call(world, *uv, "--python", f"{image.reference}/bin/python")
    script = (
        f'. "{image.reference}/bin/activate" && "$@"; s=$?; deactivate; echo "after: ${{UV_CONSTRAINT-unset}}"; exit $s'
    )
    return call(world, "bash", "-c", script, "bash", *uv)


def test_uv_refuses_in_an_activated_environment_and_is_free_after_it(world: World) -> None:
    """Only pointed at the environment it is not held, a limit that the docs name: uv reads nothing from there."""
    image = world.build()
    status, said = uv(world, image, activated=True)
    assert status != 0
    assert "alpha==1.0" in said
    assert "after: unset" in said
    assert version(image, "alpha") == "1.0"
    shown = 'echo "$UV_CONSTRAINT"'
    script = f'export UV_CONSTRAINT=mine; . "{image.reference}/bin/activate"; {shown}; deactivate; {shown}'
    status, said = call(world, "bash", "-c", script)
    assert said.split() == [str(Path(image.reference).resolve() / guard.CONSTRAINTS), "mine"]
    assert uv(world, image, activated=False)[0] == 0
    assert version(image, "alpha") == "2.0"


def test_it_is_no_change_of_the_environment_and_is_put_back_where_it_is_gone(world: World) -> None:
    image = world.build()
    prefix = Path(image.reference)
    assert not installed_record.changes(installed_record.read(prefix), prefix)
    activate = (prefix / "bin/activate").read_text()
    (prefix / "pip.conf").unlink()
    assert world.build().digest == image.digest
    assert (prefix / "pip.conf").is_file()
    assert (prefix / "bin/activate").read_text() == activate


def test_a_conda_prefix_remembers_the_variable_beside_those_of_its_user(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/state").write_text('{"version": 1, "env_vars": {"MINE": "1"}}')
    (tmp_path / "constraints.txt").write_text(CONSTRAINTS)
    guard.install(tmp_path, tmp_path / "constraints.txt")
    state = json.loads((tmp_path / "conda-meta/state").read_text())
    assert state == {"version": 1, "env_vars": {"MINE": "1", "UV_CONSTRAINT": str(tmp_path / guard.CONSTRAINTS)}}


@fault("files", {"guard": "guard-missing"})
def test_the_smoke_check_tries_it_and_misses_it_where_it_is_gone(world: World) -> None:
    """The check asks for another torch; here the constraint is on torch, which this environment has no need to hold."""
    (world.context / "constraints.txt").write_text("torch==1.0\n")
    image = world.build()
    prefix = Path(image.reference)
    smoke_tests = Path(__file__).parents[2] / "smoke_tests"

    def tried() -> dict[str, str]:
        done = subprocess.run(
            [prefix / "bin/python", smoke_tests / "files.py"],
            env={**{n: v for n, v in os.environ.items() if not n.startswith("PIP_")}, "HOME": str(world.root)},
            capture_output=True,
            check=False,
        )
        return next(check for check in json.loads(done.stdout)["checks"] if check["id"] == "files.guard")

    assert tried()["status"] == "passed"
    (prefix / "pip.conf").unlink()
    assert (tried()["status"], tried()["code"]) == ("failed", "guard-missing")
