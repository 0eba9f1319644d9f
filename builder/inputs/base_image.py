"""The reference behind FROM -> what it says: repository, tag parts, toolkit, flavor, distribution. Pure."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from builder.environment import BaseImage, Flavor, Origin
from builder.versions import CudaVersion, InvalidVersionError, PythonVersion

_REFERENCE = re.compile(r"(?P<path>[^@\s]+?)(?::(?P<tag>[\w][\w.-]*))?(?:@(?P<digest>[a-z0-9]+:[0-9a-fA-F]+))?")
_CUDA = re.compile(r"(?<![a-z])(?:cuda|cu)[-_]?(\d{1,2}\.\d(?:\.\d+)?|\d{2,4}(?!\d|\.))", re.IGNORECASE)
_CUDNN = re.compile(r"cudnn(\d*)", re.IGNORECASE)
_FLAVOR = re.compile(r"(?:^|[-_])(base|runtime|devel)(?:[-_]|$)")
_DISTRIBUTION = re.compile(
    r"(?:^|[-_])(ubuntu|debian|ubi|centos|rockylinux|almalinux|amazonlinux|opensuse|alpine|oraclelinux|fedora)"
    r"[-_]?(\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
_CODENAME = re.compile(
    r"(?:^|[-_])(stretch|buster|bullseye|bookworm|trixie|bionic|focal|jammy|noble|resolute)(?:[-_]|$)"
)
_PYTHON = re.compile(r"(?:^|[-_])py(?:thon)?[-_]?(\d\.\d+(?:\.\d+)?|3\d{1,2})(?:[-_]|$)", re.IGNORECASE)
_UBUNTU_NAMES = frozenset({"bionic", "focal", "jammy", "noble", "resolute"})
_SYSTEMS = frozenset({"ubuntu", "debian", "centos", "rockylinux", "almalinux", "amazonlinux", "oraclelinux", "alpine"})


def parse(reference: str, origin: Origin, *, stage: str | None = None, platform: str | None = None) -> BaseImage:
    """Never fails; what the reference does not say is None."""
    text = reference.strip()[:1000]
    match = _REFERENCE.fullmatch(text)
    path, tag, digest = (match["path"], match["tag"], match["digest"]) if match else (text, None, None)
    registry, repository = _registry(path)
    name = repository.rsplit("/", 1)[-1]
    # Some people build their tags into the name: `openmpi4.1.0-cuda11.0.3-cudnn8-ubuntu18.04`.
    parts = tag or ("" if repository.endswith("/cuda") else name)
    words = f"{name}-{parts}" if tag is not None else parts
    cudnn = _CUDNN.search(parts)
    flavor = _FLAVOR.search(parts)
    return BaseImage(
        reference=text,
        origin=origin,
        repository=repository,
        registry=registry,
        tag=tag,
        digest=digest,
        stage=stage,
        platform=platform,
        toolkit=_toolkit(name, parts, words),
        cudnn=None if cudnn is None else int(cudnn[1][:2] or 0),
        flavor=_flavor(flavor[1]) if flavor else None,
        distribution=_distribution(name, tag, parts),
        python=_python(name, tag, parts),
        torch=_torch(name, tag),
    )


def _registry(path: str) -> tuple[str | None, str]:
    first, slash, rest = path.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest.removeprefix("library/")
    return None, path.removeprefix("library/")


def _flavor(text: str) -> Flavor:
    return "base" if text == "base" else "runtime" if text == "runtime" else "devel"


def _toolkit(name: str, parts: str, words: str) -> CudaVersion | None:
    if name == "cuda":
        first = re.match(r"(\d{1,2}\.\d(?:\.\d+)?)(?:-|$)", parts)
        found = first[1] if first else None
    else:
        match = _CUDA.search(parts) or _CUDA.search(words)
        found = match[1] if match else None
    if found is None:
        return None
    if len(found) == 4 and found.isdigit():  # `cu1281` is 12.8.1
        found = f"{found[:2]}.{found[2]}.{found[3]}"
    try:
        return CudaVersion.parse(found) if "." in found else CudaVersion.from_variant(f"cu{found}")
    except InvalidVersionError:
        return None


def _distribution(name: str, tag: str | None, parts: str) -> str | None:
    if name in _SYSTEMS and tag is not None:
        release = re.match(r"(\d+(?:\.\d+)?|[a-z]+)(?:-|$)", tag)
        return f"{name}:{release[1]}" if release and release[1] not in {"latest", "stable", "rolling"} else None
    match = _DISTRIBUTION.search(parts)
    if match is not None:
        number = f"{match[2][:2]}.{match[2][2:]}" if re.fullmatch(r"\d{4}", match[2]) else match[2]
        return f"{match[1].lower()}{number}"
    codename = _CODENAME.search(parts)
    if codename is not None:
        return f"{'ubuntu' if codename[1] in _UBUNTU_NAMES else 'debian'}:{codename[1]}"
    return None


def _python(name: str, tag: str | None, parts: str) -> PythonVersion | None:
    found = None
    if name in {"python", "pypy"} and tag is not None:
        match = re.match(r"(\d\.\d+(?:\.\d+)?)(?:[-a-z]|$)", tag)
        found = match[1] if match else None
    elif (match := _PYTHON.search(parts)) is not None:
        # `py310` is 3.10; the bare `py3` of vendor tags says nothing and does not match.
        found = match[1] if "." in match[1] else f"{match[1][0]}.{match[1][1:]}"
    try:
        return None if found is None else PythonVersion.parse(found)
    except InvalidVersionError:
        return None


def _torch(name: str, tag: str | None) -> Version | None:
    """`pytorch/pytorch:2.1.2-cuda12.1-cudnn8-runtime` and those who name their tags alike."""
    if name != "pytorch" or tag is None:
        return None
    joined = re.search(r"(?:^|-)torch(\d)(\d{1,2})(\d)(?:-|$)", tag)  # `torch280`, behind the image's own version
    if joined is not None:
        return Version(f"{joined[1]}.{joined[2]}.{joined[3]}")
    match = re.match(r"(?:pytorch-?|torch-?|th)?v?(\d\.\d+(?:\.\d+)?(?:\.dev\d+)?)(?:-|$)", tag)
    try:
        return None if match is None else Version(match[1])
    except InvalidVersion:
        return None
