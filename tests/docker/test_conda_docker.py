"""One lock, three ways: image, conda prefix and virtual environment hold the same wheels."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rattler", reason="py-rattler is not installed: pip install 'torchproof[conda]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conda"))

import local_channel
from fakes import LOCK
from test_in_place import make_wheel

from builder import conda_stage, conda_tool, installed, line, render
from builder.conda_tool import Wanted
from builder.docker_engine import DockerEngine
from builder.engine import BuildPlan, BuildTarget, BuiltImage, Limits
from builder.in_place import InPlaceEngine
from builder.lockfile import ImageLock, LockedPackage
from builder.resolution import Base

pytestmark = pytest.mark.docker

# Reads the RECORD files of an environment with the code that the host uses, sent in as a file of its own.
SCRIPT = b"""
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("installed", str(Path(__file__).with_name("installed.py")))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps({"records": module.records(Path("/opt/venv")), "prefix": sys.base_prefix}))
"""


@pytest.fixture
def system_python() -> str:
    """An interpreter that needs no library beside it runs in an image as it is."""
    binary = Path("/usr/bin/python3")
    if not binary.exists():
        pytest.skip("needs a distribution's Python in /usr/bin")
    linked = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    if "libpython" in linked:
        pytest.skip("this distribution's Python is linked to a libpython")
    asked = [binary, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def base(project: Any) -> str:
    """Debian with the libraries that its Python is linked to, which the `libs` of a real channel would bring."""
    folder = project.folder / "libs"
    folder.mkdir()
    modules = sorted(Path("/usr/lib").glob("python3.*/lib-dynload/*.so"))
    linked = subprocess.run(["ldd", "/usr/bin/python3", *modules], capture_output=True, text=True, check=True).stdout
    for path in sorted(set(re.findall(r"=> (\S+/lib\S+\.so\S*)", linked))):
        if not re.search(r"/lib(c|m|dl|pthread|gcc_s|stdc\+\+)\.so", path):
            shutil.copy(path, folder)
    target = Path(re.findall(r"=> (\S+)/libz\.so", linked)[0])
    return str(project.build(f"COPY libs/ {target}/").reference)


@pytest.fixture
def lock(tmp_path: Path, system_python: str, base: str) -> ImageLock:
    channel = tmp_path / "channel"
    local_channel.python_package(channel, base=Path("/usr"), series=system_python)
    local_channel.index(channel)
    wanted = Wanted(
        image_id="small",
        specs=(f"python={system_python}",),
        channels=(channel.as_uri(),),
        subdir="linux-64",
        virtual={"__glibc": "2.36"},
    )
    packages = []
    for wheel in (
        make_wheel(tmp_path / "wheels", "alpha", "1.0", script=True),
        make_wheel(tmp_path / "wheels", "beta", "2.0"),
    ):
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
                source="wheelhouse",
                group="torch" if name == "alpha" else "rest",
            )
        )
    return replace(
        LOCK,
        image_id="small",
        python=system_python,
        base=Base(kind="local", reference=base, python=None, glibc="2.36"),
        provider="conda",
        conda=conda_tool.solve(wanted, os.environ),
        packages=tuple(packages),
    )


@pytest.fixture
def plan(lock: ImageLock, tmp_path: Path) -> BuildPlan:
    (tmp_path / "no-index").mkdir()
    index = tmp_path / "index.env"
    index.write_text(f"export UV_DEFAULT_INDEX='{(tmp_path / 'no-index').as_uri()}'\n", encoding="utf-8")
    return BuildPlan(
        folder=line.rendered([lock], "conda-test", tmp_path / "rendered", link=True),
        bake_file="docker-bake.json",
        targets=(BuildTarget(image_id="small", tag=render.tag("conda-test", "small")),),
        contexts={"wheelhouse": str(tmp_path / "wheels")},
        secrets={"index": index},
        log_file=tmp_path / "build.log",
        provider="conda",
    )


@pytest.fixture
def image(engine: DockerEngine, lock: ImageLock, plan: BuildPlan, tmp_path: Path) -> Iterator[BuiltImage]:
    contexts = {
        **plan.contexts,
        **conda_stage.contexts(lock, tmp_path / "conda", os.environ),
        "uv": str(line.uv_folder(tmp_path)),
    }
    index = tmp_path / "image-index.env"
    index.write_text("export UV_OFFLINE=1\n", encoding="utf-8")
    built = engine.build(replace(plan, contexts=contexts, secrets={"index": index}), lambda _: None)["small"]
    yield built
    engine.remove(built)


def test_image_prefix_and_venv_hold_the_same_wheels(
    engine: DockerEngine, image: BuiltImage, lock: ImageLock, plan: BuildPlan, tmp_path: Path
) -> None:
    files = {"look.py": SCRIPT, "installed.py": Path(installed.__file__).read_bytes()}
    with engine.session(image, files, Limits(memory_bytes=2**30), gpus=False) as session:
        result = session.run([*session.python(), f"{session.smoke_folder}/look.py"], timeout_s=60)
    assert result.exit_status == 0, result.stderr
    in_image = json.loads(result.stdout)
    assert in_image["prefix"] == "/opt/conda"
    of_image = {name: tuple(value) for name, value in in_image["records"].items()}

    place = InPlaceEngine(tmp_path / "envs", environ=os.environ, prefix=tmp_path / "prefix")
    place.build(plan, lambda _: None)
    of_prefix = installed.records(tmp_path / "prefix")

    plain = replace(lock, provider=None, conda=None)
    context = line.rendered([plain], "conda-test", tmp_path / "plain", link=True)
    venv = InPlaceEngine(tmp_path / "envs", environ=os.environ, prefix=tmp_path / "venv")
    venv.build(replace(plan, folder=context, provider="apt", python="/usr/bin/python3"), lambda _: None)
    of_venv = installed.records(tmp_path / "venv")

    assert sorted(of_image) == ["alpha", "beta"]
    assert of_image == of_prefix == of_venv


def test_conda_part_says_nothing_of_this_machine(lock: ImageLock, tmp_path: Path) -> None:
    made = conda_stage.contexts(lock, tmp_path / "conda", os.environ)
    again = conda_stage.contexts(lock, tmp_path / "again", os.environ)
    (one,), (other,) = made.values(), again.values()
    for path in sorted(Path(one).rglob("*")):
        twin = Path(other) / path.relative_to(one)
        assert path.lstat().st_mtime == twin.lstat().st_mtime == render.FIXED_TIME
        if path.is_file():
            assert path.read_bytes() == twin.read_bytes()
    for path in (Path(one) / "conda-meta").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert str(tmp_path / "conda") not in text
        assert "rattler/pkgs" not in text


SPEC = """
axes: {{torch: 2.13.0, variant: cpu, python: "{python}", base: "local:{base}", transformers: none}}
provider: conda
conda:
  channels: [{channel}]
  packages: [libtool]
