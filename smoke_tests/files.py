"""L1: the files of the environment: libraries and their versions, packages, leftovers of the build, the guard."""

import glob
import os
import re
import subprocess
import sys
import zipfile

sys.dont_write_bytecode = True  # nothing is written outside the scratch folder, compiled files included

import _elf  # noqa: E402
import _installed  # noqa: E402
import _libraries  # noqa: E402
import _metadata  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, one_line  # noqa: E402

script = Script(
    "files",
    {
        "image": "auto",  # auto, yes or no: whether this is an image of torchproof's, with a guard and no leftovers
        "budget_bytes": 0,  # of the environment; 0: its size is told and not judged
        "roots": ["/"],  # where an image is searched for leftovers
    },
)
MIB = 2.0**20
IMAGE_PREFIX = "/opt/venv"
CUDA_PROVIDER = "libonnxruntime_providers_cuda.so"
# What an image may not hold, relative to its root: caches, lists, and what is mounted for one build step only.
LEFTOVERS = (
    "root/.cache/*",
    "home/*/.cache/*",
    "root/.config/pip/*",
    "root/.pip/*",
    "root/.netrc",
    "home/*/.netrc",
    "root/.docker/*",
    "run/secrets/*",
    "mnt/*",
    "layer",
    "var/cache/uv/*",
    "var/cache/apt/archives/*.deb",
    "var/lib/apt/lists/*_*",
    "etc/pip.conf",
    "usr/local/bin/uv",
    "tmp/*.whl",
    "tmp/pip-*",
    "root/*.whl",
    "opt/*.whl",
)
CREDENTIALS = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def is_image(ctx):
    asked = ctx.params["image"]
    return os.path.realpath(sys.prefix) == IMAGE_PREFIX if asked == "auto" else asked == "yes"


@script.check("records", "L1")
def records(ctx):
    """Every file that a package says it installed is there, and each shared library in the recorded size."""
    ctx.made["packages"] = found = _metadata.distributions()
    missing, changed, count = [], [], 0
    for name, _, info, _ in found:
        for path, size in _metadata.recorded_files(info):
            if path.endswith(".pyc"):
                continue
            count += 1
            try:
                real = os.stat(path).st_size
            except OSError:
                missing.append("{} of {}".format(path, name))
                continue
            if size is not None and real != size and ".so" in os.path.basename(path):
                changed.append("{} of {}: {} bytes, recorded are {}".format(path, name, real, size))
    if missing:
        raise Failed(
            "file-missing",
            "{} of {} installed files are gone: {}".format(len(missing), count, shorten(missing)),
            measured=count - len(missing),
            expected=count,
            missing=missing[:50],
        )
    if changed:
        raise Failed(
            "file-changed",
            "{} not of the recorded size: {}".format(number(changed, "library", "libraries"), shorten(changed)),
            measured=len(changed),
            expected=0,
            changed=changed[:50],
        )
    return Passed("all {} files of {} packages are there".format(count, len(found)), measured=count)


@script.check("requirements", "L1")
def requirements(_ctx):
    """As `pip check`: what each installed package asks for is installed in a version that it takes."""
    reader = _metadata.packaging_module()
    if reader is None:
        raise NotChecked("neither packaging nor pip is installed, so no requirement can be read")
    found = _metadata.distributions()
    problems = _metadata.unmet(found, reader)
    if problems:
        raise Failed(
            "requirement-unmet",
            "{} not met: {}".format(number(problems, "requirement"), shorten(problems)),
            measured=problems,
            expected=[],
        )
    return Passed("the requirements of {} packages are met".format(len(found)), measured=len(found))


