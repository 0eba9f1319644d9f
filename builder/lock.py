"""Resolution -> ImageLock by uv: every wheel of the target, exact, with its hash."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from builder import build_requirements, pylock, uv_errors, uv_tool
from builder.errors import SpecError, TorchproofError
from builder.lockfile import TORCH_FAMILY, ImageLock, LockedPackage, group_of
from builder.pylock import Target
from builder.resolution import Resolution
from builder.sources import Sources
from builder.staleness import staleness
from builder.uv_tool import ON_TORCH_INDEX, Outcome, Question, Uv
from builder.versions import CudaVersion

__all__ = ["lock", "staleness"]

# The torch index in the temporary project. uv takes its credentials from UV_INDEX_TORCH_USERNAME and _PASSWORD.
_TORCH = "torch"


def _ignore(line: str) -> None:
    pass


def lock(
    resolution: Resolution,
    sources: Sources,
    cache_dir: Path | None = None,
    on_line: Callable[[str], None] = _ignore,
    *,
    base_digest: str | None = None,
) -> ImageLock:
    """The lock of one image. `cache_dir` is uv's cache (None: uv's own); `on_line` gets progress and warnings."""
    sources = sources.with_folders(resolution.wheelhouses)
    with tempfile.TemporaryDirectory(prefix="torchproof-lock-") as folder:
        wheels = _admitted_wheels(resolution, sources, Path(folder) / "wheelhouse")
        plan = _plan(resolution, sources, wheels)
        work = _Work(
            resolution=resolution,
            plan=plan,
            uv=Uv(
                python_version=_python_version(resolution),
                platform=uv_tool.platform_for(resolution.arch, resolution.glibc),
                sources=sources,
                folder=Path(folder),
                wheels=Path(folder) / "wheelhouse" if wheels else None,
                cache_dir=cache_dir,
                on_line=on_line,
            ),
            on_line=on_line,
        )
        packages, is_dated = work.packages()
        _verify_variant(resolution, packages)
        build_packages = work.build_packages(packages, is_dated=is_dated)
    return ImageLock(
        image_id=resolution.image_id,
        spec_name=resolution.spec_name,
        spec_digest=resolution.spec_digest,
        facts_generated=resolution.facts_generated,
        python=resolution.python,
        arch=resolution.arch,
        glibc=resolution.glibc,
        torch=resolution.torch,
        variant=resolution.variant,
        flavor=resolution.flavor,
        user=resolution.user,
        driver_floor=resolution.driver_floor,
        exclude_newer=resolution.exclude_newer,
        exclude_newer_applied=is_dated,
        apt=resolution.apt,
        allow_source=_allowed(resolution),
        base=resolution.base,
        base_digest=base_digest,
        gpus=resolution.gpus,
        packages=packages,
        build_packages=build_packages,
    )


def _allowed(resolution: Resolution) -> tuple[str, ...]:
    return tuple(sorted({canonicalize_name(name) for name in resolution.allow_source}))


def _python_version(resolution: Resolution) -> str:
    """With the patch number of the base where it is known: some wheels ask for more than 3.9.0."""
    exact = resolution.base.python or ""
    return exact if exact.startswith(f"{resolution.python}.") else resolution.python


def _target(resolution: Resolution) -> Target:
    return Target(python=resolution.python, arch=resolution.arch, glibc=resolution.glibc)


def _admitted_wheels(resolution: Resolution, sources: Sources, view: Path) -> dict[str, Path]:
    """Links in `view` to the files of the wheel folders, without builds of the torch family for another variant.

    uv takes `2.6.0+cpu` for `==2.6.0` and prefers it to the index's own 2.6.0: the wrong one must not be in sight.
    """
    wheels = sources.local_wheels()
    view.mkdir()
    admitted = {
        filename: path
        for filename, path in sources.local_files().items()
        if filename not in wheels
        or wheels[filename][0] not in TORCH_FAMILY
        or parse_wheel_filename(filename)[1].local in {None, resolution.variant}
    }
    for filename, path in admitted.items():
        (view / filename).symlink_to(path.resolve())
    return admitted


# --- what is asked ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """`exclusive`: package -> the explicit index that alone may serve it, whoever asks for it.

    `on_torch` is what the PyTorch wheel index serves, by `backend` (uv knows the address) or as an explicit index.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    direct: frozenset[str]
    explicit: Mapping[str, str]
    exclusive: Mapping[str, str]
    backend: str | None
    on_torch: frozenset[str]
    undated: frozenset[str]

    def source_of(self, routes: Mapping[str, str]) -> Callable[[str], str]:
        """What the lock says about where a package came from, when `routes` were the last question's."""

        def source(name: str) -> str:
            if self.backend:
                return "torch-index" if name in self.on_torch else routes.get(name, "index")
            return "torch-index" if routes.get(name) == _TORCH else routes.get(name, "index")

        return source


