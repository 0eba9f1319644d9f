"""Bases without an engine: sources, mirrors, cleaning, and which way is taken when."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from builder import bases
from builder.bases import apt_mirror, apt_sources, ensure_debian_base, mounted_below, release_time
from builder.errors import EngineError


class FakeStore:
    """Images by name; a registry that has those in `registry`."""

    def __init__(self, *images: str, registry: tuple[str, ...] = ()) -> None:
        self.images = list(images)
        self.registry = registry
        self.calls: list[str] = []

    def has_image(self, reference: str) -> bool:
        return reference in self.images

    def import_root(self, root: Path, reference: str, *, labels: Mapping[str, str]) -> None:
        self.calls.append(f"import {reference}")

    def pull(self, reference: str) -> None:
        self.calls.append(f"pull {reference}")
        if reference not in self.registry:
            raise EngineError("registry-unreachable", "no", because=["its registry does not answer"])

    def registry_digest(self, reference: str) -> str:
        self.calls.append(f"digest {reference}")
        return "sha256:1"


def ensure(store: FakeStore, folder: Path, path: str = "") -> str:
    # An empty PATH still finds what is in /usr/sbin, so debootstrap is hidden by the fixture below.
    return ensure_debian_base("bookworm", store, folder, lambda _: None, environ={"PATH": path})


@pytest.fixture
def without_debootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "_find", lambda command, environ: None)


def test_base_that_is_there_is_used(tmp_path: Path) -> None:
    assert ensure(FakeStore("torchproof-base/debian:bookworm"), tmp_path) == "torchproof-base/debian:bookworm"


def test_local_image_of_debian_needs_no_registry(tmp_path: Path, without_debootstrap: None) -> None:
    store = FakeStore("debian:bookworm")
    assert ensure(store, tmp_path) == "debian:bookworm"
    assert store.calls == []


def test_registry_is_the_last_way(tmp_path: Path, without_debootstrap: None) -> None:
    store = FakeStore(registry=("debian:bookworm",))
    assert ensure(store, tmp_path) == "debian:bookworm"
    assert store.calls == ["pull debian:bookworm"]


def test_when_nothing_works_both_ways_are_named(tmp_path: Path, without_debootstrap: None) -> None:
    with pytest.raises(EngineError) as caught:
        ensure(FakeStore(), tmp_path)
    assert caught.value.code == "no-debian-base"
    assert caught.value.exit_status == 6
    assert "debootstrap" in caught.value.because[0]
    assert "registry" in caught.value.because[1]


def test_failed_debootstrap_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bin" / "debootstrap"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\nmkdir -p "$3/etc"\necho "E: no such suite"\nexit 1\n', encoding="utf-8")
    broken.chmod(0o755)
    unshare = tmp_path / "bin" / "unshare"
    unshare.write_text('#!/bin/sh\nshift 3\nexec "$@"\n', encoding="utf-8")
    unshare.chmod(0o755)
    monkeypatch.setattr(bases, "_why_no_debootstrap", lambda environ: None)
    with pytest.raises(EngineError) as caught:
        ensure(FakeStore(), tmp_path / "cache", f"{broken.parent}:/usr/bin:/bin")
    assert "E: no such suite" in caught.value.because[0]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["debian-bookworm.lock"]


def test_odd_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="suite"):
        ensure_debian_base("../x", FakeStore(), tmp_path, lambda _: None, environ={})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Types: deb\n# http://old/archive/debian/2025\nURIs: http://mirror/debian\nSuites: bookworm\n",
            "http://mirror/debian",
        ),
        ("deb [signed-by=/k.gpg] http://mirror/debian/ bookworm main\n", "http://mirror/debian"),
        ("deb http://mirror/debian-security bookworm-security main\n", None),
        ("deb http://mirror/ubuntu jammy main\n", None),
        ("# deb http://mirror/debian bookworm main\n", None),
    ],
)
def test_mirror_of_the_machine(text: str, expected: str | None) -> None:
    assert apt_mirror([text]) == expected


def test_sources_name_only_what_is_served() -> None:
    served = {
        "http://m/debian/dists/bookworm-updates/Release",
        "http://m/debian-security/dists/bookworm-security/Release",
    }
    assert apt_sources("bookworm", "http://m/debian/", exists=served.__contains__) == (
        "deb http://m/debian bookworm main\n"
        "deb http://m/debian bookworm-updates main\n"
        "deb http://m/debian-security bookworm-security main\n"
    )
    old = {"http://m/debian-security/dists/buster/updates/Release"}
    assert "buster/updates main" in apt_sources("buster", "http://m/debian", exists=old.__contains__)


def test_credentials_of_a_mirror_stay_out_of_the_image() -> None:
    assert bases._without_credentials("http://joe:secret@mirror:80/debian") == "http://mirror:80/debian"


def test_release_time_is_read(tmp_path: Path) -> None:
    (tmp_path / "debootstrap.invalid_dists_bookworm_Release").write_text(
        "Origin: Debian\nDate: Sat, 11 Jul 2026 10:16:03 UTC\n", encoding="utf-8"
    )
    assert release_time(tmp_path) == 1783764963


def test_mounts_inside_come_innermost_first() -> None:
    points = ["/proc", "/w/root/proc", "/w/root/proc/a\\040b", "/w/rootless"]
    text = "".join(f"none {point} tmpfs rw 0 0\n" for point in points)
    assert mounted_below(Path("/w/root"), text) == ["/w/root/proc/a b", "/w/root/proc"]


def test_cleaning_leaves_nothing_of_time_and_place(tmp_path: Path) -> None:
    files = {
        "var/log/bootstrap.log": "x",
        "var/lib/apt/lists/m_Release": "x",
        "var/cache/apt/archives/a.deb": "x",
        "etc/resolv.conf": "nameserver 10.0.0.1",
        "etc/hostname": "builder",
        "etc/machine-id": "0123",
        "var/lib/dpkg/status-old": "x",
        "etc/shadow": "root:*:20000:0:99999:7:::\nbin:*:20001:0:99999:7:::\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    bases.clean(tmp_path, epoch=86_400 * 7)
    left = {
        str(path.relative_to(tmp_path)): path.read_text(encoding="utf-8")
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert left == {
        "etc/hostname": "",
        "etc/hosts": "",
        "etc/machine-id": "",
        "etc/passwd": files["etc/passwd"],
        "etc/resolv.conf": "",
        "etc/shadow": "root:*:7:0:99999:7:::\nbin:*:7:0:99999:7:::\n",
    }
    assert (tmp_path / "run/lock").stat().st_mode & 0o7777 == 0o1777
    assert (tmp_path / "var/cache/apt/archives/partial").is_dir()


@pytest.mark.parametrize(
    ("reference", "expected", "asked"),
    [
        ("debian:bookworm", "debian@sha256:1", ["digest debian:bookworm"]),
        ("localhost:5000/a", "localhost:5000/a@sha256:1", ["digest localhost:5000/a:latest"]),
        ("a@sha256:2", "a@sha256:2", []),
    ],
)
def test_reference_is_pinned(reference: str, expected: str, asked: list[str]) -> None:
    store = FakeStore()
    assert bases.resolve_reference_digest(reference, store) == expected
    assert store.calls == asked
