"""Cards, a driver and wishes -> ranked usable sets, why the first is first and why the newer ones are out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.catalog import Catalog
from builder.catalog_rows.base import Arch
from builder.catalog_rows.gpus import Gpu
from builder.catalog_rows.torch import TorchBuild, TorchRelease
from builder.errors import UsageError
from builder.explain import joined
from builder.versions import DriverVersion, InvalidVersionError, PythonVersion

_MIDDLE = 2  # of the Pythons a release has wheels for, not the newest two: neighbours take a while to follow
_SHOWN = 8  # lines about what is out


@dataclass(frozen=True, kw_only=True)
class Wish:
    gpus: tuple[str, ...]
    driver: DriverVersion | None = None
    torch: SpecifierSet | None = None
    python: PythonVersion | None = None

    @classmethod
    def parse(cls, *, gpus: tuple[str, ...], driver: str | None, torch: str | None, python: str | None) -> Wish:
        """UsageError for text that is no version."""
        try:
            return cls(
                gpus=gpus,
                driver=None if driver is None else DriverVersion.parse(driver),
                torch=None if torch is None else _bound(torch),
                python=None if python is None else PythonVersion.parse(python).series,
            )
        except (InvalidVersionError, InvalidVersion, InvalidRequirement) as error:
            raise UsageError("recommend-option", str(error)) from None


def _bound(text: str) -> SpecifierSet:
    """`2.4.1` is that release, `2.4` any of it, `>=2.2,<2.5` a range."""
    text = text.strip()
    if text[:1].isdigit():
        version = Version(text)
        return SpecifierSet(f"=={version.public}" if len(version.release) > 2 else f"=={version.public}.*")
    return Requirement(f"torch{text}").specifier


@dataclass(frozen=True, kw_only=True)
class Usable:
    """One set that fits together. None where the facts have nothing that fits."""

    torch: Version
    variant: str
    python: str
    transformers: str | None
    onnxruntime_gpu: str | None
    libraries: tuple[str, ...]  # what onnxruntime-gpu loads and this torch does not ask for
    torchvision: str | None
    numpy: str | None  # the bound that torch or onnxruntime-gpu need, None where any numpy will do
    base: str
    arch: Arch
    is_default: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    gpus: tuple[Gpu, ...]
    wish: Wish
    sets: tuple[Usable, ...]
    out: tuple[tuple[str, str], ...]  # what is newer than the first set, and why it is out
    alone: tuple[tuple[str, str], ...]  # cards that no build serves together: what serves each
    facts_of: str

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "gpus": [{"name": gpu.name, "compute_capability": str(gpu.compute_capability)} for gpu in self.gpus],
            "driver": None if self.wish.driver is None else str(self.wish.driver),
            "sets": [
                {
                    "torch": str(each.torch),
                    "variant": each.variant,
                    "index": "default" if each.is_default else each.variant,
                    "python": each.python,
                    "torchvision": each.torchvision,
                    "transformers": each.transformers,
                    "onnxruntime_gpu": each.onnxruntime_gpu,
                    "libraries": list(each.libraries),
                    "numpy": each.numpy,
                    "base": each.base,
                    "arch": each.arch,
                    "reasons": list(each.reasons),
                }
                for each in self.sets
            ],
            "alone": [{"gpu": gpu, "why": why} for gpu, why in self.alone],
            "out": [{"what": what, "why": why} for what, why in self.out],
            "facts": self.facts_of,
        }


def recommend(wish: Wish, catalog: Catalog, *, count: int = 5) -> Answer:
    gpus = tuple(_gpu(name, catalog) for name in wish.gpus)
    sets: list[Usable] = []
    out: list[tuple[str, str]] = []
    undriven = [line for gpu in gpus if (line := _undriven(gpu, wish, catalog)) is not None]
    arch: Arch = "aarch64" if gpus and all(gpu.host == "aarch64" for gpu in gpus) else "x86_64"
    for release in () if undriven else catalog.torch_releases():
        if wish.torch is not None and not wish.torch.contains(release.version):
            continue
        best, why = _best_build(release, gpus, wish, catalog, arch)
        if best is None:
            if not sets:
                out.append((f"torch {release.version}", why))
            continue
        if len(sets) >= count:
            break
        if sets and sets[-1].torch.release[:2] == release.version.release[:2]:
            continue  # an older patch of the same minor version adds nothing
        sets.append(_usable(release, best, gpus, wish, catalog, arch))
    is_apart = not sets and not undriven and len(gpus) > 1
    alone = tuple((gpu.name, _alone(gpu, wish, catalog)) for gpu in gpus) if is_apart else ()
    return Answer(
        gpus=gpus,
        wish=wish,
        sets=tuple(sets),
        out=(*undriven, *_merged(out)),
        alone=alone,
        facts_of=str(catalog.generated),
    )


def _undriven(gpu: Gpu, wish: Wish, catalog: Catalog) -> tuple[str, str] | None:
    """Why the driver cannot drive the card, whatever torch is taken."""
    row = catalog.generation_drivers(gpu)
    if row is None or wish.driver is None or gpu.kind == "embedded":
        return None
    if row.first_branch is not None and wish.driver.branch < row.first_branch:
        return gpu.name, f"needs a driver of branch {row.first_branch} or newer, and {wish.driver} is there"
    if row.last_branch is not None and wish.driver.branch > row.last_branch:
        return gpu.name, f"is driven up to branch {row.last_branch}, and {wish.driver} is there"
    return None


def _alone(gpu: Gpu, wish: Wish, catalog: Catalog) -> str:
    found = recommend(replace(wish, gpus=(gpu.name,)), catalog, count=1).sets
    return f"torch {found[0].torch} {found[0].variant}" if found else "none"


def _gpu(name: str, catalog: Catalog) -> Gpu:
    found = catalog.gpu(name)
    if found is None:
        near = catalog.nearest_gpus(name)
        raise UsageError(
            "unknown-gpu",
            f"`{name}` is in no row of the facts",
            hint=f"the nearest names are {joined(near)}; a capability such as sm_86 works too" if near else None,
        )
    return found


def _best_build(
    release: TorchRelease, gpus: Sequence[Gpu], wish: Wish, catalog: Catalog, arch: Arch
) -> tuple[TorchBuild | None, str]:
    """The build with the newest toolkit that serves all; else the one line that says why none does."""
    if not release.pythons(arch):
        return None, f"has no wheel for {arch}"
    if wish.python is not None and wish.python not in release.pythons(arch):
        have = joined([str(python) for python in release.pythons(arch)], limit=8)
        return None, f"has no wheel for Python {wish.python}, only for {have}"
    fits: list[TorchBuild] = []
    reasons: dict[str, list[str]] = {}
    for build in reversed(release.builds(arch)):
        toolkit = build.variant.toolkit
        if toolkit is None:
            continue
        why = _unfit(build, gpus, wish, catalog)
        if why is None:
            fits.append(build)
        else:
            reasons.setdefault(why, []).append(build.variant.tag)
    if not fits:
        lines = [f"{joined(tags)} {_plural(why, len(tags))}" for why, tags in reasons.items()]
        return None, joined(lines, limit=4) or f"has no CUDA build for {arch}"
    default = next((build for build in fits if build.variant == release.default_variant(arch)), None)
    return default or fits[0], ""


def _unfit(build: TorchBuild, gpus: Sequence[Gpu], wish: Wish, catalog: Catalog) -> str | None:
    toolkit = build.variant.toolkit
    floor = None if toolkit is None or _is_jetson(gpus) else catalog.driver_floor(toolkit).driver
    if wish.driver is not None and floor is not None and wish.driver < floor:
        return f"needs driver {floor} or newer"
    for gpu in gpus:
        if build.runs_on(gpu.compute_capability) is False:
            return f"has no code for {gpu.name} ({gpu.compute_capability.sm})"
    if any(build.runs_on(gpu.compute_capability) is None for gpu in gpus):
        return "has no list of architectures in the facts"
    return None


def _is_jetson(gpus: Sequence[Gpu]) -> bool:
    """Their drivers are JetPack's own: no floor speaks of them."""
    return bool(gpus) and all(gpu.kind == "embedded" for gpu in gpus)


