"""What tests put into environments: ELF files small enough to write by hand, a stand-in for the driver's library."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_BASE = 64 + 2 * 56


def make_elf(
    *,
    needed: Sequence[str] = (),
    soname: str | None = None,
    runpath: str | None = None,
    rpath: str | None = None,
    wants: Mapping[str, Sequence[str]] | None = None,
    undefined: Sequence[str] = (),
    defines: Sequence[str] = (),
    machine: int = 62,
) -> bytes:
    """A shared object with a dynamic section and nothing else; `wants`: {library: versions of symbols}.

    `undefined` and `defines` are names of symbols; the tables for them are there when one is given.
    """
    table = bytearray(b"\0")

    def text(value: str) -> int:
        at = len(table)
        table.extend(value.encode() + b"\0")
        return at

    entries = [(1, text(name)) for name in needed]
    for tag, value in ((14, soname), (15, rpath), (29, runpath)):
        if value is not None:
            entries.append((tag, text(value)))
    rows = b""
    listed = list((wants or {}).items())
    for index, (library, versions) in enumerate(listed):
        last = index == len(listed) - 1
        rows += struct.pack("<HHIII", 1, len(versions), text(library), 16, 0 if last else 16 + 16 * len(versions))
        for number, version in enumerate(versions):
            step = 0 if number == len(versions) - 1 else 16
            rows += struct.pack("<IHHII", 0, 0, 2, text(version), step)
    # Name, binding and type (global function), section: 0 is undefined.
    symbols = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    symbols += [struct.pack("<IBBHQQ", text(name), 0x12, 0, 0, 0, 0) for name in undefined]
    symbols += [struct.pack("<IBBHQQ", text(name), 0x12, 0, 1, 64, 8) for name in defines]
    has_symbols = len(symbols) > 1
    dynamic_size = 16 * (len(entries) + 2 + (2 if rows else 0) + (2 if has_symbols else 0))
    strings = _BASE + dynamic_size
    entries.append((5, strings))
    if rows:
        entries += [(0x6FFFFFFE, strings + len(table)), (0x6FFFFFFF, len(listed))]
    if has_symbols:
        at = strings + len(table) + len(rows)
        entries += [(6, at), (4, at + 24 * len(symbols))]
        rows += b"".join(symbols) + struct.pack("<II", 1, len(symbols))
    entries.append((0, 0))
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    body = dynamic + bytes(table) + rows
    size = _BASE + len(body)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    place = struct.pack("<IIQQQQQQ", 2, 6, _BASE, _BASE, _BASE, dynamic_size, dynamic_size, 8)
    return header + load + place + body


NVML_STUB = """
#include <stdio.h>
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "Driver Not Loaded"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "535.104.05"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12020; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(0x700000000000UL + index); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { snprintf(text, size, "Card %p", device); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { snprintf(text, size, "GPU-%p", device); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 8; *minor = 6; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory *m) {
  m->total = 24ULL << 30; m->used = 5ULL << 30;
  return device == (void *)0x700000000000UL ? 0 : 4;
}
typedef struct { unsigned gpu, memory; } utilization;
int nvmlDeviceGetUtilizationRates(void *device, utilization *u) { u->gpu = 97; u->memory = 40; return 0; }
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *rows) {
  process told[2] = {{4242, 64ULL << 20, 0, 0}, {4243, ~0ULL, 0, 0}};
  for (int i = 0; i < 2; i++) rows[i] = told[i];
  *count = 2;
  return 0;
}
"""


def make_nvml(library: Path, *, init: int = 0) -> Path:
    """A stand-in for NVML, which tells of two cards that are not there; `init` is what its start returns."""
    source = library.with_suffix(".c")
    source.write_text(NVML_STUB)
    subprocess.run(["cc", "-shared", "-fPIC", f"-DINIT={init}", "-o", library, source], check=True, capture_output=True)
    return library