"""


def test_command_builds_and_proves_an_image_with_a_conda_part(
    engine: DockerEngine, system_python: str, base: str, tmp_path: Path
) -> None:
    channel = tmp_path / "channel"
    local_channel.python_package(channel, base=Path("/usr"), series=system_python)
    local_channel.package(channel, "libtool", "1.0")
    local_channel.index(channel)
    spec = tmp_path / "withconda.yaml"
    spec.write_text(SPEC.format(python=system_python, base=base, channel=channel.as_uri()), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "builder",
        "verify",
        str(spec),
        "--engine",
        "docker",
        "--level",
        "L1",
        "--json",
        "-q",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if "index-unreachable" in done.stdout + done.stderr:
        pytest.skip("the wheels of a CPU torch are out of reach")
    (image,) = json.loads(done.stdout)["images"]
    assert done.returncode == 0, image["error"] or [one for one in image["checks"] if one["status"] == "failed"]
    try:
        assert image["level"] == "L1"
        asked = ["docker", "run", "--rm", "--network", "none", image["reference"]]
        code = "import sys, torch; print(sys.base_prefix, torch.__version__)"
        told = subprocess.run([*asked, "python", "-c", code], capture_output=True, text=True, check=True).stdout
        assert told.split() == ["/opt/conda", "2.13.0+cpu"]
        library = subprocess.run(
            [*asked, "cat", "/opt/conda/share/libtool.txt"], capture_output=True, text=True, check=True
        )
        assert library.stdout == "libtool 1.0\n"
    finally:
        engine.remove(engine.image(image["reference"]))
