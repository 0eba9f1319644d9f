"""torchvision, torchaudio and torchtext belong to one torch each, whatever their metadata lets through."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.catalog_rows.torch import TorchRelease
from builder.catalog_rows.torch_parts import COMPANIONS, CompanionName
from builder.explain import joined
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding


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
        yield finding(
            "torch-family-pair",
            "error",
            f"{name} {partner.version}",
            because,
            f"{name} {partner.version} was built for another torch: its operators would not load",
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
        yield finding(
            "torch-family-variant",
            "error" if is_major else "warning",
            partner.title,
            [torch.says, partner.says],
            f"{torch.title} and {partner.title} are builds of different CUDA versions"
            + (": the companion refuses to load" if is_major else ""),
            tries=[Change("pin", name, f"=={partner.version}+{torch.variant}")] if partner.label else [],
        )


RULES = (companions_pair, one_cuda_variant)
