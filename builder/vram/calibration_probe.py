"""Runs by itself in a Python with torch; prints one JSON document. Standard library and torch only.

A small transformer step in fp32 and in half precision loads the kernels that training loads; then the driver's figure
minus what the pool holds is the offset. Other processes on the card would be counted too, so idle use is read first.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


def used_bytes(index: int) -> int:
    """What the driver says is in use on the card, as nvidia-smi shows it (NVML, version 1 of its memory call)."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle = ctypes.c_void_p()
    memory = (ctypes.c_ulonglong * 3)()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        raise OSError("NVML does not answer for device {}".format(index))
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        raise OSError("NVML tells no memory of device {}".format(index))
    return int(memory[2])


def driver_version() -> str:
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    text = ctypes.create_string_buffer(96)
    nvml.nvmlInit_v2()
    nvml.nvmlSystemGetDriverVersion(text, 96)
    return text.value.decode()


def step(torch: Any, dtype: Any) -> None:
    """One forward and backward pass of what a transformer layer is made of."""
    functional = torch.nn.functional
    x = torch.randn(4, 128, 256, device="cuda", dtype=dtype, requires_grad=True)
    w = torch.randn(256, 256, device="cuda", dtype=dtype, requires_grad=True)
    b = torch.zeros(256, device="cuda", dtype=dtype, requires_grad=True)
    table = torch.randn(1000, 256, device="cuda", requires_grad=True)
    ids = torch.randint(0, 1000, (4, 1024), device="cuda")
    y = functional.linear(x, w, b).view(4, 128, 4, 64).transpose(1, 2)
    if hasattr(functional, "scaled_dot_product_attention"):
        y = functional.scaled_dot_product_attention(y, y, y, dropout_p=0.1)
    y = functional.dropout(functional.gelu(functional.layer_norm(y, (64,))), 0.1)
    loss = functional.cross_entropy(
        y.reshape(-1, 64).float(), torch.zeros(4 * 4 * 128, dtype=torch.long, device="cuda")
    )
    (loss + functional.embedding(ids, table).mean()).backward()
    parameters = [w, b, table]
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    torch.optim.AdamW(parameters, lr=1e-5).step()


def measure(index: int) -> dict[str, Any]:
    idle = used_bytes(index)
    import torch  # noqa: PLC0415 - the idle use comes first

    if not torch.cuda.is_available():
        return {"error": "torch {} can use no GPU here".format(torch.__version__)}
    torch.cuda.set_device(index)
    torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    context = used_bytes(index)
    before = torch.cuda.memory_allocated()
    a = torch.ones(64, 64, device="cuda", requires_grad=True)
    own = torch.cuda.memory_allocated() - before
    (a @ a).sum().backward()
    torch.cuda.synchronize()
    gradients = a.grad.numel() * a.grad.element_size()
    workspace = torch.cuda.memory_allocated() - before - own - gradients
    for dtype in (torch.float32, torch.float16):
        step(torch, dtype)
    torch.cuda.synchronize()
    major, minor = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    return {
        "gpu": name,
        "name": name.replace("NVIDIA ", "").replace("GeForce ", ""),
        "compute_capability": "{}.{}".format(major, minor),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "driver": driver_version(),
        "idle_bytes": idle,
        "context_bytes": context,
        "used_bytes": used_bytes(index),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "workspace_bytes": max(0, workspace),
    }


if __name__ == "__main__":
    try:
        found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    except Exception as error:  # noqa: BLE001 - told to the caller, whatever it is
        found = {"error": "{}: {}".format(type(error).__name__, error)}
    print(json.dumps(found))  # noqa: T201 - its one result
