"""The pure parts behind the Docker engine: bake arguments, its log, redaction, bounded output, GPUs, owners."""

# ruff: noqa: E501 - lines of logs stay as they were printed

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from builder import containers, process_tree
from builder.bake import BakeLog, Fault, bake_argv, base_image_error, digests_by_name, failure_error, fault_of
from builder.containers import GpuAccess, archive, gpu_access, is_orphan, oom_kills, owner_of_this_process
from builder.engine import BuildPlan, BuildTarget, Limits
from builder.errors import BuildError, EngineError, PackageIndexError, StaleLockError, TorchproofError
from builder.nvml import HostGpus, read_host_gpus
from builder.processes import CappedOutput, Redactor, hold_interrupts, stream

# As buildx 0.13.1 with Engine 26.1 printed it.
STEP_FAILED = """\
#5 [b 1/3] FROM docker.io/library/base:1
#5 CACHED

#6 [a 2/2] RUN echo one; echo two >&2;   exit 3
#6 0.157 one
#6 0.157 two
#6 ERROR: process "/bin/sh -c echo one; echo two >&2;   exit 3" did not complete successfully: exit code: 3

#7 [b 2/3] RUN sleep 5
#7 CANCELED
------
 > [a 2/2] RUN echo one; echo two >&2;   exit 3:
0.157 one
0.157 two
------
Dockerfile:2
--------------------
   2 | >>> RUN echo one; echo two >&2;   exit 3
--------------------
ERROR: failed to solve: process "/bin/sh -c echo one; echo two >&2;   exit 3" did not complete successfully: exit code: 3
"""
NO_BASE = """\
#3 [internal] load metadata for docker.io/nosuch/thing:1
#3 ERROR: failed to do request: Head "https://registry/v2/nosuch/thing/manifests/1": dial tcp: lookup registry: no such host
------
ERROR: failed to solve: nosuch/thing:1: failed to resolve source metadata for docker.io/nosuch/thing:1: failed to do \
request: Head "https://registry/v2/nosuch/thing/manifests/1": dial tcp: lookup registry: no such host
"""
PARSE_ERROR = """\
#2 [internal] load build definition from Dockerfile
#2 transferring dockerfile: 75B done
#2 DONE 0.0s
Dockerfile:2
--------------------
   2 | >>> RUNN true
--------------------
ERROR: failed to solve: dockerfile parse error on line 2: unknown instruction: RUNN (did you mean RUN?)
"""


def error_of(text: str, status: int = 1) -> TorchproofError:
    log = BakeLog()
    for line in text.splitlines():
        log.feed(line)
    return failure_error(log, status=status, images=["one", "two"], log_file=Path("/logs/build.log"))


def run_failing_with(message: str, status: int = 1) -> TorchproofError:
    return error_of(
        f'#9 [a 2/2] RUN sh install.sh\n#9 1.000 {message}\n#9 ERROR: process "/bin/sh -c sh install.sh" did not '
        f"complete successfully: exit code: {status}\n"
    )


def plan(**values: object) -> BuildPlan:
    fields: dict[str, object] = {
        "folder": Path("/context"),
        "bake_file": "docker-bake.json",
        "targets": (BuildTarget(image_id="one", tag="torchproof/m:one"),),
        "log_file": Path("/logs/build.log"),
    }
    return BuildPlan(**(fields | values))  # type: ignore[arg-type]


def test_failed_step_is_told_with_command_status_and_last_lines() -> None:
    error = error_of(STEP_FAILED)
    assert isinstance(error, BuildError)
    assert error.code == "build-step-failed"
    assert "`echo one; echo two >&2; exit 3` ended with status 3" in error.because[0]
    assert "[a 2/2]" in error.because[0]
    assert error.detail == "one\ntwo"
    assert "/logs/build.log" in str(error)
    assert "`one`, `two`" in error.what


def test_mistake_in_the_definition_is_quoted() -> None:
    error = error_of(PARSE_ERROR)
    assert error.code == "build-step-failed"
    assert "unknown instruction: RUNN" in str(error)


def test_a_bake_that_dies_without_a_word_still_gives_an_error() -> None:
    error = error_of("", status=137)
    assert error.code == "build-step-failed"
    assert "137" in str(error)


def test_only_the_last_twenty_lines_are_shown() -> None:
    lines = "".join(f"#4 {number}.000 line {number}\n" for number in range(50))
    error = error_of(
        f'#4 [1/1] RUN x\n{lines}#4 ERROR: process "/bin/sh -c x" did not complete successfully: exit code: 1\n'
    )
    assert error.detail is not None
    assert error.detail.splitlines() == [f"line {number}" for number in range(30, 50)]


