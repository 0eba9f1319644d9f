"""Checks of `files` about CUDA libraries: one copy of each, in the version that torch's own packages pin."""

import glob
import os
import subprocess
import sys

import _installed
import _libraries
import _metadata
from _outcome import Failed, NotApplicable, Passed
from _wording import MIB, number, shorten


def cuda_libraries_once(ctx):
    """Two copies cost their size again and end in the wrong one being loaded: which, depends on who comes first."""
    loader = ctx.made["loader"]
    system = [path for paths in loader.cache.values() for path in paths]
    for folder in loader.asked:
        system += glob.glob(os.path.join(folder, "*.so*"))
    toolkit = [path for path in system if _libraries.is_toolkit(os.path.realpath(path))]
    copies = _libraries.cuda_copies(ctx.made["paths"] + [path for path in system if path not in toolkit])
    if not copies:
        raise NotApplicable("there is no CUDA library")
    copies, published = _libraries.without_torchs_own(copies)
    twice = {stem: places for stem, places in copies.items() if len(places) > 1}
    beside = _libraries.cuda_copies(toolkit)
    if twice:
        wasted = sum(size for places in twice.values() for _, size in places[1:])
        shown = [
            "{} ({})".format(stem, ", ".join("{} {:.0f} MiB".format(path, size / MIB) for path, size in places))
            for stem, places in sorted(twice.items())
        ]
        raise Failed(
            "cuda-library-twice",
            "{} there more than once, {:.0f} MiB too much: {}".format(
                number(shown, "CUDA library is", "CUDA libraries are"), wasted / MIB, shorten(shown, 3)
            ),
            measured={stem: dict(places) for stem, places in twice.items()},
            expected={},
        )
    told = ", and {} in the toolkit of the base".format(len(beside)) if beside else ""
    if published:
        told += "; torch was published with a copy of its own of {}".format(", ".join(sorted(published)))
    return Passed(
        "{} CUDA libraries, each once{}".format(len(copies), told),
        measured={stem: places[0][1] for stem, places in copies.items()},
        toolkit={stem: dict(places) for stem, places in beside.items()},
        published=published,
    )


def cuda_versions(ctx):
    """The CUDA wheels are those that torch pins; cuDNN and NCCL say of themselves what their wheels say."""
    found = {name: version for name, version, _, _ in _metadata.distributions()}
    pins = _metadata.pinned_libraries(_metadata.distributions())
    wrong = [
        "{} {} (pinned by {}: {})".format(package, found.get(package, "is missing"), owner, version)
        for package, (version, owner) in sorted(pins.items())
        if package in found and _installed.version_key(found[package]) != _installed.version_key(version)
    ]
    told = {}
    for stem, prefix, call, parse in (
        ("libcudnn", "nvidia-cudnn", "cudnnGetVersion", cudnn_version),
        ("libnccl", "nvidia-nccl", "ncclGetVersion", nccl_version),
    ):
        path = next((one for one in ctx.made["paths"] if _libraries.cuda_stem(one) == stem), None)
        package = next((name for name in found if name.startswith(prefix)), None)
        if path is None:
            continue
        told[stem] = said = ask_version(path, call, parse)
        if package is not None and said is not None and not same_release(said, found[package]):
            wrong.append("{} is {}, its package {} says {}".format(path, said, package, found[package]))
    if not pins and not told:
        raise NotApplicable("there is no CUDA library")
    if wrong:
        raise Failed(
            "cuda-library-version",
            "{} not of the pinned version: {}".format(number(wrong, "CUDA library", "CUDA libraries"), shorten(wrong)),
            measured=wrong,
            expected={package: version for package, (version, _) in pins.items()},
        )
    return Passed("{} CUDA wheels are of the pinned version".format(len(pins)), measured=told, pins=pins)


def ask_version(path, call, parse):
    """In a child process: a library that crashes while it is loaded must not take this check with it."""
    code = (
        "import ctypes, sys\nlib = ctypes.CDLL(sys.argv[1])\n"
        "f = getattr(lib, sys.argv[2])\n"
        "if sys.argv[2] == 'ncclGetVersion':\n    v = ctypes.c_int(); f(ctypes.byref(v)); print(v.value)\n"
        "else:\n    f.restype = ctypes.c_size_t; print(f())\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, path, call],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    text = done.stdout.decode().strip()
    return parse(int(text)) if done.returncode == 0 and text.isdigit() else None


def cudnn_version(value):
    """90100 is 9.1.0, 8902 is 8.9.2: the factor of the major number changed with version 9."""
    if value >= 90000:
        return "{}.{}.{}".format(value // 10000, value % 10000 // 100, value % 100)
    return "{}.{}.{}".format(value // 1000, value % 1000 // 100, value % 100)


def nccl_version(value):
    """21805 is 2.18.5; up to 2.8 it was 2708 for 2.7.8."""
    if value >= 10000:
        return "{}.{}.{}".format(value // 10000, value % 10000 // 100, value % 100)
    return "{}.{}.{}".format(value // 1000, value % 1000 // 100, value % 100)


def same_release(said, package):
    return said.split(".")[:3] == package.split("+")[0].split(".")[:3]
