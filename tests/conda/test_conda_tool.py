"""Conda environments without conda: a channel in a folder, a real Python in it, a pretended host."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("rattler", reason="py-rattler is not installed: pip install 'torchproof[conda]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import local_channel
from fakes import LOCK
from test_in_place import make_wheel, wheel_of

from builder import conda_tool, disk, existing, guard, installed, installed_record, line, lockfile, render, render_conda
from builder.conda_tool import Wanted
from builder.engine import BuildPlan, BuildTarget, BuiltImage, Limits
from builder.errors import BuildError, ConflictError, EngineError, PackageIndexError, StaleLockError
from builder.in_place import InPlaceEngine
from builder.lockfile import ImageLock
from builder.processes import wait_until

SMALL = Limits(memory_bytes=2**30)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`gpu-tool` asks for a driver: 1.0 for CUDA 11, 2.0 for 12.4, 3.0 for 12.6. `cpu-only` and `gpu` share a name."""
    folder = tmp_path_factory.mktemp("channel")
    local_channel.python_package(folder, depends=["__glibc >=2.17", "libtool"])
    local_channel.package(folder, "libtool", "1.0")
    for version, cuda in (("1.0", "11.0"), ("2.0", "12.4"), ("3.0", "12.6")):
        local_channel.package(folder, "gpu-tool", version, depends=[f"__cuda >={cuda}"])
    local_channel.package(folder, "new-libc", "1.0", depends=["__glibc >=2.99"])
    local_channel.index(folder)
    return folder


def wanted(channel: Path, *specs: str, **virtual: str) -> Wanted:
    return Wanted(
        image_id="small",
        specs=(f"python={local_channel.SERIES}", *specs),
        channels=(channel.as_uri(),),
        subdir="linux-64",
        virtual={"__glibc": "2.36", "__linux": "0", "__unix": "0", **virtual},
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "RATTLER_CACHE_DIR": str(tmp_path / "rattler"), "UV_CACHE_DIR": str(tmp_path / "uv")}


def lock_of(conda: tuple[lockfile.LockedConda, ...], *wheels: Path) -> ImageLock:
    packages = [wheel_of(wheel) for wheel in sorted(wheels)]
    return replace(
        LOCK, image_id="small", python=local_channel.SERIES, provider="conda", conda=conda, packages=tuple(packages)
    )


def test_the_stated_host_decides_and_not_this_one(channel: Path, environ: dict[str, str]) -> None:
    found = conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.4"), environ)
    versions = {package.name: package.version for package in found}
    assert versions == {"python": local_channel.VERSION, "libtool": "1.0", "gpu-tool": "2.0"}
    assert all(len(package.sha256) == 64 for package in found)
    newer = conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.6"), environ)
    assert {package.name: package.version for package in newer}["gpu-tool"] == "3.0"


@pytest.mark.parametrize(("spec", "missing"), [("gpu-tool", "__cuda"), ("new-libc", "__glibc")])
def test_host_that_does_not_fit_is_an_error_and_no_other_build(
    channel: Path, environ: dict[str, str], spec: str, missing: str
) -> None:
    with pytest.raises(ConflictError) as caught:
        conda_tool.solve(wanted(channel, spec), environ)
    assert caught.value.code == "conda-no-solution"
    assert missing in str(caught.value)


