"""The shared libraries that Python packages bring, and the judgements on them that need no import. Standard library."""

import contextlib
import os
import re

import _elf

# A wheel's repair tool puts a hash behind the name: libcudart-1b5a3c9d.so.11.0.
NAME = re.compile(r"^(lib[A-Za-z0-9_+-]*?)(-[0-9a-f]{8,64})?\.so(?:\.\d+)*$")
# Libraries of the toolkit that cost hundreds of MiB, or break a process that loads two of them.
CUDA_STEM = re.compile(
    r"^lib(cublas|cublasLt|cudart|cudnn\w*|nccl|cufft|cufftw|curand|cusolver|cusolverMg|cusparse|cusparseLt|nvrtc"
    r"|nvrtc-builtins|nvJitLink|nvshmem_host|cufile)$"
)
# The driver's own libraries: the container runtime puts them in, no image may hold them.
DRIVER = re.compile(r"^lib(cuda|nvidia-\w+|nvcuvid|cudadebugger|nvoptix)\.so(\.\d+)*$")
# Plug-ins that are loaded only where what they are made for is there, each with what it waits for.
OPTIONAL = (
    ("libonnxruntime_providers_tensorrt.so", "TensorRT"),
    ("libonnxruntime_providers_nv_tensorrt_rtx.so", "TensorRT RTX"),
    ("libonnxruntime_providers_migraphx.so", "ROCm"),
    ("libonnxruntime_providers_rocm.so", "ROCm"),
    ("libcufile_rdma", "an InfiniBand adapter"),
    ("nvshmem_", "an InfiniBand adapter, MPI or PMIx"),
    ("_torchaudio_ffmpeg", "FFmpeg"),
    ("libtorio_ffmpeg", "FFmpeg"),
    ("_torio_ffmpeg", "FFmpeg"),
    ("libtorchaudio_ffmpeg", "FFmpeg"),
    ("_torchaudio_sox", "SoX"),
    ("libtorchaudio_sox", "SoX"),
    ("libcaffe2_nvrtc.so", "a driver"),
    ("libqnn", "a Qualcomm accelerator"),
)


def waits_for(path):
    """What an optional plug-in is made for, or None for a file that must load."""
    name = os.path.basename(path)
    return next((what for start, what in OPTIONAL if name.startswith(start)), None)


def elf_files(folders):
    """Every ELF shared object below `folders`, by real path, once."""
    found = {}
    for folder in folders:
        for place, below, names in os.walk(folder):
            below[:] = sorted(name for name in below if name != "__pycache__")
            for name in sorted(names):
                path = os.path.join(place, name)
                if ".so" in name and _elf.is_elf(path):
                    found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def brought_by_name(paths, read):
    """{file name or soname: [paths]}, so that a library is found under either."""
    found = {}
    for path in paths:
        names = {os.path.basename(path)}
        with contextlib.suppress(_elf.BadElfError, OSError, ValueError):
            names.add(read(path).soname)
        for name in names - {None}:
            found.setdefault(name, []).append(path)
    return found


def cuda_stem(path):
    match = NAME.match(os.path.basename(path))
    return match.group(1) if match and CUDA_STEM.match(match.group(1)) else None


def cuda_copies(paths):
    """{stem: [(real path, bytes)]} of the CUDA libraries among `paths`; two names of one file are one copy."""
    found = {}
    for path in paths:
        stem = cuda_stem(path)
        if stem is not None:
            real = os.path.realpath(path)
            found.setdefault(stem, {})[real] = os.path.getsize(real)
    return {stem: sorted(copies.items()) for stem, copies in found.items()}


def without_torchs_own(copies):
    """(copies, {stem: {path: bytes}}): the second are left out of the first, where another copy of them is there.

    torch 1.13 was published with a renamed libcudart inside it, beside the package that it asks for. Under its own name
    it is never taken for the other, and no choice of packages is without it.
    """
    kept, own = {}, {}
    for stem, places in copies.items():
        renamed = {path: size for path, size in places if is_renamed_in_torch(path)}
        rest = [(path, size) for path, size in places if path not in renamed]
        kept[stem] = rest or places
        if rest and renamed:
            own[stem] = renamed
    return kept, own


def is_renamed_in_torch(path):
    match = NAME.match(os.path.basename(path))
    return bool(match and match.group(2)) and os.path.dirname(path).endswith("/torch/lib")


def is_toolkit(path):
    """The folder of a base image's own toolkit: known to whoever chose that base, and not on torch's own path."""
    return re.match(r"^/usr/local/cuda(-[\d.]+)?/", path) is not None


def unresolved(loader, paths, loaded=None):
    """[{file, library, kind, reason}] of what `paths` need and do not get, one row for each library or version.

    `kind`: `broken` (no ELF file can be read there), `missing` (a library), `version` (of a symbol).
    `loaded`: names that are in the process before these files are; without it, whatever a package brings counts.
    """
    rows = []
    for path in paths:
        try:
            elf = loader.elf(path)
        except (_elf.BadElfError, OSError, ValueError) as error:
            rows.append({"file": path, "library": None, "kind": "broken", "reason": str(error)})
            continue
        for name in elf.needed:
            if DRIVER.match(name):
                continue
            found = loader.find(elf, name)
            if found is None and loaded is not None:
                found = loaded.get(name)
            elif found is None:
                found = next(iter(loader.brought.get(name, [])), None)
            if found is None:
                rows.append(
                    {"file": path, "library": name, "kind": "missing", "reason": "{} is not found".format(name)}
                )
                continue
            rows += missing_versions(loader, elf, path, name, found)
    return rows


def missing_versions(loader, elf, path, name, found):
    try:
        offers = loader.elf(found).offers
    except (_elf.BadElfError, OSError, ValueError) as error:
        return [{"file": path, "library": name, "kind": "broken", "reason": str(error)}]
    # ld.so takes a library without any versions for one that has them all
    missing = [version for version in elf.wants.get(name, []) if offers and version not in offers]
    if not missing:
        return []
    return [
        {"file": path, "library": name, "kind": "version", "reason": "{} has no {}".format(found, ", ".join(missing))}
    ]
