"""What a value of a spec may be: each kind checked by one function, whose message says what is taken instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

AUTO = "auto"
NONE = "none"
PROVIDERS = ("apt", "conda", "uv")

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


def _provider(value: str) -> str:
    if value not in PROVIDERS:
        raise ValueError(f"`{value}` provides no Python: say apt, conda or uv, or a list of them in order")
    return value


def _conda_spec(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_][\w.\-]*( ?[=<>!~][^\s#'\"]*)*", value):
        raise ValueError(f"`{value}` is not a conda package such as `ffmpeg` or `libsndfile>=1.2`")
    return value


def _channel(value: str) -> str:
    if not re.fullmatch(r"[\w.\-]+(/[\w.\-]+)*|(https?|file)://[^\s@'\"]+", value):
        raise ValueError(f"`{value}` is not a channel: say a name such as conda-forge, or a URL without credentials")
    return value


def _seconds(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}", value):
        raise ValueError(f"`{value}` is not a number of seconds")
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), WithJsonSchema(_LIST_SCHEMA)]
VersionAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_version)), WithJsonSchema(_LIST_SCHEMA)
]
VersionText = Annotated[str, AfterValidator(_version), WithJsonSchema(_SCALAR_SCHEMA)]
VersionOrNoneAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_version_or_none)), WithJsonSchema(_LIST_SCHEMA)
]
VersionOrNoneText = Annotated[str, AfterValidator(_version_or_none), WithJsonSchema(_SCALAR_SCHEMA)]
PythonAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_python)), WithJsonSchema(_LIST_SCHEMA)
]
PythonText = Annotated[str, AfterValidator(_python), WithJsonSchema(_SCALAR_SCHEMA)]
VariantAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_variant)), WithJsonSchema(_LIST_SCHEMA)
]
VariantText = Annotated[str, AfterValidator(_variant), WithJsonSchema(_SCALAR_SCHEMA)]
BaseAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_base)), WithJsonSchema(_LIST_SCHEMA)
]
BaseText = Annotated[str, AfterValidator(_base), WithJsonSchema(_SCALAR_SCHEMA)]
PackageVersionAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_package_version)), WithJsonSchema(_LIST_SCHEMA)
]
PackageVersionText = Annotated[str, AfterValidator(_package_version), WithJsonSchema(_SCALAR_SCHEMA)]
PackageNameAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_package_name)), WithJsonSchema(_LIST_SCHEMA)
]
DateOrWordText = Annotated[str, AfterValidator(_date_or_word), WithJsonSchema(_SCALAR_SCHEMA)]
DriverText = Annotated[str, AfterValidator(_driver), WithJsonSchema(_SCALAR_SCHEMA)]
SizeText = Annotated[str, AfterValidator(_size), WithJsonSchema(_SCALAR_SCHEMA)]
AptNameAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_apt)), WithJsonSchema(_LIST_SCHEMA)
]
UserNameText = Annotated[str, AfterValidator(_user), WithJsonSchema(_SCALAR_SCHEMA)]
SecondsText = Annotated[str, AfterValidator(_seconds), WithJsonSchema(_SCALAR_SCHEMA)]
ProviderAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_provider)), WithJsonSchema(_LIST_SCHEMA)
]
CondaSpecAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_conda_spec)), WithJsonSchema(_LIST_SCHEMA)
]
ChannelAxis = Annotated[
    tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_each(_channel)), WithJsonSchema(_LIST_SCHEMA)
]
