from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import fakes
import pytest
import yaml
from fakes import LOCK, package

from builder import conda_forge, lockfile, render, render_conda
from builder.catalog import Catalog
from builder.errors import UsageError
from builder.lockfile import ImageLock, LockedConda
from builder.render_conda import ForgeBuild
from builder.resolution import Base

GOLDEN = Path(__file__).parent.parent / "golden"

OLD = replace(
    LOCK,
    image_id="torch1.12.1-cu113-py38",
    python="3.8",
    glibc="2.31",
    torch="1.12.1",
    variant="cu113",
    user="trainer",
    apt=("libgl1",),
    allow_source=("promise",),
    base=Base(kind="registry", reference="docker.io/library/ubuntu:20.04", python="3.8", glibc="2.31"),
    base_digest="sha256:" + "a" * 64,
    packages=(
        package("promise", "2.3", kind="sdist"),
        package("torch", "1.12.1+cu113", source="torch-index"),
        package("wandb", "0.13.5"),
    ),
    build_packages=(package("setuptools", "66.0.0"),),
)
DEVEL = replace(
    LOCK,
    image_id="torch2.6.0-cu124-py310-devel",
    python="3.10",
    flavor="devel",
    base=Base(kind="registry", reference="docker.io/nvidia/cuda:12.4.1-devel-ubuntu22.04", python="3.10", glibc="2.35"),
)
LOCAL = replace(LOCK, image_id="local", base=Base(kind="local", reference="mine:1", python=None, glibc=None))
PRIVATE = replace(
    LOCK, image_id="private", packages=(LOCK.packages[0], package("nvtool", "1.0", source="own"), *LOCK.packages[2:])
)
MANAGED = replace(LOCK, image_id="managed", python="3.12", provider="uv")
CONDA = replace(
    LOCK,
    image_id="conda",
    python="3.12",
    provider="conda",
    conda=tuple(
        LockedConda(
            name=name,
            version=version,
            build=build,
            build_number=0,
            subdir="linux-64",
            noarch=None,
            channel=channel,
            filename=f"{name}-{version}-{build}.conda",
            sha256=hashlib.sha256(name.encode()).hexdigest(),
            size=1000,
        )
        for name, version, build, channel in (
            ("inhouse", "1.0", "0", "https://conda.example/team"),
            ("python", "3.12.9", "h9e4cc4f_1_cpython", "https://conda.example/forge"),
        )
    ),
)
ALL = (LOCK, OLD, DEVEL, LOCAL, PRIVATE, MANAGED, CONDA)
FORGE = {LOCK.image_id: ForgeBuild(toolkit="12.6", last_official="2.5.1")}


@pytest.mark.parametrize("lock", ALL, ids=lambda lock: lock.image_id)
def test_rendered_files_are_the_golden_ones(lock: ImageLock, update_golden: bool) -> None:
    folder = GOLDEN / lock.image_id
    context = render.render(lock, forge=FORGE.get(lock.image_id))
    files = {name: content for name, content in context.files.items() if name != "torchproof.lock"}
    if update_golden:
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    on_disk = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    assert on_disk == files


