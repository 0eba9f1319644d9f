"""What `render --format conda` writes, given to the real conda, mamba or micromamba over a channel in a folder.

They are looked for on PATH; TORCHPROOF_CONDA, TORCHPROOF_MAMBA and TORCHPROOF_MICROMAMBA name a command in their place
(`TORCHPROOF_CONDA="/opt/base/bin/python -m conda"`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("rattler", reason="py-rattler is not installed: pip install 'torchproof[conda]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import local_channel
from test_conda_tool import lock_of, served  # noqa: F401 - a fixture
from test_in_place import make_wheel

from builder import conda_tool, installed, render, render_conda
from builder.conda_tool import Wanted
from builder.lockfile import ImageLock
from builder.render_conda import ForgeBuild

CLIENTS = ("conda", "mamba", "micromamba")


@dataclass
class Client:
    name: str
    command: tuple[str, ...]
    environ: dict[str, str]

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def create(self, prefix: Path, file: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """As the header of the file says: from an explicit list, or from an environment.yml."""
        if self.name == "micromamba" or file.suffix == ".txt":
            return self.run("create", "--yes", "--prefix", str(prefix), "--file", str(file), **environ)
        return self.run("env", "create", "--yes", "--prefix", str(prefix), "--file", str(file), **environ)


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    name = request.param
    given = os.environ.get(f"TORCHPROOF_{name.upper()}")
    found = given or shutil.which(name)
    if not found:
        pytest.skip(f"there is no {name} on PATH, and TORCHPROOF_{name.upper()} is not set")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CONDA_", "MAMBA_", "PIP_"))}
    environ = {
        **kept,
        "CONDA_PKGS_DIRS": str(tmp_path / "pkgs"),
        "CONDA_CHANNEL_ALIAS": (tmp_path / "alias").as_uri(),
        "CONDA_NUMBER_CHANNEL_NOTICES": "0",
        "MAMBA_ROOT_PREFIX": str(tmp_path / "root"),
        "HOME": str(tmp_path / "home"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
    }
    # A conda that was installed from its source has no libmamba; what is asked for here is no matter of the solver.
    environ |= {"CONDA_SOLVER": os.environ["CONDA_SOLVER"]} if "CONDA_SOLVER" in os.environ else {}
    (tmp_path / "home").mkdir()
    return Client(name, tuple(shlex.split(found)), environ)


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with Python, a library, and the pip that came with this Python."""
    bundled = sorted(Path(sys.base_prefix).glob(f"lib/python{local_channel.SERIES}/ensurepip/_bundled/pip-*.whl"))
    if not bundled:
        pytest.skip("this Python came without the wheel of pip (ensurepip)")
    folder = tmp_path_factory.mktemp("channel")
    local_channel.python_package(folder)
    local_channel.package(folder, "libtool", "1.0")
    with zipfile.ZipFile(bundled[-1]) as wheel:
        files: dict[str, bytes | Path] = {
            f"lib/python{local_channel.SERIES}/site-packages/{name}": wheel.read(name) for name in wheel.namelist()
        }
    local_channel.package(folder, "pip", bundled[-1].name.split("-")[1], files=files, depends=["python"])
    local_channel.index(folder)
    return folder


@pytest.fixture
def lock(channel: Path, tmp_path: Path) -> ImageLock:
    wanted = Wanted(
        image_id="small",
        specs=(f"python={local_channel.SERIES}", "libtool"),
        channels=(channel.as_uri(),),
        subdir="linux-64",
        virtual={"__glibc": "2.17", "__linux": "0", "__unix": "0"},
    )
    environ = {**os.environ, "RATTLER_CACHE_DIR": str(tmp_path / "rattler")}
    wheels = (
        make_wheel(tmp_path / "wheels", "alpha", "1.0", script=True),
        make_wheel(tmp_path / "wheels", "beta", "2.0"),
    )
    return lock_of(conda_tool.solve(wanted, environ), *wheels)


def rendered(lock: ImageLock, folder: Path, forge: ForgeBuild | None = None) -> Path:
    render.write([render.conda_context(lock, forge)], folder)
    return folder / lock.image_id


