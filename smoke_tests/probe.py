"""L1: what is installed is what the lock says and fits the target GPUs. L3: the GPU at hand really runs a kernel."""

import glob
import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
import _coverage  # noqa: E402
import _installed  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, one_line  # noqa: E402
from _nvml import Nvml, NvmlError  # noqa: E402

script = Script(
    "probe",
    {
        # pip is there for the image's user and no part of the stack imports it; setuptools is not so harmless
        "tolerated_packages": ["pip"],
    },
)
ONNXRUNTIME_PACKAGES = ("onnxruntime", "onnxruntime-gpu")


@script.check("python_version", "L1")
def python_version(ctx):
    """The image's Python is the one asked for."""
    running = ctx.environment["python"]
    if ctx.python is None:
        raise NotChecked("no Python version was asked for", measured=running)
    asked = ctx.python.split(".")
    if running.split(".")[: len(asked)] != asked:
        raise Failed(
            "python-mismatch",
            "Python {} runs, {} was asked for".format(running, ctx.python),
            measured=running,
            expected=ctx.python,
            executable=sys.executable,
        )
    return Passed("Python {} runs".format(running), measured=running, expected=ctx.python)


@script.check("packages_installed", "L1")
def packages_installed(ctx):
    """Every locked package is installed."""
    installed = _installed.first_of_each(needs_lock(ctx))
    missing = sorted(set(ctx.packages) - set(installed))
    if missing:
        raise Failed(
            "package-missing",
            "{} of {} locked packages are not installed: {}".format(len(missing), len(ctx.packages), nearest(missing)),
            measured=len(ctx.packages) - len(missing),
            expected=len(ctx.packages),
            missing=missing,
        )
    return Passed("all {} locked packages are installed".format(len(ctx.packages)), measured=len(ctx.packages))


@script.check("versions_match", "L1")
def versions_match(ctx):
    """Every installed version equals the lock, as versions and not as text."""
    installed = _installed.first_of_each(needs_lock(ctx))
    different = [
        {"package": name, "installed": installed[name], "locked": locked}
        for name, locked in sorted(ctx.packages.items())
        if name in installed and _installed.version_key(installed[name]) != _installed.version_key(locked)
    ]
    if different:
        shown = ["{package} {installed} (lock: {locked})".format(**row) for row in different]
        raise Failed(
            "version-mismatch",
            "{} installed in another version than locked: {}".format(count(shown, "package"), nearest(shown)),
            measured={row["package"]: row["installed"] for row in different},
            expected={row["package"]: row["locked"] for row in different},
        )
    return Passed("every installed version equals the lock", measured=len(ctx.packages))


@script.check("no_extra_packages", "L1")
def no_extra_packages(ctx):
    """Nothing is installed beyond the lock; pip alone is tolerated (tolerated_packages)."""
    installed = _installed.first_of_each(needs_lock(ctx))
    beyond = {name: version for name, version in installed.items() if name not in ctx.packages}
    tolerated = {name: beyond.pop(name) for name in ctx.params["tolerated_packages"] if name in beyond}
    if beyond:
        shown = ["{} {}".format(name, version) for name, version in sorted(beyond.items())]
        raise Failed(
            "package-extra",
            "{} installed that the lock does not have: {}".format(count(shown, "package"), nearest(shown)),
            measured=beyond,
            expected={},
            tolerated=tolerated,
        )
    return Passed("nothing is installed beyond the lock", measured=len(installed), tolerated=tolerated)


@script.check("one_copy_each", "L1")
def one_copy_each(_ctx):
    """No package is described twice on the path."""
    twice = _installed.duplicates(_installed.packages())
    if twice:
        shown = [
            "{} ({})".format(name, ", ".join(version for version, _ in places))
            for name, places in sorted(twice.items())
        ]
        raise Failed(
            "package-duplicated",
            "{} described more than once on the path: {}".format(count(shown, "package"), nearest(shown)),
            measured=twice,
            expected={},
        )
    return Passed("every package is there once")


