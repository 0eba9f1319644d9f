"""Pins that contradict each other, and an install step that changes what an earlier one put there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from packaging.version import Version

from builder.catalog_rows.torch_parts import COMPANIONS
from builder.explain import joined
from builder.outcome import Outcome
from builder.rules.base import Change, Finding, Severity, finding
from builder.shelf import Offer
from builder.solver import Failure

_EXTENSIONS = frozenset({"xformers", "vllm", "flash-attn", "auto-gptq", "autoawq", "torchdata", "deepspeed"})


def pins_agree(o: Outcome) -> Iterator[Finding]:
    for conflict in o.conflicts:
        failure = conflict.failure
        if not failure.is_firm or not failure.bounds:
            continue
        if failure.name in COMPANIONS and not failure.refused:
            continue  # told by the family's own rule, with the pairs that exist
        names = {failure.name, *_askers(failure)}
        if names & set(COMPANIONS) and "torch" in names:
            continue
        because = _because(o, failure)
        if not failure.refused and _is_only_missing(failure):
            continue  # told by the rules about Pythons and indexes
        if _is_beyond_facts(o, failure):
            continue
        is_extension = bool(names & _EXTENSIONS) and (failure.name == "torch" or "torch" in names)
        conclusion = f"no release of {failure.name} satisfies all of them"
        yield _told(is_extension, "error", ", ".join(sorted(names)), because, conclusion, _tries(o, failure))


def _told(
    is_extension: bool, severity: Severity, subject: str, because: list[str], conclusion: str, tries: list[Change]
) -> Finding:
    if is_extension:
        return finding("extension-torch-pin", severity, subject, because, conclusion, tries=tries)
    return finding("pin-conflict", severity, subject, because, conclusion, tries=tries)


def _askers(failure: Failure) -> set[str]:
    found = {bound.by.name for bound in failure.bounds if bound.by is not None}
    return found | {refused.other.name for refused in failure.refused}


def _is_only_missing(failure: Failure) -> bool:
    return all(bound.by is None for bound in failure.bounds)


def _is_beyond_facts(o: Outcome, failure: Failure) -> bool:
    """A bound that only releases newer than the facts can meet proves nothing."""
    offers = o.shelf.offers(failure.name)
    if not offers:
        return True
    for bound in failure.bounds:
        if any(bound.specifier.contains(offer.version, prereleases=True) for offer in offers):
            continue
        named = [Version(each.version.removesuffix(".*")) for each in bound.specifier if each.operator != "==="]
        if any(version > offers[0].version for version in named):
            return True
    return False


def _because(o: Outcome, failure: Failure) -> list[str]:
    texts = list(dict.fromkeys(bound.says for bound in failure.bounds))
    for bound in failure.bounds:
        asker = None if bound.by is None else o.package(bound.by.name)
        if asker is not None and asker.request is not None and asker.says not in texts:
            texts.insert(0, asker.says)
    by_reason: dict[tuple[str, str, Version], list[Version]] = {}
    for refused in failure.refused:
        key = (refused.requirement, refused.other.name, refused.other.version)
        by_reason.setdefault(key, []).append(refused.offer.version)
    for (wanted, other, version), versions in list(by_reason.items())[:4]:
        chosen = o.package(other)
        texts.append(f"{failure.name} {joined([str(one) for one in sorted(versions)], limit=4)} requires {wanted}")
        texts.append(chosen.says if chosen is not None and chosen.request is not None else f"{other} is {version}")
    package = o.catalog.packages.get(failure.name)
    if package is not None:
        texts[-1] = package.cite(texts[-1])
    return list(dict.fromkeys(texts))


def _tries(o: Outcome, failure: Failure) -> list[Change]:
    """Every pinned package of the conflict by turns: versions that the others let in, or that let the others in."""
    rows: list[list[Change]] = []
    for name in (failure.name, *sorted(_askers(failure))):
        chosen = o.package(name)
        if chosen is None or chosen.version is None or not chosen.is_pinned:
            continue
        offers = [each for each in o.shelf.offers(name) if o.assumed_python is None or each.lets_in(o.assumed_python)]
        versions = [each.version for each in offers if _agrees(o, failure, each)]
        newer = [version for version in reversed(versions) if version > chosen.version]
        older = [version for version in versions if version < chosen.version]
        by_turns = [v for pair in zip_longest(_one_a_minor(newer), _one_a_minor(older)) for v in pair if v is not None]
        picks = dict.fromkeys([*_made_for_torch(o, name), *by_turns[:6], *newer[:1], *older[:1]])
        rows.append([Change("pin", name, f"=={version}") for version in picks])
    return [change for turn in zip_longest(*rows) for change in turn if change is not None]


def _agrees(o: Outcome, failure: Failure, offer: Offer) -> bool:
    """Whether this release of one side meets what is pinned on the other, as far as the two name each other."""
    if offer.name == failure.name:
        bounds = [bound.specifier for bound in failure.bounds if bound.by is not None]
        return all(bound.contains(offer.version, prereleases=True) for bound in bounds)
    pinned = o.package(failure.name)
    if pinned is None or not pinned.is_pinned or pinned.version is None:
        return True
    wanted = [each for each in offer.requires or () if each.name == failure.name and each.marker is None]
    return all(each.specifier.contains(pinned.version, prereleases=True) for each in wanted)


def _made_for_torch(o: Outcome, name: str) -> list[Version]:
    """Releases of an extension that name exactly the torch that is pinned."""
    torch = o.torch
    if name not in _EXTENSIONS or torch is None or torch.version is None or not torch.is_pinned:
        return []
    return [
        offer.version
        for offer in o.shelf.offers(name)
        if any(
            wanted.name == "torch" and "==" in str(wanted.specifier) and wanted.specifier.contains(torch.version)
            for wanted in offer.requires or ()
        )
    ][:2]


def _one_a_minor(versions: list[Version]) -> list[Version]:
    """The last patch of each minor version, in the order given."""
    seen: dict[tuple[int, ...], Version] = {}
    for version in versions:
        minor = version.release[:2]
        seen[minor] = max(version, seen.get(minor, version))
    return list(seen.values())


def pinned_by_neighbour(o: Outcome) -> Iterator[Finding]:
    """`--no-deps`, conda, a lock or separate steps let a pair through that the release itself forbids."""
    told = {frozenset((c.failure.name, *_askers(c.failure))) for c in o.conflicts}
    for chosen in o.packages.values():
        offer = chosen.offer
        if offer is None or offer.requires is None or chosen.name in COMPANIONS or chosen.name == "torch":
            continue
        for wanted in offer.requires:
            other = o.package(wanted.name)
            if other is None or other.version is None or wanted.marker is not None:
                continue
            if any({chosen.name, wanted.name} <= names for names in told):
                continue
            if wanted.specifier.contains(other.version, prereleases=True) or not (other.request or chosen.request):
                continue
            if o.is_open(chosen) or o.is_open(other):
                continue
            is_extension = chosen.name in _EXTENSIONS and wanted.name == "torch"
            package = o.catalog.packages.get(chosen.name)
            fact = f"{chosen.name} {chosen.version} requires {wanted.name}{wanted.specifier}"
            yield _told(
                is_extension,
                "error" if is_extension or chosen.step == other.step else "warning",
                f"{chosen.name}, {wanted.name}",
                [chosen.says, package.cite(fact) if package is not None else fact, other.says],
                f"{chosen.name} was made for another {wanted.name}",
                [Change("pin", wanted.name, str(wanted.specifier))],
            )


def later_step_keeps_torch(o: Outcome) -> Iterator[Finding]:
    for change in o.replaced:
        if change.after.name != "torch" or change.before.version == change.after.version:
            continue
        if change.before.request is None or not change.before.is_pinned:
            continue
        if change.after.request is not None and change.after.is_pinned:
            continue  # both were asked for; the later one is what the person wants
        by = change.after.via or "the same name without the version"
        yield finding(
            "torch-replaced",
            "error",
            f"{change.before.title}, {change.after.title}",
            [
                change.before.says,
                f"{change.step.origin} installs in a later step, and {by} needs another torch",
                f"that step takes {change.after.title}",
            ],
            f"{change.before.title} would be gone at the end",
            hint="install everything in one step, or hold torch with a constraints file",
        )


RULES = (pins_agree, pinned_by_neighbour, later_step_keeps_torch)
