"""A running container, as a check sees it. Handed the SDK's objects by `docker_engine`, it imports no SDK itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from builder.containers import PYTHON_LABEL, SCRATCH, SMOKE_FOLDER, archive, checked_name, oom_kills
from builder.engine import ExecResult
from builder.processes import CappedOutput, hold_interrupts, wait_until

_OUTPUT_CAP = 8 * 2**20
_CGROUP_FILES = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null; true"

# Turns what the SDK raises into an EngineError that says what was being done.
Guard = Callable[[str], AbstractContextManager[None]]

# exec id -> its output as (stream, bytes), 1 for stdout and 2 for stderr, until the block is left.
OpenExec = Callable[[str], AbstractContextManager[Iterator[tuple[int, bytes]]]]
_STDERR = 2


class DockerSession:
    """A running container; `network_cut` is what the verdict may say about the network."""

    scratch = SCRATCH
    smoke_folder = SMOKE_FOLDER
    network_cut = True

    def __init__(self, container: Any, guard: Guard, open_exec: OpenExec, *, has_gpu: bool) -> None:
        self._container = container
        self._api = container.client.api
        self._guard = guard
        self._open_exec = open_exec
        self._kills = 0
        self._owner: tuple[int, int] | None = None
        self.has_gpu = has_gpu

    def python(self) -> Sequence[str]:
        labels = self._container.attrs.get("Config", {}).get("Labels") or {}
        return [str(labels.get(PYTHON_LABEL) or "python3")]

    def put(self, name: str, content: bytes) -> str:
        files = {checked_name(name): content}
        with self._guard(f"copy {name} into a container"):
            if self._owner is None:
                self._owner = self._ask_owner()
            self._container.put_archive("/", archive(files, folder=SCRATCH, folder_mode=0o1777, owner=self._owner))
        return f"{SCRATCH}/{name}"

    def _ask_owner(self) -> tuple[int, int]:
        numbers = self._ask("id -u; id -g").split()
        return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (0, 0)

    def _ask(self, script: str, *, user: str = "") -> str:
        """What a short script says; empty where the image has no shell."""
        said = CappedOutput(_OUTPUT_CAP)
        exec_id = self._api.exec_create(self._container.id, ["sh", "-c", script], stderr=False, user=user)["Id"]
        with self._open_exec(exec_id) as output:
            _drain(output, said, said)
        return said.value().decode("utf-8", "replace") if self._exit_status(exec_id) == 0 else ""

    def run(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> ExecResult:
        """A run over its time ends by a restart of the container: no process survives that, whatever it ignores."""
        started = time.monotonic()
        stdout, stderr = CappedOutput(_OUTPUT_CAP), CappedOutput(_OUTPUT_CAP)
        with self._guard(f"run {argv[0]} in a container"):
            exec_id = self._api.exec_create(self._container.id, list(argv), environment=dict(env or {}))["Id"]
            with self._open_exec(exec_id) as output:
                reader = threading.Thread(target=_drain, args=(output, stdout, stderr), daemon=True)
                reader.start()
                ended = self._wait(reader, exec_id, until=started + timeout_s)
                seconds = time.monotonic() - started
                if not ended:
                    self._restart()
                    reader.join(10)
            status = self._exit_status(exec_id) if ended else None
            killed_for_memory = status not in (0, None) and self._was_killed_for_memory()
        return ExecResult(
            argv=tuple(argv),
            exit_status=status,
            stdout=stdout.value(),
            stderr=stderr.value(),
            seconds=seconds,
            timed_out=not ended,
            out_of_memory=killed_for_memory,
        )

    def _wait(self, reader: threading.Thread, exec_id: str, *, until: float) -> bool:
        """Also true when the process is gone but a child of it still holds its output open."""
        while reader.is_alive():
            left = until - time.monotonic()
            if left <= 0:
                return False
            reader.join(min(left, 2.0))
            if reader.is_alive() and not self._api.exec_inspect(exec_id)["Running"]:
                reader.join(1.0)
                return True
        return True

    def _exit_status(self, exec_id: str) -> int | None:
        def known() -> bool:
            return self._api.exec_inspect(exec_id)["ExitCode"] is not None

        wait_until(known, limit_s=5)
        status = self._api.exec_inspect(exec_id)["ExitCode"]
        return int(status) if status is not None else None

    def _restart(self) -> None:
        with hold_interrupts():
            self._container.restart(timeout=0)
        self._kills = 0

    def _was_killed_for_memory(self) -> bool:
        """The kernel's own count, for the processes of this container; read only after a run that did not end well."""
        self._container.reload()
        state = self._container.attrs["State"]
        if not state.get("Running"):
            self._restart()
            return bool(state.get("OOMKilled"))
        kills = oom_kills(self._ask(_CGROUP_FILES, user="0"))
        if kills is None:
            return bool(state.get("OOMKilled"))
        before, self._kills = self._kills, kills
        return kills > before


def _drain(output: Iterator[tuple[int, bytes]], stdout: CappedOutput, stderr: CappedOutput) -> None:
    with suppress(OSError, ValueError):  # the stream is closed under this thread when its container is stopped
        for number, chunk in output:
            (stderr if number == _STDERR else stdout).add(chunk)
