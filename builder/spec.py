"""The file a person writes: a matrix of images. Strict and frozen; every error carries file, line and key path."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from builder import yaml_lines
from builder.errors import NothingSelectedError, SpecError
from builder.yaml_lines import KeyPath, YamlText

AUTO = "auto"
NONE = "none"

_SCALAR_SCHEMA: dict[str, Any] = {"type": ["string", "number"]}
_LIST_SCHEMA: dict[str, Any] = {"anyOf": [_SCALAR_SCHEMA, {"type": "array", "items": _SCALAR_SCHEMA}]}


def _as_tuple(value: Any) -> Any:
    """A lone scalar is a list of one, so that `python: 3.11` and `python: [3.11]` say the same."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _each(check: Callable[[str], str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    def apply(values: tuple[str, ...]) -> tuple[str, ...]:
        if not values:
            raise ValueError("the list is empty; leave the key out instead")
        return tuple(check(value) for value in values)

    return apply


def _version(value: str) -> str:
    if value == AUTO:
        return value
    try:
        version = Version(value)
    except InvalidVersion:
        raise ValueError(f"`{value}` is neither a version such as 2.6.0 nor `auto`") from None
    if version.local is not None:
        raise ValueError(f"`{value}` carries a build; say the version here and the build in `variant: {version.local}`")
    return value


def _version_or_none(value: str) -> str:
    return value if value == NONE else _version(value)


def _python(value: str) -> str:
    if value != AUTO and not re.fullmatch(r"3\.\d{1,2}", value):
        raise ValueError(f"`{value}` is not a Python version such as 3.11, nor `auto`")
    return value


