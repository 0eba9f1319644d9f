"""torchproof's own matrices -> one Environment a cell, so that `check` judges them by the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier

from builder.environment import (
    DriverAsk,
    Environment,
    GpuAsk,
    Index,
    IndexSettings,
    Origin,
    PythonAsk,
    Request,
    Source,
)
from builder.errors import SpecError
from builder.inputs import base_image, names, options, requirement, yaml_nodes
from builder.inputs.draft import Draft, default_index
from builder.versions import CudaVariant, DriverVersion, PythonVersion

_OPEN = frozenset({"auto", "none"})


def load(path: str, text: str) -> Iterator[tuple[str, Environment]]:
    """A label for each cell and what it asks for; SpecError as `spec.load` raises it."""
    try:
        yaml_nodes.read(text)
    except yaml_nodes.NotYamlError as error:
        # Aliases that multiply and brackets without end would keep the strict reader busy for hours.
        raise SpecError("spec-not-yaml", f"`{path}:{error.line}` is not YAML: {error.why}") from None
    from builder import spec  # noqa: PLC0415 - imports pydantic, which only specs need

    loaded = spec.load(Path(path), shown_as=path)
    for cell in loaded.cells:
        yield cell.label, _environment(cell, path)


def _environment(cell: Any, path: str) -> Environment:
    draft = Draft()
    draft.sources.append(Source(file=path, kind="spec"))
    start = _origin(cell.origin("torch"), path)
    number = draft.open_step("uv", start, f"install of {cell.label}", _settings(cell, path))
    draft.change_step(number, is_sync=True)
    asked = [("torch", cell.torch), ("transformers", cell.transformers), ("onnxruntime", cell.onnxruntime)]
    asked += [("onnxruntime-gpu", cell.onnxruntime_gpu), *cell.packages]
    for name, wanted in asked:
        if wanted == "none":
            continue
        origin = _origin(cell.origin("onnxruntime_gpu" if name == "onnxruntime-gpu" else name), path)
        text = "" if wanted == "auto" else wanted if not wanted[0].isdigit() else _series(wanted)
        try:
            specifier, version = requirement.read_specifier(text)
        except InvalidSpecifier:
            draft.left_out(origin, f"{name}: {wanted}", "it is not a version specifier")
            continue
        variant = CudaVariant.parse(cell.variant) if name == "torch" and cell.variant not in _OPEN else None
        draft.add(
            Request(
                name=names.canonical(name),
                asked_as=name,
                origin=origin,
                installer="uv",
                step=number,
                text=f"{name}: {wanted}",
                specifier=specifier,
                version=version,
                build_variant=variant,
            )
        )
    base = None
    if cell.base != "auto":
        base = base_image.parse(cell.base.removeprefix("local:"), _origin(cell.origin("base"), path))
    pythons: tuple[PythonAsk, ...] = ()
    if cell.python != "auto":
        origin = _origin(cell.origin("python"), path)
        pythons = (PythonAsk(origin=origin, means="spec", version=PythonVersion.parse(cell.python)),)
    return _with(draft, cell, path, base, pythons)


def _with(draft: Draft, cell: Any, path: str, base: Any, pythons: tuple[PythonAsk, ...]) -> Environment:
    origin = _origin(cell.origin("gpus"), path)
    gpus: tuple[GpuAsk, ...] = tuple(options.gpu(name, origin) for name in cell.gpus)
    driver = None
    if cell.driver is not None:
        place = _origin(cell.origin("driver"), path)
        driver = DriverAsk(version=DriverVersion.parse(cell.driver), origin=place)
    return replace(
        draft.environment(),
        bases=() if base is None else (base,),
        pythons=pythons,
        gpus=gpus,
        driver=driver,
        arch=cell.arch,
        arch_origin=_origin(cell.origin("arch"), path),
    )


def _series(version: str) -> str:
    """A minor line of torch (`2.6`) takes any of its patches; anything longer is one version."""
    return f"=={version}.*" if version.count(".") < 2 else f"=={version}"


def _settings(cell: Any, path: str) -> IndexSettings:
    origin = _origin(cell.origin("variant"), path)
    bound = [
        (name, Index(kind="other", origin=_origin(cell.origin("indexes"), path), url=index.url))
        for index in cell.indexes
        for name in index.packages
    ]
    additive: tuple[Index, ...] = ()
    if cell.variant not in _OPEN:
        additive = (Index(kind="torch", origin=origin, variant=CudaVariant.parse(cell.variant)),)
    return IndexSettings(
        primary=default_index(origin), additive=additive, strategy="first-index", for_package=tuple(bound)
    )


def _origin(place: str, path: str) -> Origin:
    """`file:line: key path` as an origin."""
    head = place.split(": ", maxsplit=1)[0]
    file, _, line = head.rpartition(":")
    return Origin(file, int(line)) if file and line.isdecimal() else Origin(path)
