"""numpy, protobuf, setuptools: bounds that no metadata states, because a binary or old code needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.packages import Hazard
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, Severity, finding


def numpy_fits_torch(o: Outcome) -> Iterator[Finding]:
    torch, release, numpy = o.torch, o.torch_release, o.package("numpy")
    if torch is None or release is None or numpy is None or numpy.version is None or release.numpy_upper is None:
        return
    if release.numpy_upper.contains(numpy.version, prereleases=True):
        return
    yield _too_new(
        o, numpy, torch, release.abi.fact, release.numpy_upper, "torch would say that numpy is not available"
    )


def numpy_fits_onnxruntime(o: Outcome) -> Iterator[Finding]:
    numpy = o.package("numpy")
    if numpy is None or numpy.version is None:
        return
    for name in ("onnxruntime", "onnxruntime-gpu"):
        chosen = o.package(name)
        if chosen is None or chosen.version is None:
            continue
        row = o.catalog.onnxruntime_gpu(chosen.version) or o.catalog.onnxruntime_cpu(chosen.version)
        if row is None or row.numpy_upper is None or row.numpy_upper.contains(numpy.version, prereleases=True):
            continue
        fact = row.numpy_fact or row.fact
        yield _too_new(o, numpy, chosen, fact, row.numpy_upper, f"importing {name} would fail")


def _too_new(o: Outcome, numpy: Chosen, user: Chosen, fact: str, bound: SpecifierSet, effect: str) -> Finding:
    # Nobody named numpy or a Python: on an old Python the newest numpy is still a 1.x.
    is_open = numpy.request is None and o.python is None
    return finding(
        "numpy-abi",
        "warning" if is_open else "error",
        f"{user.name} {user.version}, numpy {numpy.version}",
        [user.says, fact, numpy.says],
        f"numpy must be {bound}: {effect}",
        tries=_pins(o, "numpy", bound),
    )


def _pins(o: Outcome, name: str, bound: SpecifierSet) -> list[Change]:
    """The newest version inside the bound as a pin where there is one already, else the bound itself."""
    chosen = o.package(name)
    if chosen is None or chosen.request is None:
        return [Change("add", name, str(bound))]
    if not chosen.is_pinned:
        return [Change("pin", name, str(bound))]
    fits = [
        offer
        for offer in o.shelf.offers(name)
        if bound.contains(offer.version) and (o.assumed_python is None or offer.has_wheel(o.assumed_python))
    ]
    return [Change("pin", name, f"=={offer.version}") for offer in fits[:2]]


_CODES = {"numpy": "numpy-abi", "protobuf": "protobuf-major", "setuptools": "pkg-resources"}


def unstated_bounds(o: Outcome) -> Iterator[Finding]:
    """The table of such bounds, for every package that is installed."""
    for hazard in o.catalog.hazards.all("bounds"):
        chosen = o.package(hazard.package)
        if hazard.text("other") == "python":
            yield from _python_bound(o, hazard, chosen)
            continue
        other = o.package(hazard.text("other"))
        if chosen is None or other is None or chosen.version is None or other.version is None:
            continue
        bound = SpecifierSet(hazard.text("bound"))
        if not hazard.holds_for(chosen.version) or bound.contains(other.version, prereleases=True):
            continue
        if chosen.request is None and other.request is None:
            continue  # neither was asked for: whether the pair is ever imported is not known
        if any(o.is_open(one) for one in (chosen, other)):
            continue  # no whole answer exists, so that nobody knows which release would be taken
        severity: Severity = "error" if _is_certain(hazard, chosen, other) else "warning"
        yield finding(
            _CODES.get(other.name, "api-removed"),
            severity,
            f"{chosen.name} {chosen.version}, {other.name} {other.version}",
            [chosen.says, hazard.fact, other.says],
            f"{other.name} must be {bound}: {hazard.text('effect')}",
            tries=[*_pins(o, other.name, bound), *_nearest(o, other, bound), *_other_release(o, hazard, chosen)],
        )


def _nearest(o: Outcome, other: Chosen, bound: SpecifierSet) -> list[Change]:
    """The releases inside the bound that are next to the pin: the newest of all may not go with the rest."""
    newer, older = _next_to(o, other, bound.contains)
    return [*newer, *older]


def _other_release(o: Outcome, hazard: Hazard, chosen: Chosen) -> list[Change]:
    """The next releases of the asker itself that are free of the fault."""
    newer, older = _next_to(o, chosen, lambda version: not hazard.holds_for(version))
    return [*older, *newer]


def _next_to(o: Outcome, chosen: Chosen, is_right: Callable[[Version], bool]) -> tuple[list[Change], list[Change]]:
    """The next newer and the next older release that is right and takes this Python; none where nothing is pinned."""
    version = chosen.version
    if not chosen.is_pinned or version is None:
        return [], []
    fits = [
        offer.version
        for offer in o.shelf.offers(chosen.name)
        if is_right(offer.version) and (o.assumed_python is None or offer.lets_in(o.assumed_python))
    ]
    newer, older = [each for each in reversed(fits) if each > version], [each for each in fits if each < version]
    changes = [[Change("pin", chosen.name, f"=={each}") for each in found[:1]] for found in (newer, older)]
    return changes[0], changes[1]


def _python_bound(o: Outcome, hazard: Hazard, chosen: Chosen | None) -> Iterator[Finding]:
    if chosen is None or chosen.version is None or o.python is None or not hazard.holds_for(chosen.version):
        return
    bound = SpecifierSet(hazard.text("bound"))
    if o.python.satisfies(bound):
        return
    yield finding(
        "api-removed",
        "error" if chosen.is_pinned else "warning",
        f"{chosen.name} {chosen.version}, Python {o.python}",
        [o.python_says, chosen.says, hazard.fact],
        f"Python must be {bound}: {hazard.text('effect')}",
        tries=[Change("python", "python", "3.10")],
    )


def _is_certain(hazard: Hazard, chosen: Chosen, other: Chosen) -> bool:
    """Whether what is asked for makes the pair, and every use of it fails."""
    if hazard.get("severity") == "warning" or not (chosen.is_pinned or other.is_pinned):
        return False
    if other.name == "setuptools":
        return other.is_pinned  # most environments never run what imports it
    # Of these, every index gives the newest; what else comes along unasked may be held back by something unsaid.
    return other.request is not None or other.name in {"numpy", "huggingface-hub", "protobuf", "triton"}


def torch_needs_pkg_resources(o: Outcome) -> Iterator[Finding]:
    """Extensions of torch up to 2.1 compiles extensions through pkg_resources."""
    torch, tools = o.torch, o.package("setuptools")
    if torch is None or torch.version is None or tools is None or tools.version is None:
        return
    singles = o.catalog.hazards
    last = singles.row("singles", "torch-pkg-resources-last")
    nested = singles.row("singles", "pkg-resources-packaging-gone")
    if torch.version > Version(last.text("value")) or tools.version < Version(nested.text("value")):
        return
    gone = singles.row("singles", "pkg-resources-gone")
    fact = gone if tools.version >= Version(gone.text("value")) else nested
    builds = [build for build in o.env.builds if build.name is not None]
    compiles = bool(builds) or any(singles.of("source_extensions", name) for name in o.packages)
    yield finding(
        "pkg-resources",
        "error" if compiles and tools.request is not None else "warning",
        f"torch {torch.version}, setuptools {tools.version}",
        [torch.says, last.fact, tools.says, fact.fact],
        "building any extension against this torch would fail",
        tries=[Change("pin" if tools.request is not None else "add", "setuptools", "==69.5.1")],
    )


RULES = (numpy_fits_torch, numpy_fits_onnxruntime, unstated_bounds, torch_needs_pkg_resources)
