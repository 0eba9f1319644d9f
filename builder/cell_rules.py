"""What the cells of a matrix must hold together for: pure, each rule small, listed once in order at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog import Catalog
from builder.catalog_rows.gpus import Gpu
from builder.catalog_rows.onnxruntime import OnnxRuntimeGpu
from builder.catalog_rows.torch import TorchBuild, TorchRelease
from builder.catalog_rows.torch_parts import Companion, CompanionName
from builder.catalog_rows.transformers import TransformersRelease
from builder.explain import Conflict, joined
from builder.resolution import Base
from builder.spec import AUTO, ImageSpec
from builder.versions import CudaVariant, DriverVersion, GlibcVersion, PythonVersion


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to fill a cell. None where the cell leaves a part out, or where nothing was found to put there.

    `machine` holds the Pythons of this machine for an environment in place; None: an image on the base is meant.
    """

    cell: ImageSpec
    catalog: Catalog
    gpus: tuple[Gpu, ...]
    release: TorchRelease
    variant: CudaVariant
    python: PythonVersion
    base: Base
    companions: Mapping[CompanionName, Companion | None] = field(default_factory=dict)
    onnxruntime_gpu: OnnxRuntimeGpu | None = None
    transformers: TransformersRelease | None = None
    machine: frozenset[str] | None = None

    @property
    def build(self) -> TorchBuild | None:
        return self.release.build(self.variant, self.cell.arch)

    @property
    def glibc(self) -> GlibcVersion | None:
        return None if self.base.glibc is None else GlibcVersion.parse(self.base.glibc)

    def asked(self, subject: str, value: str) -> str:
        """The user's line as a premise: `images/x.yaml:4: axes.python asks for 3.8`, or what was chosen for `auto`."""
        return f"{self.cell.origin(subject)} asks for {value}"


Provider = Literal["apt", "conda", "uv"]
Rule = Callable[[Candidate], "Conflict | None"]


def python_has_wheel(c: Candidate) -> Conflict | None:
    pythons = c.release.pythons(c.cell.arch)
    if c.python.series in pythons:
        return None
    have = joined([str(python) for python in sorted(pythons)], limit=10) if pythons else "no Python"
    return Conflict(
        code="torch-no-python",
        premises=(
            c.release.cite(f"torch {c.release.version} has {c.cell.arch} wheels for Python {have}"),
            _python_premise(c),
        ),
        conclusion=f"no wheel of torch {c.release.version} can be installed",
    )


def _python_premise(c: Candidate) -> str:
    if c.cell.python != AUTO:
        return c.asked("python", f"Python {c.python}")
    return f"{c.cell.origin('base')} asks for {c.base.reference}, whose Python is {c.python}"


def variant_exists(c: Candidate) -> Conflict | None:
    if c.build is not None:
        return None
    have = [str(build.variant) for build in c.release.builds(c.cell.arch)]
    return Conflict(
        code="torch-no-variant",
        premises=(
            f"torch {c.release.version} has {c.cell.arch} wheels for {joined(have, limit=10)}",
            c.asked("variant", str(c.variant)),
        ),
        conclusion="no torch wheel fits",
    )


def gpus_are_covered(c: Candidate) -> Conflict | None:
    if c.build is None or not c.gpus:
        return None
    if c.variant.is_cpu:
        return Conflict(
            code="cpu-build-for-gpu",
            premises=(
                f"{c.cell.origin('gpus')} asks for {joined([gpu.name for gpu in c.gpus])}",
                c.asked("variant", "cpu"),
                f"a CPU build of torch {c.release.version} holds no GPU code",
            ),
            conclusion="every step would run on the processor",
        )
    missing = [gpu for gpu in c.gpus if runs_on(c.build, gpu, c.catalog) is False]
    if not missing:
        return None
    cards = joined([f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in missing])
    return Conflict(
        code="gpu-not-covered",
        premises=(f"{c.cell.origin('gpus')} asks for {cards}", c.build.fact),
        conclusion="the image would build, see the card, and fail at its first kernel",
    )