@script.check("torch_imports", "L1")
def torch_imports(ctx):
    """Torch imports, and it is the torch that its metadata describes."""
    torch = ctx.stack("torch")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    ctx.made["torch"] = torch
    described = _installed.first_of_each(_installed.packages()).get("torch")
    imported = str(torch.__version__)
    if described is None:
        raise Failed(
            "torch-swapped",
            "torch {} is imported from {}, but no package metadata describes it".format(imported, torch.__file__),
            measured=imported,
        )
    same = _installed.version_key(_installed.public_part(imported)) == _installed.version_key(
        _installed.public_part(described)
    )
    labels = {_installed.local_part(imported), _installed.local_part(described)} - {None}
    if not same or len(labels) > 1:
        raise Failed(
            "torch-swapped",
            "torch {} is imported from {}, its package metadata says {}".format(imported, torch.__file__, described),
            measured=imported,
            expected=described,
        )
    return Passed("torch {} imports".format(imported), measured=imported, expected=described)


@script.check("torch_variant", "L1", needs=["torch_imports"])
def torch_variant(ctx):
    """The CUDA runtime compiled in, and the version's label, are the variant asked for."""
    torch = ctx.made["torch"]
    label = _installed.local_part(str(torch.__version__))
    built = _coverage.build_variant(torch)
    if ctx.variant is None:
        raise NotChecked("no variant was asked for", measured=built, label=label)
    if built != ctx.variant or label not in (None, ctx.variant):
        raise Failed(
            "variant-mismatch",
            "torch {} is built for {}, {} was asked for".format(torch.__version__, built, ctx.variant),
            measured=built,
            expected=ctx.variant,
            label=label,
        )
    return Passed("torch {} is a {} build".format(torch.__version__, built), measured=built, expected=ctx.variant)


@script.check("arch_list", "L1", needs=["torch_imports"])
def arch_list(ctx):
    """The compiled code covers each target GPU: native code of the same major and a lower or equal minor, or PTX."""
    if not ctx.gpus:
        raise NotApplicable("no target GPU was given", measured=_coverage.arch_flags(ctx.made["torch"]))
    torch = ctx.made["torch"]
    names = ", ".join(gpu["name"] for gpu in ctx.gpus)
    if torch.version.cuda is None:
        raise Failed(
            "cpu-build-for-gpu-target",
            "torch {} has no CUDA code; the targets are {}".format(torch.__version__, names),
            measured=_coverage.build_variant(torch),
            expected=names,
        )
    text = _coverage.arch_flags(torch)
    if not text:
        raise NotChecked("torch {} does not tell which architectures it was compiled for".format(torch.__version__))
    flags, not_understood = _coverage.parse_flags(text)
    covered, not_covered, unknown = {}, [], []
    for gpu in ctx.gpus:
        capability = gpu.get("compute_capability")
        if capability is None:
            unknown.append(gpu["name"])
            continue
        flag = _coverage.covering_flag(flags, _coverage.parse_capability(capability))
        if flag is None:
            not_covered.append("{} (compute capability {})".format(gpu["name"], capability))
        else:
            covered[gpu["name"]] = flag
    values = {"measured": text, "expected": [gpu.get("compute_capability") for gpu in ctx.gpus], "covered_by": covered}
    if not_covered and not_understood:
        raise NotChecked("the architecture flags {} are not understood".format(", ".join(not_understood)), **values)
    if not_covered:
        raise Failed(
            "arch-not-covered",
            "torch {} has no code for {}; it has {}".format(torch.__version__, ", ".join(not_covered), text),
            not_covered=not_covered,
            **values,
        )
    if unknown:
        raise NotChecked("no compute capability was given for {}".format(", ".join(unknown)), **values)
    through_ptx = sorted(name for name, flag in covered.items() if flag.startswith("compute"))
    note = (
        "; {} only through PTX, compiled by the driver at first use".format(", ".join(through_ptx))
        if through_ptx
        else ""
    )
    return Passed("the compiled code covers {}{}".format(names, note), **values)


@script.check("onnxruntime_single", "L1")
def onnxruntime_single(_ctx):
    """Onnxruntime and onnxruntime-gpu, which share a folder, are not both installed."""
    installed = _installed.first_of_each(_installed.packages())
    present = {name: version for name, version in installed.items() if name.startswith("onnxruntime")}
    flavours = sorted(set(present) - {"onnxruntime-extensions", "onnxruntime-genai", "onnxruntime-tools"})
    if len(flavours) > 1:
        raise Failed(
            "onnxruntime-both",
            "{} share one folder, so that the later install overwrote the earlier".format(" and ".join(flavours)),
            measured=present,
            expected="one of them",
        )
    if not flavours:
        raise NotApplicable("no onnxruntime is installed")
    return Passed("{} {} is the only one".format(flavours[0], present[flavours[0]]), measured=present)


