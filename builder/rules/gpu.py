"""Does the build of torch hold code for the cards asked about?"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from builder.catalog_rows.gpus import Gpu
from builder.catalog_rows.torch import TorchBuild
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding
from builder.versions import CudaVersion, best_code

_FAILS = "torch would import and see the card, and the first kernel would fail"


def gpu_is_known(o: Outcome) -> Iterator[Finding]:
    for ask, gpu in o.gpus:
        if gpu is not None:
            continue
        matches = o.catalog.gpu_matches(ask.name)
        if matches and _alike(o, matches) is not None:
            continue
        near = [row.name for row in matches] or list(o.catalog.nearest_gpus(ask.name))
        why = "is the name of several cards" if matches else "is in no row of the facts"
        yield finding(
            "gpu-unknown",
            "warning",
            ask.name,
            [f"{ask.origin} asks for `{ask.name}`", f"`{ask.name}` {why}"],
            "whether a build has code for it is not known",
            hint=f"known names are {', '.join(near)}; a capability such as sm_86 works too" if near else None,
            is_unknown=True,
        )


def _alike(o: Outcome, gpus: tuple[Gpu, ...]) -> bool | None:
    """Whether the build has code for all cards that a name may mean; None where they differ or it is not known."""
    torch = o.torch
    if torch is None or torch.variant is None or torch.variant.toolkit is None:
        return None
    answers = {_runs(o, torch, torch.variant.toolkit, gpu)[0] for gpu in gpus}
    return answers.pop() if len(answers) == 1 else None


def build_covers_gpus(o: Outcome) -> Iterator[Finding]:
    torch = o.torch
    if torch is None or torch.variant is None or torch.variant.toolkit is None:
        return
    for ask, known in o.gpus:
        gpu = known
        if gpu is None:
            matches = o.catalog.gpu_matches(ask.name)
            if not matches or _alike(o, matches) is not False:
                continue
            gpu = matches[0]  # none of the cards of that name is served
        answer, fact = _runs(o, torch, torch.variant.toolkit, gpu)
        if answer is None:
            yield finding(
                "gpu-code-unknown",
                "info",
                ask.name,
                [torch.says, gpu.fact, fact],
                f"whether {torch.title} has code for it is not known",
                is_unknown=True,
            )
        elif not answer:
            yield finding(
                "gpu-not-covered",
                "error",
                torch.title,
                [f"{ask.origin} asks for {ask.name}", gpu.fact, torch.says, fact],
                _FAILS,
                tries=_tries(o, torch, list(o.known_gpus)),
                hint=_nearest(o, torch, gpu),
            )


def _runs(o: Outcome, torch: Chosen, toolkit: CudaVersion, gpu: Gpu) -> tuple[bool | None, str]:
    device = gpu.compute_capability
    build = o.torch_build
    if build is not None:
        answer = build.runs_on(device)
        if answer is not None:
            return answer, build.fact
    row = o.catalog.toolkit(toolkit)
    if build is not None and build.archs is not None and row is not None and device < row.archs[0].capability:
        return False, build.fact  # whatever PTX it holds, its compiler makes none for so old a card
    if (
        row is not None
        and best_code(row.archs, device, toolkit) is None
        and device.major > row.archs[-1].capability.major
    ):
        # Whatever the build list says: its compiler does not know the card, and release builds hold no older PTX.
        return False, row.archs_fact
    if build is None and row is not None and o.is_conda(torch) and best_code(row.archs, device, toolkit) is not None:
        return True, row.archs_fact  # another channel's build: it holds what its compiler can make
    if build is None and o.torch_release is not None and o.is_conda(torch):
        return None, f"the facts have no list of architectures for {torch.title} of this channel"
    siblings = _siblings(o, torch)
    if siblings and all(sibling.runs_on(device) for sibling in siblings):
        return True, siblings[0].fact
    return None, build.fact if build is not None else f"the facts have no build {torch.title}"


def _siblings(o: Outcome, torch: Chosen) -> list[TorchBuild]:
    """Builds of the same release for the nearest toolkits below and above: what both have, the one between has."""
    release, wanted = o.torch_release, torch.variant
    if release is None or wanted is None or wanted.toolkit is None:
        return []
    known = [build for build in release.builds(o.arch) if build.archs is not None and build.variant.toolkit is not None]
    below = [b for b in known if b.variant.toolkit is not None and b.variant.toolkit < wanted.toolkit]
    above = [b for b in known if b.variant.toolkit is not None and b.variant.toolkit > wanted.toolkit]
    return [*below[-1:], *above[:1]]


def covering_variants(o: Outcome, release_version: Version, gpus: list[Gpu]) -> list[str]:
    """Variants of the release with code for all cards that the driver can run, newest toolkit first."""
    release = o.catalog.torch_release(release_version)
    if release is None:
        return []
    found = []
    for build in reversed(release.builds(o.arch)):
        toolkit = build.variant.toolkit
        if toolkit is None or not all(build.runs_on(gpu.compute_capability) for gpu in gpus):
            continue
        floor = o.driver_floor(toolkit).driver
        if o.driver is None or floor is None or o.driver >= floor:
            found.append(build.variant.tag)
    return found


def _nearest(o: Outcome, torch: Chosen, gpu: Gpu) -> str | None:
    """The release with code for the card that is nearest to the one asked for; more than one thing must change."""
    if torch.version is None or o.is_conda(torch):
        return None
    releases = list(o.catalog.torch_releases())  # newest first
    newer = [row for row in reversed(releases) if row.version > torch.version]
    older = [row for row in releases if row.version < torch.version]
    for rows, which in ((newer, "first"), (older, "last")):
        for release in rows:
            tags = covering_variants(o, release.version, [gpu])
            if tags:
                return f"the {which} torch with code for {gpu.name} is {release.version} {tags[0]}"
    return None


def _tries(o: Outcome, torch: Chosen, gpus: list[Gpu]) -> list[Change]:
    if torch.version is None:
        return []
    found = [Change("variant", "torch", tag) for tag in covering_variants(o, torch.version, gpus)]
    releases = list(o.catalog.torch_releases())
    newer = [row for row in reversed(releases) if row.version > torch.version]
    older = [row for row in releases if row.version < torch.version]
    for release in [*newer, *older]:
        if o.python is not None and o.python.series not in release.pythons(o.arch):
            continue
        default = release.default_build(o.arch)
        if default is not None and all(default.runs_on(gpu.compute_capability) for gpu in gpus):
            label = f"+{default.variant}" if torch.label is not None else ""
            found.append(Change("pin", "torch", f"=={release.version}{label}"))
            if len(found) > 5:
                break
    return found


def cpu_build_for_gpu(o: Outcome) -> Iterator[Finding]:
    torch = o.torch
    if torch is None or torch.variant is None or not torch.variant.is_cpu or not o.gpus:
        return
    name, origin = o.gpus[0][0].name, o.gpus[0][0].origin
    because = [f"{origin} asks for {name}", torch.says]
    os = o.env.os
    is_mac = os is not None and os.family == "macos"
    if os is not None and is_mac:
        because += [f"{os.origin} says {os.text}", o.catalog.hazards.row("singles", "macos-no-cuda").fact]
    elif os is not None and os.family == "windows" and torch.label is None:
        because.append(o.catalog.hazards.row("singles", "windows-default-cpu").fact)
    elif o.arch == "aarch64" and torch.label is None:
        because.append(o.catalog.note("aarch64-default-cuda").fact)
    else:
        settings = o.indexes_of(torch)
        if settings is not None and len(settings.all) > 1 and torch.label is None:
            because.append(o.catalog.hazards.row("singles", "pip-merges-indexes").fact)
        because.append(f"{torch.title} holds no GPU code")
    yield finding(
        "cpu-build-for-gpu",
        "error",
        torch.title,
        because,
        "every step would run on the processor",
        tries=[
            Change("variant", "torch", tag)
            for tag in covering_variants(o, torch.version or Version("0"), list(o.known_gpus))
            if not is_mac
        ],
    )


RULES = (gpu_is_known, build_covers_gpus, cpu_build_for_gpu)
