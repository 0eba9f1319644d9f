"""CUDA libraries beside those that torch brings: pinned otherwise, of another major version, on the loader path."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.packages import Wanted, requirement
from builder.outcome import Outcome
from builder.rules.base import Change, Finding, finding
from builder.shelf import marker_holds


def _of_torch(o: Outcome) -> dict[str, Wanted]:
    """What the default build pins; builds of the torch index pin their own, which the facts do not list."""
    torch, release = o.torch, o.torch_release
    if torch is None or release is None or torch.variant is None or o.is_conda(torch):
        return {}
    if torch.variant != release.default_variant(o.arch):
        return {}
    found = (requirement(text) for text in release.nvidia_requirements)
    return {wanted.name: wanted for wanted in found if wanted.name.startswith("nvidia-")}


def pins_agree_with_torch(o: Outcome) -> Iterator[Finding]:
    torch, release = o.torch, o.torch_release
    if torch is None or release is None:
        return
    for name, wanted in _of_torch(o).items():
        chosen = o.package(name)
        if chosen is None or chosen.version is None or chosen.request is None:
            continue
        if wanted.specifier.contains(chosen.version, prereleases=True):
            continue
        # A step of its own after torch replaces the library on purpose, and mostly works.
        is_later = chosen.step > torch.step
        yield finding(
            "cuda-library-pin",
            "warning" if is_later else "error",
            f"{name} {chosen.version}",
            [torch.says, release.cite(f"torch {release.version} requires {name}{wanted.specifier}"), chosen.says],
            f"torch would load another {name} than it was tested with"
            if is_later
            else f"an installer refuses the two together, and without its check torch would load the wrong {name}",
            tries=[Change("pin", name, str(wanted.specifier)), Change("remove", name, "")],
        )


def extras_agree_with_torch(o: Outcome) -> Iterator[Finding]:
    """Libraries that an extra asks for, such as `tensorflow[and-cuda]`, against those that torch pins."""
    torch, release = o.torch, o.torch_release
    if torch is None or release is None:
        return
    mine = _of_torch(o)
    for chosen in o.packages.values():
        offer, extras = chosen.offer, () if chosen.request is None else chosen.request.extras
        if not extras or offer is None or chosen.name == "torch":
            continue
        for wanted in offer.requires or ():
            pin = mine.get(wanted.name)
            exact = None if pin is None else next((str(s.version) for s in pin.specifier if s.operator == "=="), None)
            if pin is None or exact is None or not marker_holds(wanted, o.python, o.arch, tuple(extras)):
                continue
            if wanted.specifier.contains(exact, prereleases=True):
                continue
            fact = f"{chosen.name} {chosen.version} requires {wanted.name}{wanted.specifier}"
            package = o.catalog.packages.get(chosen.name)
            is_together = chosen.step == torch.step
            yield finding(
                "cuda-library-pin",
                "error" if is_together else "warning",
                f"{wanted.name}, {chosen.name}",
                [
                    torch.says,
                    release.cite(f"torch {release.version} requires {wanted.name}{pin.specifier}"),
                    chosen.says,
                    package.cite(fact) if package is not None else fact,
                ],
                "an installer refuses the two together"
                if is_together
                else f"the later install replaces {wanted.name}, and one of the two loads the wrong one",
                hint=f"install {chosen.name} without that extra, or in an environment of its own",
            )
            return


_NVIDIA = re.compile(r"(nvidia-[a-z-]+)-cu(1[0-9])")


def one_major(o: Outcome) -> Iterator[Finding]:
    """cu11 and cu12 packages of one library lie in the same folder."""
    torch, toolkit = o.torch, o.torch_toolkit
    mine = {name.rpartition("-")[0] for name in _of_torch(o)}
    for name, chosen in o.packages.items():
        match = _NVIDIA.fullmatch(name)
        if match is None or chosen.request is None or not chosen.request.is_direct:
            continue
        twin = next(
            (
                other
                for other in o.packages
                if other != name and other.startswith(f"{match[1]}-cu") and o.packages[other].request
            ),
            None,
        )
        is_other = toolkit is not None and toolkit.major != int(match[2])
        if twin is not None and o.packages[twin].request and not is_other and (toolkit is not None or name > twin):
            continue  # told once, of the one that torch has no use for
        overlaps = is_other and match[1] in mine
        if twin is None and not is_other:
            continue
        because = [chosen.says, o.catalog.hazards.row("singles", "nvidia-shared-folder").fact]
        if twin is not None:
            because.append(o.packages[twin].says)
        elif torch is not None:
            because.append(f"{torch.says}, built for CUDA {toolkit}")
        is_later = torch is not None and chosen.step > torch.step and twin is None
        # A lock for two frameworks holds both sets, and they load side by side more often than not.
        is_later = is_later or o.env.is_lock
        yield finding(
            "cuda-majors-mixed",
            "error" if (overlaps or twin is not None) and not is_later else "warning",
            name,
            because,
            "files of two CUDA versions overwrite each other"
            if overlaps or twin is not None
            else "it is of no use to this torch",
            tries=[Change("remove", name, "")],
        )


def image_has_one_cublas(o: Outcome) -> Iterator[Finding]:
    """CuBLAS of a wheel finds its second half on the loader path, where the image has its own."""
    base, torch = o.env.base, o.torch
    row = o.catalog.hazards.row("singles", "cublas-beside-image")
    if base is None or base.repository != "nvidia/cuda" or base.toolkit is None or base.flavor == "base":
        return
    pin = _of_torch(o).get("nvidia-cublas-cu11")
    toolkit = o.torch_toolkit
    if torch is None or torch.version is None or pin is None or toolkit is None:
        return
    if torch.version not in SpecifierSet(row.text("value")) or base.toolkit.major != toolkit.major:
        return
    if base.toolkit.series == toolkit.series:
        return
    yield finding(
        "library-path-shadows",
        "warning",
        base.reference,
        [f"{base.origin}: {base.reference} holds cuBLAS of CUDA {base.toolkit}", torch.says, row.fact],
        "importing torch may stop at a symbol that the image's libcublasLt does not have",
        hint="use the base flavour, which holds no libraries, or the +cu117 wheel of the torch index",
    )


def loader_path_is_clear(o: Outcome) -> Iterator[Finding]:
    """LD_LIBRARY_PATH wins over the folders of the wheels."""
    path, torch = o.env.variable("LD_LIBRARY_PATH"), o.torch
    if path is None or torch is None or torch.version is None or o.is_conda(torch):
        return
    if torch.variant is not None and torch.variant.is_cpu:
        return
    last = o.catalog.hazards.row("singles", "cudnn-shadow-last")
    value = path.value.lower()
    base = o.env.base
    holds_cudnn = "cudnn" in value or ("cuda" in value and base is not None and base.cudnn is not None)
    if not holds_cudnn or torch.version > Version(last.text("value")):
        return
    yield finding(
        "library-path-shadows",
        "warning",
        "LD_LIBRARY_PATH",
        [f"{path.origin} sets LD_LIBRARY_PATH to {path.value}", torch.says, last.fact],
        "parts of two cuDNN versions may be mixed at run time",
        hint="remove the entry",
    )


RULES = (pins_agree_with_torch, extras_agree_with_torch, one_major, image_has_one_cublas, loader_path_is_clear)
