"""The file a person writes -> one ImageSpec per image: load, expand the axes, select by pattern."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name
from pydantic import ValidationError

from builder import yaml_lines
from builder.errors import NothingSelectedError, SpecError
from builder.spec_errors import spec_error
from builder.spec_models import Axes, Cell, IncludedCell, Matrix, PrivateIndex
from builder.spec_values import AUTO, NONE
from builder.yaml_lines import KeyPath, YamlText

__all__ = ["AUTO", "NONE", "ImageSpec", "LoadedMatrix", "from_text", "load", "select"]

_AXES = ("torch", "variant", "python", "base", "transformers", "onnxruntime", "onnxruntime_gpu")

# What a cell under `include` may say for itself.
_OWN_SETTINGS = ("gpus", "driver", "flavor", "apt", "exclude_newer", "allow_source")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSpec:
    """One cell: what was asked for one image. `origins` maps a subject to `file:line: key path` for messages."""

    matrix: str
    number: int
    torch: str
    variant: str
    python: str
    base: str
    transformers: str
    onnxruntime: str
    onnxruntime_gpu: str
    packages: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    driver: str | None
    flavor: Literal["base", "runtime", "devel"]
    apt: tuple[str, ...]
    user: str
    arch: Literal["x86_64", "aarch64"]
    exclude_newer: str
    allow_source: tuple[str, ...]
    wheelhouses: tuple[str, ...]
    indexes: tuple[PrivateIndex, ...]
    provider: tuple[str, ...] = ("apt",)
    conda_channels: tuple[str, ...] = ()
    conda_packages: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """What was asked, in the form of an image id, for messages about cells that do not resolve."""
        python = f"py{self.python.replace('.', '')}" if self.python != AUTO else "pyauto"
        return f"torch{self.torch}-{self.variant}-{python}"

    @property
    def digest(self) -> str:
        """Over what was asked, in a text form of its own: comments, key order and file name do not count."""
        asked: dict[str, Any] = {
            "torch": self.torch,
            "variant": self.variant,
            "python": self.python,
            "base": self.base,
            "transformers": self.transformers,
            "onnxruntime": self.onnxruntime,
            "onnxruntime-gpu": self.onnxruntime_gpu,
            "packages": dict(self.packages),
            "gpus": list(self.gpus),
            "driver": self.driver or "",
            "flavor": self.flavor,
            "apt": list(self.apt),
            "user": self.user,
            "arch": self.arch,
            "exclude_newer": self.exclude_newer,
            "allow_source": sorted(self.allow_source),
            "indexes": [[index.name, index.url, *index.packages] for index in self.indexes],
        }
        if self.provider != ("apt",):
            # Only then, so that the digests of all other specs are what they were.
            asked["provider"] = list(self.provider)
            asked["conda"] = {"channels": list(self.conda_channels), "packages": sorted(self.conda_packages)}
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def origin(self, subject: str) -> str:
        return self.origins.get(subject, self.matrix)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedMatrix:
    matrix: Matrix
    name: str
    file: str
    folder: Path
    cells: tuple[ImageSpec, ...]


def load(path: Path, *, shown_as: str | None = None) -> LoadedMatrix:
    """Read, validate and expand; SpecError lists every fault at once, each with its line."""
    text = yaml_lines.read(path, shown_as=shown_as)
    return from_text(text, folder=path.resolve().parent, stem=path.stem)


def from_text(text: YamlText, *, folder: Path, stem: str) -> LoadedMatrix:
    if not isinstance(text.data, dict):
        raise SpecError("spec-invalid", f"`{text.file}` is a {type(text.data).__name__}, not a mapping of keys")
    try:
        matrix = Matrix.model_validate(_tuples(text.data))
    except ValidationError as error:
        raise spec_error(text, error) from None
    name = str(matrix.name or re.sub(r"[^a-z0-9_\-]", "-", stem.lower()))
    cells = _expand(matrix, text, name, folder)
    if not cells:
        why = "`exclude` drops every cell" if matrix.exclude else "it has neither `axes` nor `include`"
        raise NothingSelectedError("nothing-to-build", f"`{text.file}` holds no image: {why}")
    return LoadedMatrix(matrix=matrix, name=name, file=text.file, folder=folder, cells=cells)


def _tuples(value: Any) -> Any:
    """Lists of mappings as tuples, which is what strict tuple fields take."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value


