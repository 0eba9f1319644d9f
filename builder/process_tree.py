"""The processes that a check started, and what they use, read from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def _read(path: Path) -> bytes:
    # A process may end between listing and reading; another user's cannot be read. Both are not ours then.
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _numbers() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def descendants(root: int) -> set[int]:
    """`root`, everyone below it, and everyone in the session that it leads; zombies are left out."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for number in _numbers():
        fields = _read(_PROC / str(number) / "stat").rpartition(b")")[2].split()
        if len(fields) < 4 or fields[0] in (b"Z", b"X"):
            continue
        parents[number] = int(fields[1])
        if number == root or int(fields[3]) == root:
            found.add(number)
    grown = True
    while grown:
        grown = False
        for number, parent in parents.items():
            if parent in found and number not in found:
                found.add(number)
                grown = True
    return found


def carrying(variable: str, value: str) -> set[int]:
    """Everyone whose environment has this pair: finds also those that left the session and lost their parent."""
    pair = f"{variable}={value}".encode()
    own = os.getpid()
    return {
        number for number in _numbers() if number != own and pair in _read(_PROC / str(number) / "environ").split(b"\0")
    }


def kill(numbers: Iterable[int]) -> None:
    for number in numbers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)


def memory_bytes(numbers: Iterable[int], *, limit: int) -> int:
    """Memory that cannot be given back: anonymous and shared pages, not files that are mapped.

    The cheap sum counts a page once for each process that has it, and forked data loaders share nearly all of theirs;
    so a sum above the limit is taken again by shares, which costs a walk through every page table.
    """
    numbers = list(numbers)
    cheap = sum(_sum(_read(_PROC / str(number) / "status"), (b"RssAnon:", b"RssShmem:")) for number in numbers)
    if cheap <= limit:
        return cheap
    shares = sum(_sum(_read(_PROC / str(number) / "smaps_rollup"), (b"Pss_Anon:", b"Pss_Shmem:")) for number in numbers)
    return shares or cheap


def _sum(text: bytes, keys: tuple[bytes, ...]) -> int:
    total = 0
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] in keys:
            total += int(words[1]) * 1024
    return total


def kernel_oom_kills() -> int:
    """How many processes the kernel has killed for memory since it started."""
    for line in _read(_PROC / "vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0
