"""`provider: uv` in an image: the stage that fetches a managed Python, from a mirror that the build reaches."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conda"))

import managed_python
from fakes import LOCK
from test_conda_docker import base, system_python  # noqa: F401 - fixtures
from test_in_place import make_wheel, wheel_of

from builder import line, render
from builder.docker_engine import DockerEngine
from builder.engine import BuildPlan, BuildTarget
from builder.errors import PackageIndexError
from builder.resolution import Base
from builder.sources import Sources

pytestmark = pytest.mark.docker


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def mirror(tmp_path: Path, system_python: str) -> Iterator[tuple[Path, str]]:  # noqa: F811
    """Folder and address of a mirror, where a step of a build reaches it: at the gateway of the engine's network."""
    asked = ["docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]
    gateway = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    folder = tmp_path / "mirror"
    managed_python.mirror(folder, base=Path("/usr"), series=system_python)
    handler = functools.partial(QuietHandler, directory=str(folder))
    try:
        server = ThreadingHTTPServer((gateway, 0), handler)
    except OSError as error:
        pytest.skip(f"the gateway {gateway!r} of the engine's network is not an address of this machine: {error}")
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield folder, f"http://{gateway}:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def plan(tmp_path: Path, system_python: str, base: str, mirror: tuple[Path, str]) -> BuildPlan:  # noqa: F811
    wheel = make_wheel(tmp_path / "wheels", "alpha", "1.0", script=True)
    where = Base(kind="local", reference=base, python=None, glibc="2.36")
    lock = replace(LOCK, image_id="small", python=system_python, provider="uv", base=where, packages=(wheel_of(wheel),))
    environ = {
        "UV_DEFAULT_INDEX": f"{mirror[1]}/simple/",  # which has nothing: the wheel is in the folder
        "UV_PYTHON_INSTALL_MIRROR": mirror[1],
        "UV_PYTHON_DOWNLOADS_JSON_URL": f"{mirror[1]}/downloads.json",
    }
    secrets = Sources.from_environment(environ, {}).build_secrets(tmp_path / "secrets")
    return BuildPlan(
        folder=line.rendered([lock], "managed-test", tmp_path / "rendered", link=True),
        bake_file="docker-bake.json",
        targets=(BuildTarget(image_id="small", tag=render.tag("managed-test", "small")),),
        contexts={"wheelhouse": str(tmp_path / "wheels"), "uv": str(line.uv_folder(tmp_path))},
        secrets=secrets,
        log_file=tmp_path / "build.log",
        provider="uv",
    )


def test_image_stands_on_the_managed_python(engine: DockerEngine, plan: BuildPlan, mirror: tuple[Path, str]) -> None:
    image = engine.build(plan, lambda _: None)["small"]
    try:
        code = "import alpha, sys; print(sys.base_prefix)"
        done = subprocess.run(
            ["docker", "run", "--rm", "--network", "none", image.reference, "python", "-c", code],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "/opt/python"
        left = ["docker", "run", "--rm", "--network", "none", image.reference, "grep", "-rlF", "python-all", "/opt"]
        assert subprocess.run(left, capture_output=True, text=True, check=False).stdout == ""
        history = subprocess.run(
            ["docker", "history", "--no-trunc", image.reference], capture_output=True, text=True, check=True
        ).stdout
        assert mirror[1] not in history
    finally:
        engine.remove(image)


def test_python_that_the_build_cannot_have_names_the_other_ways(
    engine: DockerEngine, plan: BuildPlan, mirror: tuple[Path, str]
) -> None:
    script = plan.folder / "small/python.sh"
    script.write_text(f"{script.read_text(encoding='utf-8')}# {uuid.uuid4()}: no step of an earlier build is as this\n")
    for archive in mirror[0].rglob("*.tar.gz"):
        archive.unlink()
    with pytest.raises(PackageIndexError) as caught:
        engine.build(plan, lambda _: None)
    assert caught.value.code == "python-unreachable"
    for way in ("UV_PYTHON_INSTALL_MIRROR", "provider: apt", "provider: conda"):
        assert way in str(caught.value)


def test_settings_of_the_mirror_reach_the_build_and_nothing_more_does(tmp_path: Path) -> None:
    environ: dict[str, Any] = {"UV_PYTHON_INSTALL_MIRROR": "https://mirror.example/x", "UV_PYTHON_PREFERENCE": "system"}
    text = Sources.from_environment(environ, {}).build_secrets(tmp_path)["index"].read_text(encoding="utf-8")
    assert "export UV_PYTHON_INSTALL_MIRROR=https://mirror.example/x" in text
    assert "UV_PYTHON_PREFERENCE" not in text
