"""What is shipped: every file of the three root folders, and the same rendered bytes from every kind of install."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import uv
from fakes import LOCK

from builder import lockfile, render

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("templates", "images", "smoke_tests")

RENDER = """
import sys
sys.path.insert(0, sys.argv[1])
import builder
from builder import lockfile, render, resources, smoke
assert builder.__file__.startswith(sys.argv[1]), builder.__file__
lock = lockfile.parse(open(sys.argv[2]).read(), origin="lock")
print(render.render(lock).digest, len(smoke.smoke_files()), len(list(resources.walk(resources.IMAGES))))
from builder.catalog import Catalog
assert Catalog.shipped().torch_release("2.6.0")
"""


def tracked(*folders: str) -> set[str]:
    """What git knows below the folders, and what is not yet added but not ignored either."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in names if (ROOT / name).is_file()}


def build(kind: str, source: Path, target: Path) -> Path:
    command = [uv.find_uv_bin(), "build", f"--{kind}", "--no-build-isolation", "--offline", "--python", sys.executable]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
    done = subprocess.run(
        [*command, "--out-dir", str(target), str(source)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (built,) = [path for path in target.iterdir() if path.suffix in (".whl", ".gz")]
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_tracked_file_of_the_three_folders(wheel: Path) -> None:
    shipped = {name.removeprefix("builder/_data/") for name in names_in(wheel) if name.startswith("builder/_data/")}
    assert shipped == tracked(*FOLDERS)


def test_the_wheel_holds_the_tool_and_its_facts(wheel: Path) -> None:
    assert tracked("builder") <= names_in(wheel)


def test_the_wheel_has_no_other_top_level_name(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"builder"}


def test_the_wheel_from_the_sdist_is_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    again = build("wheel", source, tmp_path / "out")
    assert again.read_bytes() == wheel.read_bytes()


def rendered_by(location: Path, lock: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RENDER, str(location), str(lock)],
        cwd=lock.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_checkout_install_and_zip_render_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lockfile.write(LOCK, lock)
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--offline", "--no-build-isolation"]
    for name, what in (("wheel", str(wheel)), ("source", str(ROOT))):
        target = ["--python", sys.executable, "--target", str(tmp_path / name)]
        subprocess.run([*install, *target, what], check=True, capture_output=True)
    checkout = rendered_by(ROOT, lock)
    assert checkout.split()[0] == render.render(LOCK).digest
    assert rendered_by(tmp_path / "wheel", lock) == checkout
    assert rendered_by(tmp_path / "source", lock) == checkout
    assert rendered_by(wheel, lock) == checkout  # imported from the zip