def _variant(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cu\d{2,3}", value):
        raise ValueError(f"`{value}` is not a CUDA variant: say cpu, cu118, cu124 ... or `auto`")
    return value


def _base(value: str) -> str:
    if value != AUTO and not re.fullmatch(r"[A-Za-z0-9][\w.\-/:@]*", value):
        raise ValueError(f"`{value}` is not an image reference, `debian:<suite>`, `local:<image>` or `auto`")
    return value


def _package_version(value: str) -> str:
    """`auto`, a version, or a specifier such as `>=0.13,<0.14`."""
    if value == AUTO:
        return value
    try:
        Version(value)
    except InvalidVersion:
        try:
            SpecifierSet(value)
        except InvalidSpecifier:
            raise ValueError(f"`{value}` is neither a version, a specifier such as `>=1.2,<2`, nor `auto`") from None
    return value


def _package_name(value: str) -> str:
    try:
        return canonicalize_name(Requirement(value).name, validate=True)
    except (InvalidRequirement, ValueError):
        raise ValueError(f"`{value}` is not a package name") from None


def _date_or_word(value: str) -> str:
    if not re.fullmatch(r"auto|none|\d{4}-\d{2}-\d{2}", value):
        raise ValueError(f"`{value}` is not a date such as 2023-01-15, `auto` or `none`")
    return value


def _driver(value: str) -> str:
    if not re.fullmatch(r"\d{3}(\.\d+){0,2}", value):
        raise ValueError(f"`{value}` is not a driver version such as 535.129.03")
    return value


def _size(value: str) -> str:
    size_bytes(value)
    return value


def size_bytes(value: str) -> int:
    """`8GiB` as bytes; only binary units, as Docker counts."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(MiB|GiB)", value)
    if not match:
        raise ValueError(f"`{value}` is not a size such as 512MiB or 8GiB")
    return int(float(match[1]) * (2**30 if match[2] == "GiB" else 2**20))


def _apt(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+\-]+(=[\w.+:~\-]+)?", value):
        raise ValueError(f"`{value}` is not the name of an apt package")
    return value


def _user(value: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_\-]{0,30}", value):
        raise ValueError(f"`{value}` is not a user name")
    return value


def _axis(check: Callable[[str], str]) -> Any:
    return Annotated[
        tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(check)), WithJsonSchema(_LIST_SCHEMA)
    ]


def _scalar(check: Callable[[str], str]) -> Any:
    return Annotated[str, AfterValidator(check), WithJsonSchema(_SCALAR_SCHEMA)]


_Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), WithJsonSchema(_LIST_SCHEMA)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Axes(_Strict):
    """One dimension each; every combination of their values is a cell. `auto` leaves the choice to torchproof."""

    torch: _axis(_version) = Field(("auto",), description="exact (2.6.0), a minor line (2.6) or auto")
    variant: _axis(_variant) = Field(("auto",), description="CUDA variant of the torch wheel: cpu, cu118, ...")
    python: _axis(_python) = ("auto",)
    base: _axis(_base) = Field(("auto",), description="debian:<suite>, an image reference, local:<image> or auto")
    transformers: _axis(_version_or_none) = ("auto",)
    onnxruntime: _axis(_version_or_none) = ("none",)
    onnxruntime_gpu: _axis(_version_or_none) = Field(("none",), alias="onnxruntime-gpu")
    packages: dict[str, _axis(_package_version)] = Field(default_factory=dict)  # type: ignore[valid-type]


class Cell(_Strict):
    """A cell written out: under `include` it is added, under `exclude` every cell that agrees with it is dropped."""

    torch: _scalar(_version) | None = None  # type: ignore[valid-type]
    variant: _scalar(_variant) | None = None  # type: ignore[valid-type]
    python: _scalar(_python) | None = None  # type: ignore[valid-type]
    base: _scalar(_base) | None = None  # type: ignore[valid-type]
    transformers: _scalar(_version_or_none) | None = None  # type: ignore[valid-type]
    onnxruntime: _scalar(_version_or_none) | None = None  # type: ignore[valid-type]
    onnxruntime_gpu: _scalar(_version_or_none) | None = Field(None, alias="onnxruntime-gpu")  # type: ignore[valid-type]
    packages: dict[str, _scalar(_package_version)] | None = None  # type: ignore[valid-type]


class IncludedCell(Cell):
    """A cell of its own, which may also have its own GPUs, driver, flavor, apt packages and date limit."""

    gpus: _Names | None = None
    driver: _scalar(_driver) | None = None  # type: ignore[valid-type]
    flavor: Literal["base", "runtime", "devel"] | None = None
    apt: _axis(_apt) | None = None  # type: ignore[valid-type]
    exclude_newer: _scalar(_date_or_word) | None = None  # type: ignore[valid-type]
    allow_source: _axis(_package_name) | None = None  # type: ignore[valid-type]


class PrivateIndex(_Strict):
    """An index for the packages it names and no others. User and password come from the environment (docs)."""

    name: _scalar(_user)  # type: ignore[valid-type]
    url: str
    packages: _axis(_package_name)  # type: ignore[valid-type]


class SmokeSettings(_Strict):
    memory: _scalar(_size) = "8GiB"  # type: ignore[valid-type]
    shm: _scalar(_size) = "1GiB"  # type: ignore[valid-type]
    time_limit: Annotated[str, WithJsonSchema(_SCALAR_SCHEMA), AfterValidator(lambda v: _seconds(v))] = "600"


def _seconds(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}", value):
        raise ValueError(f"`{value}` is not a number of seconds")
    return value


class Matrix(_Strict):
    """A file of `images/`: axes and settings that all of its images share."""

    model_config = ConfigDict(title="torchproof matrix", json_schema_extra={"additionalProperties": False})

    name: _scalar(_user) | None = Field(None, description="default: the file's name")  # type: ignore[valid-type]
    description: str = ""
    axes: Axes | None = None
    include: tuple[IncludedCell, ...] = ()
    exclude: tuple[Cell, ...] = ()
    gpus: _Names = Field((), description="cards that every image must serve, as sold or as the driver names them")
    driver: _scalar(_driver) | None = Field(None, description="oldest NVIDIA driver to serve")  # type: ignore[valid-type]
    flavor: Literal["base", "runtime", "devel"] = "base"
    apt: _axis(_apt) = Field((), description="apt packages")  # type: ignore[valid-type]
    user: _scalar(_user) = "root"  # type: ignore[valid-type]
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    exclude_newer: _scalar(_date_or_word) = Field("auto", description="date limit of packages")  # type: ignore[valid-type]
    allow_source: _axis(_package_name) = Field((), description="built from source")  # type: ignore[valid-type]
    wheelhouse: _Names = Field((), description="folders with wheels, relative to this file")
    indexes: tuple[PrivateIndex, ...] = ()
    require: Literal["L0", "L1", "L2", "L3"] = Field("L2", description="proof below this level fails the run")
    smoke: SmokeSettings = SmokeSettings()


def json_schema() -> dict[str, Any]:
    """JSON Schema of a matrix file, for editors."""
    schema = Matrix.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


# --- cells -----------------------------------------------------------------------------------------------------------

_AXES = ("torch", "variant", "python", "base", "transformers", "onnxruntime", "onnxruntime_gpu")


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
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def label(self) -> str:
        """What was asked, in the form of an image id, for messages about cells that do not resolve."""
        python = f"py{self.python.replace('.', '')}" if self.python != AUTO else "pyauto"
        return f"torch{self.torch}-{self.variant}-{python}"

    @property
    def digest(self) -> str:
        """Over what was asked, in a text form of its own: comments, key order and file name do not count."""
        asked = {
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
        raise _spec_error(text, error) from None
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
        for setting in ("gpus", "driver", "flavor", "apt", "exclude_newer", "allow_source"):
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
    shared = {
        key: text.where((key,))
        for key in ("gpus", "driver", "flavor", "apt", "exclude_newer", "allow_source", "arch", "wheelhouse")
    }
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


# --- errors ----------------------------------------------------------------------------------------------------------


def _spec_error(text: YamlText, error: ValidationError) -> SpecError:
    lines: list[str] = []
    for fault in error.errors():
        path = tuple(part for part in fault["loc"] if isinstance(part, int) or _stands_in_file(part, text))
        lines.append(f"{text.where(path)}: {_fault(fault, path)}")
    lines = sorted(dict.fromkeys(lines), key=_line_number)
    count = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    return SpecError("spec-invalid", f"`{text.file}` has {count}", detail="\n".join(lines))


def _line_number(line: str) -> int:
    match = re.search(r":(\d+):", line)
    return int(match[1]) if match else 0


def _stands_in_file(part: str, text: YamlText) -> bool:
    """Pydantic adds parts of its own to a location (the member of a union); only keys of the file are shown."""
    return any(part in path for path in text.lines) or part in _all_keys()


def _all_keys() -> frozenset[str]:
    models = (Matrix, Axes, Cell, IncludedCell, PrivateIndex, SmokeSettings)
    return frozenset(info.alias or name for model in models for name, info in model.model_fields.items())


def _fault(fault: Mapping[str, Any], path: KeyPath) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "extra_forbidden":
        keys = _keys_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        nearest = f"; did you mean `{near[0]}`?" if near else f"; known here: {', '.join(keys)}"
        return f"no such key{nearest}"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        near = difflib.get_close_matches(str(fault["input"]), allowed, n=1, cutoff=0.4)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        return f"`{fault['input']}` is not one of {', '.join(allowed)}{hint}"
    if kind == "value_error":
        return str(context.get("error", fault["msg"]))
    if kind == "missing":
        return "is missing"
    if kind in {"string_type", "tuple_type", "dict_type", "model_type", "model_attributes_type"}:
        wanted = {"string_type": "one value", "tuple_type": "a list"}.get(kind, "a mapping of keys")
        given = {"tuple": "a list", "dict": "a mapping", "str": "one value"}.get(type(fault["input"]).__name__, "that")
        return f"takes {wanted}, not {given}"
    return str(fault["msg"])


def _keys_at(path: KeyPath) -> list[str]:
    head = path[0] if path else None
    model: type[BaseModel] = {
        "axes": Axes,
        "include": IncludedCell,
        "exclude": Cell,
        "indexes": PrivateIndex,
        "smoke": SmokeSettings,
    }.get(str(head), Matrix)
    return sorted(info.alias or name for name, info in model.model_fields.items())
