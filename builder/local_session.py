"""Checks as children of this process: own session, scrubbed environment, watched memory, killed whole."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from builder import process_tree
from builder.containers import checked_name, scratch_environment
from builder.engine import ExecResult, Limits
from builder.processes import CappedOutput, hold_interrupts, signal_group, wait_until

_OUTPUT_CAP = 8 * 2**20
_POLL_S = 0.1
_MARK = "TORCHPROOF_SESSION"

# All that a check gets from the caller's environment: no credentials, no paths to other Pythons or libraries.
_KEPT = ("LANG", "TZ", "USER", "LOGNAME", "PATH")
_KEPT_PREFIXES = ("LC_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NVPL_", "NCCL_", "CUDA_", "NVIDIA_")


def checked_environment(environ: Mapping[str, str], *, prefix: Path, scratch: Path, gpus: bool) -> dict[str, str]:
    """The environment of a check: as in a container, but for numeric libraries' own settings."""
    env = {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    env["PATH"] = f"{prefix / 'bin'}:{env.get('PATH', os.defpath)}"
    env |= scratch_environment(str(scratch))
    env["PYTHONNOUSERSITE"] = "1"
    if not gpus:
        # The same answer as a container without GPUs gives, on a machine that has some.
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env


def find_python(prefix: Path) -> Path:
    """The Python of a prefix; a distribution's own has no `python` without a number."""
    plain = prefix / "bin/python"
    return plain if plain.exists() else prefix / "bin/python3"


class LocalSession:
    """The network cannot be cut without a container: `network_cut` says so to the verdict."""

    network_cut = False

    def __init__(
        self, root: Path, prefix: Path, *, limits: Limits, environment: Mapping[str, str], has_gpu: bool
    ) -> None:
        self.scratch = str(root / "scratch")
        self.smoke_folder = str(root / "smoke")
        self.has_gpu = has_gpu
        self._prefix = prefix
        self._limits = limits
        self._id = uuid.uuid4().hex
        self._environment = {**environment, _MARK: self._id}

    def prepare(self, smoke_files: Mapping[str, bytes]) -> None:
        Path(self.scratch).mkdir()
        for name, content in smoke_files.items():
            path = Path(self.smoke_folder, checked_name(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def python(self) -> Sequence[str]:
        return [str(find_python(self._prefix))]

    def put(self, name: str, content: bytes) -> str:
        path = Path(self.scratch, checked_name(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return str(path)

    def run(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> ExecResult:
        started = time.monotonic()
        kills = process_tree.kernel_oom_kills()
        stdout, stderr = CappedOutput(_OUTPUT_CAP), CappedOutput(_OUTPUT_CAP)
        process: subprocess.Popen[bytes] | None = None
        readers: list[threading.Thread] = []
        try:
            with hold_interrupts():
                process = subprocess.Popen(
                    list(argv),
                    cwd=self.scratch,
                    env={**self._environment, **(env or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                readers = [_reader(process.stdout, stdout), _reader(process.stderr, stderr)]
            timed_out, over_memory = self._watch(process, until=started + timeout_s)
            seconds = time.monotonic() - started
        finally:
            with hold_interrupts():
                if process is not None:
                    self._end(process, readers)
        status = process.returncode
        by_kernel = status == -signal.SIGKILL and process_tree.kernel_oom_kills() > kills
        return ExecResult(
            argv=tuple(argv),
            # As a shell and a container report a signal.
            exit_status=None if timed_out else status if status >= 0 else 128 - status,
            stdout=stdout.value(),
            stderr=stderr.value(),
            seconds=seconds,
            timed_out=timed_out,
            out_of_memory=not timed_out and (over_memory or by_kernel),
        )

    def _watch(self, process: subprocess.Popen[bytes], *, until: float) -> tuple[bool, bool]:
        """(over its time, over its memory). RLIMIT_AS would not do: torch reserves far more than it uses."""
        limit = self._limits.memory_bytes
        while process.poll() is None:
            if time.monotonic() >= until:
                return True, False
            if process_tree.memory_bytes(process_tree.descendants(process.pid), limit=limit) > limit:
                return False, True
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, min(_POLL_S, until - time.monotonic())))
        return False, False

    def _end(self, process: subprocess.Popen[bytes], readers: Sequence[threading.Thread]) -> None:
        numbers = process_tree.descendants(process.pid)
        signal_group(process.pid, signal.SIGKILL)
        process_tree.kill(numbers)
        process.wait()
        self.kill_all()
        for reader in readers:
            reader.join(5)

    def kill_all(self) -> None:
        """Also those that left the group and lost their parent; repeated, since they may be forking meanwhile."""

        def all_gone() -> bool:
            left = process_tree.carrying(_MARK, self._id)
            process_tree.kill(left)
            return not left

        wait_until(all_gone, limit_s=5)


def _reader(pipe: IO[bytes] | None, output: CappedOutput) -> threading.Thread:
    def drain() -> None:
        if pipe is not None:
            with pipe:
                for chunk in iter(lambda: os.read(pipe.fileno(), 65536), b""):
                    output.add(chunk)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    return thread
