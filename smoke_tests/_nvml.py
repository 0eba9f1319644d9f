"""What NVML says about the GPUs of the host, by ctypes: no package needed, and nvidia-smi's table is never parsed."""

import ctypes

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0


class NvmlError(Exception):
    """NVML cannot be loaded or refused a call; the text says which."""


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class ProcessInfo(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


# What NVML writes for a size that it may not tell.
UNKNOWN_BYTES = 2**64 - 1
MOST_PROCESSES = 64


class Nvml:
    """An open NVML session: `with Nvml() as nvml: nvml.driver_version()`."""

    def __init__(self, library=LIBRARY):
        try:
            self.calls = ctypes.CDLL(library)
        except OSError as error:
            # The loader names the library again before it says what is wrong.
            reason = str(error).split(": ", 1)[-1]
            raise NvmlError("{} cannot be loaded: {}".format(library, reason)) from None

    def __enter__(self):
        self.call("nvmlInit_v2")
        return self

    def __exit__(self, *error):
        self.calls.nvmlShutdown()

    def call(self, name, *arguments):
        function = getattr(self.calls, name, None)
        if function is None:
            raise NvmlError("{} has no `{}`".format(LIBRARY, name))
        status = function(*arguments)
        if status != SUCCESS:
            self.calls.nvmlErrorString.restype = ctypes.c_char_p
            reason = self.calls.nvmlErrorString(status) or b"unknown"
            raise NvmlError("`{}` returned {}: {}".format(name, status, reason.decode("utf-8", "replace")))

    def text(self, name, *arguments):
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace")

    def number(self, name, *arguments):
        value = ctypes.c_int()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def driver_version(self):
        return self.text("nvmlSystemGetDriverVersion")

    def driver_runtime(self):
        """The newest CUDA runtime that the driver takes, such as `12.4`."""
        value = self.number("nvmlSystemGetCudaDriverVersion_v2")
        return "{}.{}".format(value // 1000, value % 1000 // 10)

    def devices(self):
        """One dict per GPU of the host, in NVML's order (which CUDA_VISIBLE_DEVICES does not change)."""
        return [self.device(index) for index in range(self.number("nvmlDeviceGetCount_v2"))]

    def device(self, index):
        handle = self.handle(index)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        return {
            "name": self.text("nvmlDeviceGetName", handle),
            "uuid": self.text("nvmlDeviceGetUUID", handle),
            "compute_capability": "{}.{}".format(major.value, minor.value),
            "used_bytes": self.used_bytes(handle),
        }

    def handle(self, index):
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def load(self, index):
        """(percent of the last moment in which a kernel ran, bytes in use or None)."""
        handle, found = self.handle(index), Utilization()
        self.call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(found))
        return int(found.gpu), self.used_bytes(handle)

    def processes(self, index):
        """[{pid, used_bytes}] of what computes on the card; pids are the host's, also in a container."""
        rows, count = (ProcessInfo * MOST_PROCESSES)(), ctypes.c_uint(MOST_PROCESSES)
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        if getattr(self.calls, name, None) is None:
            name = "nvmlDeviceGetComputeRunningProcesses_v2"
        self.call(name, self.handle(index), ctypes.byref(count), rows)
        return [
            {"pid": int(row.pid), "used_bytes": None if row.used == UNKNOWN_BYTES else int(row.used)}
            for row in rows[: count.value]
        ]

    def used_bytes(self, handle):
        """None where the driver does not say, as for a container that sees only a MIG slice of the card."""
        memory = Memory()
        try:
            self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        except NvmlError:
            return None
        return memory.used