@pytest.mark.parametrize(
    ("message", "kind", "code", "status"),
    [
        ("OSError: [Errno 28] No space left on device", BuildError, "disk-full", 7),
        ("error: failed to write to file `/x`: No space left on device (os error 28)", BuildError, "disk-full", 7),
        ("error: Hash mismatch for `alpha==1.0`", StaleLockError, "hash-mismatch", 5),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            StaleLockError,
            "hash-mismatch",
            5,
        ),
        (
            "  cause: error sending request for url (https://index/simple/a/)",
            PackageIndexError,
            "index-unreachable-in-build",
            6,
        ),
        ("  cause: invalid peer certificate: UnknownIssuer", PackageIndexError, "index-unreachable-in-build", 6),
        (
            "E: Unable to fetch some archives, maybe run apt-get update",
            PackageIndexError,
            "index-unreachable-in-build",
            6,
        ),
        ("Temporary failure resolving 'mirror'", PackageIndexError, "index-unreachable-in-build", 6),
        ("ModuleNotFoundError: No module named 'x'", BuildError, "build-step-failed", 7),
    ],
)
def test_what_a_run_died_of(message: str, kind: type[TorchproofError], code: str, status: int) -> None:
    error = run_failing_with(message)
    assert type(error) is kind
    assert error.code == code
    assert error.exit_status == status
    assert "/logs/build.log" in str(error)


def test_untrusted_certificate_asks_for_a_bundle() -> None:
    assert "CA bundle" in (run_failing_with("invalid peer certificate: UnknownIssuer").hint or "")


def test_killed_step_mentions_memory() -> None:
    assert "memory" in str(run_failing_with("...", status=137))


def test_base_without_a_registry_is_not_a_failed_step() -> None:
    error = error_of(NO_BASE)
    assert isinstance(error, EngineError)
    assert error.code == "registry-unreachable"
    assert "`nosuch/thing:1`" in str(error)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("manifest for 127.0.0.1:5000/a:1 not found: manifest unknown: manifest unknown", "image-not-found"),
        ("pull access denied for a, repository does not exist or may require 'docker login'", "image-not-found"),
        ("failed to resolve source metadata for docker.io/a:1: docker.io/a:1: not found", "image-not-found"),
        ('Get "https://registry/v2/": dial tcp: lookup registry: no such host', "registry-unreachable"),
        ('Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused', "registry-unreachable"),
    ],
)
def test_missing_image_and_silent_registry_are_told_apart(said: str, code: str) -> None:
    error = base_image_error("docker.io/library/a:1", said, what="x")
    assert error.code == code
    assert error.exit_status == 6
    assert "`a:1`" in str(error)


def test_full_disk_comes_before_what_it_causes() -> None:
    assert fault_of("failed to download x: no space left on device") is Fault.DISK_FULL
    assert fault_of("all is well") is None


def test_contexts_and_secrets_become_arguments() -> None:
    argv = bake_argv(
        plan(contexts={"wheelhouse": "/wheels"}, secrets={"index": Path("/a,b/index.env")}),
        builder="default",
        metadata_file=Path("/m.json"),
    )
    assert argv[:5] == ["docker", "buildx", "--builder", "default", "bake"]
    assert "*.contexts.wheelhouse=/wheels" in argv
    # The value is a row of CSV: a comma in a path has to be quoted.
    assert '*.secrets=id=index,"src=/a,b/index.env"' in argv
    assert "--provenance=false" in argv


def test_digests_are_found_by_image_name() -> None:
    found = digests_by_name(
        {
            "one": {
                "containerimage.digest": "sha256:1",
                "image.name": "docker.io/torchproof/m:one,docker.io/library/x:1",
            },
            "odd": "text",
        }
    )
    assert found == {"torchproof/m:one": "sha256:1", "x:1": "sha256:1"}


def test_redactor_hides_credentials_and_keeps_addresses() -> None:
    redact = Redactor(
        [
            b"export UV_DEFAULT_INDEX='https://joe:p%40ssw0rd@index.example/simple'\nexport API_TOKEN=\"abcd1234\"\n",
            b"export UV_HTTP_TIMEOUT='60'\n",
            b"machine index.example login joe password s3cr3t\n",
            b"baretoken99\n",
            b"-----BEGIN CERTIFICATE-----\nMIIBpublic\n-----END CERTIFICATE-----\n",
        ]
    )
    line = "joe:p%40ssw0rd@index.example p@ssw0rd p%40ssw0rd abcd1234 s3cr3t baretoken99 60 MIIBpublic"
    assert redact(line) == "***@index.example *** *** *** *** *** 60 MIIBpublic"
    assert Redactor([])("as it is") == "as it is"


def test_capped_output_keeps_both_ends() -> None:
    output = CappedOutput(100)
    for _ in range(1000):
        output.add(b"0123456789")
    output.add(b"END")
    value = output.value()
    assert value.startswith(b"0123456789" * 5 + b"\n[torchproof: ")
    assert value.endswith(b"END")
    assert len(value) < 160
    exact = CappedOutput(10)
    exact.add(b"0123456789")
    assert exact.value() == b"0123456789"


