"""ImageSpec + Catalog -> Resolution, or every conflict that stands in the way. Pure: no network, no clock.

A cell is filled by trying candidates in the order of preference (newest torch, the package index's own build, a Python
at least a year older than the torch release) and taking the first that breaks no rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from packaging.version import Version

from builder import bases_known, cell_rules
from builder.catalog import Catalog
from builder.catalog_rows.gpus import AmbiguousGpuError, Gpu
from builder.catalog_rows.onnxruntime import OnnxRuntimeGpu
from builder.catalog_rows.torch import TorchRelease
from builder.catalog_rows.torch_parts import COMPANIONS, Companion, CompanionName
from builder.catalog_rows.transformers import TransformersRelease
from builder.cell_rules import Candidate
from builder.errors import ConflictError, SpecError
from builder.explain import CellConflicts, Conflict, text
from builder.requirements import choices_of, requirements_of
from builder.resolution import NamedIndex, Resolution, TargetGpu
from builder.spec import AUTO, ImageSpec
from builder.versions import CudaVariant, GlibcVersion, PythonVersion

# Packages need time to publish wheels for a new Python, and a stack of today to be tried with an old torch.
_A_YEAR = timedelta(days=365)

# The set that people ran in December 2022 locks as it was with a limit 45 days after its newest pinned release:
# protobuf 3.20.3 and huggingface-hub 0.11.1, where no limit gives 4.25.9 and 0.36.2.
_SETTLING = timedelta(days=45)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The machine of an in-place build: its Pythons in order of preference, and its C library.

    `found` are all Pythons that it has, also those that nothing is chosen for; empty: not looked for.
    """

    pythons: tuple[str, ...]
    glibc: str
    found: frozenset[str] = frozenset()


def resolve_all(cells: Sequence[ImageSpec], catalog: Catalog, *, host: Host | None = None) -> list[Resolution]:
    """Every cell, or one error with the conflicts of all of them."""
    check_names(cells, catalog)
    found = [resolve(cell, catalog, host=host) for cell in cells]
    broken = [result for result in found if isinstance(result, CellConflicts)]
    if broken:
        raise ConflictError(text(broken), code=broken[0].conflicts[0].code)
    return _distinct([result for result in found if isinstance(result, Resolution)])


def check_names(cells: Sequence[ImageSpec], catalog: Catalog) -> None:
    """SpecError for every GPU that the facts do not know, with the nearest names."""
    lines: list[str] = []
    for cell in cells:
        for name in cell.gpus:
            try:
                known = catalog.gpu(name)
            except AmbiguousGpuError as error:
                lines.append(f"{cell.origin('gpus')}: {error.what}" + (f"; {error.hint}" if error.hint else ""))
                continue
            if known is None:
                near = ", ".join(f"`{other}`" for other in catalog.nearest_gpus(name, 3))
                lines.append(f"{cell.origin('gpus')}: no GPU `{name}` in the facts; did you mean {near}?")
    if lines:
        lines = list(dict.fromkeys(lines))
        raise SpecError(
            "unknown-gpu", f"{len(lines)} GPU name{'s' * (len(lines) > 1)} not understood", detail="\n".join(lines)
        )


def resolve(cell: ImageSpec, catalog: Catalog, *, host: Host | None = None) -> Resolution | CellConflicts:
    """One cell. CellConflicts hold the conflicts of the candidate that came nearest, and a hint that was tried."""
    result = _search(cell, catalog, host)
    if isinstance(result, Candidate):
        return _resolution(result, host)
    return CellConflicts(label=cell.label, conflicts=tuple(result), hint=_hint(cell, catalog, host))


def _search(cell: ImageSpec, catalog: Catalog, host: Host | None) -> Candidate | list[Conflict]:
    gpus = tuple(gpu for name in cell.gpus if (gpu := catalog.gpu(name)) is not None)
    nearest: list[Conflict] | None = None
    for candidate in _candidates(cell, catalog, gpus, host):
        found = cell_rules.conflicts(candidate)
        if not found:
            return candidate
        if nearest is None or len(found) < len(nearest):
            nearest = found
    if nearest is not None:
        return nearest
    return [_nothing_to_try(cell, catalog)]