def runs_on(build: TorchBuild, gpu: Gpu, catalog: Catalog) -> bool | None:
    """Whether the build has code for the card; None: no fact tells.

    Where the facts do not know the PTX of a build, its toolkit still sets a limit: no compiler of CUDA 13 makes code
    for a card below 7.5.
    """
    known = build.runs_on(gpu.compute_capability)
    toolkit = build.variant.toolkit
    row = None if toolkit is None else catalog.toolkit(toolkit)
    if known is None and row is not None and row.archs:
        lowest = min(code.capability for code in row.archs)
        return False if gpu.compute_capability < lowest else None
    return known


def driver_is_new_enough(c: Candidate) -> Conflict | None:
    if c.cell.driver is None or c.variant.toolkit is None or c.build is None:
        return None
    floor = c.catalog.driver_floor(c.variant.toolkit)
    if floor.driver is None or DriverVersion.parse(c.cell.driver) >= floor.driver:
        return None
    return Conflict(
        code="driver-too-old",
        premises=(
            f"torch {c.release.version} {c.variant} runs on CUDA {c.variant.toolkit}",
            floor.fact,
            f"{c.cell.origin('driver')} asks for driver {c.cell.driver}",
        ),
        conclusion=f"the driver must be {floor.driver} or newer",
    )


def provider_of(c: Candidate) -> Provider:
    """The first in the spec's order that can have this Python: the base, or in place this machine, when it has it;
    conda and uv have every Python that torch has wheels for, unless they cannot be reached, which nobody knows here.
    """
    for name in c.cell.provider:
        if name == "conda":
            return "conda"
        if name == "uv":
            return "uv"
        if c.machine is not None:
            if not c.machine or str(c.python.series) in c.machine:
                return "apt"
        elif c.base.python is None or PythonVersion.parse(c.base.python) == c.python.series:
            return "apt"
    return "apt"


def base_has_python(c: Candidate) -> Conflict | None:
    if c.base.python is None or PythonVersion.parse(c.base.python) == c.python.series or provider_of(c) != "apt":
        return None
    return Conflict(
        code="base-python",
        premises=(
            f"{c.cell.origin('base')} asks for {c.base.reference}, whose Python is {c.base.python}",
            c.asked("python", f"Python {c.python}"),
        ),
        conclusion="the base has no such Python",
    )


def base_has_glibc(c: Candidate) -> Conflict | None:
    if c.glibc is None:
        return None
    floors = [(c.release.glibc_floor, c.release.abi.glibc_fact)]
    ort = c.onnxruntime_gpu
    if ort is not None and (ort_floor := ort.glibc_floor(c.cell.arch)) is not None:
        floors.append((ort_floor, ort.cite(f"onnxruntime-gpu {ort.version} needs glibc {ort_floor}")))
    for floor, fact in floors:
        if c.glibc < floor:
            return Conflict(
                code="glibc-too-old",
                premises=(f"{c.base.reference} has glibc {c.glibc}", fact),
                conclusion="its shared libraries would not load",
            )
    return None


def companions_pair(c: Candidate) -> Conflict | None:
    asked = dict(c.cell.packages)
    for name, companion in c.companions.items():
        wanted = asked[name]
        if companion is not None:
            continue
        rows = c.release.companions(name)
        have = joined([str(row.version) for row in rows]) if rows else f"no {name}"
        wants = name if wanted == AUTO else f"{name} {wanted}"
        return Conflict(
            code="torch-family-pair",
            premises=(
                (rows[0] if rows else c.release).cite(f"torch {c.release.version} goes with {have}"),
                f"{c.cell.origin(name)} asks for {wants}",
            ),
            conclusion=f"{wants} was built for another torch, or has no wheel for Python {c.python}",
        )
    return None


def numpy_fits(c: Candidate) -> Conflict | None:
    wanted = dict(c.cell.packages).get("numpy", AUTO)
    if wanted == AUTO:
        return None
    for bound, fact in numpy_bounds(c):
        if _is_version(wanted) and not bound.contains(Version(wanted), prereleases=True):
            return Conflict(
                code="numpy-abi",
                premises=(fact, f"{c.cell.origin('numpy')} asks for numpy {wanted}"),
                conclusion=f"numpy must be {bound}",
            )
    return None


