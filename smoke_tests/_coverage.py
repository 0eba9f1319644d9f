"""Which GPUs the compiled code of a build of torch runs on.

Rules (CUDA C++ Programming Guide, sections on application and binary compatibility): `sm_XY` runs on the same major
compute capability with the same or a higher minor; `sm_XYf` is the same within its family; `sm_XYa` runs on exactly
that device; PTX (`compute_XY`) is compiled at first use for the same or any newer device, `compute_XYa` for that one.
"""

import re

FLAG = re.compile(r"^(sm|compute)_(\d+)(\d)([af]?)$")


def parse_flags(text):
    """([(kind, major, minor, suffix), ...], [flags that are not understood]) of `sm_70 sm_90a compute_90`."""
    flags, unknown = [], []
    for word in text.split():
        match = FLAG.match(word)
        if match is None:
            unknown.append(word)
        else:
            flags.append((match.group(1), int(match.group(2)), int(match.group(3)), match.group(4)))
    return flags, unknown


def parse_capability(text):
    match = re.match(r"^(\d+)\.(\d+)$", text)
    if match is None:
        raise ValueError("`{}` is not a compute capability such as 8.6".format(text))
    return int(match.group(1)), int(match.group(2))


def covering_flag(flags, capability):
    """The flag whose code runs on a device of this compute capability, native code first, or None."""
    native, ptx = [], []
    for kind, major, minor, suffix in flags:
        own = (major, minor)
        if suffix == "a" and own != capability:
            continue
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            native.append((own, suffix, kind))
        elif kind == "compute" and own <= capability and (suffix != "f" or major == capability[0]):
            ptx.append((own, suffix, kind))
    best = max(native) if native else max(ptx) if ptx else None
    if best is None:
        return None
    (major, minor), suffix, kind = best
    return "{}_{}{}{}".format(kind, major, minor, suffix)


def build_variant(torch):
    """`cpu`, `cu118` or `rocm6.2`, from what was compiled in and not from the version's label."""
    if torch.version.cuda:
        return "cu" + torch.version.cuda.replace(".", "")
    hip = getattr(torch.version, "hip", None)
    return "rocm" + ".".join(hip.split(".")[:2]) if hip else "cpu"


def arch_flags(torch):
    """Works without a GPU, unlike torch.cuda.get_arch_list; None where the build has no such call."""
    read = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001
    return read() if read is not None else None