def _nothing_to_try(cell: ImageSpec, catalog: Catalog) -> Conflict:
    if not _torch_releases(cell, catalog):
        return Conflict(
            code="torch-unknown",
            premises=(
                f"{cell.origin('torch')} asks for torch {cell.torch}",
                f"the facts of {catalog.generated} end with torch {catalog.torch_releases()[0].version}",
            ),
            conclusion="whether it fits is not known, and nothing is guessed",
        )
    return Conflict(
        code="base-python-unknown",
        premises=(
            f"{cell.origin('base')} asks for {cell.base}",
            "no fact tells which Python it has",
            f"{cell.origin('python')} leaves the Python to be chosen",
        ),
        conclusion="there is no Python to choose wheels for; say `python:`",
    )


# --- candidates ------------------------------------------------------------------------------------------------------


def _candidates(cell: ImageSpec, catalog: Catalog, gpus: tuple[Gpu, ...], host: Host | None) -> Iterator[Candidate]:
    for release in _torch_releases(cell, catalog):
        for variant in _variants(cell, release):
            for python in _pythons(cell, catalog, release, host):
                base = bases_known.choose(cell, catalog, python, variant, ignore_asked=host is not None)
                if base is None and cell.provider != ("apt",):
                    base = bases_known.newest_debian(catalog)
                if base is None:
                    continue
                candidate = Candidate(
                    cell=cell,
                    catalog=catalog,
                    gpus=gpus,
                    release=release,
                    variant=variant,
                    python=python,
                    base=base,
                    machine=None if host is None else host.found,
                )
                candidate = replace(candidate, companions=_companions(candidate))
                candidate = replace(candidate, onnxruntime_gpu=_onnxruntime_gpu(candidate))
                yield replace(candidate, transformers=_transformers(candidate))


def _torch_releases(cell: ImageSpec, catalog: Catalog) -> list[TorchRelease]:
    """Newest first. `2.6` is a minor line: the newest of its releases that fits."""
    releases = list(catalog.torch_releases())
    if cell.torch == AUTO:
        return releases
    if cell.torch.count(".") == 1:
        return [release for release in releases if str(release.version).startswith(f"{cell.torch}.")]
    exact = catalog.torch_release(cell.torch)
    return [exact] if exact is not None else []


def _variants(cell: ImageSpec, release: TorchRelease) -> list[CudaVariant]:
    """`auto`: the package index's own build first, then newer before older toolkits. Never the CPU build unasked,
    for it would fit everything and serve no card.
    """
    if cell.variant != AUTO:
        return [CudaVariant.parse(cell.variant)]
    default = release.default_variant(cell.arch)
    others = [build.variant for build in reversed(release.builds(cell.arch)) if build.variant.is_cuda]
    ordered = [variant for variant in (default, *others) if variant is not None]
    return list(dict.fromkeys(ordered))


def _pythons(cell: ImageSpec, catalog: Catalog, release: TorchRelease, host: Host | None) -> list[PythonVersion]:
    if cell.python != AUTO:
        return [PythonVersion.parse(cell.python)]
    if host is not None:
        return [PythonVersion.parse(python) for python in host.pythons]
    if cell.base != AUTO:
        known = bases_known.describe(cell.base, catalog).python
        return [] if known is None else [PythonVersion.parse(known)]
    born = {row.version: row.first_release for row in catalog.cpython_releases()}
    settled = release.released - _A_YEAR
    pythons = sorted(release.pythons(cell.arch), reverse=True)
    return [
        *(python for python in pythons if python in born and born[python] <= settled),
        *sorted(python for python in pythons if python not in born or born[python] > settled),
    ]


def _companions(c: Candidate) -> dict[CompanionName, Companion | None]:
    """The torch family members that the cell asks for; None where no row pairs with this torch and Python."""
    asked = dict(c.cell.packages)
    found: dict[CompanionName, Companion | None] = {}
    for name in COMPANIONS:
        if name not in asked:
            continue
        rows = [row for row in c.release.companions(name) if row.serves(c.python) is not False and not row.is_yanked]
        wanted = asked[name]
        if wanted != AUTO:
            rows = [row for row in rows if wanted[:1].isdigit() and row.version == Version(wanted)]
        found[name] = rows[0] if rows else None
    return found


def _onnxruntime_gpu(c: Candidate) -> OnnxRuntimeGpu | None:
    wanted = c.cell.onnxruntime_gpu
    if wanted == "none":
        return None
    if wanted != AUTO:
        row = c.catalog.onnxruntime_gpu(wanted)
        return row if row is not None and row.is_on_index else None
    rows = [row for row in c.catalog.onnxruntime_gpu_releases() if row.is_on_index and not row.is_series]
    fitting = [row for row in rows if _takes(replace(c, onnxruntime_gpu=row))]
    of_its_time = [row for row in fitting if row.released is not None and row.released <= c.release.released + _A_YEAR]
    return next(iter(of_its_time or fitting), None)