@script.check("libraries", "L1")
def libraries(ctx):
    """Every shared library of every package finds what it needs, in the versions that it was linked against."""
    paths = _libraries.elf_files(_metadata.folders())
    loader = _elf.Loader({})
    loader.brought = _libraries.brought_by_name(paths, loader.elf)
    ctx.made.update(paths=paths, loader=loader)
    if not paths:
        raise NotApplicable("no package here brings a shared library")
    optional = {path: _libraries.waits_for(path) for path in paths}
    rows = _libraries.unresolved(loader, [path for path in paths if optional[path] is None and path_counts(path)])
    left_out = sorted({what for what in optional.values() if what is not None})
    if rows:
        shown = ["{}: {}".format(os.path.basename(row["file"]), row["reason"]) for row in rows]
        raise Failed(
            "library-unresolved",
            "{} cannot be loaded: {}".format(
                number({row["file"] for row in rows}, "library", "libraries"), shorten(shown)
            ),
            measured=rows[:50],
            expected=[],
        )
    return Passed(
        "{} libraries find all they need".format(len(paths)),
        measured=len(paths),
        left_to_their_hardware=left_out,
    )


def path_counts(path):
    """Provider libraries are a check of their own, for onnxruntime goes on without them."""
    return not os.path.basename(path).startswith("libonnxruntime_providers_")


@script.check("provider_libraries", "L1", needs=["libraries"])
def provider_libraries(ctx):
    """onnxruntime's CUDA provider would load; where it would not, onnxruntime silently takes the CPU.

    What torch has loaded before counts, since that is how the provider is used beside torch; that it is needed is told.
    """
    package = "onnxruntime-gpu"
    installed = {name for name, _, _, _ in _metadata.distributions()}
    if package not in (ctx.packages or installed):
        raise NotApplicable("no {} is in the lock".format(package))
    paths, loader = ctx.made["paths"], ctx.made["loader"]
    providers = [path for path in paths if os.path.basename(path) == CUDA_PROVIDER]
    if not providers:
        raise Failed("provider-unresolved", "{} is installed without its {}".format(package, CUDA_PROVIDER))
    shared = [path for path in paths if os.path.basename(path).startswith("libonnxruntime_providers_shared.so")]
    if not shared:
        raise Failed("provider-unresolved", "libonnxruntime_providers_shared.so is gone: no provider can be loaded")
    with_torch = loaded_by_torch(loader) or loader.closure([path for path in paths if is_torch(path)])
    wanted = sorted(
        name for name in loader.elf(providers[0]).needed if _libraries.CUDA_STEM.match(name.split(".so")[0])
    )
    alone = _libraries.unresolved(loader, providers, {})
    rows = _libraries.unresolved(loader, providers, with_torch)
    if rows:
        brought = sorted(name for name in with_torch if _libraries.cuda_stem(name))
        raise Failed(
            "provider-unresolved",
            "onnxruntime's CUDA provider cannot be loaded, so it would run on the CPU: {}; torch loads {}".format(
                shorten([row["reason"] for row in rows]), ", ".join(brought) or "no CUDA library"
            ),
            measured=[row["library"] for row in rows],
            expected=wanted,
        )
    how = "by itself" if not alone else "once torch is imported or onnxruntime.preload_dlls() was called"
    return Passed("the CUDA provider finds all it needs {}".format(how), measured=wanted, needs_torch=bool(alone))


def loaded_by_torch(loader):
    """{name: path} of what is in a process after `import torch`, which loads some by hand; empty where it fails."""
    code = "import torch; print(open('/proc/self/maps').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=False
    )
    if done.returncode != 0:
        return {}
    mapped = {line.split(None, 5)[5] for line in done.stdout.decode().splitlines() if line.count("/")}
    names = {name: paths[0] for name, paths in _libraries.brought_by_name(sorted(mapped), loader.elf).items()}
    return names if any(name.startswith("libtorch_python.so") for name in names) else {}


def is_torch(path):
    """The libraries that `import torch` loads: its own, and not the test and tool libraries beside them."""
    folder = os.path.basename(os.path.dirname(path))
    name = os.path.basename(path)
    return (folder, name[:3]) == ("torch", "_C.") or (folder == "lib" and name.startswith("libtorch_python.so"))


@script.check("cuda_libraries_once", "L1", needs=["libraries"])
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
    return Passed(
        "{} CUDA libraries, each once{}".format(len(copies), told),
        measured={stem: places[0][1] for stem, places in copies.items()},
        toolkit={stem: dict(places) for stem, places in beside.items()},
    )