def numpy_bounds(c: Candidate) -> list[tuple[SpecifierSet, str]]:
    """Upper bounds on numpy that no metadata states, each with its fact."""
    bounds = []
    if c.release.numpy_upper is not None:
        bounds.append((c.release.numpy_upper, c.release.abi.fact))
    asked = c.cell.onnxruntime
    runtime = c.onnxruntime_gpu or (c.catalog.onnxruntime_cpu(asked) if _is_version(asked) else None)
    if runtime is not None and runtime.numpy_upper is not None:
        bounds.append((runtime.numpy_upper, runtime.numpy_fact or runtime.fact))
    numpy2 = c.catalog.numpy_release("2.0.0")
    if c.transformers is not None and numpy2 is not None and c.transformers.minor.last_released < numpy2.released:
        note = c.catalog.note("4.42-numpy")
        bounds.append((SpecifierSet("<2"), note.fact))
    return bounds


def onnxruntime_gpu_exists(c: Candidate) -> Conflict | None:
    wanted = c.cell.onnxruntime_gpu
    if wanted == "none" or c.onnxruntime_gpu is not None:
        return None
    if wanted == AUTO:
        cudnn = c.release.cudnn_major(c.variant, c.cell.arch)
        needs = f"CUDA {c.variant.toolkit.major}" if c.variant.toolkit else "no CUDA"
        needs += f" and cuDNN {cudnn}" if cudnn else ""
        return Conflict(
            code="onnxruntime-gpu-none",
            premises=(
                f"torch {c.release.version} {c.variant} brings {needs} libraries",
                f"{c.cell.origin('onnxruntime-gpu')} asks for an onnxruntime-gpu that loads them on Python {c.python}",
            ),
            conclusion="no release of the facts does",
        )
    releases = [row for row in c.catalog.onnxruntime_gpu_releases() if row.is_on_index and not row.is_series]
    near = sorted(row.version for row in nearest(releases, Version(wanted))[:4])
    removed = c.catalog.onnxruntime_gpu_removed(wanted)
    return Conflict(
        code="not-on-index",
        premises=(
            c.asked("onnxruntime-gpu", f"onnxruntime-gpu {wanted}"),
            removed.fact if removed is not None else f"the facts of {c.catalog.generated} have no such release",
            f"the nearest on the index are {joined([str(version) for version in near])}",
        ),
        conclusion=f"onnxruntime-gpu {wanted} cannot be installed",
    )


class _Released(Protocol):
    @property
    def version(self) -> Version: ...


R = TypeVar("R", bound=_Released)


def nearest(releases: Iterable[R], wanted: Version) -> list[R]:
    """By the number of releases that lie between, so that what follows the newest is near the newest."""
    ordered = sorted(releases, key=lambda row: row.version)
    place = sum(row.version < wanted for row in ordered)
    ranked = sorted(enumerate(ordered), key=lambda item: (abs(item[0] + 0.5 - place), -item[0]))
    return [row for _, row in ranked]


def onnxruntime_gpu_fits(c: Candidate) -> Conflict | None:
    ort = c.onnxruntime_gpu
    if ort is None:
        return None
    name = f"onnxruntime-gpu {ort.version}"
    pythons = ort.pythons(c.cell.arch)
    if pythons is not None and c.python.series not in pythons:
        have = joined([str(python) for python in sorted(pythons)], limit=10)
        return Conflict(
            code="onnxruntime-no-python",
            premises=(ort.cite(f"{name} has wheels for Python {have}"), _python_premise(c)),
            conclusion=f"{name} cannot be installed",
        )
    if c.variant.is_cpu:
        return Conflict(
            code="onnxruntime-cuda",
            premises=(f"{name} loads CUDA {ort.cuda_major} libraries", c.asked("variant", "cpu")),
            conclusion="there are no CUDA libraries, so it would fall back to the CPU without an error",
        )
    toolkit = c.variant.toolkit
    if toolkit is not None and toolkit.major != ort.cuda_major:
        return Conflict(
            code="onnxruntime-cuda",
            premises=(
                f"torch {c.release.version} {c.variant} brings CUDA {toolkit.major} libraries",
                ort.fact,
            ),
            conclusion=f"{name} would not load its CUDA provider and would fall back to the CPU without an error",
        )
    cudnn = c.release.cudnn_major(c.variant, c.cell.arch)
    if cudnn is not None and cudnn != ort.cudnn_major:
        return Conflict(
            code="onnxruntime-cudnn",
            premises=(f"torch {c.release.version} {c.variant} brings cuDNN {cudnn}", ort.fact),
            conclusion=f"{name} would not load its CUDA provider and would fall back to the CPU without an error",
        )
    missing = [gpu for gpu in c.gpus if ort.runs_on(gpu.compute_capability, c.cell.arch) is False]
    if missing:
        return Conflict(
            code="onnxruntime-gpu-not-covered",
            premises=(
                f"{c.cell.origin('gpus')} asks for "
                + joined([f"{gpu.name} (compute capability {gpu.compute_capability})" for gpu in missing]),
                ort.archs_fact,
            ),
            conclusion=f"{name} has no kernel for the card",
        )
    return None


