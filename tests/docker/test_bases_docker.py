"""A base made by debootstrap, and digests asked from a registry that runs here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest

from builder import process_tree
from builder.bases import BASE_LABEL, ensure_debian_base, resolve_reference_digest
from builder.docker_engine import DockerEngine
from builder.engine import Limits
from builder.errors import EngineError
from builder.processes import wait_until

pytestmark = pytest.mark.docker

CHECKOUT = Path(__file__).resolve().parents[2]


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


def test_base_is_clean_and_its_packages_can_be_updated(engine: DockerEngine, debian: str) -> None:
    if not debian.startswith("torchproof-base/"):
        pytest.skip("the base came from a registry: debootstrap needs root")
    labels = json.loads(docker("inspect", "--format", "{{json .Config.Labels}}", debian))
    assert labels[BASE_LABEL] == "debian:bookworm"
    script = (
        "cat /etc/machine-id; find /var/log /var/lib/apt/lists /var/cache/apt -type f; . /etc/os-release;"
        " echo $VERSION_CODENAME; grep -c . /etc/apt/sources.list; ls -d /run/lock; cut -d: -f3 /etc/shadow | sort -u"
    )
    with engine.session(engine.image(debian), {}, Limits(), gpus=False) as session:
        lines = session.run(["sh", "-c", script], timeout_s=30).stdout.decode().split()
    assert lines[0] == "bookworm"
    assert int(lines[1]) >= 1
    assert lines[2] == "/run/lock"
    assert len(lines) == 4  # one day of change for all users


def test_second_call_makes_nothing(engine: DockerEngine, debian: str, tmp_path: Path) -> None:
    lines: list[str] = []
    assert ensure_debian_base("bookworm", engine, tmp_path, lines.append, environ=os.environ) == debian
    assert lines == []


# While it downloads, and while it runs programs of the new system with /proc mounted in it.
@pytest.mark.parametrize(
    ("number", "stage"), [(signal.SIGTERM, "debootstrap-*/root"), (signal.SIGINT, "debootstrap-*/root/etc/passwd")]
)
def test_interrupted_debootstrap_leaves_no_folder_mount_or_process(
    engine: DockerEngine, tmp_path: Path, number: int, stage: str
) -> None:
    if os.geteuid() != 0 or not shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("needs root and debootstrap")
    # A store without images makes debootstrap run, whatever this machine has already.
    driver = f"""
        import os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may have it ignored
        from pathlib import Path
        from builder.bases import ensure_debian_base
        class Store:
            def has_image(self, reference): return False
        ensure_debian_base("bookworm", Store(), Path({str(tmp_path)!r}), print, environ=os.environ)
        """
    with (
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(driver)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert wait_until(lambda: any(tmp_path.glob(stage)), limit_s=120)
        family = process_tree.descendants(process.pid)
        process.send_signal(number)
        assert process.wait(60) != 0
    assert [path.name for path in tmp_path.iterdir()] == ["debian-bookworm.lock"]
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(encoding="utf-8")
    assert not any(process_tree.descendants(pid) for pid in family)


def test_digest_of_a_tag_is_the_one_that_was_pushed(engine: DockerEngine, debian: str, registry: str) -> None:
    reference = f"{registry}/torchproof/base:1"
    docker("tag", debian, reference)
    try:
        pushed = docker("push", "--quiet", reference)
        assert reference in pushed
        digest = json.loads(docker("inspect", "--format", "{{json .RepoDigests}}", reference))
        pinned = resolve_reference_digest(reference, engine)
        assert pinned in digest
        assert pinned.startswith(f"{registry}/torchproof/base@sha256:")
    finally:
        docker("image", "rm", reference)
    engine.pull(pinned_tag := reference)
    docker("image", "rm", pinned_tag)


def test_tag_that_is_not_there_is_told(engine: DockerEngine, debian: str, registry: str) -> None:
    for ask in (resolve_reference_digest, lambda reference, engine: engine.pull(reference)):
        with pytest.raises(EngineError) as caught:
            ask(f"{registry}/torchproof/none:1", engine)
        assert caught.value.code == "image-not-found"
        assert caught.value.exit_status == 6


def test_registry_that_does_not_answer_is_told(engine: DockerEngine) -> None:
    with pytest.raises(EngineError) as caught:
        resolve_reference_digest("127.0.0.1:9/torchproof/none:1", engine)
    assert caught.value.code == "registry-unreachable"
    assert caught.value.exit_status == 6