def test_archive_is_plain_and_the_same_each_time() -> None:
    files = {"b/c.py": b"2", "a.py": b"1"}
    packed = archive(files, folder="/opt/smoke", folder_mode=0o755)
    assert packed == archive(dict(reversed(files.items())), folder="/opt/smoke", folder_mode=0o755)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {entry.name: (entry.mode, entry.uid) for entry in tar}
    assert found == {
        "opt/smoke": (0o755, 0),
        "opt/smoke/b": (0o755, 0),
        "opt/smoke/a.py": (0o644, 0),
        "opt/smoke/b/c.py": (0o644, 0),
    }


def test_container_is_sealed() -> None:
    options = containers.container_options(name="n", image="i", labels={}, limits=Limits(), gpu_request=[])
    assert options["network_mode"] == "none"
    assert options["cap_drop"] == ["ALL"]
    assert options["memswap_limit"] == options["mem_limit"]
    assert "user" not in options
    assert "device_requests" not in options


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n", 3),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        ("", None),
    ],
)
def test_kills_are_read_from_both_kinds_of_cgroup(text: str, expected: int | None) -> None:
    assert oom_kills(text) == expected


CARD = HostGpus(names=("NVIDIA A100",), driver="570.1")
NONE = HostGpus(reason="this machine has no NVIDIA device (/dev/nvidiactl)")


@pytest.mark.parametrize(
    ("info", "host", "has_hook", "cdi", "route", "word"),
    [
        ({"Runtimes": {"runc": {}}}, NONE, False, [], None, "no NVIDIA device"),
        ({"Runtimes": {"runc": {}}}, CARD, False, [], None, "no NVIDIA container runtime"),
        ({"Runtimes": {"nvidia": {}}}, NONE, False, [], None, "but this machine has no NVIDIA device"),
        ({"Runtimes": {"nvidia": {}}}, CARD, False, [], "runtime", None),
        ({"Runtimes": {}}, CARD, True, [], "runtime", None),
        ({"Runtimes": {}}, CARD, False, ["nvidia.com/gpu"], "cdi", None),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, CARD, False, [], "cdi", None),
        ({"DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/nic=0"}]}, CARD, False, [], None, "no NVIDIA"),
        ({"Runtimes": {"nvidia": {}}}, None, False, [], "runtime", None),
        ({}, None, False, [], None, "no NVIDIA container runtime"),
    ],
)
def test_how_a_gpu_is_handed_over(
    info: dict[str, object], host: HostGpus | None, has_hook: bool, cdi: list[str], route: str | None, word: str | None
) -> None:
    access = gpu_access(info, host, has_hook=has_hook, cdi_devices=cdi)
    assert access.route == route
    assert (access.reason is None) == (route is not None)
    if word:
        assert word in (access.reason or "")
    assert isinstance(access, GpuAccess)


def test_machine_without_a_device_says_so(tmp_path: Path) -> None:
    assert "/dev/nvidiactl" in (read_host_gpus(device_root=tmp_path).reason or "")


def test_owner_is_told_alive_and_dead() -> None:
    mine = owner_of_this_process()
    assert not is_orphan(mine, running=True)
    host, boot, namespace, pid, start = mine.split(" ")
    assert is_orphan(f"{host} {boot} {namespace} {pid} 1", running=True)
    assert not is_orphan(f"elsewhere {boot} {namespace} {pid} 1", running=True)
    assert not is_orphan(f"{host} {boot} pid:[1] {pid} {start}1", running=True)
    assert is_orphan(f"{host} before {namespace} {pid} {start}", running=False)
    assert not is_orphan(f"{host} before {namespace} {pid} {start}", running=True)
    assert not is_orphan("", running=False)


def test_stream_stops_the_whole_group_at_its_limit() -> None:
    lines: list[str] = []
    started = time.monotonic()
    argv = ["sh", "-c", "trap '' TERM; sh -c \"trap '' TERM; echo \\$\\$; sleep 600\" & wait; sleep 600"]
    status = stream(argv, cwd=Path("/"), env=os.environ, on_line=lines.append, limit_s=1)
    assert status is None
    assert time.monotonic() - started < 10
    assert not process_tree.descendants(int(lines[0]))


def test_stream_stops_its_child_when_the_reader_breaks() -> None:
    numbers: list[int] = []

    def breaks(line: str) -> None:
        numbers.append(int(line))
        raise RuntimeError("reader")

    with pytest.raises(RuntimeError, match="reader"):
        stream(["sh", "-c", "echo $$; exec sleep 600"], cwd=Path("/"), env=os.environ, on_line=breaks, limit_s=60)
    assert not process_tree.descendants(numbers[0])


def test_interrupt_waits_until_the_block_is_done() -> None:
    done = []

    def interrupted() -> None:
        with hold_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("rest of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_unwinds() -> None:
    script = (
        "import os, signal\nfrom builder.processes import sigterm_raises\n"
        "try:\n with sigterm_raises():\n  os.kill(os.getpid(), signal.SIGTERM)\nfinally:\n print('cleaned', flush=True)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert result.stdout == "cleaned\n"
    assert result.returncode == 128 + signal.SIGTERM
