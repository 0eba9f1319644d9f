"""Where Python comes from: the order of a spec, what a base or a machine has, and what lock and digest say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import spec, staleness
from builder.catalog import Catalog
from builder.errors import ConflictError, SpecError
from builder.line import plan
from builder.resolution import Resolution
from builder.resolve import Host
from builder.spec import ImageSpec

BASE = "axes: {torch: 2.6.0, variant: cu124, python: '%s', base: debian:bookworm}\n"


def resolved(tmp_path: Path, text: str, host: Host | None = None) -> Resolution:
    file = tmp_path / "matrix.yaml"
    file.write_text(text, encoding="utf-8")
    return plan(file, Catalog.shipped(), host=host).resolutions[0]


def cell(tmp_path: Path, text: str) -> ImageSpec:
    file = tmp_path / "matrix.yaml"
    file.write_text(text, encoding="utf-8")
    return spec.load(file).cells[0]


@pytest.mark.parametrize(
    ("order", "python", "taken"),
    [
        ("apt", "3.11", "apt"),
        ("[apt, conda]", "3.11", "apt"),
        ("[apt, conda]", "3.12", "conda"),
        ("[apt, uv, conda]", "3.12", "uv"),
        ("conda", "3.11", "conda"),
    ],
)
def test_first_provider_that_can_have_the_python_is_taken(tmp_path: Path, order: str, python: str, taken: str) -> None:
    found = resolved(tmp_path, BASE % python + f"provider: {order}\n")
    assert found.provider == taken
    assert found.base.reference == "debian:bookworm"
    assert found.conda_channels == (("conda-forge",) if taken == "conda" else ())


def test_base_without_the_python_is_still_a_conflict_when_nothing_else_may_bring_it(tmp_path: Path) -> None:
    with pytest.raises(ConflictError) as caught:
        resolved(tmp_path, BASE % "3.12")
    assert caught.value.code == "base-python"
    assert "with `provider: uv` and all else as it is, this image resolves" in str(caught.value)


def test_in_place_the_machine_counts(tmp_path: Path) -> None:
    host = Host(pythons=("3.11",), glibc="2.36", found=frozenset({"3.10", "3.11"}))
    text = "axes: {torch: 2.6.0, variant: cu124, python: '%s'}\nprovider: [apt, uv]\n"
    assert resolved(tmp_path, text % "3.10", host).provider == "apt"
    assert resolved(tmp_path, text % "3.12", host).provider == "uv"


def test_default_changes_no_digest(tmp_path: Path) -> None:
    plain = cell(tmp_path, BASE % "3.11")
    assert cell(tmp_path, BASE % "3.11" + "provider: apt\n").digest == plain.digest
    assert cell(tmp_path, BASE % "3.11" + "provider: conda\n").digest != plain.digest
    one = cell(tmp_path, BASE % "3.11" + "provider: conda\nconda: {packages: [ffmpeg]}\n")
    assert one.digest != cell(tmp_path, BASE % "3.11" + "provider: conda\n").digest


def test_channel_that_ended_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConflictError) as caught:
        resolved(tmp_path, BASE % "3.11" + "provider: conda\nconda: {channels: [pytorch]}\n")
    assert caught.value.code == "pytorch-channel-ended"
    assert "ended with 2.5.1" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["provider: pip", "conda: {packages: ['a b; rm']}", "conda: {channels: ['http://joe:secret@example/c']}"],
)
def test_odd_values_are_errors(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError):
        cell(tmp_path, BASE % "3.11" + text + "\n")


def test_lock_of_another_provider_is_stale(tmp_path: Path) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from builder.lockfile import ImageLock  # noqa: PLC0415

    resolution = resolved(tmp_path, BASE % "3.12" + "provider: [apt, conda]\n")
    lock = ImageLock(
        **{name: getattr(resolution, name) for name in _SHARED},
        exclude_newer_applied=False,
        base_digest=None,
        packages=(),
    )
    words = "Python comes from apt in the lock and would come from conda"
    assert words in staleness.staleness(lock, resolution)
    assert words not in staleness.staleness(replace(lock, provider="conda"), resolution)


_SHARED = (
    *(
        "image_id",
        "spec_name",
        "spec_digest",
        "facts_generated",
        "python",
        "arch",
        "glibc",
        "torch",
        "variant",
        "flavor",
    ),
    *("user", "driver_floor", "exclude_newer", "apt", "allow_source", "base", "gpus"),
)
