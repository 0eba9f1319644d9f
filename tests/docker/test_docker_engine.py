"""The Docker engine for real: builds, sealed sessions, and every way in which they end badly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from builder import process_tree
from builder.containers import OWNER_LABEL, RUN_LABEL
from builder.docker_engine import DockerEngine
from builder.engine import BuiltImage, Limits
from builder.errors import BuildError, EngineError
from builder.processes import wait_until

pytestmark = pytest.mark.docker

CHECKOUT = Path(__file__).resolve().parents[2]
SMALL = Limits(memory_bytes=256 * 2**20, shm_bytes=64 * 2**20, pids=64)


@pytest.fixture(scope="session")
def image(engine: DockerEngine, debian: str) -> BuiltImage:
    return engine.image(debian)


def containers_of(run_id: str) -> list[str]:
    argv = ["docker", "ps", "--all", "--quiet", "--filter", f"label={RUN_LABEL}={run_id}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def processes_with(word: str) -> list[str]:
    """Processes of this machine, containers included, that have `word` as an argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in arguments:
            found.append(path.parent.name)
    return found


# --- connecting ------------------------------------------------------------------------------------------------------


def test_dead_socket_is_named(tmp_path: Path) -> None:
    host = f"unix://{tmp_path}/no.sock"
    with pytest.raises(EngineError) as caught:
        DockerEngine.connect({**os.environ, "DOCKER_HOST": host})
    assert caught.value.code == "engine-not-running"
    assert caught.value.exit_status == 6
    assert host in str(caught.value)


def test_refused_port_is_named() -> None:
    with pytest.raises(EngineError, match=r"tcp://127\.0\.0\.1:9"):
        DockerEngine.connect({**os.environ, "DOCKER_HOST": "tcp://127.0.0.1:9"}, timeout_s=3)


