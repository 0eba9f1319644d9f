"""Which request decides each package when all install steps have run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from packaging.specifiers import SpecifierSet

from builder.environment import Environment, InForce, Request
from builder.versions import CudaVariant, CudaVersion, InvalidVersionError, PythonVersion


def decide(env: Environment) -> Mapping[str, InForce]:
    """Walks the steps in order, as the installers would leave the environment; names in order of first appearance."""
    live: dict[str, list[Request]] = {}
    replaced: dict[str, list[Request]] = {}
    by_step: dict[int, list[Request]] = {}
    for request in env.requests:
        if request.name and applies(request, env):
            by_step.setdefault(request.step, []).append(request)
    for step in env.steps:
        for name in step.removes:
            replaced.setdefault(name, []).extend(live.pop(name, ()))
        if step.is_sync:
            for name in list(live):
                replaced.setdefault(name, []).extend(live.pop(name))
        grouped: dict[str, list[Request]] = {}
        for request in by_step.get(step.number, ()):
            grouped.setdefault(request.name, []).append(request)
        for name, asked in grouped.items():
            before = live.get(name, [])
            if before and not step.is_upgrade and _stays(before, asked):
                live[name] = [*before, *asked]
                continue
            replaced.setdefault(name, []).extend(before)
            live[name] = asked
    return {name: _state(name, live[name], replaced.get(name, []), env) for name in live}


def _stays(before: list[Request], asked: list[Request]) -> bool:
    """Whether the installer leaves what is there: what is asked now is met by the version asked for before.

    An open range before leaves the installed version unknown here; a later pin then decides, a later range adds up.
    """
    known = next((request.version for request in before if request.version is not None), None)
    for request in asked:
        if request.is_source or request.url is not None:
            return False
        if request.version is not None:
            if known is None or known.public != request.version.public:
                return False
            # `==2.1.0` is met by an installed 2.1.0+cu118; `==2.1.0+cu118` by that build alone.
            if request.version.local is not None and request.version.local != known.local:
                return False
        elif known is not None and not request.specifier.contains(known, prereleases=True):
            return False
    return True


def _state(name: str, live: list[Request], replaced: list[Request], env: Environment) -> InForce:
    deciding = next((request for request in live if request.version is not None), None)
    deciding = deciding or next((request for request in live if request.specifier != SpecifierSet()), live[0])
    return InForce(
        request=deciding,
        also=tuple(request for request in live if request is not deciding),
        replaced=tuple(replaced),
        constraints=tuple(
            bound
            for bound in env.constraints
            if bound.name == name and bound.step == deciding.step and applies(bound, env)
        ),
    )


# Packages that say for which toolkit conda takes torch; the most telling first.
_CONDA_TOOLKITS = ("pytorch-cuda", "cudatoolkit", "cuda-version")


def stated_variant(env: Environment, name: str) -> CudaVariant | None:
    """The CUDA variant that the input itself states for a package: by label, build string, companion or sole index."""
    state = env.in_force().get(name)
    if state is None:
        return None
    if state.variant is not None:
        return state.variant
    request = state.request
    if request.installer == "conda":
        return _conda_variant(env)
    if request.installer == "base-image":
        return None
    settings = env.steps[request.step].indexes
    if settings.torch_backend not in {None, "auto"}:
        return CudaVariant.of_local(settings.torch_backend)
    if request.index is not None:
        return request.index.variant
    indexes = [index for index in settings.of(name) if index.kind != "other"]
    variants = {index.variant for index in indexes}
    return indexes[0].variant if len(variants) == 1 and len(indexes) == len(settings.of(name)) else None


def _conda_variant(env: Environment) -> CudaVariant | None:
    found = env.in_force()
    if "cpuonly" in found:
        return CudaVariant("cpu")
    for name in _CONDA_TOOLKITS:
        if name not in found:
            continue
        asked = found[name].version
        text = str(asked) if asked is not None else str(found[name].specifier).removeprefix("==").removesuffix(".*")
        try:
            return CudaVariant.parse(CudaVersion.parse(".".join(text.split(".")[:2])).variant)
        except InvalidVersionError:
            continue
    return None


# Where no Python is said, a marker counts as holding if it holds for any of these.
_PYTHONS = tuple(PythonVersion((3, minor)) for minor in range(6, 16))


def applies(request: Request, env: Environment, python: PythonVersion | None = None) -> bool:
    """Whether the marker holds on the machine asked about; one that hangs on something unsaid counts as holding.

    `python` is what is assumed where none was said.
    """
    if request.marker is None:
        return True
    said = (env.python.version if env.python is not None else None) or python
    return _holds(request.marker, "linux" if env.os is None else env.os.family, env.arch or "x86_64", said)


@lru_cache(maxsize=2048)
def _holds(text: str, family: str, arch: str, python: PythonVersion | None) -> bool:
    from packaging.markers import (  # noqa: PLC0415 - few files have markers, and it costs 15 ms
        InvalidMarker,
        Marker,
        UndefinedComparison,
        UndefinedEnvironmentName,
    )

    try:
        marker = Marker(text)
        return any(marker.evaluate(_machine(family, arch, each)) for each in ((python,) if python else _PYTHONS))
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, ValueError, RecursionError):
        return True


def _machine(family: str, arch: str, python: PythonVersion) -> dict[str, str]:
    """Every marker variable, so that nothing of the machine that runs this shows through."""
    system = {"windows": ("win32", "nt", "Windows"), "macos": ("darwin", "posix", "Darwin")}
    platform, os_name, name = system.get(family, ("linux", "posix", "Linux"))
    full = str(python) if len(python.parts) == 3 else f"{python}.99"
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": os_name,
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": name,
        "platform_version": "",
        "python_full_version": full,
        "python_version": str(python.series),
        "sys_platform": platform,
    }