@script.check("onnxruntime_providers", "L1", needs=["onnxruntime_single"])
def onnxruntime_providers(ctx):
    """Onnxruntime imports and was built with the provider its package promises."""
    installed = _installed.first_of_each(_installed.packages())
    wanted = ctx.packages or installed
    package = next((name for name in ONNXRUNTIME_PACKAGES if name in wanted), None)
    if package is None:
        raise NotApplicable("no onnxruntime is in the lock")
    providers = ctx.stack("onnxruntime", "get_available_providers").get_available_providers()
    needed = ["CPUExecutionProvider"]
    if package == "onnxruntime-gpu":
        needed.append("CUDAExecutionProvider")
    missing = [name for name in needed if name not in providers]
    if missing:
        raise Failed(
            "provider-missing",
            "{} does not offer {}; it offers {}".format(package, ", ".join(missing), ", ".join(providers)),
            measured=providers,
            expected=needed,
        )
    return Passed("{} offers {}".format(package, ", ".join(providers)), measured=providers, expected=needed)


@script.check("numpy_conversion", "L1", needs=["torch_imports"])
def numpy_conversion(ctx):
    """Torch and numpy exchange arrays of six types without a copy."""
    torch = ctx.made["torch"]
    numpy = ctx.optional("numpy")
    pair = "torch {} and numpy {}".format(torch.__version__, numpy.__version__)
    try:
        for kind in ("float32", "float64", "float16", "int64", "uint8", "bool"):
            array = numpy.arange(6).reshape(2, 3).astype(kind)
            tensor = torch.from_numpy(array)
            back = tensor.numpy()
            assert back.dtype == array.dtype, "{} came back as {}".format(array.dtype, back.dtype)
            assert (back == array).all(), "values of {} differ".format(kind)
            tensor[0, 0] = 1
            assert array[0, 0] == 1, "{} is copied where memory should be shared".format(kind)
    except Exception as error:
        raise Failed(
            "numpy-abi",
            "{} cannot exchange arrays: {}".format(pair, one_line(error)),
            measured=str(numpy.__version__),
        ) from None
    return Passed("{} exchange arrays without a copy".format(pair), measured=str(numpy.__version__))


@script.check("transformers_sees_torch", "L1", needs=["torch_imports"])
def transformers_sees_torch(ctx):
    """Transformers accepts this torch and its BERT imports."""
    version = ctx.optional("transformers").__version__
    available = ctx.stack("transformers.utils", "is_torch_available").is_torch_available()
    if not available:
        raise Failed(
            "transformers-without-torch",
            "transformers {} does not accept torch {}; its models cannot be built".format(
                version, ctx.environment["torch"]
            ),
            measured=False,
            expected=True,
        )
    ctx.stack("transformers", "BertModel")
    return Passed("transformers {} accepts torch {}".format(version, ctx.environment["torch"]), measured=True)


@script.check("torchvision", "L1", needs=["torch_imports"])
def torchvision(ctx):
    """Torchvision imports and its compiled operators run."""
    vision = ctx.optional("torchvision")
    torch = ctx.made["torch"]
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]])
    try:
        kept = ctx.stack("torchvision.ops").nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
    except (RuntimeError, NotImplementedError) as error:
        raise Failed(
            "torchvision-ops",
            "torchvision {} has no compiled operators for torch {}: {}".format(
                vision.__version__, torch.__version__, one_line(error)
            ),
        ) from None
    assert kept == [0, 2], "nms kept {}".format(kept)
    return Passed("torchvision {} imports and its operators run".format(vision.__version__))


@script.check("torchaudio", "L1", needs=["torch_imports"])
def torchaudio(ctx):
    """Torchaudio imports."""
    return Passed("torchaudio {} imports".format(ctx.optional("torchaudio").__version__))


@script.check("torchtext", "L1", needs=["torch_imports"])
def torchtext(ctx):
    """Torchtext imports."""
    return Passed("torchtext {} imports".format(ctx.optional("torchtext").__version__))


