"""What a container of a smoke run is given, and what an engine's own description says. Pure but for reading /proc and
the descriptions of devices.
"""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from builder.engine import Limits
from builder.nvml import HostGpus

RUN_LABEL = "io.torchproof.run"
OWNER_LABEL = "io.torchproof.owner"
PYTHON_LABEL = "io.torchproof.python"

SMOKE_FOLDER = "/opt/torchproof-smoke"
# A folder of the container, not a tmpfs: files in a tmpfs count against the memory limit that the check is about.
SCRATCH = "/tmp/torchproof"  # noqa: S108 - inside the container, which nobody else shares

# The container's own process: it only has to outlive the checks. It ends by itself should this tool be killed.
LIFETIME_S = 6 * 3600

# 2000-01-01: zip files, which some checks write, cannot hold a time before 1980.
_FILE_TIME = 946_684_800

GpuRoute = Literal["runtime", "cdi"]


def scratch_environment(scratch: str) -> dict[str, str]:
    """Every cache and temporary file goes to the scratch folder; bytecode is shared by the scripts of a session."""
    return {
        "HOME": scratch,
        "TMPDIR": scratch,
        "PYTHONPYCACHEPREFIX": f"{scratch}/pyc",
        "PYTHONDONTWRITEBYTECODE": "",  # an empty value is the same as none, for Python
        "HF_HUB_OFFLINE": "1",
    }


def container_options(
    *, name: str, image: str, labels: Mapping[str, str], limits: Limits, gpu_request: Sequence[Any]
) -> dict[str, Any]:
    """Arguments of `containers.create`: no network, no capabilities, the image's own user, stated limits."""
    options: dict[str, Any] = {
        "image": image,
        "name": name,
        "labels": dict(labels),
        "entrypoint": ["sleep", str(LIFETIME_S)],
        "command": [],
        "init": True,
        "detach": True,
        "network_mode": "none",
        # gloo looks its own host name up, even for one process.
        "hostname": "torchproof",
        "extra_hosts": {"torchproof": "127.0.0.1"},
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "shm_size": limits.shm_bytes,
        "pids_limit": limits.pids,
        "security_opt": ["no-new-privileges"],
        "cap_drop": ["ALL"],
        "environment": scratch_environment(SCRATCH),
        # An image's own health check would start processes beside the ones that are measured.
        "healthcheck": {"test": ["NONE"]},
    }
    if gpu_request:
        options["device_requests"] = list(gpu_request)
    return options


def archive(files: Mapping[str, bytes], *, folder: str, folder_mode: int, owner: tuple[int, int] = (0, 0)) -> bytes:
    """A tar, to be unpacked at `/`, of `folder` and the files below it; times are fixed, modes are 0644."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        root = folder.strip("/")
        folders = {root: folder_mode}
        for name in files:
            for parent in list(Path(name).parents)[:-1]:
                folders[f"{root}/{parent}"] = 0o755
        for path, mode in sorted(folders.items()):
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            entry.uid, entry.gid, entry.mtime = *owner, _FILE_TIME
            tar.addfile(entry)
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.mode, entry.size = 0o644, len(content)
            entry.uid, entry.gid, entry.mtime = *owner, _FILE_TIME
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def checked_name(name: str) -> str:
    """The same name; ValueError when it would leave the folder it is put in."""
    if not name or name.startswith("/") or ".." in Path(name).parts:
        raise ValueError(f"not a name below the scratch folder: {name!r}")
    return name


def oom_kills(text: str) -> int | None:
    """The counter in cgroup v2's memory.events or cgroup v1's memory.oom_control; both call it `oom_kill`."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuAccess:
    """How the engine hands a GPU to a container; `reason` when it cannot."""

    route: GpuRoute | None
    reason: str | None = None


def gpu_access(
    info: Mapping[str, Any], host: HostGpus | None, *, has_hook: bool, cdi_devices: Sequence[str]
) -> GpuAccess:
    """`info` is the engine's description; `host` is None when the engine runs on another machine.

    A runtime alone proves nothing: it stays configured when the card or the driver is gone.
    """
    discovered = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or []]
    has_cdi = any(name.startswith("nvidia.com/gpu") for name in [*discovered, *cdi_devices])
    has_runtime = "nvidia" in (info.get("Runtimes") or {}) or has_hook
    if not has_runtime and not has_cdi:
        if host is not None and host.names:
            return GpuAccess(
                route=None,
                reason=f"this machine has {', '.join(host.names)}, but the engine has no NVIDIA container runtime",
            )
        return GpuAccess(route=None, reason=host.reason if host else "the engine has no NVIDIA container runtime")
    if host is not None and not host.names:
        return GpuAccess(route=None, reason=f"the engine has an NVIDIA container runtime, but {host.reason}")
    return GpuAccess(route="runtime" if has_runtime else "cdi")


def owner_of_this_process() -> str:
    """Tells this process from any other, also from a later one with the same number."""
    return " ".join((socket.gethostname(), *_boot(), str(os.getpid()), _started(os.getpid()) or "?"))


def is_orphan(owner: str, *, running: bool) -> bool:
    """True when the process that started a container is certainly gone; unknown and foreign owners are left alone."""
    fields = owner.split(" ")
    if len(fields) != 5 or fields[0] != socket.gethostname():
        return False
    boot, namespace = _boot()
    if fields[1] != boot:
        # After a restart of the machine the process is gone; a running container has another machine behind it.
        return not running
    return fields[2] == namespace and _started(int(fields[3])) != fields[4]


def _boot() -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return boot, str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "?", "?"


def _started(pid: int) -> str | None:
    """Start time of a process in clock ticks, field 22 of proc_pid_stat(5); the name before it may hold spaces."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def cdi_kinds(folders: Sequence[Path]) -> list[str]:
    """The `kind` of every CDI description that the engine reads, such as `nvidia.com/gpu`."""
    kinds = []
    for folder in folders:
        for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.json")]):
            with suppress(OSError, yaml.YAMLError):
                found = yaml.safe_load(path.read_text(encoding="utf-8"))
                if isinstance(found, dict) and found.get("devices"):
                    kinds.append(str(found.get("kind")))
    return kinds
