"""Is there a release, and a wheel of it for this Python, platform and glibc?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.catalog_rows.torch import CPU
from builder.explain import joined
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, arch_words, finding, pythons_text

# Built from source as a matter of course, with nothing but a C compiler.
_BUILDS_EASILY = frozenset({"fairseq", "evaluate", "openai-whisper", "insightface"})


def release_exists(o: Outcome) -> Iterator[Finding]:
    """An exact version that the default index does not have."""
    for chosen in o.packages.values():
        request = chosen.request
        if request is None or request.version is None or chosen.version is None or not o.shelf.knows(chosen.name):
            continue
        if request.installer not in {"pip", "uv"} or request.is_source or request.wheel or request.url:
            continue
        if (chosen.offer is not None and chosen.offer.requires is not None) or chosen.version.is_prerelease:
            continue
        if o.shelf.offer(chosen.name, chosen.version) is not None:
            continue
        yield from _missing(o, chosen, chosen.version)


def name_is_torch(o: Outcome) -> Iterator[Finding]:
    """`pip install pytorch` gets a placeholder that refuses to be installed."""
    chosen = o.package("pytorch")
    if chosen is None or chosen.request is None or chosen.request.installer not in {"pip", "uv"}:
        return
    if chosen.request.is_source or chosen.request.url or chosen.request.wheel:
        return
    yield finding(
        "not-on-index",
        "error",
        "pytorch",
        [chosen.says, o.catalog.hazards.row("singles", "name-pytorch").fact],
        "it cannot be installed",
        hint="ask for torch",
    )


def _missing(o: Outcome, chosen: Chosen, version: Version) -> Iterator[Finding]:
    offers = o.shelf.offers(chosen.name)
    newest, oldest = offers[0].version, offers[-1].version
    settings = o.indexes_of(chosen)
    kinds = {index.kind for index in settings.of(chosen.name)} if settings is not None else set()
    if version > newest:
        yield finding(
            "version-unknown",
            "info",
            f"{chosen.name} {version}",
            [chosen.says, f"the newest {chosen.name} in the facts of {o.catalog.generated} is {newest}"],
            "whether it fits is not known",
            is_unknown=chosen.name in {"torch", "onnxruntime-gpu", "onnxruntime", "transformers"},
            hint="renew the facts with `torchproof facts refresh`",
        )
        return
    if (
        version < oldest
        or kinds - {"default", "unspecified"}
        or chosen.name in {"torchvision", "torchaudio", "torchtext"}
    ):
        return
    near = sorted((offer.version for offer in offers), key=lambda other: _distance(other, version))[:4]
    removed = o.catalog.onnxruntime_gpu_removed(version) if chosen.name == "onnxruntime-gpu" else None
    because = [chosen.says]
    if removed is not None:
        because.append(removed.fact)
    because.append(f"the nearest {chosen.name} on the index are {joined([str(other) for other in sorted(near)])}")
    yield finding(
        "not-on-index",
        "error",
        f"{chosen.name} {version}",
        because,
        f"{chosen.name} {version} cannot be installed",
        tries=[Change("pin", chosen.name, f"=={other}") for other in near],
    )


def _distance(one: Version, other: Version) -> tuple[int, int, int, bool]:
    return abs(one.major - other.major), abs(one.minor - other.minor), abs(one.micro - other.micro), one < other


def release_is_current(o: Outcome) -> Iterator[Finding]:
    """A pin to a withdrawn release: an installer takes it because it is pinned, and says so."""
    for chosen in o.packages.values():
        offer = chosen.offer
        if offer is None or not offer.is_yanked or not chosen.is_pinned or o.is_conda(chosen):
            continue
        package = o.catalog.packages.get(chosen.name)
        fact = f"{chosen.name} {chosen.version} was withdrawn from the index"
        offers = [each.version for each in o.shelf.offers(chosen.name) if not each.is_yanked]
        near = sorted(offers, key=lambda other: _distance(other, offer.version))[:2]
        yield finding(
            "release-withdrawn",
            "warning",
            f"{chosen.name} {chosen.version}",
            [chosen.says, package.cite(fact) if package is not None else fact],
            "its makers found a fault in it",
            tries=[Change("pin", chosen.name, f"=={version}") for version in near],
        )


def metadata_is_taken(o: Outcome) -> Iterator[Finding]:
    """From 24.1 on, pip skips a release with a requirement that is not written as one."""
    strict = o.catalog.hazards.row("singles", "pip-strict-metadata")
    for chosen in o.packages.values():
        package = o.catalog.packages.get(chosen.name)
        release = None if package is None or chosen.version is None else package.release(chosen.version)
        step = o.step_of(chosen)
        if release is None or not release.refused or step is None or step.installer != "pip" or step.is_sync:
            continue
        pip = _pip(o)
        if pip is None or pip < Version(strict.text("value")):
            continue
        yield finding(
            "metadata-refused",
            "warning",
            f"{chosen.name} {chosen.version}",
            [chosen.says, f"{chosen.name} {chosen.version} requires `{release.refused}`", strict.fact],
            "a new pip finds no such release",
            tries=[Change("add", "pip", "<24.1")],
            hint="install it with pip 24.0 or with uv",
        )


def _pip(o: Outcome) -> Version | None:
    """The pip that is asked for, else the newest of the day; None: that of an image or of conda, which nobody knows."""
    asked = o.package("pip")
    if asked is not None and (asked.version is not None or asked.request is not None):
        return asked.version
    if o.env.is_image or any(step.installer == "conda" for step in o.env.steps):
        return None
    day = o.today.isoformat()
    fits = (each for each in o.shelf.offers("pip") if each.released and each.released <= day)
    python = o.assumed_python
    return next((each.version for each in fits if python is None or each.lets_in(python)), None)


def python_has_wheel(o: Outcome) -> Iterator[Finding]:
    if o.python is None:
        return
    for chosen in o.packages.values():
        offer = chosen.offer
        if offer is None or chosen.version is None or o.is_conda(chosen):
            continue
        request = chosen.request
        if request is not None and (request.is_source or request.wheel or request.installer == "base-image"):
            continue
        if offer.requires_python is not None and not o.python.satisfies(offer.requires_python):
            yield _excluded(o, chosen, f"{chosen.name} {chosen.version} takes Python {offer.requires_python} only")
        elif not offer.has_wheel(o.python):
            if chosen.name == "torch" or not offer.has_sdist:
                yield _excluded(o, chosen, _wheels_fact(o, chosen))
            else:
                yield from _built_from_source(o, chosen)


def _wheels_fact(o: Outcome, chosen: Chosen) -> str:
    offer = chosen.offer
    have = pythons_text(offer.pythons or ()) if offer is not None else "none"
    text = f"{chosen.name} {chosen.version} has wheels for Python {have}{arch_words(o.arch)}"
    if chosen.name == "torch" and o.torch_release is not None:
        return o.torch_release.cite(text)
    package = o.catalog.packages.get(chosen.name)
    numpy = o.catalog.numpy_release(chosen.version) if chosen.name == "numpy" and chosen.version else None
    return numpy.cite(text) if numpy is not None else text if package is None else package.cite(text)


def _excluded(o: Outcome, chosen: Chosen, fact: str) -> Finding:
    return finding(
        "no-wheel-for-python",
        "error",
        f"{chosen.name} {chosen.version}",
        [o.python_says, chosen.says, fact],
        f"{chosen.name} {chosen.version} cannot be installed on Python {o.python}",
        tries=_tries(o, chosen),
    )


def _built_from_source(o: Outcome, chosen: Chosen) -> Iterator[Finding]:
    offer = chosen.offer
    package = o.catalog.packages.get(chosen.name)
    if offer is None or offer.pythons is None or not offer.pythons or o.python is None:
        return  # comes as source only: the rules about extensions speak
    if package is not None and not package.has_binary_wheels:
        return
    is_newer = o.python.series > max(offer.pythons)
    is_certain = is_newer and chosen.name not in _BUILDS_EASILY
    asker = [] if chosen.request is not None or chosen.via is None else [chosen.via]
    yield finding(
        "source-build",
        "error" if is_certain else "warning",
        f"{chosen.name} {chosen.version}",
        [o.python_says, *_asked_by(o, asker), chosen.says, _wheels_fact(o, chosen)],
        "it would be built from source, which needs a compiler"
        + (" and was never tried on this Python" if is_newer else ""),
        tries=_tries(o, chosen),
    )


def _asked_by(o: Outcome, names: list[str]) -> list[str]:
    chosen = o.package(names[0].split()[0]) if names else None
    return [chosen.says] if chosen is not None and chosen.request is not None else []


def _tries(o: Outcome, chosen: Chosen) -> list[Change]:
    offer = chosen.offer
    found: list[Change] = []
    asker = o.package(chosen.via.split()[0]) if chosen.request is None and chosen.via else None
    for one in (asker, chosen):
        if one is None or one.version is None or not one.is_pinned or o.python is None:
            continue
        offers = [each for each in o.shelf.offers(one.name) if each.has_wheel(o.python) and each.lets_in(o.python)]
        newer = [each.version for each in reversed(offers) if each.version > one.version]
        older = [each.version for each in offers if each.version < one.version]
        found += [Change("pin", one.name, f"=={version}") for version in [*newer[:1], *older[:1], *newer[1:40:8]]]
    if offer is not None and offer.pythons and o.python is not None:
        found += [Change("python", "python", str(python)) for python in sorted(offer.pythons, reverse=True)[:2]]
    return found


def arch_has_wheel(o: Outcome) -> Iterator[Finding]:
    """On aarch64: early releases have no wheel there."""
    release, torch = o.torch_release, o.torch
    if o.arch != "aarch64" or release is None or torch is None or o.is_conda(torch) or release.pythons("aarch64"):
        return
    yield finding(
        "no-wheel-for-arch",
        "error",
        torch.title,
        [
            o.arch_says,
            torch.says,
            release.cite(f"torch {release.version} has no aarch64 wheel"),
        ],
        "it cannot be installed",
    )


def glibc_meets_wheels(o: Outcome) -> Iterator[Finding]:
    if o.glibc is None:
        return
    for chosen in o.packages.values():
        if chosen.version is None or (chosen.request is not None and chosen.request.installer == "base-image"):
            continue
        if o.is_conda(chosen):
            yield from _conda_glibc(o, chosen)
            continue
        if chosen.name == "triton" and chosen.request is None:
            continue  # torch brings it, and has the same floor
        floor, fact, is_only_way = None, "", True
        if chosen.name == "torch" and o.torch_release is not None:
            floor, fact = o.torch_release.glibc_of(chosen.variant, o.arch)
        else:
            package = o.catalog.packages.get(chosen.name)
            release = None if package is None else package.release(chosen.version)
            if release is not None and package is not None and release.glibc is not None and not release.is_pure:
                floor = release.glibc
                fact = package.cite(f"the wheels of {chosen.name} {chosen.version} need glibc {floor}")
                is_only_way = not release.has_sdist
        if floor is not None and o.glibc < floor:
            yield finding(
                "glibc-too-old",
                "error" if is_only_way else "warning",
                f"{chosen.name} {chosen.version}",
                [o.glibc_says, chosen.says, fact],
                f"glibc {o.glibc} is older than {floor}: "
                + ("no wheel can be installed" if is_only_way else "it would be built from source"),
                tries=_glibc_tries(o, chosen),
            )


def _conda_glibc(o: Outcome, chosen: Chosen) -> Iterator[Finding]:
    if chosen.name != "torch" or chosen.version is None or o.glibc is None:
        return
    single = o.catalog.hazards.row("singles", "conda-cuda-glibc")
    first = Version(o.catalog.hazards.row("singles", "conda-cuda-glibc-torch").text("value"))
    is_cpu = chosen.variant is not None and chosen.variant.is_cpu
    if str(o.glibc) != "2.17" or chosen.version < first or is_cpu:
        return
    yield finding(
        "glibc-too-old",
        "error",
        chosen.title,
        [o.glibc_says, chosen.says, single.fact],
        "its CUDA libraries would not load",
        hint=f"run it in a container with glibc {single.text('value')} or newer, or take an older torch",
    )


def _glibc_tries(o: Outcome, chosen: Chosen) -> list[Change]:
    if chosen.name != "torch" or o.glibc is None or chosen.version is None:
        return []
    fits = [
        release
        for release in o.catalog.torch_releases()
        if release.glibc_floor <= o.glibc and release.version < chosen.version
    ]
    here = o.catalog.torch_release(chosen.version)
    if here is not None and here.glibc_floor <= o.glibc:
        default = here.default_variant(o.arch)
        others = [build.variant for build in here.builds(o.arch) if build.variant not in {default, CPU}]
        return [Change("variant", "torch", each.tag) for each in (default, *others) if each is not None]
    return [Change("pin", "torch", f"=={fits[0].version}")] if fits else []


RULES = (
    name_is_torch,
    release_exists,
    release_is_current,
    metadata_is_taken,
    python_has_wheel,
    arch_has_wheel,
    glibc_meets_wheels,
)