@script.check("gpu_usable", "L3", needs=["torch_imports"])
def gpu_usable(ctx):
    """The driver shows a GPU and torch can start on it."""
    torch = ctx.made["torch"]
    try:
        with Nvml() as nvml:
            driver, runtime, devices = nvml.driver_version(), nvml.driver_runtime(), nvml.devices()
    except NvmlError as error:
        nodes = sorted(glob.glob("/dev/nvidia[0-9]*"))
        if nodes:
            raise Failed(
                "driver-library-missing",
                "{} is here, but the driver's library is not usable: {}".format(nodes[0], error),
                blame="host",
                measured=nodes,
            ) from None
        raise NotChecked("no GPU in reach: {}".format(error)) from None
    if not devices:
        raise NotChecked("the driver {} shows no GPU".format(driver))
    if torch.version.cuda is None:
        raise NotChecked("torch {} is built without CUDA".format(torch.__version__), devices=devices)
    host = {"driver": driver, "driver_runtime": runtime, "devices": devices}
    try:
        torch.cuda.init()
        seen = torch.cuda.device_count()
    except Exception as error:
        raise Failed(
            "cuda-init-failed",
            "driver {} (takes CUDA runtimes up to {}) does not start torch {} (CUDA runtime {}): {}".format(
                driver, runtime, torch.__version__, torch.version.cuda, one_line(error)
            ),
            blame="host",
            measured=runtime,
            expected=torch.version.cuda,
            **host,
        ) from None
    ctx.environment["device"] = "cuda"
    ctx.environment["gpu"] = _bert.gpu_in_use(torch)
    return Passed("driver {} and {}".format(driver, count(range(seen), "GPU")), measured=seen, expected=">= 1", **host)


@script.check("gpu_covered", "L3", needs=["gpu_usable"])
def gpu_covered(ctx):
    """The compiled code covers every GPU that is present."""
    torch = ctx.made["torch"]
    text = _coverage.arch_flags(torch)
    if not text:
        raise NotChecked("torch {} does not tell which architectures it was compiled for".format(torch.__version__))
    flags, _ = _coverage.parse_flags(text)
    rows = []
    for index in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(index)
        rows.append(
            {
                "name": torch.cuda.get_device_name(index),
                "compute_capability": "{}.{}".format(*capability),
                "covered_by": _coverage.covering_flag(flags, capability),
            }
        )
    missing = ["{name} ({compute_capability})".format(**row) for row in rows if row["covered_by"] is None]
    if missing:
        raise Failed(
            "gpu-not-covered",
            "torch {} has no code for {}; it has {}".format(torch.__version__, ", ".join(missing), text),
            measured=text,
            devices=rows,
        )
    return Passed("the compiled code covers every GPU present", measured=text, devices=rows)


@script.check("gpu_kernel", "L3", needs=["gpu_usable"])
def gpu_kernel(ctx):
    """A kernel runs on every GPU and gives the right numbers; a wheel without code for it fails here."""
    torch = ctx.made["torch"]
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        try:
            values = torch.arange(1024, dtype=torch.float32, device="cuda:{}".format(index))
            total = float((values * 2 + 1).sum().item())
            product = float((torch.ones(64, 64, device=values.device) @ torch.ones(64, 64, device=values.device)).sum())
        except Exception as error:
            raise Failed(
                "kernel-failed", "no kernel runs on {}: {}".format(name, one_line(error)), device=name
            ) from None
        if (total, product) != (1048576.0, 262144.0):
            raise Failed(
                "kernel-wrong",
                "{} computes wrong numbers".format(name),
                measured=[total, product],
                expected=[1048576.0, 262144.0],
                device=name,
            )
    return Passed("kernels run on {}".format(count(range(torch.cuda.device_count()), "GPU")))


def needs_lock(ctx):
    if not ctx.packages:
        raise NotChecked("no lock was given")
    return _installed.packages()


def count(items, noun):
    return "{} {}{}".format(len(items), noun, "" if len(items) == 1 else "s")


def nearest(texts, limit=5):
    rest = len(texts) - limit
    return ", ".join(texts[:limit]) + (", and {} more".format(rest) if rest > 0 else "")


if __name__ == "__main__":
    script.main()
