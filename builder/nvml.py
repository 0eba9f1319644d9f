"""The NVIDIA GPUs and the driver of this machine, asked from NVML through ctypes; `nvidia-smi` prints for people."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# The driver makes the first on bare Linux; WSL has the second instead.
_CONTROL_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_LIBRARIES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE in nvml.h


@dataclass(frozen=True, kw_only=True, slots=True)
class HostGpus:
    """`reason` says why `names` is empty."""

    names: tuple[str, ...] = ()
    driver: str | None = None
    reason: str | None = None


def read_host_gpus(*, device_root: Path = Path("/")) -> HostGpus:
    """What this machine has; never raises."""
    if not any((device_root / device.lstrip("/")).exists() for device in _CONTROL_DEVICES):
        return HostGpus(reason="this machine has no NVIDIA device (/dev/nvidiactl)")
    nvml = _load()
    if nvml is None:
        return HostGpus(reason="the NVIDIA driver's library libnvidia-ml.so.1 cannot be loaded")
    status = nvml.nvmlInit_v2()
    if status:
        return HostGpus(reason=f"the NVIDIA driver does not start: NVML status {status}")
    try:
        return _ask(nvml)
    finally:
        nvml.nvmlShutdown()


def _load() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _ask(nvml: ctypes.CDLL) -> HostGpus:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    driver = None
    if not nvml.nvmlSystemGetDriverVersion(text, _TEXT_BYTES):
        driver = text.value.decode("ascii", "replace")
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return HostGpus(driver=driver, reason="NVML does not tell the number of GPUs")
    names = []
    for index in range(count.value):
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            continue
        if not nvml.nvmlDeviceGetName(device, text, _TEXT_BYTES):
            names.append(text.value.decode("utf-8", "replace"))
    if not names:
        return HostGpus(driver=driver, reason="the NVIDIA driver runs, but there is no GPU")
    return HostGpus(names=tuple(names), driver=driver)
