"""A conda package spec (`pytorch::pytorch=1.9.0=py3.8_cuda11.1_cudnn8.0.5_0`) -> Request. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.environment import Origin, Request, Unparsed
from builder.inputs import names
from builder.versions import CudaVariant, InvalidVersionError, PythonVersion

_SPEC = re.compile(
    r"(?:(?P<channel>[^\s\[\]=<>!~]+?)::)?(?P<name>[A-Za-z0-9_][\w.-]*)\s*(?P<rest>[^\[\]]*)(?:\[(?P<keys>.*)\])?"
)
_KEY = re.compile(r"(\w+)\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|([^,\s]+))")
_OPERATOR = re.compile(r"(==|>=|<=|!=|~=|=|>|<)?\s*(.*)")
_BLANK_BEFORE = re.compile(r"\s*(==|>=|<=|!=|~=|=|>|<|,|\|)\s*")
_SELECTOR = re.compile(r"sel\(\w+\)\s*:\s*")
_CUDA_DOTTED = re.compile(r"cuda[_-]?(\d{1,2})\.(\d)")
_CUDA_JOINED = re.compile(r"(?:cuda|cu)[_-]?(\d{2,3})(?!\d)")
_CPU = re.compile(r"(^|[_*-])cpu([_*-]|$)")
_CUDA_ANY = re.compile(r"cuda|gpu")


@dataclass(frozen=True)
class _Asked:
    specifier: SpecifierSet
    version: Version | None = None


def parse(text: str, origin: Origin, *, step: int = 0) -> Request | Unparsed:
    """`version` is exact for `==`, for a version with a build, and for `=` with three numbers or more."""
    shown = " ".join(text.split())
    spec = _SELECTOR.sub("", shown.split(" #")[0]).strip()
    match = _SPEC.fullmatch(spec) if len(spec) < 1000 else None
    if match is None:
        why = "it is a template" if "{{" in spec else "it is not a conda package spec"
        return Unparsed(origin, shown[:200], why)
    keys = {key: single or double or bare for key, single, double, bare in _KEY.findall(match["keys"] or "")}
    version, build = _split_rest(match["rest"].strip())
    version, build = keys.get("version", version), keys.get("build", build)
    channel = keys.get("channel", match["channel"])
    if channel is None or channel == "*":
        channel = None
    try:
        asked = _version(version, has_build=build is not None and "*" not in build)
    except InvalidSpecifier:
        return Unparsed(origin, shown[:200], f"`{version[:80]}` is not a conda version")
    name = match["name"]
    written = name.lower()
    variant = CudaVariant("cpu") if written == "pytorch-cpu" else build_variant(build)
    return Request(
        name=names.of_conda(name),
        asked_as=name,
        origin=origin,
        installer="conda",
        step=step,
        text=shown,
        specifier=asked.specifier,
        version=asked.version,
        channel=channel,
        build=build,
        build_variant=variant,
        asks_for_cuda=written == "pytorch-gpu" or (build is not None and _CUDA_ANY.search(build.lower()) is not None),
    )


def _split_rest(rest: str) -> tuple[str, str | None]:
    """Version and build: `=1.2=b`, `==1.2=b`, ` 1.2 b`, ` >=1,<2 b`."""
    rest = _BLANK_BEFORE.sub(r"\1", rest)
    words = rest.split()
    if len(words) == 2:
        return words[0] if words[0][0] in "=<>!~" else f"=={words[0]}", words[1]
    if len(words) == 1 and words[0][0] not in "=<>!~":
        return f"=={words[0]}" if not words[0].endswith("*") else words[0], None
    if len(words) > 2:
        return rest, None
    match = re.fullmatch(r"(={1,2})([^=<>!~,|]+)=([^=<>!~,|]+)", rest)
    if match is not None:
        return f"{match[1]}{match[2]}", match[3]
    return rest, None


def _version(text: str, *, has_build: bool) -> _Asked:
    """InvalidSpecifier for what no conda would take. Versions that are no Python versions give the empty specifier."""
    text = text.strip()
    if text in {"", "*", "=*", "==*", "="}:
        return _Asked(SpecifierSet())
    if "|" in text:
        # Conda takes the best match of all, which the highest alternative bounds.
        # `=3.9|3.10` means `=3.9|=3.10`.
        first = "=" if text[0] == "=" and text[1:2] != "=" else ""
        alternatives = [part if part[:1] in "=<>!~" else first + part for part in text.split("|")[:50]]
        parts = [_version(part, has_build=has_build) for part in alternatives]
        return max(parts, key=lambda part: max((_floor(each.version) for each in part.specifier), default=Version("0")))
    parts_of_and = [part.strip("() ") for part in text.split(",") if part.strip("() ")]
    if len(parts_of_and) > 50:
        raise InvalidSpecifier(text)
    specifier, exact = SpecifierSet(), None
    for part in parts_of_and:
        match = _OPERATOR.fullmatch(part)
        if match is None:
            raise InvalidSpecifier(text)
        operator, value = match[1] or ("=" if len(parts_of_and) > 1 or part.endswith("*") else "=="), match[2].strip()
        if not value or re.search(r"\s", value):
            raise InvalidSpecifier(text)
        found = _one(operator, value, has_build=has_build)
        specifier &= found.specifier
        exact = found.version or exact
    return _Asked(specifier, exact)


def _floor(text: str) -> Version:
    try:
        return Version(text.removesuffix(".*"))
    except InvalidVersion:
        return Version("0")


def _one(operator: str, value: str, *, has_build: bool) -> _Asked:
    is_prefix = value.endswith("*")
    plain = value.rstrip("*").rstrip(".")
    if not plain:
        return _Asked(SpecifierSet())
    try:
        version = Version(plain)
    except InvalidVersion:
        # `1.1.1k`, `9b`, `2020d`: fine for conda, and never a package that rules ask about.
        if re.fullmatch(r"[\w.!+-]+", plain) is None:
            raise InvalidSpecifier(value) from None
        return _Asked(SpecifierSet())
    if operator in {"=", "=="}:
        is_series = (is_prefix or operator == "=") and not (operator == "=" and has_build and not is_prefix)
        is_open = version.local is None and not version.is_prerelease and (len(version.release) < 3 or is_prefix)
        if is_series and is_open:
            return _Asked(SpecifierSet(f"=={version.base_version}.*"))
        return _Asked(SpecifierSet(f"=={version}"), version)
    if operator == "~=" and len(version.release) < 2:
        operator = ">="
    if version.local is not None:
        version = Version(version.public)
    if is_prefix and operator == "!=":
        return _Asked(SpecifierSet(f"!={version}.*"))
    return _Asked(SpecifierSet(f"{operator}{version}"))


def build_variant(build: str | None) -> CudaVariant | None:
    """What a build string says: `py3.8_cuda11.1_cudnn8.0.5_0`, `cuda126_mkl_py312_0`, `py38_cu111`, `cpu_py39`."""
    if build is None:
        return None
    text = build.lower()
    dotted = _CUDA_DOTTED.search(text)
    joined = _CUDA_JOINED.search(text)
    try:
        if dotted is not None:
            return CudaVariant.parse(f"cu{dotted[1]}{dotted[2]}")
        if joined is not None:
            return CudaVariant.parse(f"cu{joined[1]}")
    except InvalidVersionError:
        return None
    return CudaVariant("cpu") if _CPU.search(text) else None


def python_ask(request: Request) -> dict[str, Any]:
    """`version` or `specifier` of a request for `python` itself, as `PythonAsk` takes them."""
    text = None if request.version is None else ".".join(map(str, request.version.release[:3]))
    series = re.fullmatch(r"==(\d+\.\d+)\.\*", str(request.specifier))
    text = series[1] if series is not None else text
    if text is not None:
        try:
            return {"version": PythonVersion.parse(text)}
        except InvalidVersionError:
            return {"specifier": request.specifier}
    return {"specifier": request.specifier} if str(request.specifier) else {}
