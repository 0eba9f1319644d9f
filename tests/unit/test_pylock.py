from __future__ import annotations

from pathlib import Path

import pytest
from packaging.tags import Tag

from builder import pylock
from builder.errors import ConflictError, TorchproofError
from builder.pylock import Target
from builder.uv_tool import platform_for

TARGET = Target(python="3.11", arch="x86_64", glibc="2.31")
HASH = "a" * 64


def best(target: Target, *filenames: str) -> str | None:
    ranked = [(rank, filename) for filename in filenames if (rank := target.rank(filename)) is not None]
    return min(ranked)[1] if ranked else None


def test_newest_glibc_that_fits_wins() -> None:
    old, fits, new = (f"a-1-cp311-cp311-manylinux_2_{minor}_x86_64.whl" for minor in (17, 28, 34))
    assert best(TARGET, old, fits, new) == fits


def test_own_abi_before_stable_abi_before_pure() -> None:
    own, stable, pure = (
        f"a-1-{tag}.whl"
        for tag in ("cp311-cp311-manylinux2014_x86_64", "cp38-abi3-manylinux2014_x86_64", "py3-none-any")
    )
    assert best(TARGET, pure, stable, own) == own
    assert best(TARGET, pure, stable) == stable


@pytest.mark.parametrize(
    "filename",
    [
        "a-1-cp312-cp312-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_17_aarch64.whl",
        "a-1-cp311-cp311-musllinux_1_2_x86_64.whl",
        "a-1-cp312-abi3-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311t-manylinux_2_17_x86_64.whl",
        "a-1.whl",
    ],
)
def test_does_not_fit(filename: str) -> None:
    assert TARGET.rank(filename) is None


def test_higher_build_number_wins() -> None:
    assert best(TARGET, "a-1-1-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-2-py3-none-any.whl") == (
        "a-1-10-py3-none-any.whl"
    )


def test_tags_of_old_pythons_and_other_machines() -> None:
    assert Tag("cp37", "cp37m", "manylinux1_x86_64") in Target(python="3.7", arch="x86_64", glibc="2.28").ranks
    arm = Target(python="3.11", arch="aarch64", glibc="2.28").ranks
    assert Tag("cp311", "cp311", "manylinux2014_aarch64") in arm
    assert Tag("cp311", "cp311", "manylinux1_aarch64") not in arm


def write(folder: Path, text: str) -> Path:
    path = folder / "pylock.toml"
    path.write_text(f'lock-version = "1.0"\n{text}')
    return path


def test_reads_name_size_and_source(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        [[packages]]
        name = "torch"
        version = "2.6.0+cpu"
        [[packages.wheels]]
        url = "http://127.0.0.1/torch-2.6.0%2Bcpu-cp311-cp311-linux_x86_64.whl"
        size = 7
        hashes = {{ sha256 = "{HASH}" }}
        [[packages]]
        name = "old"
        version = "1.0"
        sdist = {{ url = "http://127.0.0.1/old-1.0.tar.gz", hashes = {{ sha256 = "{HASH}" }} }}
        """,
    )
    old, torch = pylock.read(path, TARGET, source_of=lambda name: "torch-index" if name == "torch" else "index")
    assert (torch.filename, torch.size, torch.source, torch.kind, torch.group) == (
        "torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl",
        7,
        "torch-index",
        "wheel",
        "torch",
    )
    assert (old.filename, old.size, old.source, old.kind) == ("old-1.0.tar.gz", None, "index", "sdist")


def test_index_without_hashes_cannot_be_locked(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ url = "http://127.0.0.1/a-1-py3-none-any.whl" }]\n',
    )
    with pytest.raises(ConflictError, match="tells no sha256") as caught:
        pylock.read(path, TARGET, source_of=str)
    assert caught.value.code == "no-hash"


def test_nothing_for_the_target(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[[packages]]\nname = "a"\nversion = "1"\nwheels = [{ url = "http://h/a-1-cp39-cp39-linux_x86_64.whl" }]\n',
    )
    with pytest.raises(TorchproofError, match=r"no wheel of a 1 fits Python 3\.11"):
        pylock.read(path, TARGET, source_of=str)


@pytest.mark.parametrize(
    ("arch", "glibc", "expected"),
    [
        ("x86_64", "2.31", "x86_64-manylinux_2_31"),
        ("x86_64", "2.30", "x86_64-manylinux_2_28"),
        ("x86_64", "2.99", "x86_64-manylinux_2_31"),
        ("aarch64", "2.28", "aarch64-manylinux_2_17"),
    ],
)
def test_platform_is_the_newest_that_the_target_can_run(arch: str, glibc: str, expected: str) -> None:
    known = ["x86_64-manylinux_2_17", "x86_64-manylinux_2_31", "x86_64-manylinux_2_28", "aarch64-manylinux_2_17"]
    assert platform_for(arch, glibc, known) == expected


def test_too_old_a_glibc() -> None:
    with pytest.raises(TorchproofError, match=r"glibc 2\.5"):
        platform_for("x86_64", "2.5", ["x86_64-manylinux_2_17"])


def test_this_uv_knows_platforms() -> None:
    assert platform_for("x86_64", "2.31").startswith("x86_64-manylinux_2_")