def one_onnxruntime(c: Candidate) -> Conflict | None:
    if "none" in (c.cell.onnxruntime, c.cell.onnxruntime_gpu):
        return None
    return Conflict(
        code="onnxruntime-both",
        premises=(
            f"{c.cell.origin('onnxruntime')} asks for onnxruntime",
            f"{c.cell.origin('onnxruntime-gpu')} asks for onnxruntime-gpu",
            "both install the same module, so that the one installed last wins",
        ),
        conclusion="an image can hold only one of them",
    )


def transformers_fit(c: Candidate) -> Conflict | None:
    wanted = c.cell.transformers
    if wanted == "none":
        return None
    release = c.transformers
    if release is None:
        if wanted == AUTO:
            why = f"no transformers release of the facts takes Python {c.python} and torch {c.release.version}"
            return Conflict(code="transformers-none", premises=(why,), conclusion="there is none to choose")
        return Conflict(
            code="transformers-unknown",
            premises=(
                c.asked("transformers", f"transformers {wanted}"),
                f"the facts of {c.catalog.generated} have no such release",
            ),
            conclusion="whether it fits is not known",
        )
    name = f"transformers {release.version}"
    if release.is_yanked and wanted != AUTO:
        return Conflict(
            code="transformers-yanked",
            premises=(c.asked("transformers", name), release.minor.cite(f"{name} was withdrawn")),
            conclusion="an installer would not take it",
        )
    if not c.python.satisfies(release.minor.python_requires):
        return Conflict(
            code="transformers-no-python",
            premises=(release.minor.fact, _python_premise(c)),
            conclusion=f"{name} cannot be installed",
        )
    floor = release.minor.torch_floor
    if floor is not None and floor.is_enforced and c.release.version < floor.version:
        return Conflict(
            code="transformers-torch-floor",
            premises=(floor.fact, f"torch {c.release.version} is older"),
            conclusion=f"{name} would import without its PyTorch models",
        )
    return None


def _is_version(text: str) -> bool:
    return text[:1].isdigit()


def pytorch_channel_has_torch(c: Candidate) -> Conflict | None:
    if "pytorch" not in c.cell.conda_channels or c.release.has_official_conda_package:
        return None
    last = next((row for row in c.catalog.torch_releases() if row.has_official_conda_package), None)
    return Conflict(
        code="pytorch-channel-ended",
        premises=(
            f"{c.cell.origin('conda')} asks for the channel `pytorch`",
            c.asked("torch", f"torch {c.release.version}"),
            f"the pytorch channel ended with {last.version if last else 'an older release'}",
        ),
        conclusion="that channel has no such torch; conda-forge has builds of its own, and the wheels are on the index",
    )


# In the order in which a person would want to hear of them.
RULES: tuple[Rule, ...] = (
    python_has_wheel,
    variant_exists,
    gpus_are_covered,
    driver_is_new_enough,
    base_has_python,
    pytorch_channel_has_torch,
    base_has_glibc,
    companions_pair,
    numpy_fits,
    one_onnxruntime,
    onnxruntime_gpu_exists,
    onnxruntime_gpu_fits,
    transformers_fit,
)


def conflicts(candidate: Candidate) -> list[Conflict]:
    return [found for rule in RULES if (found := rule(candidate)) is not None]
