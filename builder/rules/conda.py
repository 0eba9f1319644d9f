"""Conda: channels that ended, builds that were never made, a solve that ends at a CPU build, MKL."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.explain import joined
from builder.index_builds import IndexView
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding


def _conda_torch(o: Outcome) -> tuple[Chosen, IndexView] | None:
    torch = o.torch
    if torch is None or not o.is_conda(torch):
        return None
    step = o.step_of(torch)
    if step is None:
        return None
    requests = [request for request in o.env.requests if request.step == step.number]
    return torch, IndexView(o.env, o.catalog, step, requests, o.arch)


def channel_has_release(o: Outcome) -> Iterator[Finding]:
    pair = _conda_torch(o)
    if pair is None:
        return
    torch, view = pair
    if view.channel(torch.request) != "pytorch" or torch.request is None:
        return
    last = Version(o.catalog.raw("torch")["conda"]["last_official"])
    step = o.step_of(torch)
    others = {"conda-forge"} & {channel.rpartition("/")[2] for channel in (step.channels if step else ())}
    if torch.version is not None and torch.version > last and (not others or torch.request.channel is not None):
        yield finding(
            "conda-channel-ended",
            "error",
            torch.title,
            [torch.says, o.catalog.note("conda-channel").fact],
            f"the pytorch channel ends at {last}",
            hint="take torch from conda-forge, or with pip from the torch index",
            tries=[Change("pin", "torch", f"=={last}")],
        )


def variant_was_built(o: Outcome) -> Iterator[Finding]:
    """pytorch-cuda=12.4 with a torch that was not built for it."""
    pair = _conda_torch(o)
    if pair is None:
        return
    torch, view = pair
    wanted = view.conda_variant
    if wanted is None or not wanted.is_cuda or view.channel(torch.request) != "pytorch":
        return
    release = o.torch_release
    if torch.version is None:
        asked = torch.request.asks if torch.request is not None else ""
        yield finding(
            "conda-no-variant",
            "error",
            f"torch{asked} {wanted}",
            [torch.says, f"the file asks for CUDA {wanted.toolkit}", o.catalog.note("conda-channel").fact],
            f"the pytorch channel has no such torch for {wanted}",
        )
        return
    if release is None or release.build(wanted) is not None:
        return
    have = joined([str(build.variant) for build in release.builds() if build.variant.is_cuda])
    yield finding(
        "conda-no-variant",
        "error",
        torch.title,
        [torch.says, f"the file asks for CUDA {wanted.toolkit}", release.variants_fact],
        f"torch {torch.version} was built for {have}: the solver finds nothing, or a CPU build",
    )


def variant_package_fits(o: Outcome) -> Iterator[Finding]:
    """The package cudatoolkit chooses nothing from 1.13 on, pytorch-cuda nothing before."""
    pair = _conda_torch(o)
    if pair is None:
        return
    torch, view = pair
    if torch.version is None or view.channel(torch.request) != "pytorch":
        return
    single = o.catalog.hazards.row("singles", "conda-pytorch-cuda-first")
    first = Version(single.text("value"))
    names = {request.name: request for request in o.env.requests}
    for name, is_wrong in (
        ("cudatoolkit", torch.version.release[:2] >= first.release[:2] and "pytorch-cuda" not in names),
        ("pytorch-cuda", torch.version.release[:2] < first.release[:2]),
    ):
        if is_wrong and name in names:
            yield finding(
                "conda-variant-package",
                "warning",
                torch.title,
                [torch.says, f"{names[name].origin} asks for {name}", single.fact],
                f"{name} does not choose the build of torch {torch.version}",
            )


def solves_to_cuda(o: Outcome) -> Iterator[Finding]:
    """conda-forge picks a CUDA build only where it sees a driver; an image build has none."""
    pair = _conda_torch(o)
    if pair is None:
        return
    torch, view = pair
    request = torch.request
    if request is None or view.channel(request) != "conda-forge" or not o.env.is_image:
        return
    if request.asks_for_cuda or (request.build and "cuda" in request.build) or request.build_variant is not None:
        return
    step = o.step_of(torch)
    variables = (*(step.variables if step else ()), *o.env.variables)
    has_virtual = any(name == "__cuda" for name, _ in o.env.virtual_packages)
    if has_virtual or any(variable.name == "CONDA_OVERRIDE_CUDA" for variable in variables):
        return
    base = o.env.base
    is_cuda_image = base is not None and (base.toolkit is not None or "cuda" in base.reference.lower())
    is_wanted = is_cuda_image or bool(o.gpus) or view.conda_variant is not None
    if view.conda_variant is not None and view.conda_variant.is_cpu:
        return
    because = [torch.says, f"{request.origin}: the channel is conda-forge"]
    if base is not None and is_cuda_image:
        because.append(f"{base.origin}: the image is {base.reference}")
    yield finding(
        "conda-cpu-solve",
        "error" if is_wanted else "warning",
        "torch",
        [*because, o.catalog.hazards.row("singles", "conda-forge-variant").fact],
        "no GPU is seen while an image is built, so the solver takes a CPU build",
        hint="set CONDA_OVERRIDE_CUDA for that RUN, or ask for pytorch=*=*cuda*",
    )


def channel_order(o: Outcome) -> Iterator[Finding]:
    """pytorch-cuda belongs to the pytorch channel; conda-forge before it gives its own torch."""
    pair = _conda_torch(o)
    if pair is None:
        return
    torch, _ = pair
    request, step = torch.request, o.step_of(torch)
    if request is None or step is None or request.channel is not None or request.build:
        return
    asks_official = any(other.name == "pytorch-cuda" for other in o.env.requests)
    names = [channel.rpartition("/")[2] for channel in step.channels]
    if not asks_official or "pytorch" not in names or "conda-forge" not in names:
        return
    if names.index("conda-forge") < names.index("pytorch"):
        yield finding(
            "conda-channel-order",
            "warning",
            "torch",
            [f"{request.origin} names no channel for torch", f"{step.origin} puts conda-forge before pytorch",
             "pytorch-cuda chooses among builds of the pytorch channel alone"],
            "the solver may take conda-forge's torch, and pytorch-cuda then chooses nothing",
            hint="put the pytorch channel first, or write pytorch::pytorch",
        )  # fmt: skip


def mkl_has_symbol(o: Outcome) -> Iterator[Finding]:
    pair = _conda_torch(o)
    if pair is None:
        return
    torch, view = pair
    last = o.catalog.hazards.row("singles", "mkl-last-torch")
    gone = o.catalog.hazards.row("singles", "mkl-symbol-gone")
    if torch.version is None or torch.version > Version(last.text("value")) or view.channel(torch.request) != "pytorch":
        return
    if torch.version < Version("1.13") or o.env.is_lock:
        return  # the profiler that needs the symbol came with 1.13
    mkl = o.env.in_force().get("mkl")
    bound = Version(gone.text("value"))
    says = "nothing in the file bounds mkl"
    if mkl is not None:
        if mkl.version is not None and mkl.version < bound:
            return
        if mkl.version is None and str(mkl.specifier) and not mkl.specifier.contains("2030.0"):
            return
        says = f"{mkl.request.origin} asks for mkl{mkl.request.asks}"
    is_certain = mkl is not None and mkl.version is not None
    yield finding(
        "conda-mkl",
        "error" if is_certain else "warning",
        torch.title,
        [torch.says, last.fact, gone.fact, says],
        "a solve of today takes a newer MKL, and importing torch fails",
        tries=[Change("add" if mkl is None else "pin", "mkl", "=2024.0")],
        hint="add mkl=2024.0 to the same solve, or take torch with pip",
    )


RULES = (
    channel_has_release,
    variant_was_built,
    variant_package_fits,
    solves_to_cuda,
    channel_order,
    mkl_has_symbol,
)