def _plan(resolution: Resolution, sources: Sources, wheels: Mapping[str, Path]) -> _Plan:
    wanted = [item for item in resolution.requirements if not item.bound_only]
    named: dict[str, str] = {
        canonicalize_name(name): index.name for index in resolution.indexes for name in index.packages
    }
    known = {index.name for index in resolution.indexes}
    for item in wanted:
        if item.index not in {"default", "torch", *known}:
            # Looking it up on the package index instead could take a stranger's package of the same name.
            raise SpecError(
                "unknown-index", f"`{item.text}` is to come from `{item.index}`, which is no index of the spec"
            )
    named |= {_name(item.text): item.index for item in wanted if item.index in known}
    texts = {_name(item.text): item.text for item in wanted}
    family = {_name(item.text) for item in wanted if item.index == "torch"} - set(named)
    if resolution.variant_is_default:
        family = set()
    elif "torch" in family and resolution.arch == "x86_64":
        texts["torch"] = _with_variant(texts["torch"], resolution.variant)
    pins = _local_pins({name: texts[name] for name in family}, wheels, _target(resolution), resolution.variant)
    texts |= pins
    uses_torch_index = bool(family) and not pins
    torch_url = sources.torch_index_for(resolution.variant) if uses_torch_index else None
    on_torch = frozenset((ON_TORCH_INDEX | family) - set(named)) if uses_torch_index else frozenset[str]()
    explicit = {index.name: index.url for index in resolution.indexes}
    exclusive = dict(named)
    if torch_url:
        explicit[_TORCH] = torch_url
        exclusive |= dict.fromkeys(on_torch, _TORCH)
    # A pin is what the user wants whatever its date; files of an index for a few packages need not have dates at all.
    pinned = {name for name, text in texts.items() if _is_pin(text)}
    return _Plan(
        requirements=tuple(texts[name] for name in sorted(texts)),
        constraints=tuple(sorted(item.text for item in resolution.requirements if item.bound_only)),
        direct=frozenset(texts),
        explicit=explicit,
        exclusive=exclusive,
        backend=resolution.variant if uses_torch_index and not torch_url else None,
        on_torch=on_torch,
        undated=frozenset(pinned | set(exclusive) | on_torch),
    )


def _name(text: str) -> str:
    return canonicalize_name(Requirement(text).name)


def _is_pin(text: str) -> bool:
    return any(one.operator in {"==", "==="} and "*" not in one.version for one in Requirement(text).specifier)


def _with_variant(text: str, variant: str) -> str:
    """`torch==2.6.0` as `torch==2.6.0+cpu`. On aarch64 old wheels of the PyTorch index carry no label."""
    requirement = Requirement(text)
    pins = [one.version for one in requirement.specifier if one.operator == "=="]
    if len(pins) == 1 and "+" not in pins[0] and "*" not in pins[0]:
        return f"{requirement.name}=={pins[0]}+{variant}"
    return text


def _local_pins(texts: Mapping[str, str], wheels: Mapping[str, Path], target: Target, variant: str) -> dict[str, str]:
    """Package -> exact requirement, when the wheel folders hold all of `texts` for the target; else nothing."""
    pins: dict[str, str] = {}
    for name, text in texts.items():
        specifier = Requirement(text).specifier
        fitting = [
            version
            for filename in wheels
            if target.rank(filename) is not None
            for project, version, _, _ in [parse_wheel_filename(filename)]
            if project == name and specifier.contains(version, prereleases=True)
            if name != "torch" or version.local == variant
        ]
        if not fitting:
            return {}
        pins[name] = f"{name}=={max(fitting)}"
    return pins


