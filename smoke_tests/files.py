"""L1: the files of the environment: libraries and their versions, packages, leftovers of the build, the guard."""

import os
import subprocess
import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _cuda_files  # noqa: E402
import _elf  # noqa: E402
import _image_files  # noqa: E402
import _libraries  # noqa: E402
import _metadata  # noqa: E402
import _symbols  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script  # noqa: E402
from _wording import number, shorten  # noqa: E402

script = Script(
    "files",
    {
        "image": "auto",  # auto, yes or no: whether this is an image of torchproof's, with a guard and no leftovers
        "budget_bytes": 0,  # of the environment; 0: its size is told and not judged
        "roots": ["/"],  # where an image is searched for leftovers
    },
)
CUDA_PROVIDER = "libonnxruntime_providers_cuda.so"


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
    judge_rows("library-broken", "broken", rows)
    judge_rows("library-unresolved", "missing", rows)
    judge_rows("symbol-version-missing", "version", rows)
    return Passed(
        "{} libraries find all they need".format(len(paths)),
        measured=len(paths),
        left_to_their_hardware=left_out,
    )


def judge_rows(code, kind, rows):
    """The first kind of fault that there is gives the code; the message tells all, those of that kind first."""
    if not any(row["kind"] == kind for row in rows):
        return
    rows = sorted(rows, key=lambda row: row["kind"] != kind)
    shown = ["{}: {}".format(os.path.basename(row["file"]), row["reason"]) for row in rows]
    raise Failed(
        code,
        "{} cannot be loaded: {}".format(number({row["file"] for row in rows}, "library", "libraries"), shorten(shown)),
        measured=rows[:50],
        expected=[],
    )


@script.check("symbols", "L1", needs=["libraries"])
def symbols(ctx):
    """Extensions find the C++ symbols of torch that they were built against, and CUDA libraries those of each other."""
    paths, loader = ctx.made["paths"], ctx.made["loader"]
    paths = [path for path in paths if _libraries.waits_for(path) is None and path_counts(path)]
    lookup = _symbols.Lookup()
    missing = _symbols.missing_of_torch(loader, lookup, paths, _metadata.folders())
    of_cuda = _symbols.missing_of_cuda(loader, lookup, paths, _libraries.cuda_stem)
    # What torch has loaded before is taken in place of what a library would find by itself.
    before = list(loaded_after(loader, "torch").values()) if of_cuda else []
    for path, names in of_cuda.items():
        left = [name for name in names if not lookup.is_defined(name.encode(), before)]
        if left:
            missing.setdefault(path, []).extend(left)
    if missing:
        shown = [
            "{} needs {}{}".format(
                os.sep.join(path.split(os.sep)[-2:]),
                _symbols.plain(names[0]),
                " and {} more".format(len(names) - 1) if len(names) > 1 else "",
            )
            for path, names in sorted(missing.items())
        ]
        raise Failed(
            "symbol-missing",
            "{} built for another torch or CUDA than this one: {}".format(
                number(missing, "library is", "libraries are"), shorten(shown)
            ),
            measured={path: names[:20] for path, names in list(missing.items())[:20]},
            expected={},
        )
    return Passed("{} libraries find the symbols of torch and CUDA that they need".format(len(paths)))


def path_counts(path):
    """Provider libraries are a check of their own, for onnxruntime goes on without them."""
    return not os.path.basename(path).startswith("libonnxruntime_providers_")


@script.check("provider_libraries", "L1", needs=["libraries"])
def provider_libraries(ctx):
    """onnxruntime's CUDA provider would load; where it would not, onnxruntime silently takes the CPU.

    What torch has loaded before counts, since that is how the provider is used beside torch, and so does what
    onnxruntime loads when it is asked to. That either is needed is told.
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
    with_torch = loaded_after(loader, "torch") or loader.closure([path for path in paths if is_torch(path)])
    wanted = sorted(
        name for name in loader.elf(providers[0]).needed if _libraries.CUDA_STEM.match(name.split(".so")[0])
    )
    alone = _libraries.unresolved(loader, providers, {})
    rows = _libraries.unresolved(loader, providers, with_torch)
    how = "once torch is imported" if alone else "by itself"
    if rows:
        preloaded = dict(with_torch, **loaded_after(loader, "onnxruntime", "onnxruntime.preload_dlls()"))
        if not _libraries.unresolved(loader, providers, preloaded):
            how = "once onnxruntime.preload_dlls() was called; it is not enough to import torch: {}".format(
                shorten([row["reason"] for row in rows])
            )
            rows = []
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
    return Passed("the CUDA provider finds all it needs {}".format(how), measured=wanted, needs_torch=bool(alone))


def loaded_after(loader, module, call=""):
    """{name: path} of what is in a process after an import, which loads some by hand; empty where it fails."""
    code = "import {}; {}; print(); print(open('/proc/self/maps').read())".format(module, call or "pass")
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=False
    )
    if done.returncode != 0:
        return {}
    rows = [line.split(None, 5) for line in done.stdout.decode().splitlines()]  # among what the import itself says
    mapped = {row[5] for row in rows if len(row) == 6 and row[5].startswith("/")}
    names = {name: paths[0] for name, paths in _libraries.brought_by_name(sorted(mapped), loader.elf).items()}
    return names if module != "torch" or any(name.startswith("libtorch_python.so") for name in names) else {}


def is_torch(path):
    """The libraries that `import torch` loads: its own, and not the test and tool libraries beside them."""
    folder = os.path.basename(os.path.dirname(path))
    name = os.path.basename(path)
    return (folder, name[:3]) == ("torch", "_C.") or (folder == "lib" and name.startswith("libtorch_python.so"))


script.check("cuda_libraries_once", "L1", needs=["libraries"])(_cuda_files.cuda_libraries_once)
script.check("cuda_versions", "L1", needs=["libraries"])(_cuda_files.cuda_versions)
script.check("guard", "L1")(_image_files.guard)
script.check("leftovers", "L1")(_image_files.leftovers)
script.check("size", "L1", needs=["records"])(_image_files.size)


if __name__ == "__main__":
    script.main()