@script.check("cuda_versions", "L1", needs=["libraries"])
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


@script.check("guard", "L1")
def guard(ctx):
    """A later install that would replace torch is refused: tried with a made-up torch, by the image's own pip."""
    if not is_image(ctx):
        raise NotApplicable("this is no image of torchproof's, so it has no guard")
    if subprocess.call(
        [sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        raise NotApplicable("the image has no pip")
    wheel = fake_wheel(ctx.scratch, "torch", "99.9.9")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-index", "--no-cache-dir"]
    command += ["--find-links", os.path.dirname(wheel), "--dest", os.path.join(ctx.scratch, "got"), "torch==99.9.9"]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    said = done.stdout.decode("utf-8", "replace").strip()
    last = [line for line in said.splitlines() if "(constraint)" in line]
    if done.returncode == 0 or (last and "(constraint) torch==" not in said):
        raise Failed(
            "guard-missing",
            "pip would replace torch without a word: no constraint holds it in its version",
            measured=said.splitlines()[-3:],
            expected="pip refuses",
        )
    if not last:
        raise NotChecked("pip failed for another reason: {}".format(one_line(Exception(said[-300:]))))
    return Passed("an install of another torch is refused: {}".format(last[0].strip()), measured=last)


def fake_wheel(folder, name, version):
    """A wheel of nothing but its metadata."""
    place = os.path.join(folder, "wheels")
    os.makedirs(place, exist_ok=True)
    path = os.path.join(place, "{}-{}-py3-none-any.whl".format(name, version))
    info = "{}-{}.dist-info".format(name, version)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(name, version))
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "/RECORD", "")
    return path


@script.check("leftovers", "L1")
def leftovers(ctx):
    """No cache, package list, wheel, secret or setting of the build is in what the image shows."""
    if not is_image(ctx):
        raise NotApplicable("this is no image of torchproof's")
    found = []
    for root in ctx.params["roots"]:
        for pattern in LEFTOVERS:
            for path in glob.glob(os.path.join(root, pattern)):
                if not os.path.realpath(path).startswith(os.path.realpath(ctx.scratch)):
                    found.append(path)
    named = [name for name, value in sorted(os.environ.items()) if CREDENTIALS.search(value)]
    for path in (os.path.join(sys.prefix, "pip.conf"), "/etc/uv/uv.toml"):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            if CREDENTIALS.search(text) or "index-url" in text:
                found.append(path + " (names an index)")
    if found or named:
        shown = sorted(found) + ["variable " + name for name in named]
        raise Failed(
            "build-leftover",
            "{} of the build in the image: {}".format(number(shown, "leftover"), shorten(shown)),
            measured=shown,
            expected=[],
        )
    return Passed("nothing of the build is left", measured=0)


@script.check("size", "L1", needs=["records"])
def size(ctx):
    """What the environment takes, by package; held against a budget where one is given."""
    sizes = {}
    for name, _, info, _ in ctx.made["packages"]:
        recorded = [entry[1] for entry in _metadata.recorded_files(info) if entry[1] is not None]
        sizes[name] = sum(recorded)
    total = sum(sizes.values())
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:12])
    shown = ", ".join("{} {:.0f} MiB".format(name, size / MIB) for name, size in list(largest.items())[:4])
    budget = ctx.params["budget_bytes"]
    values = {"measured": total, "expected": "<= {}".format(budget) if budget else None, "largest": largest}
    if budget and total > budget:
        raise Failed(
            "over-budget",
            "the packages take {:.0f} MiB, the budget is {:.0f} MiB; largest: {}".format(
                total / MIB, budget / MIB, shown
            ),
            **values,
        )
    return Passed("the packages take {:.0f} MiB: {}".format(total / MIB, shown), **values)


def number(items, one, many=None):
    return "{} {}".format(len(items), one if len(items) == 1 else many or one + "s")


def shorten(names, limit=4):
    rest = len(names) - limit
    return "; ".join(list(names)[:limit]) + ("; and {} more".format(rest) if rest > 0 else "")


if __name__ == "__main__":
    script.main()