# --- asking ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Work:
    resolution: Resolution
    plan: _Plan
    uv: Uv
    on_line: Callable[[str], None]

    def packages(self) -> tuple[tuple[LockedPackage, ...], bool]:
        """Everything the image gets, and whether the date limit held."""
        plan = self.plan
        question = Question(
            requirements=plan.requirements,
            constraints=plan.constraints,
            explicit=plan.explicit,
            torch_backend=plan.backend,
            exclude_newer=self.resolution.exclude_newer,
            undated=plan.undated,
            from_source=frozenset(_allowed(self.resolution)),
        )
        self.on_line(
            f"resolving {len(plan.requirements)} requirements for Python {self.resolution.python}, "
            f"{self.resolution.arch}, glibc {self.resolution.glibc}"
        )
        question, outcome = self._routed(question)
        if not outcome.is_solved and question.exclude_newer and outcome.missing_upload_times:
            self.on_line("warning: the package index tells no upload times, so no date limit can be applied")
            question, outcome = self._routed(replace(question, exclude_newer=None))
        if not outcome.is_solved:
            raise self._failure(question, outcome)
        packages = pylock.read(outcome.pylock, _target(self.resolution), source_of=plan.source_of(question.routes))
        return packages, bool(question.exclude_newer)

    def _routed(self, question: Question) -> tuple[Question, Outcome]:
        """Ask until every package with an index of its own came from there, however deep in the tree it was found."""
        refused: set[str] = set()
        routes = {name: index for name, index in self.plan.exclusive.items() if name in self.plan.direct}
        while True:
            question = replace(question, routes=routes)
            outcome = self.uv.ask(question)
            if outcome.is_solved:
                seen = set(pylock.versions(outcome.pylock))
            else:
                seen = set(uv_errors.absent(outcome))
                # A mirror of the PyTorch index may lack triton; the package index has it too. Never a direct one.
                lacking = {name for name in seen if routes.get(name) == _TORCH and name not in self.plan.direct}
                if lacking:
                    refused |= lacking
                    routes = {name: index for name, index in routes.items() if name not in lacking}
                    continue
            candidates = dict(self.plan.exclusive)
            if _TORCH in self.plan.explicit and not outcome.is_solved:
                # CUDA libraries that only the PyTorch index has.
                candidates |= {name: _TORCH for name in seen if group_of(name) == "cuda"}
            more = {name: candidates[name] for name in seen if name in candidates and name not in {*routes, *refused}}
            if not more:
                return question, outcome
            routes = {**routes, **more}

    def _failure(self, question: Question, outcome: Outcome) -> TorchproofError:
        indexes = uv_errors.Indexes(
            variant=self.resolution.variant,
            torch_url=self.plan.explicit.get(_TORCH),
            on_torch=self.plan.on_torch,
            named={
                index.name: (index.url, frozenset(canonicalize_name(name) for name in index.packages))
                for index in self.resolution.indexes
            },
        )
        failure = uv_errors.Failure(outcome=outcome, question=question, indexes=indexes, resolution=self.resolution)
        return failure.error(self.uv.ask)

    def build_packages(self, packages: tuple[LockedPackage, ...], *, is_dated: bool) -> tuple[LockedPackage, ...]:
        """What builds the source archives among `packages`, as old as they are."""
        archives = [package for package in packages if package.kind == "sdist"]
        if not archives:
            return ()
        requirements: set[str] = set()
        for package in archives:
            folder = self.uv.cached_sources(package.name, package.version)
            local = self.uv.wheels / package.filename if self.uv.wheels and package.source == "wheelhouse" else None
            requirements |= build_requirements.of(package, folder=folder, archive=local)
        self.on_line(f"resolving what builds {', '.join(package.name for package in archives)}")
        question = Question(
            requirements=tuple(sorted(requirements)),
            exclude_newer=self.resolution.exclude_newer if is_dated else None,
        )
        outcome = self.uv.ask(question)
        if not outcome.is_solved:
            raise self._failure(question, outcome)
        return pylock.read(outcome.pylock, _target(self.resolution), source_of=lambda _: "index")


# --- what came back --------------------------------------------------------------------------------------------------


def _verify_variant(resolution: Resolution, packages: tuple[LockedPackage, ...]) -> None:
    """Raise when another build of torch came than was resolved: every later claim about the GPU rests on it."""
    found = {package.name: package for package in packages}
    torch = found.get("torch")
    faults: list[str] = []
    if torch is None:
        faults.append("no package asks for torch")
    elif Version(torch.version).public != Version(resolution.torch).public:
        faults.append(f"torch {torch.version} was found")
    for name in sorted(TORCH_FAMILY & set(found)):
        label = Version(found[name].version).local
        if label not in {None, resolution.variant}:
            faults.append(f"{name} {found[name].version} was found")
        elif (
            name == "torch"
            and label is None
            and not resolution.variant_is_default
            and (found[name].source not in {"torch-index", *(index.name for index in resolution.indexes)})
        ):
            faults.append(f"torch {found[name].version} does not say that it is built for {resolution.variant}")
    # The default build has no label; the CUDA runtime that it pins tells.
    runtimes = [package for package in packages if package.name.startswith("nvidia-cuda-runtime")]
    if resolution.variant != "cpu" and runtimes:
        built = CudaVersion.from_variant(resolution.variant)
        if all(CudaVersion.parse(package.version).series != built for package in runtimes):
            faults += [f"{package.name} {package.version} came with it" for package in runtimes]
    if faults:
        raise uv_errors.conflict(
            "wrong-variant",
            f"`{resolution.image_id}` cannot be locked",
            because=[f"torch {resolution.torch} for {resolution.variant} is resolved", *faults],
            conclusion="the wheel sources of this machine offer another build",
        )
