"""Children of this process that are always waited for: process groups, interrupts, bounded output, redacted lines."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from urllib.parse import unquote, urlsplit

# A group that does not leave on SIGTERM in this time is killed. buildx needs about a second to cancel its steps.
GRACE_S = 10.0

# A secret shorter than this would blank out half of an ordinary log, and is no secret.
_SHORTEST_SECRET = 4
_SECRET_NAME = re.compile(r"PASS|TOKEN|SECRET|KEY|AUTH|CREDENTIAL|USERNAME", re.IGNORECASE)
_PUBLIC_MARKERS = (b"-----BEGIN CERTIFICATE-----", b"-----BEGIN TRUSTED CERTIFICATE-----")


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM unwinds the stack as SystemExit does, so that `finally` runs; a handler someone else set is kept."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def unwind(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the block is done: for steps that must not stop halfway, such as a removal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        came.append(signum)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def signal_group(group: int, number: int) -> bool:
    """False when nobody of the group is left."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def stop_group(process: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """End a child that leads its own group, and everyone in that group; returns when the child is reaped."""
    try:
        if process.poll() is None and signal_group(process.pid, signal.SIGTERM):
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
    finally:
        with hold_interrupts():
            signal_group(process.pid, signal.SIGKILL)
            process.wait()


def stream(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_line: Callable[[str], None],
    limit_s: float,
    pass_fds: Sequence[int] = (),
) -> int | None:
    """Run in an own process group and hand every line on; the exit status, or None when the time limit was hit.

    `pass_fds` are kept open in the child: a lock on one of them outlives this process, should it be killed.
    """
    late = threading.Event()
    process: subprocess.Popen[bytes] | None = None
    clock: threading.Timer | None = None
    with sigterm_raises():
        try:
            with hold_interrupts():
                process = subprocess.Popen(
                    argv,
                    cwd=cwd,
                    env=dict(env),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=tuple(pass_fds),
                )
                clock = threading.Timer(limit_s, _stop_late, (process.pid, late))
                clock.daemon = True
                clock.start()
            out = process.stdout
            while out is not None and (raw := out.readline(65536)):
                on_line(raw.decode("utf-8", "replace").rstrip("\r\n"))
            status = process.wait()
        finally:
            if clock is not None:
                clock.cancel()
            if process is not None:
                stop_group(process)
                if process.stdout is not None:
                    process.stdout.close()
    return None if late.is_set() else status


def _stop_late(group: int, late: threading.Event) -> None:
    late.set()
    signal_group(group, signal.SIGKILL)


class CappedOutput:
    """Bytes as they come, at most `cap` of them: the first half and the last half, with a note between.

    The end matters as much as the start: a script prints its result last, and an error says its cause last.
    """

    def __init__(self, cap: int) -> None:
        self._half = cap // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, chunk: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        # Trimmed only now and then: trimming at every chunk would copy the tail each time.
        if len(self._tail) > 2 * self._half:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            self._dropped += excess
            del self._tail[:excess]

    def value(self) -> bytes:
        self._trim()
        if not self._dropped:
            return bytes(self._head + self._tail)
        note = f"\n[torchproof: {self._dropped} bytes left out here]\n".encode()
        return bytes(self._head) + note + bytes(self._tail)


class Redactor:
    """Blanks out what secret files hold: credentials in URLs, values of names such as `..._TOKEN`, netrc passwords.

    Other values stay: the log of an index that does not answer is of no use without the address of that index.
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        words: set[str] = set()
        for content in secrets:
            # A certificate is public, and its base64 lines never show up in a log.
            if not any(marker in content for marker in _PUBLIC_MARKERS):
                for line in content.decode("utf-8", "replace").splitlines():
                    words |= _secret_words(line.strip())
        ordered = sorted((word for word in words if len(word) >= _SHORTEST_SECRET), key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(word) for word in ordered)) if ordered else None

    @classmethod
    def of_files(cls, files: Iterable[Path]) -> Redactor:
        return cls(path.read_bytes() for path in files)

    def __call__(self, text: str) -> str:
        return self._pattern.sub("***", text) if self._pattern else text


def _secret_words(line: str) -> set[str]:
    if not line or line.startswith("#"):
        return set()
    try:
        words = shlex.split(line)
    except ValueError:
        return {line}
    found: set[str] = set()
    assignments = [word.partition("=") for word in words if word != "export"]
    if all(equals and name.isidentifier() for name, equals, _ in assignments):
        found |= {value for name, _, value in assignments if _SECRET_NAME.search(name)}
        values = [value for _, _, value in assignments]
    elif "password" in words[:-1]:  # a line of a netrc file
        found.add(words[words.index("password") + 1])
        values = words
    else:
        found |= {line} if "://" not in line else set()
        values = words
    for part in (part for value in values for part in value.split()):
        with suppress(ValueError):
            url = urlsplit(part)
            if url.scheme and (url.password or url.username):
                found |= {text for text in (url.netloc.rpartition("@")[0], url.password or url.username) if text}
                found.add(unquote(url.password or url.username or ""))
    return found


def wait_until(done: Callable[[], bool], *, limit_s: float, every_s: float = 0.05) -> bool:
    """True as soon as `done` is; False when the time is over."""
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() >= end:
            return False
        time.sleep(every_s)
    return True
