"""Do the indexes that are named hold the build that is asked for, and no other one that wins?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.environment import Index
from builder.explain import joined
from builder.index_builds import IndexView
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding
from builder.versions import CudaVariant

_LABELLED = ("torch", "torchvision", "torchaudio")


def label_has_index(o: Outcome) -> Iterator[Finding]:
    """`torch==2.1.0+cu118` needs the index that has it."""
    told = False
    for name in _LABELLED:
        chosen = o.package(name)
        if (
            chosen is None
            or chosen.label is None
            or chosen.request is None
            or chosen.request.installer not in {"pip", "uv"}
        ):
            continue
        request = chosen.request
        variant = CudaVariant.of_local(chosen.label)
        indexes = _indexes(o, chosen)
        if request.wheel or request.url or variant is None or not indexes or told:
            continue
        if any(index.kind in {"other", "unspecified"} for index in indexes):
            continue
        torch_ones = [index for index in indexes if index.kind == "torch"]
        if any(index.variant in {None, variant} for index in torch_ones):
            continue
        told = True
        seen = joined([_says(index) for index in indexes])
        yield finding(
            "label-without-index",
            "error",
            f"{name} {chosen.version}+{chosen.label}",
            [chosen.says, o.catalog.note("local-index").fact, f"the indexes named are {seen}"],
            f"none of them has a +{chosen.label} build",
            tries=[Change("index", name, variant.tag)],
        )


def _says(index: Index) -> str:
    if index.kind == "torch":
        return f"the torch index of {index.variant}" if index.variant else "the torch wheel page"
    return "the default one" if index.kind == "default" else str(index.url or index.kind)


def _indexes(o: Outcome, chosen: Chosen) -> tuple[Index, ...]:
    step = o.step_of(chosen)
    if step is None:
        return ()
    return IndexView(o.env, o.catalog, step, [], o.arch).indexes(chosen.name)


def variant_exists(o: Outcome) -> Iterator[Finding]:
    """A build that was never made, by label or by the only index named."""
    torch, release = o.torch, o.torch_release
    if torch is None or torch.request is None or o.is_conda(torch) or torch.version is None:
        return
    wanted = torch.variant if torch.label else _only_variant(o, torch)
    if release is None or wanted is None or not wanted.is_cuda or release.build(wanted, o.arch) is not None:
        return
    if o.arch == "aarch64":
        yield from _aarch64(o, torch, wanted)
        return
    if torch.version.is_prerelease or _is_nightly(o, torch) or torch.request.wheel is not None:
        return
    if torch.request.installer == "base-image":
        return
    minor = [row for row in o.catalog.torch_releases() if row.version.release[:2] == torch.version.release[:2]]
    is_near = any(row.build(wanted, o.arch) is not None for row in minor)
    have = joined([str(build.variant) for build in release.builds(o.arch)], limit=10)
    yield finding(
        "torch-no-variant",
        "warning" if is_near or release.version >= Version("2.9") else "error",
        f"torch {torch.version} {wanted}",
        [torch.says, f"it is to come from a {wanted} build", release.variants_fact],
        f"torch {torch.version} has builds for {have}, not for {wanted}",
        tries=_variant_tries(o, wanted),
    )


def _aarch64(o: Outcome, torch: Chosen, wanted: CudaVariant) -> Iterator[Finding]:
    """The facts do not list every build for aarch64; of early releases there is none."""
    first = o.catalog.hazards.row("singles", "aarch64-cuda-first")
    if torch.version is None or torch.version >= Version(first.text("value")):
        return
    if torch.request is not None and torch.request.installer == "base-image":
        return
    yield finding(
        "torch-no-variant",
        "error",
        f"torch {torch.version} {wanted}",
        [o.arch_says, torch.says, f"it is to come from a {wanted} build", first.fact],
        f"there is no torch {torch.version} {wanted} for aarch64",
        hint="take an image of NVIDIA for that machine, or a newer torch",
    )


def _only_variant(o: Outcome, torch: Chosen) -> CudaVariant | None:
    indexes = _indexes(o, torch)
    if len(indexes) == 1 and indexes[0].kind == "torch":
        return indexes[0].variant
    return None


def _is_nightly(o: Outcome, torch: Chosen) -> bool:
    return any(index.is_nightly for index in _indexes(o, torch))


def _variant_tries(o: Outcome, wanted: CudaVariant) -> list[Change]:
    release = o.torch_release
    found: list[Change] = []
    if release is not None:
        tags = [build.variant for build in release.builds(o.arch) if build.variant.toolkit is not None]
        toolkit = wanted.toolkit
        tags.sort(key=lambda tag: abs(_number(tag) - (toolkit.parts[0] * 10 + toolkit.parts[1] if toolkit else 0)))
        found += [Change("variant", "torch", tag.tag) for tag in tags[:3]]
        having = [row for row in o.catalog.torch_releases() if row.build(wanted, o.arch) is not None]
        near = [row for row in having if row.version < release.version][:1]
        near += [row for row in reversed(having) if row.version > release.version][:1]
        found += [Change("pin", "torch", f"=={row.version}") for row in near]
    return found


def _number(variant: CudaVariant) -> int:
    toolkit = variant.toolkit
    return 0 if toolkit is None else toolkit.parts[0] * 10 + toolkit.parts[1]


def index_holds_no_release(o: Outcome) -> Iterator[Finding]:
    """Nothing of torch in the index fits the range: no version could be chosen."""
    torch = o.torch
    if torch is None or torch.version is not None or torch.request is None or o.is_conda(torch):
        return
    request = torch.request
    if request.is_source or request.url or request.wheel or _is_nightly(o, torch):
        return
    if any(conflict.failure.name == "torch" and not conflict.failure.is_firm for conflict in o.conflicts):
        return
    python = f" for Python {o.python}" if o.python is not None else ""
    indexes = _indexes(o, torch)
    if any(index.kind == "other" for index in indexes):
        return
    yield finding(
        "torch-none-fits",
        "error",
        f"torch{request.asks}",
        [torch.says, o.python_says, f"the indexes named are {joined([_says(index) for index in indexes])}"],
        f"they have no such torch{python}",
    )


def additive_index_wins(o: Outcome) -> Iterator[Finding]:
    """Several indexes have torch, and the newest version is not in the one the person named for it."""
    torch = o.torch
    if torch is None or torch.version is None or torch.label is not None or o.is_conda(torch) or torch.variant is None:
        return
    named = [index for index in _indexes(o, torch) if index.kind == "torch" and index.variant is not None]
    if (
        not named
        or torch.is_pinned
        or any(index.variant == torch.variant and not index.is_nightly for index in named[:1])
    ):
        return
    index = next((each for each in named if each.variant is not None and each.variant.is_cuda), named[0])
    is_silent_cpu = torch.variant.is_cpu and index.variant is not None and index.variant.is_cuda
    nightly = "nightly " if index.is_nightly else ""
    yield finding(
        "index-not-used",
        "error" if is_silent_cpu else "warning",
        torch.title,
        [
            f"{index.origin} names the {nightly}torch index of {index.variant}",
            torch.says,
            o.catalog.hazards.row("singles", "pip-merges-indexes").fact,
        ],
        f"another index has the newer version, so that {torch.title} comes instead of a {index.variant} build",
        tries=[Change("variant", "torch", str(index.variant))],
    )


RULES = (label_has_index, variant_exists, index_holds_no_release, additive_index_wins)