def test_channel_out_of_reach_names_the_other_ways(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(PackageIndexError) as caught:
        conda_tool.solve(replace(wanted(tmp_path), channels=("http://127.0.0.1:9/nothing",)), environ)
    assert caught.value.code == "conda-unreachable"
    assert "provider: apt" in str(caught.value)
    assert "provider: uv" in str(caught.value)


def test_lock_keeps_the_conda_part_and_renders_it(channel: Path, environ: dict[str, str]) -> None:
    lock = lock_of(conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.4"), environ))
    assert lockfile.parse(lockfile.dumps(lock), origin="a.lock") == lock
    files = render.conda_files(lock)
    lines = files[render_conda.EXPLICIT].splitlines()
    assert lines[lines.index("@EXPLICIT") + 1].startswith(f"{channel.as_uri()}/linux-64/gpu-tool-2.0-0.tar.bz2#sha256:")
    assert f"  - {channel.as_uri()}::python={local_channel.VERSION}=0" in files["environment.yml"]
    import rattler  # noqa: PLC0415

    for text in files["environment.yml"].split("dependencies:\n")[1].split("  - pip:")[0].splitlines():
        rattler.MatchSpec(text.strip().removeprefix("- "))


def test_created_updated_and_removed_without_conda(channel: Path, environ: dict[str, str], tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    first = lock_of(conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.4"), environ))
    conda_tool.create(first, prefix, environ)
    assert _python(prefix, "import sys; print(sys.prefix)") == str(prefix)
    assert sorted(installed.conda_records(prefix)) == ["conda:gpu-tool", "conda:libtool", "conda:python"]
    second = lock_of(conda_tool.solve(wanted(channel, "gpu-tool", __cuda="11.8"), environ))
    conda_tool.create(second, prefix, environ)
    assert installed.conda_records(prefix)["conda:gpu-tool"][0] == "1.0-0"
    assert (prefix / "share/gpu-tool.txt").read_text() == "gpu-tool 1.0\n"
    third = lock_of(conda_tool.solve(wanted(channel), environ))
    conda_tool.create(third, prefix, environ)
    assert "conda:gpu-tool" not in installed.conda_records(prefix)
    assert not (prefix / "share/gpu-tool.txt").exists()
    conda_tool.remove(prefix)
    assert not prefix.exists()
    with pytest.raises(BuildError):
        conda_tool.remove(tmp_path)


@pytest.fixture
def served(channel: Path) -> Iterator[str]:
    """The same channel by HTTP on loopback."""
    handler = functools.partial(QuietHandler, directory=str(channel))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.mark.parametrize("by_http", [False, True])
def test_archive_that_is_not_the_locked_one_is_refused(
    channel: Path, served: str, environ: dict[str, str], tmp_path: Path, by_http: bool
) -> None:
    asked = replace(wanted(channel), specs=("libtool",), channels=(served,) if by_http else (channel.as_uri(),))
    conda = conda_tool.solve(asked, environ)
    assert [package.channel for package in conda] == list(asked.channels)
    conda_tool.create(lock_of(conda), tmp_path / "right", environ)
    wrong = tuple(replace(package, sha256="0" * 64) for package in conda)
    with pytest.raises(StaleLockError) as caught:
        conda_tool.create(lock_of(wrong), tmp_path / "wrong", environ)
    assert caught.value.code == "hash-mismatch"
    assert not (tmp_path / "wrong/share/libtool.txt").exists()


def test_channel_by_name_lies_below_the_alias_of_this_machine(
    channel: Path, served: str, environ: dict[str, str], tmp_path: Path
) -> None:
    environ |= {"CONDA_CHANNEL_ALIAS": served}
    (channel / "team").mkdir(exist_ok=True)
    local_channel.package(channel / "team", "libtool", "7.0")
    local_channel.index(channel / "team")
    conda = conda_tool.solve(replace(wanted(channel), specs=("libtool",), channels=("team",)), environ)
    assert [(package.channel, package.version) for package in conda] == [("team", "7.0")]
    conda_tool.create(lock_of(conda), tmp_path / "prefix", environ)
    assert (tmp_path / "prefix/share/libtool.txt").read_text() == "libtool 7.0\n"


def _python(prefix: Path, code: str) -> str:
    done = subprocess.run([prefix / "bin/python", "-I", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _build(lock: ImageLock, root: Path, environ: dict[str, str], *, name: str = "env") -> BuiltImage:
    folder = line.rendered([lock], "small", root / f"context-{name}", link=True)
    (root / "no-index").mkdir(exist_ok=True)
    index = root / "index.env"
    index.write_text(f"export UV_DEFAULT_INDEX='{(root / 'no-index').as_uri()}'\n", encoding="utf-8")
    plan = BuildPlan(
        folder=folder,
        bake_file="docker-bake.json",
        targets=(BuildTarget(image_id="small", tag="small"),),
        contexts={"wheelhouse": str(root / "wheels")},
        secrets={"index": index},
        log_file=root / "build.log",
        python=sys.executable if lock.provider is None else None,
        provider=lock.provider or "apt",
    )
    engine = InPlaceEngine(root / "envs", environ=environ, prefix=root / name, proves_first=True)
    image = engine.build(plan, lambda _: None)["small"]
    script = b"import alpha, json, sys; print(json.dumps([alpha.VALUE, sys.prefix]))"
    with engine.session(image, {"check.py": script}, SMALL, gpus=False) as session:
        result = session.run([*session.python(), f"{session.smoke_folder}/check.py"], timeout_s=60)
    assert result.exit_status == 0, result.stderr
    return engine.settle(image, is_proven=True)


def test_prefix_with_wheels_is_updated_by_a_switch_and_its_wheels_are_those_of_a_venv(
    channel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    conda = conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.4"), environ)
    old = [make_wheel(wheels, "alpha", "1.0", script=True), make_wheel(wheels, "beta", "1.0")]
    image = _build(lock_of(conda, *old), tmp_path, environ)
    prefix = tmp_path / "env"
    assert image.reference == str(prefix)
    assert _python(prefix, "import alpha; print(alpha.VALUE)") == "1"
    new = lock_of(conda, make_wheel(wheels, "alpha", "2.0", "VALUE = 2\n", script=True), old[1])
    second = _build(new, tmp_path, environ)
    assert second.digest != image.digest
    assert _python(prefix, "import alpha; print(alpha.VALUE)") == "2"
    _build(replace(new, provider=None, conda=None), tmp_path, environ, name="venv")
    assert installed.records(prefix) == installed.records(tmp_path / "venv")
    assert sorted(installed.records(prefix)) == ["alpha", "beta"]
    record = installed_record.read(prefix)
    assert not installed_record.changes(record, prefix)
    marker = json.loads((prefix / ".torchproof.json").read_text(encoding="utf-8"))
    assert marker["image_id"] == "small"
    # The guard: pip reads the one file, conda and mamba set the variable of the other when they activate the prefix.
    constraints = Path(os.path.realpath(prefix), guard.CONSTRAINTS)
    assert constraints.is_file()
    assert (prefix / "pip.conf").read_text(encoding="utf-8") == f"[global]\nconstraint = {constraints}\n"
    state = json.loads((prefix / "conda-meta/state").read_text(encoding="utf-8"))
    assert state["env_vars"] == {"UV_CONSTRAINT": str(constraints)}


KILLED = """
import os, sys
from pathlib import Path
from builder import lockfile
from builder.engine import BuildPlan, BuildTarget
from builder.in_place import InPlaceEngine

root = Path(sys.argv[1])
engine = InPlaceEngine(root / "envs", environ=os.environ, prefix=root / "env")
plan = BuildPlan(
    folder=root / "context-new", bake_file="", targets=(BuildTarget(image_id="small", tag="small"),),
    contexts={"wheelhouse": str(root / "wheels")}, secrets={"index": root / "index.env"},
    log_file=root / "build.log", provider="conda",
)
engine.build(plan, print)
"""


def test_killed_while_the_conda_part_is_unpacked_the_old_prefix_works(
    channel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheels", "alpha", "1.0", script=True)
    old = lock_of(conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.4"), environ), wheel)
    _build(old, tmp_path, environ)
    new = lock_of(conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.6"), environ), wheel)
    line.rendered([new], "small", tmp_path / "context-new", link=True)
    (tmp_path / "killed.py").write_text(KILLED, encoding="utf-8")
    before = set((tmp_path / ".env.torchproof").iterdir())
    with subprocess.Popen(
        [sys.executable, tmp_path / "killed.py", tmp_path],
        env={**environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        stdout=subprocess.DEVNULL,
    ) as process:
        is_there = wait_until(lambda: _half_made(tmp_path / ".env.torchproof", before), limit_s=60, every_s=0.002)
        process.kill()
    assert is_there
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "env/share/gpu-tool.txt").read_text() == "gpu-tool 2.0\n"
    assert _python(tmp_path / "env", "import alpha; print(alpha.VALUE)") == "1"
    _build(new, tmp_path, environ, name="env")
    assert (tmp_path / "env/share/gpu-tool.txt").read_text() == "gpu-tool 3.0\n"
    assert len([path for path in (tmp_path / ".env.torchproof").iterdir() if path.is_dir()]) == 1


def _half_made(store: Path, before: set[Path]) -> bool:
    """A second environment has begun, and is not noted as one yet."""
    fresh = [path for path in set(store.iterdir()) - before if path.is_dir()]
    return any(next(path.rglob("*.py"), None) and not (path / ".torchproof.json").exists() for path in fresh)


def test_conda_part_of_a_prefix_is_read_back_as_it_was_locked(
    channel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    conda = conda_tool.solve(wanted(channel, "gpu-tool", __cuda="12.4"), environ)
    conda_tool.create(lock_of(conda), tmp_path / "prefix", environ)
    found = existing.read(tmp_path / "prefix", environ)
    assert found.python == local_channel.SERIES
    assert found.conda == conda


def test_without_py_rattler_the_error_says_how_to_get_it(channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rattler", None)
    with pytest.raises(EngineError) as caught:
        conda_tool.solve(wanted(channel), {})
    assert caught.value.code == "rattler-missing"
    assert "torchproof[conda]" in str(caught.value)


def test_disk_of_the_conda_part_is_counted_until_it_is_unpacked(
    channel: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    conda = conda_tool.solve(wanted(channel), environ)
    lock = lock_of(conda)
    places = {"wheels": None, "cache": tmp_path / "uv", "target": tmp_path / "prefix", "env": environ}
    before = sum(disk.need(lock, **places).at.values())  # type: ignore[arg-type]
    assert before > sum(package.size or 0 for package in conda)
    conda_tool.create(lock, tmp_path / "prefix", environ)
    assert sum(disk.need(lock, **places).at.values()) < 10 * 2**20  # type: ignore[arg-type]