def _expand(matrix: Matrix, text: YamlText, name: str, folder: Path) -> tuple[ImageSpec, ...]:
    cells: list[ImageSpec] = []
    axes = matrix.axes
    if axes is not None:
        names = [*_AXES, *(f"packages.{package}" for package in axes.packages)]
        options: list[Sequence[str]] = [getattr(axes, axis) for axis in _AXES]
        options += list(axes.packages.values())
        for indices in itertools.product(*(range(len(values)) for values in options)):
            asked = {axis: options[i][indices[i]] for i, axis in enumerate(names)}
            origins = {}
            for i, axis in enumerate(names):
                key = _alias(axis)
                path: KeyPath = ("axes", *key.split(".", 1))
                exact: KeyPath = (*path, indices[i])
                origins[key.removeprefix("packages.")] = text.where(exact if exact in text.lines else path)
            cells.append(_cell(matrix, text, name, folder, len(cells), asked, origins, None))
    cells = [cell for cell in cells if not any(_agrees(cell, excluded) for excluded in matrix.exclude)]
    for number, included in enumerate(matrix.include):
        asked = {axis: getattr(included, axis) or _default(axis) for axis in _AXES}
        asked |= {f"packages.{package}": wanted for package, wanted in (included.packages or {}).items()}
        origins = {}
        for axis in asked:
            key = _alias(axis)
            origins[key.removeprefix("packages.")] = text.where(("include", number, *key.split(".", 1)))
        for setting in _OWN_SETTINGS:
            if getattr(included, setting) is not None:
                origins[setting] = text.where(("include", number, setting))
        cells.append(_cell(matrix, text, name, folder, len(cells), asked, origins, included))
    return tuple(cells)


def _default(axis: str) -> str:
    return str(Axes.model_fields[axis].default[0])


def _alias(axis: str) -> str:
    return "onnxruntime-gpu" if axis == "onnxruntime_gpu" else axis


def _cell(
    matrix: Matrix,
    text: YamlText,
    name: str,
    folder: Path,
    number: int,
    asked: Mapping[str, str],
    origins: Mapping[str, str],
    own: IncludedCell | None,
) -> ImageSpec:
    def setting(key: str) -> Any:
        value = getattr(own, key, None)
        return getattr(matrix, key) if value is None else value

    packages = {
        canonicalize_name(key.removeprefix("packages.")): value
        for key, value in asked.items()
        if key.startswith("packages.")
    }
    shared = {key: text.where((key,)) for key in (*_OWN_SETTINGS, "arch", "wheelhouse", "provider", "conda")}
    return ImageSpec(
        matrix=name,
        number=number,
        torch=asked["torch"],
        variant=asked["variant"],
        python=asked["python"],
        base=asked["base"],
        transformers=asked["transformers"],
        onnxruntime=asked["onnxruntime"],
        onnxruntime_gpu=asked["onnxruntime_gpu"],
        packages=tuple(sorted(packages.items())),
        gpus=setting("gpus"),
        driver=setting("driver"),
        flavor=setting("flavor"),
        apt=tuple(sorted(setting("apt"))),
        user=matrix.user,
        arch=matrix.arch,
        exclude_newer=setting("exclude_newer"),
        allow_source=setting("allow_source"),
        wheelhouses=tuple(str((folder / house).resolve()) for house in matrix.wheelhouse),
        indexes=matrix.indexes,
        provider=matrix.provider,
        conda_channels=matrix.conda.channels if "conda" in matrix.provider else (),
        conda_packages=tuple(sorted(matrix.conda.packages)) if "conda" in matrix.provider else (),
        origins={**shared, **origins},
    )


def _agrees(cell: ImageSpec, partial: Cell) -> bool:
    """Whether the cell has every value that `partial` names; an empty `partial` agrees with none."""
    packages = dict(cell.packages)
    pairs = [(getattr(cell, axis), getattr(partial, axis)) for axis in _AXES if getattr(partial, axis) is not None]
    pairs += [
        (packages.get(canonicalize_name(package)), wanted) for package, wanted in (partial.packages or {}).items()
    ]
    return bool(pairs) and all(have == wanted for have, wanted in pairs)


def select(ids: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The ids that match one of the patterns, in order; NothingSelectedError names the nearest when none does."""
    known = list(ids)
    if not patterns:
        return known
    chosen = [image for image in known if any(fnmatch.fnmatchcase(image, pattern) for pattern in patterns)]
    if not chosen:
        near = difflib.get_close_matches(patterns[0].strip("*"), known, n=3, cutoff=0.3)
        raise NothingSelectedError(
            "nothing-selected",
            f"no image matches {', '.join(f'`{pattern}`' for pattern in patterns)}",
            because=[f"the matrix has {len(known)} images: {', '.join(known[:8])}{' ...' if len(known) > 8 else ''}"],
            hint=f"nearest: {', '.join(near)}" if near else None,
        )
    return chosen