def _out(done: subprocess.CompletedProcess[str]) -> str:
    return f"{' '.join(map(str, done.args))}\n{done.stdout}\n{done.stderr}"


def _has(prefix: Path, names: Sequence[str]) -> bool:
    return sorted(installed.conda_records(prefix)) == sorted(f"conda:{name}" for name in names)


def test_environment_is_made_with_the_locked_wheels(client: Client, lock: ImageLock, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    done = client.create(prefix, rendered(lock, tmp_path / "out") / render_conda.ENVIRONMENT)
    assert done.returncode == 0, _out(done)
    assert _has(prefix, ["libtool", "pip", "python"])
    records = installed.records(prefix)
    assert (records["alpha"][0], records["beta"][0]) == ("1.0", "2.0")
    asked = subprocess.run([prefix / "bin/python", "-c", "import alpha"], check=False, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr


def test_wheel_that_is_not_the_locked_one_is_refused(client: Client, lock: ImageLock, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "alpha", "1.0", "VALUE = 'another build'\n", script=True)
    prefix = tmp_path / "prefix"
    done = client.create(prefix, rendered(lock, tmp_path / "out") / render_conda.ENVIRONMENT)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stdout + done.stderr, _out(done)
    assert not list(prefix.glob("lib/python*/site-packages/alpha*"))


def test_explicit_list_gives_the_conda_part(client: Client, lock: ImageLock, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    done = client.create(prefix, rendered(lock, tmp_path / "out") / render_conda.EXPLICIT)
    assert done.returncode == 0, _out(done)
    assert _has(prefix, ["libtool", "python"])


def test_archive_that_is_not_the_one_of_the_explicit_list_is_refused(
    client: Client,
    lock: ImageLock,
    served: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """By HTTP: an archive in a folder is taken as it is (seen with conda 26.7, as with py-rattler)."""
    wrong = tuple(replace(one, channel=served, sha256="0" * 64) for one in lock.conda or () if one.name == "libtool")
    file = rendered(replace(lock, conda=wrong), tmp_path / "out") / render_conda.EXPLICIT
    done = client.create(tmp_path / "prefix", file)
    assert done.returncode != 0, _out(done)
    assert not (tmp_path / "prefix/share/libtool.txt").exists()


def test_builder_without_a_gpu_gets_an_error_and_no_cpu_build(client: Client, lock: ImageLock, tmp_path: Path) -> None:
    """`conda-forge` is a name below the alias; its torch is there for the CPU, too, as the real one is."""
    forge = tmp_path / "alias/conda-forge"
    local_channel.package(forge, "python", f"{local_channel.SERIES}.0")
    local_channel.package(forge, "pip", "25.0")  # conda wants one beside every Python
    local_channel.package(forge, "cuda-version", "12.6")
    for build, needs in (("cpu", ()), ("cuda126", ("__cuda >=12.6", "cuda-version 12.6"))):
        local_channel.package(forge, "pytorch", "2.6.0", build=build, depends=needs)
        if needs:
            local_channel.package(forge, "pytorch-gpu", "2.6.0", build=build, depends=[f"pytorch 2.6.0 {build}"])
    local_channel.index(forge)
    cuda = replace(lock, glibc="2.17", torch="2.6.0", variant="cu124", packages=(), conda=None, provider=None)
    file = rendered(cuda, tmp_path / "out", ForgeBuild(toolkit="12.6", last_official="2.5.1")) / render_conda.PURE
    refused = client.create(tmp_path / "none", file, CONDA_OVERRIDE_CUDA="")
    assert refused.returncode != 0, _out(refused)
    assert "__cuda" in refused.stdout + refused.stderr, _out(refused)
    done = client.create(tmp_path / "prefix", file, CONDA_OVERRIDE_CUDA="12.6")
    assert done.returncode == 0, _out(done)
    assert installed.conda_records(tmp_path / "prefix")["conda:pytorch"][0] == "2.6.0-cuda126"