def hadolint(*arguments: str) -> subprocess.CompletedProcess[Any]:
    """The linter of the environment that the tests run in; no configuration of a person's home."""
    binary = Path(sys.executable).parent / "hadolint"
    return subprocess.run([binary, "--no-color", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize("lock", ALL, ids=lambda lock: lock.image_id)
def test_hadolint_passes(lock: ImageLock, link: bool, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_bytes(render.render(lock, link=link).files["Dockerfile"])
    found = hadolint("--failure-threshold", "style", str(file))
    assert found.returncode == 0, found.stdout + found.stderr


def test_hadolint_is_not_blind(tmp_path: Path) -> None:
    """The linter would say so if a step lacked what the templates are careful about."""
    text = render.render(LOCK).files["Dockerfile"].decode().replace("# hadolint ignore=DL3008\n", "")
    (tmp_path / "Dockerfile").write_text(text)
    found = hadolint(str(tmp_path / "Dockerfile"))
    assert "DL3008" in found.stdout


@pytest.mark.parametrize("lock", ALL, ids=lambda lock: lock.image_id)
def test_the_install_script_is_sound_shell(lock: ImageLock, tmp_path: Path) -> None:
    file = tmp_path / "install.sh"
    file.write_bytes(render.render(lock).files["install.sh"])
    assert subprocess.run(["sh", "-n", str(file)], check=False).returncode == 0


def test_without_link_support_the_lines_are_plain_copies() -> None:
    linked = render.render(LOCK).files["Dockerfile"].decode()
    plain = render.render(LOCK, link=False).files["Dockerfile"].decode()
    assert "COPY --link --from=" in linked
    assert "--link" not in plain
    assert plain.replace("COPY --from", "COPY --link --from") == linked


def test_the_same_lock_gives_the_same_bytes_and_another_lock_does_not() -> None:
    one, again = render.render(LOCK), render.render(lockfile.parse(lockfile.dumps(LOCK), origin="x"))
    assert (one.digest, one.tar()) == (again.digest, again.tar())
    other = replace(LOCK, packages=(*LOCK.packages[:-1], package("transformers", "4.49.0")))
    assert render.render(other).digest != one.digest


def test_one_changed_pin_changes_one_group_only() -> None:
    other = replace(LOCK, packages=(*LOCK.packages[:-1], package("transformers", "4.49.0")))
    before, after = render.render(LOCK).files, render.render(other).files
    changed = {name for name in before if before[name] != after[name] and name.startswith("requirements/")}
    assert changed == {"requirements/30-rest.txt"}


def test_the_tar_depends_on_the_files_alone() -> None:
    with tarfile.open(fileobj=BytesIO(render.render(LOCK).tar())) as archive:
        members = archive.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(member.mtime, member.uid, member.mode) for member in members} == {(render.FIXED_TIME, 0, 0o644)}


def test_layers_are_grouped_from_slow_to_fast_moving() -> None:
    assert [group.file for group in render.groups(LOCK)] == [
        "requirements/10-cuda.txt",
        "requirements/20-torch.txt",
        "requirements/30-rest.txt",
    ]


def test_wheels_of_an_exclusive_index_have_a_file_of_their_own() -> None:
    files = [(group.file, group.index) for group in render.groups(OLD)]
    assert files == [
        ("requirements/20-torch@torch.txt", "torch"),
        ("requirements/30-rest.txt", "default"),
        ("requirements/40-source.txt", "default"),
    ]
    assert ("requirements/30-rest@own.txt", "own") in [(g.file, g.index) for g in render.groups(PRIVATE)]


def test_every_locked_package_is_installed_once_with_its_hash() -> None:
    for lock in ALL:
        lines = [
            line
            for name, content in render.render(lock).files.items()
            if name.startswith("requirements/") and "build-constraints" not in name
            for line in content.decode().splitlines()
            if "==" in line
        ]
        expected = [f"{p.name}=={p.version} --hash=sha256:{p.sha256}" for p in lock.packages]
        assert sorted(lines) == sorted(expected)


def test_a_registry_base_is_pinned_by_digest_and_a_local_one_is_not() -> None:
    assert "FROM docker.io/library/ubuntu:20.04@sha256:aaaa" in render.render(OLD).files["Dockerfile"].decode()
    assert "FROM mine:1 AS base" in render.render(LOCAL).files["Dockerfile"].decode()


def test_labels_say_what_is_inside_and_which_lock_made_it() -> None:
    labels = render.labels(LOCK)
    assert labels["io.torchproof.lock"] == f"sha256:{lockfile.digest(LOCK)}"
    assert labels["io.torchproof.package.torch"] == "2.6.0"
    assert labels["org.opencontainers.image.version"] == "2.6.0"
    assert labels["io.torchproof.spec"].startswith("sample@sha256:")


def test_nothing_of_the_build_machine_is_in_a_context() -> None:
    for lock in ALL:
        text = b"\n".join(render.render(lock).files.values()).decode()
        for one in lock.conda or ():  # a channel may be an address: it is the spec's, not this machine's
            text = text.replace(one.channel, "CHANNEL")
        assert "http" not in text.replace("--mount", "")
        for path in (str(Path(__file__).parent), str(Path(sys.prefix)), "/tmp"):  # noqa: S108
            assert path not in text


def test_the_conda_environment_is_yaml_with_every_wheel_pinned() -> None:
    document = yaml.safe_load(render.render(OLD).files["environment.yml"])
    pip = next(entry["pip"] for entry in document["dependencies"] if isinstance(entry, dict))
    assert "conda-forge::python=3.8" in document["dependencies"]
    assert any(line.startswith("torch==1.12.1+cu113 --hash=sha256:") for line in pip)
    assert "--no-binary=promise" in pip


@pytest.mark.parametrize(
    ("torch", "variant", "toolkit"),
    [
        ("2.5.1", "cu118", "11.8"),
        ("2.6.0", "cu124", "12.6"),  # the next one up
        ("1.12.1", "cu113", "11.2"),  # none above: the last
        ("2.6.0", "cu118", None),  # another major has no such libraries
        ("2.6.0", "cpu", None),
        ("2.99.0", "cu130", None),
    ],
)
def test_conda_forge_is_offered_where_it_has_the_release(torch: str, variant: str, toolkit: str | None) -> None:
    lock = replace(LOCK, torch=torch, variant=variant)
    forge = conda_forge.forge_build(lock, Catalog.shipped())
    assert (None if forge is None else forge.toolkit) == toolkit
    files = render.conda_files(lock, forge)
    assert (render_conda.PURE in files) is (toolkit is not None)
    if forge is not None:
        document = yaml.safe_load(files[render_conda.PURE])
        assert f"__cuda >={toolkit}" in document["dependencies"]
        assert f"__glibc >={lock.glibc}" in document["dependencies"]


def test_an_environment_that_conda_forge_lacks_goes_when_rendered_again(tmp_path: Path) -> None:
    for forge in (FORGE[LOCK.image_id], None):
        render.write([render.render(LOCK, forge=forge)], tmp_path)
        assert (tmp_path / LOCK.image_id / render_conda.PURE).exists() is (forge is not None)
    (tmp_path / LOCK.image_id / render_conda.PURE).write_text("name: mine\n")
    render.write([render.render(LOCK)], tmp_path)
    assert (tmp_path / LOCK.image_id / render_conda.PURE).read_text() == "name: mine\n"


def test_the_bake_file_has_a_target_per_image() -> None:
    document = json.loads(render.bake([LOCK, OLD], name="sample"))
    assert sorted(document["target"]) == ["torch1_12_1-cu113-py38", "torch2_6_0-cu124-py311"]
    assert document["target"]["torch2_6_0-cu124-py311"]["tags"] == ["torchproof/sample:torch2.6.0-cu124-py311"]
    assert "secret" not in json.dumps(document)


def test_writing_replaces_its_own_files_and_no_other(tmp_path: Path) -> None:
    render.write([render.render(OLD)], tmp_path)
    folder = tmp_path / OLD.image_id
    moved = replace(OLD, packages=LOCK.packages, build_packages=())
    render.write([render.render(moved)], tmp_path)
    assert not (folder / "requirements/20-torch@torch.txt").exists()
    (folder / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(UsageError, match="was not written by torchproof"):
        render.write([render.render(OLD)], tmp_path)
    assert (folder / "Dockerfile").read_text() == "FROM scratch\n"


def test_the_sample_of_these_tests_is_a_lock_that_reads_back() -> None:
    for lock in ALL:
        assert lockfile.parse(lockfile.dumps(lock), origin="x") == lock
    assert fakes.LOCK is LOCK
