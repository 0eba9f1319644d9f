"""transformers switches torch off, or refuses to load weights, below versions that its metadata does not name."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.outcome import Outcome
from builder.rules.base import Change, Finding, finding


def torch_floor(o: Outcome) -> Iterator[Finding]:
    torch, chosen = o.torch, o.package("transformers")
    if torch is None or torch.version is None or chosen is None or chosen.version is None:
        return
    row = o.catalog.transformers(chosen.version)
    floor = None if row is None else row.torch_floor
    if floor is None or torch.version >= floor.version:
        return
    yield finding(
        "transformers-torch-floor",
        "error" if floor.is_enforced else "warning",
        f"transformers {chosen.version}",
        [chosen.says, floor.fact, torch.says],
        "transformers would import without its PyTorch models"
        if floor.is_enforced
        else "transformers was not made for so old a torch",
        tries=[*_older(o, torch.version), *_newer_torch(o, floor.version)],
    )


def _older(o: Outcome, torch: Version) -> list[Change]:
    """The newest transformers whose floor this torch meets."""
    chosen = o.package("transformers")
    for release in o.catalog.transformers_releases():
        floor = release.minor.torch_floor
        if release.is_yanked or (floor is not None and torch < floor.version):
            continue
        if o.python is not None and not o.python.satisfies(release.minor.python_requires):
            continue
        bounds = o.catalog.hazards.of("bounds", "transformers", release.version)
        if any(row.text("other") == "torch" and torch not in SpecifierSet(row.text("bound")) for row in bounds):
            continue
        is_pinned = chosen is not None and chosen.is_pinned
        return [Change("pin", "transformers", f"=={release.version}" if is_pinned else f"<={release.version}")]
    return []


def _newer_torch(o: Outcome, floor: Version) -> list[Change]:
    if o.torch is None or not o.torch.is_pinned or o.torch.label is not None:
        return []
    fits = [release for release in reversed(o.catalog.torch_releases()) if release.version >= floor]
    return [Change("pin", "torch", f"=={release.version}") for release in fits[:1]]


def pickle_gate(o: Outcome) -> Iterator[Finding]:
    torch, chosen = o.torch, o.package("transformers")
    if torch is None or torch.version is None or chosen is None or chosen.version is None:
        return
    row = o.catalog.transformers(chosen.version)
    gate = o.catalog.hazards.row("singles", "torch-load-gate")
    if row is None or not row.needs_torch_2_6_for_pickle or torch.version >= Version(gate.text("value")):
        return
    floor = row.torch_floor
    if floor is not None and floor.is_enforced and torch.version < floor.version:
        return  # torch is switched off altogether, which is told already
    yield finding(
        "torch-load-gate",
        "warning",
        f"transformers {chosen.version}",
        [chosen.says, gate.fact, torch.says],
        "safetensors weights load; pickle weights and a resumed optimizer state do not",
        tries=[Change("pin", "transformers", "==4.51.3" if chosen.is_pinned else "<4.52")],
    )


def undeclared(o: Outcome) -> Iterator[Finding]:
    """Packages that a script of this shape imports and nothing installs."""
    if o.env.is_lock:
        return
    for hazard in o.catalog.hazards.all("undeclared"):
        chosen, other = o.package(hazard.package), o.package(hazard.text("other"))
        if chosen is None or chosen.version is None or other is not None or not hazard.holds_for(chosen.version):
            continue
        if chosen.request is None or "torch" in chosen.request.extras:
            continue
        beside = [found for name in hazard.get("beside") if (found := o.package(name)) is not None and found.request]
        if len(beside) < len(hazard.get("beside")):
            continue  # one of them alone is no training script
        yield finding(
            "dependency-undeclared",
            "error",
            f"{chosen.name} {chosen.version}",
            [chosen.says, *(found.says for found in beside), hazard.fact],
            f"the Trainer would stop and ask for {hazard.text('other')}",
            tries=[Change("add", hazard.text("other"), "")],
        )


def extra_is_met(o: Outcome) -> Iterator[Finding]:
    """The Trainer checks at run time what only the extra `torch` asks of accelerate."""
    chosen, accelerate = o.package("transformers"), o.package("accelerate")
    if chosen is None or accelerate is None or accelerate.version is None or accelerate.request is None:
        return
    offer = chosen.offer
    for wanted in (offer.requires if offer is not None else None) or ():
        if wanted.name != "accelerate" or '"torch"' not in str(wanted.marker):
            continue
        if wanted.specifier.contains(accelerate.version, prereleases=True):
            continue
        package = o.catalog.packages.get("transformers")
        fact = f"the extra `torch` of transformers {chosen.version} asks for accelerate{wanted.specifier}"
        yield finding(
            "dependency-too-old",
            "error" if accelerate.is_pinned else "warning",
            f"accelerate {accelerate.version}",
            [chosen.says, package.cite(fact) if package is not None else fact, accelerate.says],
            "the Trainer would stop and ask for a newer accelerate",
            tries=[Change("pin", "accelerate", str(wanted.specifier).replace(">=", "=="))],
        )


def tf_keras_is_there(o: Outcome) -> Iterator[Finding]:
    """With TensorFlow beside torch, transformers 4 loads its TensorFlow classes in many places unasked."""
    chosen, tensorflow = o.package("transformers"), o.package("tensorflow")
    single = o.catalog.hazards.row("singles", "tf-keras")
    if chosen is None or chosen.version is None or tensorflow is None or tensorflow.version is None:
        return
    if chosen.version.major > 4 or tensorflow.version < Version(single.text("value")) or o.package("tf-keras"):
        return
    if tensorflow.request is None or o.env.is_lock:
        return
    yield finding(
        "dependency-undeclared",
        "warning",
        f"transformers {chosen.version}",
        [chosen.says, tensorflow.says, single.fact],
        "what touches a TensorFlow class stops and asks for tf-keras",
        tries=[Change("add", "tf-keras", "")],
    )


RULES = (torch_floor, pickle_gate, undeclared, extra_is_met, tf_keras_is_there)
