"""What a package needs beside torch: a wheel for the system, a card that its kernels know, libraries of one version."""

from __future__ import annotations

from collections.abc import Iterator

from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding
from builder.versions import ComputeCapability, CudaVersion


def _installed_from_wheels(o: Outcome, names: list[str]) -> Iterator[Chosen]:
    for name in names:
        chosen = o.package(name)
        request = None if chosen is None else chosen.request
        if chosen is None or request is None or request.installer not in {"pip", "uv"}:
            continue
        if request.is_source or request.url or request.wheel:
            continue
        yield chosen


def musl_has_wheel(o: Outcome) -> Iterator[Finding]:
    """Alpine has no glibc: wheels of manylinux do not fit."""
    base, os = o.env.base, o.env.os
    if base is not None and "alpine" in base.reference.lower():
        says = f"{base.origin}: {base.reference} is Alpine, which has musl and no glibc"
    elif base is None and os is not None and os.distribution == "alpine":
        says = f"{os.origin} says {os.text}, which has musl and no glibc"
    else:
        return
    fact = o.catalog.hazards.row("singles", "musl-none")
    for chosen in _installed_from_wheels(o, fact.text("value").split()):
        yield finding(
            "no-wheel-for-system",
            "error",
            chosen.title,
            [says, chosen.says, fact.fact],
            "no wheel can be installed",
            hint="use a Debian or Ubuntu base, such as python:3.11-slim",
        )


def windows_has_wheel(o: Outcome) -> Iterator[Finding]:
    os = o.env.os
    if os is None or os.family != "windows":
        return
    fact = o.catalog.hazards.row("singles", "windows-none")
    for chosen in _installed_from_wheels(o, fact.text("value").split()):
        yield finding(
            "no-wheel-for-system",
            "error",
            chosen.title,
            [f"{os.origin} says {os.text}", chosen.says, fact.fact],
            "it cannot be installed on Windows",
            hint=f'write `{chosen.name}; platform_system == "Linux"`, or work in WSL',
            tries=[Change("remove", chosen.name, "")],
        )


def package_runs_on_gpu(o: Outcome) -> Iterator[Finding]:
    """A package with kernels of its own, which begin at a later card."""
    for row in o.catalog.hazards.all("gpu_floors"):
        chosen = o.package(row.package)
        if chosen is None or chosen.version is None or not row.holds_for(chosen.version) or chosen.request is None:
            continue
        least = ComputeCapability.parse(row.text("capability"))
        for ask, gpu in o.gpus:
            if gpu is None or gpu.compute_capability >= least:
                continue
            yield finding(
                "extension-gpu",
                "error",
                chosen.title,
                [f"{ask.origin} asks for {ask.name}", gpu.fact, chosen.says, row.fact],
                f"{chosen.name} refuses {ask.name} at its first use",
                tries=[Change("remove", chosen.name, "")],
            )


def library_of_torch(o: Outcome) -> Iterator[Finding]:
    """Packages that load the cuBLAS and cuDNN that torch brings, by the number in the file's name."""
    torch, toolkit, release = o.torch, o.torch_toolkit, o.torch_release
    if torch is None or toolkit is None or release is None:
        return
    cudnn = release.cudnn_major(torch.variant, o.arch) or release.cudnn_major(None, o.arch)
    for row in o.catalog.hazards.all("library_users"):
        chosen = o.package(row.package)
        if chosen is None or chosen.version is None or not row.holds_for(chosen.version) or o.is_conda(chosen):
            continue
        wanted_cuda, wanted_cudnn = int(row.get("cuda")), int(row.get("cudnn"))
        if toolkit.major == wanted_cuda and cudnn in {None, wanted_cudnn}:
            continue
        if _has_another(o, wanted_cuda, wanted_cudnn):
            continue
        is_cuda = toolkit.major != wanted_cuda
        missing = f"CUDA {wanted_cuda}" if is_cuda else f"cuDNN {wanted_cudnn}"
        brings = f"CUDA {toolkit.major}" + (f" and cuDNN {cudnn}" if cudnn else "")
        yield finding(
            "library-of-torch",
            "error" if chosen.is_pinned and torch.is_pinned else "warning",
            chosen.title,
            [chosen.says, row.fact, f"{torch.says}, whose {torch.variant} build brings {brings}"],
            f"there is no {missing}: {chosen.name} {chosen.version} would stop at its first step on the card",
            tries=_tries(o, chosen, toolkit, cudnn),
        )


def _has_another(o: Outcome, cuda: int, cudnn: int) -> bool:
    """The image, or a package asked for, brings what is needed beside torch's own."""
    base = o.env.base
    if any(package.name.startswith("libcudnn") for package in o.env.apt):
        return True
    if any(name.startswith("nvidia-cudnn-") and each.request is not None for name, each in o.packages.items()):
        return True
    if base is None or base.toolkit is None or base.flavor == "base":
        return False
    has = base.cudnn or (9 if base.toolkit >= CudaVersion((12, 4)) else 8)
    return base.toolkit.major == cuda and base.cudnn is not None and has == cudnn


def _tries(o: Outcome, chosen: Chosen, toolkit: CudaVersion, cudnn: int | None) -> list[Change]:
    rows = o.catalog.hazards.of("library_users", chosen.name)
    fits = [row for row in rows if int(row.get("cuda")) == toolkit.major and int(row.get("cudnn")) == (cudnn or 0)]
    offers = [
        offer.version
        for offer in o.shelf.offers(chosen.name)
        if any(row.holds_for(offer.version) for row in fits)
        and (o.python is None or offer.has_wheel(o.python))
        and (offer.released == "" or offer.released <= o.today.isoformat())
    ]
    found = [Change("pin", chosen.name, f"=={version}") for version in offers[:1]]
    torch = o.torch
    if torch is None or torch.version is None or torch.label is not None or chosen.version is None:
        return found
    mine = next((row for row in rows if row.holds_for(chosen.version)), None)
    minor = torch.version.minor
    alike = [each for each in o.catalog.torch_releases() if each.version.major == torch.version.major]
    for release in sorted(alike, key=lambda each: abs(each.version.minor - minor)):
        default = release.default_variant(o.arch)
        if mine is None or default is None or default.toolkit is None:
            continue
        brings = default.toolkit.major, release.cudnn_major(None, o.arch)
        if brings == (int(mine.get("cuda")), int(mine.get("cudnn"))):
            found.append(Change("pin", "torch", f"=={release.version}"))
            break
    return found


RULES = (musl_has_wheel, windows_has_wheel, package_runs_on_gpu, library_of_torch)
