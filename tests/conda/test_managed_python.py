"""`provider: uv` in place: a managed Python, fetched by uv from a mirror in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import managed_python
from fakes import LOCK
from local_channel import SERIES
from test_in_place import make_wheel, wheel_of

from builder import installed, line
from builder.engine import BuildPlan, BuildTarget, BuiltImage
from builder.errors import PackageIndexError
from builder.in_place import InPlaceEngine


def build(root: Path, **uv: str) -> BuiltImage:
    wheel = make_wheel(root / "wheels", "alpha", "1.0", script=True)
    lock = replace(LOCK, image_id="small", python=SERIES, provider="uv", packages=(wheel_of(wheel),))
    (root / "no-index").mkdir()
    index = root / "index.env"
    index.write_text(f"export UV_DEFAULT_INDEX='{(root / 'no-index').as_uri()}'\n", encoding="utf-8")
    environ = {**os.environ, "UV_CACHE_DIR": str(root / "uv"), "UV_PYTHON_INSTALL_DIR": str(root / "pythons"), **uv}
    engine = InPlaceEngine(root / "envs", environ=environ, prefix=root / "env")
    plan = BuildPlan(
        folder=line.rendered([lock], "small", root / "context", link=True),
        bake_file="docker-bake.json",
        targets=(BuildTarget(image_id="small", tag="small"),),
        contexts={"wheelhouse": str(root / "wheels")},
        secrets={"index": index},
        log_file=root / "build.log",
        python=SERIES,
        provider="uv",
    )
    return engine.build(plan, lambda _: None)["small"]


def test_environment_stands_on_the_managed_python(tmp_path: Path) -> None:
    listed = managed_python.mirror(tmp_path / "mirror")
    image = build(
        tmp_path,
        UV_PYTHON_INSTALL_MIRROR=(tmp_path / "mirror").as_uri(),
        UV_PYTHON_DOWNLOADS_JSON_URL=str(listed),
    )
    assert image.reference == str(tmp_path / "env")
    code = "import alpha, sys; print(sys.base_prefix)"
    done = subprocess.run([tmp_path / "env/bin/python", "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "pythons")
    assert sorted(installed.records(tmp_path / "env")) == ["alpha"]


@pytest.mark.parametrize("fault", ["empty mirror", "wrong hash"])
def test_python_that_cannot_be_had_names_the_other_ways(tmp_path: Path, fault: str) -> None:
    listed = managed_python.mirror(tmp_path / "mirror", wrong_hash=fault == "wrong hash")
    mirror = tmp_path / ("mirror" if fault == "wrong hash" else "nothing")
    with pytest.raises(PackageIndexError) as caught:
        build(tmp_path, UV_PYTHON_INSTALL_MIRROR=mirror.as_uri(), UV_PYTHON_DOWNLOADS_JSON_URL=str(listed))
    assert caught.value.code == "python-unreachable"
    assert ("ash" if fault == "wrong hash" else "No such file") in str(caught.value)
    for way in ("UV_PYTHON_INSTALL_MIRROR", "provider: apt", "provider: conda"):
        assert way in str(caught.value)
    assert not (tmp_path / "env").exists()