def test_missing_command_line_is_its_own_error(engine: DockerEngine, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        DockerEngine.connect({**os.environ, "PATH": str(tmp_path)})
    assert caught.value.code == "buildx-missing"


def test_missing_buildx_is_its_own_error(engine: DockerEngine, tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho \"docker: 'buildx' is not a docker command.\" >&2\nexit 1\n", encoding="utf-8")
    docker.chmod(0o755)
    with pytest.raises(EngineError) as caught:
        DockerEngine.connect({**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert caught.value.code == "buildx-missing"
    assert "not a docker command" in str(caught.value)


def test_info_describes_the_engine(engine: DockerEngine) -> None:
    info = engine.info()
    assert info.kind == "docker"
    assert info.version[0].isdigit()
    assert info.store
    assert bool(info.gpus) != bool(info.gpu_reason)


# --- builds ----------------------------------------------------------------------------------------------------------


def test_build_gives_digest_sizes_and_a_log(project: Any) -> None:
    (project.folder / "file").write_text("x" * 5000, encoding="utf-8")
    built = project.build("COPY file /file\nRUN echo torchproof-was-here")
    assert built.digest.startswith("sha256:")
    assert built.reference == project.tag
    assert built.size_bytes >= sum(built.layers) > 5000
    assert 5000 in built.layers
    assert built.seconds > 0
    assert any("torchproof-was-here" in line for line in project.lines)
    assert built.log_file is not None
    assert "torchproof-was-here" in built.log_file.read_text(encoding="utf-8")
    # Again: everything is cached, and the same image comes out.
    assert project.build("COPY file /file\nRUN echo torchproof-was-here").digest == built.digest


def test_named_context_is_mounted(project: Any, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels, and more"
    wheels.mkdir()
    (wheels / "a.whl").write_text("wheel", encoding="utf-8")
    project.build(
        "RUN --mount=type=bind,from=wheelhouse,target=/mnt grep wheel /mnt/a.whl", contexts={"wheelhouse": str(wheels)}
    )


def test_secret_that_is_not_given_is_simply_absent(project: Any) -> None:
    project.build("RUN --mount=type=secret,id=index test ! -e /run/secrets/index")


def test_secrets_stay_out_of_layers_history_bake_file_and_log(project: Any, tmp_path: Path) -> None:
    word = f"hunter{uuid.uuid4().hex}"
    secret = tmp_path / "index.env"
    secret.write_text(f"export UV_DEFAULT_INDEX='https://joe:{word}@127.0.0.1:9/simple'\n", encoding="utf-8")
    built = project.build(
        "RUN --mount=type=secret,id=index . /run/secrets/index && echo asked $UV_DEFAULT_INDEX > /dev/stderr  # "
        f"{uuid.uuid4()}",  # never cached: a cached step prints nothing
        secrets={"index": secret},
    )
    assert any("asked https://***@127.0.0.1:9/simple" in line for line in project.lines)
    saved = tmp_path / "image.tar"
    subprocess.run(["docker", "save", "--output", saved, built.digest], check=True)
    needle = word.encode()
    seen = 0
    with tarfile.open(saved) as outer:
        for entry in outer:
            member = outer.extractfile(entry)
            if member is not None:
                seen += 1
                assert needle not in member.read(), entry.name
    assert seen > 3
    history = subprocess.run(
        ["docker", "history", "--no-trunc", built.digest], capture_output=True, text=True, check=True
    )
    assert "asked" in history.stdout
    texts = [history.stdout, *project.lines, project.log_file.read_text(encoding="utf-8")]
    texts += [path.read_text(encoding="utf-8") for path in project.folder.iterdir()]
    assert not [text for text in texts if word in text]


def test_failed_step_gives_command_status_lines_and_log(project: Any) -> None:
    with pytest.raises(BuildError) as caught:
        project.build("RUN echo about to fail; echo the reason >&2; exit 42")
    error = caught.value
    assert error.code == "build-step-failed"
    assert "status 42" in error.because[0]
    assert "about to fail" in (error.detail or "")
    assert "the reason" in (error.detail or "")
    assert str(project.log_file) in str(error)


def test_full_disk_is_told(project: Any) -> None:
    with pytest.raises(BuildError) as caught:
        project.build("RUN --mount=type=tmpfs,target=/full,size=1048576 dd if=/dev/zero of=/full/file bs=1M count=3")
    assert caught.value.code == "disk-full"


def test_base_that_is_nowhere_is_told(project: Any) -> None:
    project.base = "127.0.0.1:9/torchproof/none:1"
    with pytest.raises(EngineError) as caught:
        project.build("")
    assert caught.value.code == "registry-unreachable"
    assert "127.0.0.1:9/torchproof/none:1" in str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_build_leaves_no_process_and_no_file(project: Any, tmp_path: Path, number: int) -> None:
    # The number of seconds is the mark by which the step is found again, and it keeps the step out of the cache.
    mark = str(10**6 + uuid.uuid4().int % 10**6)
    plan = project.plan(f"RUN trap '' INT TERM; sleep {mark}")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    driver = f"""
        import os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may have it ignored
        from pathlib import Path
        from builder.docker_engine import DockerEngine
        from builder.engine import BuildPlan, BuildTarget
        plan = BuildPlan(
            folder=Path({str(plan.folder)!r}), bake_file="docker-bake.json", log_file=Path({str(plan.log_file)!r}),
            targets=(BuildTarget(image_id="one", tag={project.tag!r}),),
        )
        DockerEngine.connect(os.environ).build(plan, print)
        """
    with (
        subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(driver)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TMPDIR": str(temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert wait_until(lambda: bool(processes_with(mark)), limit_s=60)
        family = process_tree.descendants(process.pid)
        assert len(family) > 1
        process.send_signal(number)
        assert process.wait(30) != 0
    assert not any(process_tree.descendants(pid) for pid in family)
    assert list(temporary.iterdir()) == []
    assert wait_until(lambda: not processes_with(mark), limit_s=20)
    assert not project.engine.has_image(project.tag)


# --- sessions --------------------------------------------------------------------------------------------------------


def test_session_is_sealed_and_removed(engine: DockerEngine, image: BuiltImage) -> None:
    files = {"probe.sh": b"echo from-the-script", "data/x.txt": b"x"}
    with engine.session(image, files, SMALL, gpus=False) as session:
        assert len(containers_of(engine.run_id)) == 1
        assert session.network_cut
        assert not session.has_gpu
        script = "sh $0/probe.sh; ls /sys/class/net; grep CapEff /proc/self/status"
        result = session.run(["sh", "-c", script, session.smoke_folder], timeout_s=20)
        assert result.exit_status == 0, result.stderr
        lines = result.stdout.decode().splitlines()
        assert lines[0] == "from-the-script"
        assert "lo" in lines
        assert not [line for line in lines if line.startswith("eth")]
        assert "CapEff:\t0000000000000000" in lines
        state = json.loads(
            subprocess.run(["docker", "inspect", *containers_of(engine.run_id)], capture_output=True, check=True).stdout
        )[0]
        assert state["HostConfig"]["Memory"] == state["HostConfig"]["MemorySwap"] == SMALL.memory_bytes
        assert state["HostConfig"]["ShmSize"] == SMALL.shm_bytes
        assert state["HostConfig"]["PidsLimit"] == SMALL.pids
        assert state["Image"] == image.digest or image.digest_kind == "manifest"
    assert containers_of(engine.run_id) == []


def test_session_runs_as_the_image_s_user_with_its_python(project: Any) -> None:
    built = project.build(
        "RUN useradd --uid 1234 joe\nLABEL io.torchproof.python=/opt/venv/bin/python\nENV PYTHONDONTWRITEBYTECODE=1\n"
        "USER joe"
    )
    with project.engine.session(built, {"a.py": b""}, SMALL, gpus=False) as session:
        assert list(session.python()) == ["/opt/venv/bin/python"]
        request = session.put("deep/request.json", b'{"a": 1}')
        script = "id -u; cat $0; touch $HOME/made $TMPDIR/deep/made; echo x >> $0; stat -c %u $1; env; touch $1 2>&1"
        result = session.run(
            ["sh", "-c", script, request, f"{session.smoke_folder}/a.py"], timeout_s=20, env={"E": "f"}
        )
    lines = result.stdout.decode().splitlines()
    assert result.stderr == b""
    assert lines[0] == "1234"
    assert lines[1].startswith('{"a": 1}')
    assert {"E=f", "HF_HUB_OFFLINE=1", "PYTHONDONTWRITEBYTECODE="} <= set(lines)
    assert "Permission denied" in lines[-1]


def test_image_without_a_label_gets_python3(engine: DockerEngine, image: BuiltImage) -> None:
    with engine.session(image, {}, SMALL, gpus=False) as session:
        assert list(session.python()) == ["python3"]


def test_hang_is_killed_with_a_child_that_ignores_sigterm(engine: DockerEngine, image: BuiltImage) -> None:
    mark = str(10**6 + uuid.uuid4().int % 10**6)
    with engine.session(image, {}, SMALL, gpus=False) as session:
        path = session.put("kept.txt", b"kept")
        script = f"echo before; trap '' TERM INT; setsid sh -c \"trap '' TERM; sleep {mark}\" & sleep {mark}"
        result = session.run(["sh", "-c", script], timeout_s=2)
        assert result.timed_out
        assert result.exit_status is None
        assert result.stdout == b"before\n"
        assert 2 <= result.seconds < 8
        assert not processes_with(mark)
        # What was put in is still there for the next script.
        assert session.run(["cat", path], timeout_s=20).stdout == b"kept"


def test_child_that_holds_the_output_open_does_not_hold_the_result(engine: DockerEngine, image: BuiltImage) -> None:
    with engine.session(image, {}, SMALL, gpus=False) as session:
        result = session.run(["sh", "-c", "sleep 600 & echo done; exit 3"], timeout_s=60)
    assert result.stdout == b"done\n"
    assert result.exit_status == 3
    assert result.seconds < 20


def test_silence_longer_than_the_client_s_own_patience_is_no_error(engine: DockerEngine, image: BuiltImage) -> None:
    with engine.session(image, {}, SMALL, gpus=False) as session:
        session._api.timeout = 1
        result = session.run(["sh", "-c", "sleep 3; echo late"], timeout_s=60)
    assert result.stdout == b"late\n"


def test_memory_kill_is_told(engine: DockerEngine, image: BuiltImage) -> None:
    eat = ["perl", "-e", "my @a; while (1) { push @a, 'x' x 10_000_000 }"]
    with engine.session(image, {}, SMALL, gpus=False) as session:
        result = session.run(eat, timeout_s=60)
        assert result.out_of_memory
        assert result.exit_status == 137
        # A child of the script, such as a data loader, dies of memory; the script ends by itself.
        child = session.run(
            ["sh", "-c", 'perl -e "my @a; while (1) { push @a, q(x) x 10_000_000 }"; exit 1'], timeout_s=60
        )
        assert child.out_of_memory
        assert child.exit_status == 1
        after = session.run(["sh", "-c", "exit 1"], timeout_s=20)
        assert not after.out_of_memory
        killed = session.run(["sh", "-c", "kill -9 $$"], timeout_s=20)
        assert killed.exit_status == 137
        assert not killed.out_of_memory


def test_rubbish_passes_through_unchanged(engine: DockerEngine, image: BuiltImage) -> None:
    with engine.session(image, {}, SMALL, gpus=False) as session:
        script = "binmode STDOUT; print map { chr } 0..255; print STDERR qq(\\xff\\xfe); exit 7"
        result = session.run(["perl", "-e", script], timeout_s=20)
        assert result.stdout == bytes(range(256))
        assert result.stderr == b"\xff\xfe"
        assert result.exit_status == 7
        flood = session.run(["sh", "-c", "head -c 20000000 /dev/zero; echo END"], timeout_s=60)
        assert flood.stdout.endswith(b"END\n")
        assert b"bytes left out here" in flood.stdout
        assert len(flood.stdout) < 9 * 2**20


def test_command_that_is_not_there_is_a_status(engine: DockerEngine, image: BuiltImage) -> None:
    with engine.session(image, {}, SMALL, gpus=False) as session:
        assert session.run(["no-such-command"], timeout_s=20).exit_status in (126, 127)


def test_gpu_that_the_engine_cannot_pass_is_refused(engine: DockerEngine, image: BuiltImage) -> None:
    if engine.info().gpus:
        pytest.skip("this engine has GPUs")
    with pytest.raises(EngineError) as caught, engine.session(image, {}, SMALL, gpus=True):
        pass
    assert caught.value.code == "gpu-not-passed"
    assert containers_of(engine.run_id) == []


def test_exception_in_the_block_removes_the_container(engine: DockerEngine, image: BuiltImage) -> None:
    with pytest.raises(RuntimeError, match="check"), engine.session(image, {}, SMALL, gpus=False):
        raise RuntimeError("check")
    assert containers_of(engine.run_id) == []


def test_image_that_cannot_start_leaves_no_container(project: Any) -> None:
    built = project.build("RUN rm /usr/bin/sleep")
    with (  # noqa: PT012 - the engine starts it without an error, and it ends at once
        pytest.raises(EngineError, match="is not running"),
        project.engine.session(built, {}, SMALL, gpus=False) as session,
    ):
        time.sleep(1)
        session.run(["true"], timeout_s=20)
    assert containers_of(project.engine.run_id) == []


def _start_session(image: BuiltImage) -> subprocess.Popen[str]:
    driver = f"""
        import os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from builder.docker_engine import DockerEngine
        from builder.engine import Limits
        engine = DockerEngine.connect(os.environ)
        with engine.session(engine.image({image.reference!r}), {{}}, Limits(), gpus=False) as session:
            print(engine.run_id, flush=True)
            session.run(["sh", "-c", "trap '' TERM INT; sleep 600"], timeout_s=500)
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(driver)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _read_run_id(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_session_leaves_no_container(engine: DockerEngine, image: BuiltImage, number: int) -> None:
    with _start_session(image) as process, ExitStack() as stack:
        stack.callback(process.kill)  # leaving the block waits for it
        run_id = _read_run_id(process)
        assert containers_of(run_id)
        process.send_signal(number)
        assert process.wait(30) != 0
    assert containers_of(run_id) == []


def test_second_interrupt_does_not_stop_the_removal(engine: DockerEngine, image: BuiltImage) -> None:
    with _start_session(image) as process, ExitStack() as stack:
        stack.callback(process.kill)  # leaving the block waits for it
        run_id = _read_run_id(process)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        assert process.wait(30) != 0
    assert containers_of(run_id) == []


def test_leftover_of_a_killed_run_is_found_by_the_next(engine: DockerEngine, image: BuiltImage) -> None:
    with _start_session(image) as process, ExitStack() as stack:
        stack.callback(process.kill)  # leaving the block waits for it
        run_id = _read_run_id(process)
        with engine.session(image, {}, SMALL, gpus=False):
            assert engine.remove_leftovers() == []  # both owners live
            process.kill()
            process.wait()
            assert len(containers_of(run_id)) == 1
            removed = engine.remove_leftovers()
            assert len(removed) == 1
            assert run_id in removed[0]
            assert len(containers_of(engine.run_id)) == 1
    assert containers_of(run_id) == []


def test_containers_of_others_are_left_alone(engine: DockerEngine, image: BuiltImage) -> None:
    argv = [
        "docker",
        "create",
        "--label",
        f"{RUN_LABEL}=x",
        "--label",
        f"{OWNER_LABEL}=elsewhere b p 1 2",
        image.digest,
    ]
    other = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    try:
        assert engine.remove_leftovers() == []
        assert len(engine.remove_leftovers("x")) == 1
    finally:
        subprocess.run(["docker", "rm", "--force", other], capture_output=True, check=False)


def test_every_session_has_its_own_container(engine: DockerEngine, image: BuiltImage) -> None:
    start: Callable[[], object] = lambda: engine.session(image, {}, SMALL, gpus=False)  # noqa: E731
    with start(), start():  # type: ignore[attr-defined]
        assert len(containers_of(engine.run_id)) == 2
    assert containers_of(engine.run_id) == []