def _takes(c: Candidate) -> bool:
    return cell_rules.onnxruntime_gpu_fits(c) is None and cell_rules.base_has_glibc(c) is None


def _transformers(c: Candidate) -> TransformersRelease | None:
    wanted = c.cell.transformers
    if wanted == "none":
        return None
    if wanted != AUTO:
        return c.catalog.transformers_release(wanted)
    fitting = [
        row
        for row in c.catalog.transformers_releases()
        if not row.is_yanked and cell_rules.transformers_fit(replace(c, transformers=row)) is None
    ]
    of_its_time = [row for row in fitting if row.minor.first_released <= c.release.released + _A_YEAR]
    return next(iter(of_its_time or fitting), None)


# --- hints -----------------------------------------------------------------------------------------------------------


def _hint(cell: ImageSpec, catalog: Catalog, host: Host | None) -> str | None:
    """The smallest change that makes the cell resolve: it was tried, so it is true. None: no single change does."""
    for key, changed in _relaxed(cell, catalog):
        result = _search(changed, catalog, host)
        if isinstance(result, Candidate):
            value = _value_of(key, result)
            return f"with `{key}: {value}` and all else as it is, this image resolves"
    return None


def _relaxed(cell: ImageSpec, catalog: Catalog) -> Iterator[tuple[str, ImageSpec]]:
    if cell.onnxruntime != "none" and cell.onnxruntime_gpu != "none":
        yield "onnxruntime", replace(cell, onnxruntime="none")
    if cell.variant != AUTO:
        yield "variant", replace(cell, variant=AUTO)
    if cell.onnxruntime_gpu not in ("none", AUTO):
        wanted = Version(cell.onnxruntime_gpu)
        rows = [row for row in catalog.onnxruntime_gpu_releases() if row.is_on_index and not row.is_series]
        for row in cell_rules.nearest(rows, wanted):
            yield "onnxruntime-gpu", replace(cell, onnxruntime_gpu=str(row.version))
    if cell.transformers not in ("none", AUTO):
        yield "transformers", replace(cell, transformers=AUTO)
    for name, wanted_version in cell.packages:
        if wanted_version != AUTO:
            changed = tuple((key, AUTO if key == name else value) for key, value in cell.packages)
            yield f"packages.{name}", replace(cell, packages=changed)
    if cell.python != AUTO and cell.base != AUTO and cell.provider == ("apt",):
        yield "provider", replace(cell, provider=("uv",))
    if cell.python != AUTO:
        yield "python", replace(cell, python=AUTO)
    if cell.base != AUTO:
        yield "base", replace(cell, base=AUTO)
    if cell.torch != AUTO:
        releases = catalog.torch_releases()
        wanted = Version(cell.torch)
        for release in cell_rules.nearest(releases, wanted):
            yield "torch", replace(cell, torch=str(release.version))
        if cell.variant != AUTO:
            for release in cell_rules.nearest(releases, wanted):
                yield "torch", replace(cell, torch=str(release.version), variant=AUTO)
    if cell.driver is not None:
        yield "driver", replace(cell, driver=None)


def _value_of(key: str, found: Candidate) -> str:
    if key == "torch":
        pinned = found.cell.variant != AUTO
        return f"{found.release.version}" if pinned else f"{found.release.version}` and `variant: {found.variant}"
    if key == "variant":
        return str(found.variant)
    if key == "provider":
        return found.cell.provider[0]
    if key == "python":
        return str(found.python)
    if key == "base":
        return found.base.reference
    if key == "transformers" and found.transformers is not None:
        return str(found.transformers.version)
    if key == "onnxruntime-gpu" and found.onnxruntime_gpu is not None:
        return str(found.onnxruntime_gpu.version)
    if key == "driver" and found.variant.toolkit is not None:
        floor = found.catalog.driver_floor(found.variant.toolkit).driver
        return str(floor)
    if key.startswith("packages."):
        name = key.removeprefix("packages.")
        companion = next((row for known, row in found.companions.items() if known == name), None)
        return str(companion.version) if companion is not None else AUTO
    return "none"


# --- the result ------------------------------------------------------------------------------------------------------


