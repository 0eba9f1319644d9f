"""An environment that exists, read back: what it holds, and a spec and lock that give the same again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from small_index import SmallIndex, StandIn, source_archive, wheel

from builder import existing, from_env, spec, staleness
from builder.catalog import Catalog
from builder.errors import NothingSelectedError, UsageError
from builder.line import plan
from builder.resolve import Host
from builder.sources import Sources
from builder.uv_tool import find_uv

SERIES = f"{sys.version_info[0]}.{sys.version_info[1]}"
HOST = Host(pythons=(SERIES,), glibc="2.36")


@pytest.fixture
def files() -> list[StandIn]:
    """What was installed. torch asks for numpy and typing-extensions; the facts know this torch."""
    tag = f"cp{SERIES.replace('.', '')}-cp{SERIES.replace('.', '')}-linux_x86_64"
    return [
        wheel("torch", "2.6.0+cpu", tag=tag, requires=["typing-extensions", "numpy"]),
        wheel("typing-extensions", "4.12.2"),
        wheel("numpy", "2.2.0", tag=tag),
        wheel("numpy", "2.2.6", tag=tag),
        wheel("tqdm", "4.67.0"),
        wheel("gone", "1.0"),
        wheel("mine", "1.0+local"),
        wheel("pip", "25.0"),  # every image has it
    ]


class World:
    def __init__(self, root: Path, files: list[StandIn], stack: ExitStack) -> None:
        self.root = root
        self.files = {file.name: file for file in files}
        self.prefix = root / "venv"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "UV_CACHE_DIR": str(root / "cache"),
            "UV_HTTP_RETRIES": "0",
            "NO_PROXY": "127.0.0.1",
            "UV_NO_SYSTEM_CONFIG": "1",
        }
        self._uv("venv", "--python", sys.executable, str(self.prefix))
        served = stack.enter_context(SmallIndex(files))
        self._uv(
            *("pip", "install", "--python", str(self.prefix / "bin/python"), "--no-deps", "--index-url", served.url),
            *("torch==2.6.0+cpu", "typing-extensions==4.12.2", "numpy==2.2.0", "tqdm==4.67.0", "gone==1.0"),
            "mine==1.0+local",
        )
        # What the index has later: `gone` is gone.
        self.later = stack.enter_context(SmallIndex([file for file in files if file.name != "gone"]))
        self.torch = stack.enter_context(SmallIndex(files[:1], prefix="whl/cpu"))

    def _uv(self, *arguments: str) -> None:
        subprocess.run([find_uv(), *arguments], env=self.environ, check=True, capture_output=True)

    def export(self, where: Path, python: str | None = None) -> from_env.Export:
        sources = Sources.from_environment(
            {
                **self.environ,
                "UV_DEFAULT_INDEX": self.later.url,
                "TORCHPROOF_TORCH_INDEX": f"http://{self.torch.host}/whl/{{variant}}",
            }
        )
        return from_env.export(
            existing.read(where, self.environ),
            self.root / "out",
            "mine",
            Catalog.shipped(),
            sources,
            python=python,
            host=HOST,
            on_line=lambda _: None,
        )


@pytest.fixture
def world(tmp_path: Path, files: list[StandIn]) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, files, stack)


def test_prefix_is_read_with_what_no_index_gives(world: World, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    source_archive("unused", "1.0").save(tmp_path / "files")
    info = next(world.prefix.glob("lib/python3*/site-packages")) / "edited-0.1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("", encoding="utf-8")
    document = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(document), encoding="utf-8")
    found = existing.read(world.prefix, world.environ)
    assert found.python == SERIES
    held = {package.name: package for package in found.packages}
    assert held["torch"].version == "2.6.0+cpu"
    assert held["torch"].origin is None
    assert "editable" in (held["edited"].origin or "")


def test_spec_and_lock_give_the_same_versions_and_differences_are_told(world: World) -> None:
    done = world.export(world.prefix)
    versions = {package.name: package.version for package in done.lock.packages}
    assert versions == {
        "pip": "25.0",
        "torch": "2.6.0+cpu",
        "numpy": "2.2.0",
        "typing-extensions": "4.12.2",
        "tqdm": "4.67.0",
    }
    assert sorted(done.differences) == [
        "gone 1.0 is not in the lock: 1.0 is gone from the index",
        "mine 1.0+local is not in the lock: a local build, 1.0+local",
    ]
    # The spec is one like any other, and its lock is current.
    assert spec.load(done.spec_file).cells[0].torch == "2.6.0"
    resolution = plan(done.spec_file, Catalog.shipped(), host=HOST).resolutions[0]
    assert staleness.staleness(done.lock, resolution) == []


def test_pip_freeze_needs_the_python_to_be_said(world: World, tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text(
        "torch==2.6.0+cpu\nnumpy==2.2.0\ntqdm==4.67.0\n-e git+https://example.invalid/a@1#egg=edited\n"
        "local @ file:///tmp/local-1.0-py3-none-any.whl\nwhat is this\n",
        encoding="utf-8",
    )
    with pytest.raises(UsageError) as caught:
        world.export(freeze)
    assert caught.value.code == "python-unknown"
    done = world.export(freeze, python=SERIES)
    assert {package.name: package.version for package in done.lock.packages}["numpy"] == "2.2.0"
    told = "\n".join(done.differences)
    assert "edited is not in the lock: an editable installation" in told
    assert "local 1.0 is not in the lock: installed from a file" in told
    assert "typing-extensions 4.12.2 is in the lock and not installed" in told
    assert "not understood: what is this" in told


TABLE = f"""\
# packages in environment at /opt/conda:
#
# Name  Version  Build  Channel
python {SERIES}.7 h1_0 file:///srv/channel
numpy 2.2.0 py311_0 conda-forge
torch 2.6.0+cpu pypi_0 pypi
libgomp 14.1 h2_0 conda-forge
what is
"""
EXPORT = f"""\
# platform: linux-64
python={SERIES}.7=h1_0
numpy=2.2.0=py311_0
torch=2.6.0+cpu=pypi_0
libgomp=14.1=h2_0
what is
"""


@pytest.mark.parametrize("text", [TABLE, EXPORT], ids=["table", "export"])
def test_conda_list_tells_its_python(world: World, tmp_path: Path, text: str) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(text, encoding="utf-8")
    done = world.export(listed)
    assert done.lock.python == SERIES
    told = "\n".join(done.differences)
    assert "numpy 2.2.0: conda's build" in told
    assert "not understood: what is" in told
    # A library is no project of the index that happens to have its name.
    assert "libgomp 14.1 is not in the lock: a library of conda's" in told
    assert done.lock.package("libgomp") is None


def test_explicit_list_of_a_conda_environment_is_read(tmp_path: Path) -> None:
    """It has no packages of pip's. What conda calls pytorch is torch."""
    listed = tmp_path / "list.txt"
    where = "https://conda.example/forge/linux-64"
    names = (
        "python-3.11.9-h1_0.conda",
        "pytorch-2.5.1-py3.11_cuda12.4_cudnn9.1.0_0.tar.bz2",
        "libgomp-14.1-h2_0.conda",
    )
    text = "".join(f"{where}/{name}#{'0' * 32}\n" for name in names)
    listed.write_text(f"# platform: linux-64\n@EXPLICIT\n{text}", encoding="utf-8")
    found = existing.read(listed, {})
    assert [(held.name, held.version) for held in found.packages] == [("torch", "2.5.1")]
    assert (found.python, found.libraries, found.unread) == ("3.11", ("libgomp 14.1",), ())


def test_environment_without_torch_is_none_of_ours(world: World, tmp_path: Path) -> None:
    freeze = tmp_path / "freeze.txt"
    freeze.write_text("numpy==2.2.0\n", encoding="utf-8")
    with pytest.raises(NothingSelectedError) as caught:
        world.export(freeze, python=SERIES)
    assert caught.value.code == "no-torch"
