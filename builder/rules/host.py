"""The machine: WSL, MIG slices, shared memory of a container."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.outcome import Outcome
from builder.rules.base import Finding, finding

_BUILD = re.compile(r"\b(1[0-9]{4}|2[0-9]{4})\b")
_LINUX_DRIVER = re.compile(r"nvidia-driver|cuda-drivers|nvidia-kernel|^cuda$|^cuda-1[0-9]-[0-9]$")
_WORKERS = re.compile(r"(?:num[-_]workers|dataloader[-_]num[-_]workers|workers|\s-j)[= ]+([1-9][0-9]*)")


def wsl_host(o: Outcome) -> Iterator[Finding]:
    os = o.env.os
    if os is None or os.family != "wsl":
        return
    floor = o.catalog.hazards.row("singles", "wsl-build")
    match = _BUILD.search(os.text)
    if match is not None and int(match[1]) < int(floor.text("value")):
        yield finding(
            "wsl-too-old",
            "error",
            os.text,
            [f"{os.origin} says {os.text}", floor.fact],
            "the GPU cannot be seen inside WSL",
            hint="update Windows and the WSL kernel",
        )
    for package in o.env.apt:
        if _LINUX_DRIVER.search(package.name):
            yield finding(
                "wsl-linux-driver",
                "error",
                package.name,
                [f"{package.origin} installs {package.name}", o.catalog.hazards.row("singles", "wsl-driver").fact],
                "the GPU would no longer be seen",
                hint="install the cuda-toolkit package alone",
            )


def mig_is_one_slice(o: Outcome) -> Iterator[Finding]:
    for ask, gpu in o.gpus:
        if ask.mig is None:
            continue
        several = ask.count > 1
        yield finding(
            "mig-slices",
            "warning" if several else "info",
            ask.name,
            [f"{ask.origin} asks for {ask.count} x MIG {ask.mig}" + (f" of {gpu.name}" if gpu is not None else ""),
             o.catalog.hazards.row("singles", "mig-one-slice").fact],
            "the slices cannot serve one process together" if several else "the memory of the slice is the budget",
            hint="set CUDA_VISIBLE_DEVICES to one MIG UUID for each process",
        )  # fmt: skip


def shared_memory(o: Outcome) -> Iterator[Finding]:
    for command in o.env.commands:
        if command.instruction not in {"CMD", "ENTRYPOINT"} and "docker run" not in command.text:
            continue
        match = _WORKERS.search(command.text)
        if match is None or "--ipc=host" in command.text or "--shm-size" in command.text:
            continue
        yield finding(
            "shared-memory",
            "warning",
            command.text[:60],
            [
                f"{command.origin} starts {match[1]} loader workers",
                o.catalog.hazards.row("singles", "shm-default").fact,
            ],
            "a worker is killed by a bus error when a batch does not fit",
            hint="run the container with --ipc=host or --shm-size=8g",
        )


_ASKED = frozenset({"--pin", "--driver", "--python", "--glibc", "--arch"})


def options_are_read(o: Outcome) -> Iterator[Finding]:
    """What was asked about and not understood is not judged."""
    for left_out in o.env.unparsed:
        if str(left_out.origin) in _ASKED:
            yield finding(
                "option-not-read",
                "warning",
                f"{left_out.origin} {left_out.text[:80]}",
                [f"{left_out.origin} says `{left_out.text[:80]}`", left_out.why],
                "nothing is judged by it",
                is_unknown=True,
            )
    os = o.env.os
    if os is not None and os.family == "linux" and os.distribution != "alpine" and o.glibc is None:
        yield finding(
            "option-not-read",
            "info",
            os.text[:80],
            [f"{os.origin} says `{os.text[:80]}`", "the facts do not name the glibc of it"],
            "whether the wheels fit the system is not judged",
            hint="say --glibc as `ldd --version` shows it",
        )


def torch_is_known(o: Outcome) -> Iterator[Finding]:
    """A nightly, a fork, or a build for other hardware: nothing is claimed about it."""
    torch = o.torch
    if torch is None:
        return
    request = torch.request
    if torch.version is None and request is not None and torch.variant is None:
        yield finding(
            "version-unknown",
            "info",
            "torch",
            [torch.says, "which release that gives is in no table"],
            "what it needs is not known",
            is_unknown=True,
        )
    elif torch.variant is not None and torch.variant.is_other:
        yield finding(
            "variant-unknown",
            "info",
            torch.title,
            [torch.says],
            f"there are no facts about {torch.variant} builds",
            is_unknown=True,
        )
    elif torch.version is not None and torch.version.is_prerelease:
        yield finding(
            "version-unknown",
            "info",
            torch.title,
            [torch.says, "a development build is in no table"],
            "what it needs is not known",
            is_unknown=True,
        )
    elif torch.version is not None and o.catalog.torch_release(torch.version) is None and _asks_host(o):
        first = min(release.version for release in o.catalog.torch_releases())
        if torch.version < first:
            yield finding(
                "version-unknown",
                "info",
                torch.title,
                [torch.says, f"the facts about builds begin with torch {first}"],
                "what its builds need of the card, the driver and the system is not known",
                is_unknown=True,
            )


def _asks_host(o: Outcome) -> bool:
    return bool(o.gpus) or o.driver is not None or o.glibc is not None


RULES = (options_are_read, wsl_host, mig_is_one_slice, shared_memory, torch_is_known)