def _plural(why: str, count: int) -> str:
    verb, _, rest = why.partition(" ")
    return why if count == 1 else f"{'need' if verb == 'needs' else 'have'} {rest}"


def _merged(out: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Releases with the same reason in one line: `torch 2.15.0 to 2.8.0`."""
    merged: list[tuple[list[str], str]] = []
    for what, why in out:
        if merged and merged[-1][1] == why:
            merged[-1][0].append(what.removeprefix("torch "))
        else:
            merged.append(([what.removeprefix("torch ")], why))
    return [
        (f"torch {names[0]}" if len(names) == 1 else f"torch {names[-1]} to {names[0]}", why) for names, why in merged
    ]


def _usable(
    release: TorchRelease, build: TorchBuild, gpus: Sequence[Gpu], wish: Wish, catalog: Catalog, arch: Arch
) -> Usable:
    pythons = release.pythons(arch)
    python = wish.python or (pythons[-1 - _MIDDLE] if len(pythons) > _MIDDLE else pythons[0])
    toolkit = build.variant.toolkit
    transformers = next(
        (
            str(row.version)
            for row in catalog.transformers_releases()
            if not row.is_yanked
            and python.satisfies(row.minor.python_requires)
            and ((floor := row.minor.torch_floor) is None or release.version >= floor.version)
        ),
        None,
    )
    cudnn = release.cudnn_major(build.variant, arch)
    runtime = next(
        (
            row
            for row in catalog.onnxruntime_gpu_releases()
            if row.is_on_index
            and not row.is_series
            and toolkit is not None
            and row.cuda_major == toolkit.major
            and (cudnn is None or row.cudnn_major == cudnn)
            and python in (row.pythons(arch) or ())
            and all(row.runs_on(gpu.compute_capability, arch) is not False for gpu in gpus)
        ),
        None,
    )
    vision = next(
        (str(row.version) for row in release.companions("torchvision") if row.serves(python) is not False), None
    )
    bound = release.numpy_upper or (runtime.numpy_upper if runtime is not None else None)
    is_default = build.variant == release.default_variant(arch)
    libraries = runtime.cuda_packages if runtime is not None and is_default else {}
    return Usable(
        torch=release.version,
        variant=build.variant.tag,
        python=str(python),
        transformers=transformers,
        onnxruntime_gpu=None if runtime is None else str(runtime.version),
        libraries=tuple(text for library, text in libraries.items() if release.brings(library) is False),
        torchvision=vision,
        numpy=None if bound is None else str(bound),
        base=f"python:{python}-slim-bookworm",
        arch=arch,
        is_default=is_default,
        reasons=tuple(_reasons(release, build, gpus, wish, catalog)),
    )


def _reasons(release: TorchRelease, build: TorchBuild, gpus: Sequence[Gpu], wish: Wish, catalog: Catalog) -> list[str]:
    found = []
    for gpu in gpus:
        code = build.code_for(gpu.compute_capability)
        found.append(f"its {code} code runs on {gpu.name} (compute capability {gpu.compute_capability})")
    toolkit = build.variant.toolkit
    floor = None if toolkit is None else catalog.driver_floor(toolkit).driver
    if toolkit is not None and _is_jetson(gpus):
        found.append(f"{build.variant} needs a JetPack with CUDA {toolkit.major}")
    elif floor is not None and wish.driver is not None:
        found.append(f"{build.variant} needs driver {floor}, and {wish.driver} is there")
    elif floor is not None:
        found.append(f"{build.variant} needs driver {floor} or newer")
    if build.arch != "x86_64":
        found.append(f"{gpus[0].name} is sold with an ARM processor, and it is a build for {build.arch}")
    if build.variant == release.default_variant(build.arch):
        found.append("it is the build of the default index")
    return found


def text(answer: Answer) -> str:
    lines: list[str] = []
    for number, each in enumerate(answer.sets, start=1):
        parts = [f"torch {each.torch} {each.variant}", f"Python {each.python}"]
        neighbours = {
            "torchvision": each.torchvision,
            "transformers": each.transformers,
            "onnxruntime-gpu": each.onnxruntime_gpu,
        }
        parts += [f"{name} {value}" for name, value in neighbours.items() if value]
        parts += each.libraries
        parts += [f"numpy{each.numpy}"] if each.numpy else []
        lines.append(f"{number}. {', '.join(parts)}, base {each.base}")
        if number == 1:
            lines += [f"   {'because' if place == 0 else 'and'} {reason}" for place, reason in enumerate(each.reasons)]
    if not answer.sets:
        lines.append("no torch of the facts serves all of this")
    if answer.alone:
        lines += ["", "each card alone:", *(f"  {gpu}: {what}" for gpu, what in answer.alone)]
    if answer.out:
        lines += ["", "newer ones are out:" if answer.sets else "all are out:"]
        lines += [f"  {what}: {why}" for what, why in answer.out[:_SHOWN]]
        if len(answer.out) > _SHOWN:
            lines.append(f"  and {len(answer.out) - _SHOWN} more")
    lines += ["", f"by the facts of {answer.facts_of}"]
    return "\n".join(lines) + "\n"
