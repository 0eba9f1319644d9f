"""torchvision, torchaudio and torchtext belong to one torch each, whatever their metadata lets through."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.catalog_rows.torch import TorchRelease
from builder.catalog_rows.torch_parts import COMPANIONS, CompanionName
from builder.explain import joined
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding
from builder.versions import CudaVariant


def companions_pair(o: Outcome) -> Iterator[Finding]:
    torch, release = o.torch, o.torch_release
    if torch is None or release is None:
        return
    for name in COMPANIONS:
        partner = o.package(name)
        if partner is None or partner.version is None or is_pair(o, release, name, partner.version):
            continue
        rows = release.companions(name)
        have = joined([str(row.version) for row in rows]) if rows else "none"
        own = o.catalog.companion(name, partner.version)
        because = [torch.says, partner.says]
        if own is not None:
            because.append(own.fact)
        because.append((rows[0] if rows else release).cite(f"torch {release.version} goes with {name} {have}"))
        if name == "torchtext":
            because.append(o.catalog.note("torchtext-end").fact)
        # A late release that names no torch and was not asked for by version: it may load all the same.
        is_open = not partner.is_pinned and own is not None and own.requires_torch is None and name != "torchtext"
        yield finding(
            "torch-family-pair",
            "warning" if is_open else "error",
            f"{name} {partner.version}",
            because,
            f"{name} {partner.version} was built for another torch: its operators "
            + ("may not load" if is_open else "would not load"),
            tries=_tries(o, name, partner, rows),
        )


def is_pair(o: Outcome, release: TorchRelease, name: CompanionName, version: Version) -> bool:
    """Listed, or of the minor version that is listed for this torch's minor: not every patch is in the facts."""
    listed = {row.version for row in release.companions(name)}
    if version in listed:
        return True
    own = o.catalog.companion(name, version)
    requires = None if own is None else own.requires_torch
    if name != "torchtext" and requires is not None and str(requires):
        # `==2.5.1` names its partner; an open bound is the stable interface of late releases.
        return requires.contains(release.version)
    minors = {
        row.version.release[:2]
        for other in o.catalog.torch_releases()
        if other.version.release[:2] == release.version.release[:2]
        for row in other.companions(name)
    }
    return version.release[:2] in minors


def _tries(o: Outcome, name: str, partner: Chosen, rows: tuple[object, ...]) -> list[Change]:
    found = [Change("pin", name, f"=={getattr(row, 'version')}") for row in rows[:2]]  # noqa: B009
    if not rows:
        found.append(Change("remove", name, ""))
    matching = [
        release
        for release in o.catalog.torch_releases()
        if partner.version in {row.version for row in release.companions(name)}  # type: ignore[arg-type]
    ]
    found += [Change("pin", "torch", f"=={release.version}") for release in matching[:2]]
    return found


def one_cuda_variant(o: Outcome) -> Iterator[Finding]:
    """Builds of torch and a companion with labels of different CUDA builds."""
    torch, release = o.torch, o.torch_release
    if torch is None or torch.variant is None:
        return
    for name in COMPANIONS:
        partner = o.package(name)
        if partner is None or partner.variant is None or partner.variant == torch.variant or name == "torchtext":
            continue
        if release is not None and partner.version is not None and not is_pair(o, release, name, partner.version):
            continue  # the pair itself is wrong, which is told already
        mine, theirs = torch.variant.toolkit, partner.variant.toolkit
        is_major = (mine is None) != (theirs is None) or (mine and theirs and mine.major != theirs.major)
        # torch 2.6 changed the C++ ABI in its cu126 builds alone.
        odd = CudaVariant("cu126")
        is_abi = (
            release is not None and release.version.release[:2] == (2, 6) and odd in {torch.variant, partner.variant}
        )
        because = [torch.says, partner.says]
        if is_abi:
            because.append(o.catalog.note("cxx11-abi-26").fact)
        effect = ": the companion refuses to load" if is_major else ": its operators would not load" if is_abi else ""
        yield finding(
            "torch-family-variant",
            "error" if is_major or is_abi else "warning",
            partner.title,
            because,
            f"{torch.title} and {partner.title} are builds of different CUDA versions{effect}",
            tries=[Change("pin", name, f"=={partner.version}+{torch.variant}")] if partner.label else [],
        )


RULES = (companions_pair, one_cuda_variant)
