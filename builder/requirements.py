"""A filled cell -> the direct requirements of its lock, and each choice with the facts behind it. Pure."""

from __future__ import annotations

from packaging.requirements import Requirement as PackagingRequirement

from builder.catalog_rows.onnxruntime import OnnxRuntimeGpu
from builder.cell_rules import Candidate, numpy_bounds, provider_of
from builder.resolution import Choice, Requirement
from builder.spec import AUTO


def requirements_of(c: Candidate) -> tuple[Requirement, ...]:
    """In a fixed order: the torch family, the stack, what the exporter needs, the user's packages, bounds."""
    index_only = c.release.is_index_only(c.variant, c.cell.arch)
    index = "torch" if index_only else "default"
    local = f"+{c.variant}" if index_only else ""
    asked = dict(c.cell.packages)
    found = [Requirement(text=f"torch=={c.release.version}{local}", index=index, because=(_build_fact(c),))]
    for companion in c.companions.values():
        if companion is not None:
            text = f"{companion.name}=={companion.version}"
            found.append(Requirement(text=text, index=index, because=(companion.fact,)))
    if c.transformers is not None:
        fact = c.transformers.minor.fact
        found.append(Requirement(text=f"transformers=={c.transformers.version}", because=(fact,)))
    if c.onnxruntime_gpu is not None:
        found.append(
            Requirement(text=f"onnxruntime-gpu=={c.onnxruntime_gpu.version}", because=(c.onnxruntime_gpu.fact,))
        )
        found += _libraries(c, c.onnxruntime_gpu, asked)
    if c.cell.onnxruntime != "none":
        found.append(Requirement(text=_pinned("onnxruntime", c.cell.onnxruntime)))
    found += _exporter(c, asked)
    found.append(Requirement(text=_pinned("numpy", asked.get("numpy", AUTO))))
    named = {"numpy", "torch", "transformers", *c.companions}
    indexes = {package: named_index.name for named_index in c.cell.indexes for package in named_index.packages}
    for name, wanted in c.cell.packages:
        if name not in named:
            found.append(Requirement(text=_pinned(name, wanted), index=str(indexes.get(name, "default"))))
    if "pip" not in asked:
        found.append(Requirement(text="pip", because=("people install into a rented instance with pip",)))
    found += _bounds(c)
    return tuple(found)


def _build_fact(c: Candidate) -> str:
    build = c.build
    return build.fact if build is not None else c.release.fact


def _pinned(name: str, wanted: str) -> str:
    if wanted == AUTO:
        return name
    return f"{name}=={wanted}" if wanted[:1].isdigit() else f"{name}{wanted}"


def _exporter(c: Candidate, asked: dict[str, str]) -> list[Requirement]:
    """Onnx and onnxscript where torch.onnx.export needs them and something in the image reads what it writes."""
    export = c.release.onnx_export
    has_runtime = c.onnxruntime_gpu is not None or c.cell.onnxruntime != "none"
    if not has_runtime:
        return []
    found = []
    needs_onnx = c.release.onnx_package_fact
    if needs_onnx is not None and "onnx" not in asked:
        found.append(Requirement(text="onnx", because=(needs_onnx,)))
    if export.needs_onnxscript_by_default and "onnxscript" not in asked:
        serving = [row for row in c.catalog.onnxscript_releases() if export.onnxscript_api in row.torch_apis]
        floor = min(serving, key=lambda row: row.version, default=None)
        text = "onnxscript" if floor is None else f"onnxscript>={floor.version}"
        because = (export.fact,) if floor is None else (export.fact, floor.fact)
        found.append(Requirement(text=text, because=because))
    return found


def _libraries(c: Candidate, runtime: OnnxRuntimeGpu, asked: dict[str, str]) -> list[Requirement]:
    """CUDA libraries that the runtime loads and this torch does not ask for: without them it would run on the CPU."""
    if c.variant != c.release.default_variant(c.cell.arch):
        return []  # what the build of another CUDA asks for is not in the facts
    return [
        Requirement(text=text, because=(runtime.cuda_package_fact(library),))
        for library, text in runtime.cuda_packages.items()
        if c.release.brings(library) is False and PackagingRequirement(text).name not in asked
    ]


def _bounds(c: Candidate) -> list[Requirement]:
    found = [Requirement(text=f"numpy{bound}", bound_only=True, because=(fact,)) for bound, fact in numpy_bounds(c)]
    unique = {requirement.text: requirement for requirement in reversed(found)}
    return sorted(unique.values(), key=lambda requirement: requirement.text)


def choices_of(c: Candidate, exclude_newer: str | None) -> tuple[Choice, ...]:
    """What was decided, for a person to read and for the report."""
    cell = c.cell
    found = [
        Choice(subject="torch", asked=cell.torch, value=str(c.release.version), because=(c.release.fact,)),
        Choice(subject="variant", asked=cell.variant, value=str(c.variant), because=(_build_fact(c),)),
        Choice(subject="python", asked=cell.python, value=str(c.python), because=_python_facts(c)),
        Choice(subject="base", asked=cell.base, value=c.base.reference, because=_base_facts(c)),
    ]
    if cell.provider != ("apt",):
        why = f"the spec's order is {', '.join(cell.provider)}"
        found.append(Choice(subject="provider", asked=", ".join(cell.provider), value=provider_of(c), because=(why,)))
    for name, companion in c.companions.items():
        if companion is not None:
            asked = dict(cell.packages)[name]
            found.append(Choice(subject=name, asked=asked, value=str(companion.version), because=(companion.fact,)))
    if c.transformers is not None:
        facts = [c.transformers.minor.fact]
        if (floor := c.transformers.minor.torch_floor) is not None:
            facts.append(floor.fact)
        found.append(
            Choice(
                subject="transformers",
                asked=cell.transformers,
                value=str(c.transformers.version),
                because=tuple(facts),
            )
        )
    if c.onnxruntime_gpu is not None:
        row = c.onnxruntime_gpu
        found.append(
            Choice(
                subject="onnxruntime-gpu",
                asked=cell.onnxruntime_gpu,
                value=str(row.version),
                because=(row.fact, row.archs_fact),
            )
        )
    if cell.onnxruntime != "none":
        value = "left to the index" if cell.onnxruntime == AUTO else cell.onnxruntime
        why = "the facts have no table of the CPU package; the lock says which release was taken"
        found.append(Choice(subject="onnxruntime", asked=cell.onnxruntime, value=value, because=(why,)))
    for bound in _bounds(c):
        found.append(Choice(subject="numpy", asked=AUTO, value=bound.text, because=bound.because))
    toolkit = c.variant.toolkit
    if toolkit is not None:
        driver = c.catalog.driver_floor(toolkit)
        asked = cell.driver or AUTO
        found.append(
            Choice(subject="driver floor", asked=asked, value=str(driver.driver or "unknown"), because=(driver.fact,))
        )
    if exclude_newer is not None:
        why = "packages that the set pulls in are limited to those of its own time"
        found.append(Choice(subject="exclude newer", asked=cell.exclude_newer, value=exclude_newer, because=(why,)))
    return tuple(found)


def _python_facts(c: Candidate) -> tuple[str, ...]:
    row = c.catalog.cpython(c.python)
    return (row.fact,) if row is not None else ()


def _base_facts(c: Candidate) -> tuple[str, ...]:
    from builder import bases_known  # noqa: PLC0415 - only for its facts

    distribution = bases_known.distribution_of(c.base.reference, c.catalog)
    return (distribution.fact,) if distribution is not None else ("no fact describes this image",)