def _resolution(c: Candidate, host: Host | None) -> Resolution:
    glibc = c.glibc or c.release.glibc_floor
    if host is not None:
        glibc = min(glibc, GlibcVersion.parse(host.glibc))
    toolkit = c.variant.toolkit
    floor = None if toolkit is None else c.catalog.driver_floor(toolkit).driver
    limit = _exclude_newer(c)
    return Resolution(
        image_id=_image_id(c),
        spec_name=c.cell.matrix,
        spec_digest=c.cell.digest,
        cell=c.cell.label,
        python=str(c.python.series),
        arch=c.cell.arch,
        glibc=str(glibc),
        base=c.base,
        flavor=c.cell.flavor,
        torch=str(c.release.version),
        variant=str(c.variant),
        variant_is_default=not c.release.is_index_only(c.variant, c.cell.arch),
        requirements=requirements_of(c),
        choices=choices_of(c, limit),
        warnings=_warnings(c),
        gpus=tuple(TargetGpu(name=gpu.name, compute_capability=str(gpu.compute_capability)) for gpu in c.gpus),
        undecided_gpus=_undecided(c),
        driver_floor=None if floor is None else str(floor),
        driver_asked=c.cell.driver,
        apt=c.cell.apt,
        user=c.cell.user,
        exclude_newer=limit,
        allow_source=c.cell.allow_source,
        indexes=tuple(
            NamedIndex(name=str(index.name), url=index.url, packages=index.packages) for index in c.cell.indexes
        ),
        wheelhouses=c.cell.wheelhouses,
        facts_generated=str(c.catalog.generated),
        provider=cell_rules.provider_of(c),
        conda_channels=c.cell.conda_channels if cell_rules.provider_of(c) == "conda" else (),
        conda_packages=c.cell.conda_packages if cell_rules.provider_of(c) == "conda" else (),
    )


def _image_id(c: Candidate) -> str:
    return f"torch{c.release.version}-{c.variant}-py{str(c.python.series).replace('.', '')}"


def _distinct(resolutions: Sequence[Resolution]) -> list[Resolution]:
    """Cells that resolve to the same image are one; images that share an id get what they differ in added to it."""
    by_id: dict[str, list[Resolution]] = {}
    for resolution in resolutions:
        others = by_id.setdefault(resolution.image_id, [])
        if all(_content(resolution) != _content(other) for other in others):
            others.append(resolution)
    found = []
    for image_id, group in by_id.items():
        if len(group) == 1:
            found.append(group[0])
            continue
        parts = [_parts(resolution) for resolution in group]
        shared = set.intersection(*(set(some) for some in parts))
        ids: list[str] = []
        for some in parts:
            name = "-".join([image_id, *(_tag_text(part) for part in some if part not in shared)])
            # What is left can only be GPUs, a driver or the like: told apart by a number.
            ids.append(name if name not in ids else f"{name}-{len(ids) + 1}")
        found += [replace(resolution, image_id=name) for resolution, name in zip(group, ids, strict=True)]
    return found


def _content(resolution: Resolution) -> Resolution:
    return replace(resolution, cell="", spec_digest="", choices=())


def _parts(resolution: Resolution) -> list[str]:
    texts = [requirement.text for requirement in resolution.requirements if not requirement.bound_only]
    base = resolution.base.reference.split("@")[0].rsplit("/", 1)[-1]
    return [*(text.replace("onnxruntime", "ort").replace("==", "") for text in texts), base, resolution.flavor]


def _tag_text(part: str) -> str:
    """An image id names files, tags and tests, so it keeps to what an image tag may hold."""
    return "".join(char if char.isalnum() or char in "._" else "-" for char in part)


def _exclude_newer(c: Candidate) -> str | None:
    """The date limit of transitive packages; None when the set is as new as the facts."""
    if c.cell.exclude_newer != AUTO:
        return None if c.cell.exclude_newer == "none" else c.cell.exclude_newer
    dates = [c.release.released]
    if c.transformers is not None:
        dates.append(c.transformers.minor.last_released)
    if c.onnxruntime_gpu is not None and c.onnxruntime_gpu.released is not None:
        dates.append(c.onnxruntime_gpu.released)
    limit = max(dates) + _SETTLING
    return None if limit >= date.fromisoformat(str(c.catalog.generated)) else limit.isoformat()


def _undecided(c: Candidate) -> tuple[str, ...]:
    build = c.build
    if build is None:
        return ()
    return tuple(gpu.name for gpu in c.gpus if cell_rules.runs_on(build, gpu, c.catalog) is None)


def _warnings(c: Candidate) -> tuple[str, ...]:
    found = [
        f"no fact says whether torch {c.release.version} {c.variant} has code for {name}; the probe reads it out"
        for name in _undecided(c)
    ]
    toolkit = c.variant.toolkit
    if toolkit is not None and c.cell.driver is None and c.gpus:
        found.append("no driver is stated, so the driver floor is told and not checked")
    return tuple(found)
