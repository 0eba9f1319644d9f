"""Environment + Catalog -> Outcome: walks the install steps in order, as pip, uv and conda would. Pure, no network.

Each step is solved over the releases of the facts (solver.py) with what is installed already; a later step may replace
torch. The CUDA variant follows from the local label, the index, the build string or the image, in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog import AmbiguousGpuError, Catalog
from builder.catalog_rows.base import Arch
from builder.catalog_rows.gpus import Gpu
from builder.catalog_rows.torch_parts import COMPANIONS
from builder.environment import Environment, InstallStep, Request
from builder.in_force import applies
from builder.index_builds import IndexView
from builder.inputs.names import canonical
from builder.outcome import Chosen, Conflicting, Outcome, Replaced
from builder.shelf import Offer, Shelf, shelf_of
from builder.solver import Solution, Want, solve
from builder.versions import CudaVariant, GlibcVersion, PythonVersion

TORCH_FAMILY = ("torch", *COMPANIONS)
# Images that hold a system, a Python or CUDA, and no Python packages of their own.
_PLAIN_IMAGES = frozenset(
    {
        "almalinux", "amazonlinux", "centos", "condaforge/mambaforge", "condaforge/miniforge3",
        "continuumio/miniconda3", "debian", "fedora", "mambaorg/micromamba", "nvidia/cuda",
        "nvidia/cudagl", "python", "redhat/ubi8",
        "redhat/ubi9", "rockylinux", "scratch", "ubuntu",
    }
)  # fmt: skip
_PYTHONS = tuple(PythonVersion((3, minor)) for minor in range(6, 16))


def outcome(env: Environment, catalog: Catalog) -> Outcome:
    env = _with_arch(env, catalog)
    arch: Arch = env.arch or "x86_64"
    shelf = shelf_of(catalog, arch)
    today = _today(env, catalog)
    python, python_says = _python(env, catalog)
    pythons = (python,) if python is not None else _pythons_of_pins(env, shelf, _possible_pythons(env, shelf, today))
    assumed = python or (pythons[-1] if pythons else None)
    run = _Run(env, catalog, shelf, today, arch, assumed, pythons)
    for step in env.steps:
        run.take(step)
    glibc, glibc_says = _glibc(env, catalog)
    return Outcome(
        env=env,
        catalog=catalog,
        shelf=shelf,
        today=today,
        arch=arch,
        python=python,
        python_says=python_says,
        assumed_python=assumed,
        glibc=glibc,
        glibc_says=glibc_says,
        gpus=tuple((ask, _gpu(ask.name, catalog)) for ask in env.gpus),
        packages=run.state,
        replaced=tuple(run.replaced),
        conflicts=tuple(run.conflicts),
        undecided=tuple(run.undecided),
    )


def _with_arch(env: Environment, catalog: Catalog) -> Environment:
    """Cards that are sold with an ARM processor say the architecture where nobody does."""
    if env.arch is not None or not env.gpus or env.platforms:
        return env
    gpus = [_gpu(ask.name, catalog) for ask in env.gpus]
    if any(gpu is None or gpu.host != "aarch64" for gpu in gpus):
        return env
    return replace(env, arch="aarch64", arch_origin=None)


def _gpu(name: str, catalog: Catalog) -> Gpu | None:
    try:
        return catalog.gpu(name)
    except AmbiguousGpuError:
        return None


def _today(env: Environment, catalog: Catalog) -> date:
    if env.date is None or (env.date.after and env.date.day < catalog.generated):
        return catalog.generated
    return env.date.day


def _python(env: Environment, catalog: Catalog) -> tuple[PythonVersion | None, str]:
    asked = env.python
    if asked is not None and asked.version is not None:
        return asked.version, f"{asked.origin} says Python {asked.version} ({asked.means})"
    base = env.base
    if asked is None and base is not None:
        if base.python is not None:
            return base.python, f"{base.origin}: {base.reference} holds Python {base.python}"
        for row in catalog.hazards.all("base_images"):
            if row.text("repository") != base.repository or row.get("python") is None:
                continue
            if not row.get("torch") or (base.torch is not None and base.torch in SpecifierSet(row.text("torch"))):
                return PythonVersion.parse(row.text("python")), row.fact
    return None, ""


def _possible_pythons(env: Environment, shelf: Shelf, today: date) -> tuple[PythonVersion, ...]:
    """Those that it could be where none is said for certain, oldest first."""
    asked, base = env.python, env.base
    if asked is None and base is not None and base.distribution is not None and not _has_conda(env):
        found = shelf.catalog.distribution(base.distribution)
        # The others keep an old Python for themselves, and people install a newer one beside it.
        is_used = found is not None and found.name in {"debian", "ubuntu"}
        if found is not None and is_used and _lets_in_pinned(env, shelf, found.python):
            return (found.python,)
    known = {row.version for row in shelf.catalog.cpython_releases() if row.first_release <= today}
    return tuple(
        python
        for python in _PYTHONS
        if python in known and (asked is None or asked.specifier is None or python.satisfies(asked.specifier))
    )


def _lets_in_pinned(env: Environment, shelf: Shelf, python: PythonVersion) -> bool:
    """Where the system's own Python takes no pinned torch, the person has another one."""
    state = env.in_force().get("torch")
    offer = None if state is None or state.version is None else shelf.offer("torch", state.version)
    return offer is None or offer.lets_in(python)


def _pythons_of_pins(env: Environment, shelf: Shelf, pythons: tuple[PythonVersion, ...]) -> tuple[PythonVersion, ...]:
    """Those of them that everything pinned has wheels for: what a person would most likely have, the newest last."""
    fits = list(pythons)
    for name, state in env.in_force().items():
        offer = None if state.version is None or not shelf.knows(name) else shelf.offer(name, state.version)
        if offer is not None:
            fits = [
                python
                for python in fits
                if offer.has_wheel(python)
                and (offer.requires_python is None or python.satisfies(offer.requires_python))
            ] or fits
    return tuple(fits)


def _has_conda(env: Environment) -> bool:
    return any(step.installer == "conda" for step in env.steps)


def _glibc(env: Environment, catalog: Catalog) -> tuple[GlibcVersion | None, str]:
    if env.glibc is not None:
        return env.glibc, f"{env.glibc_origin} says glibc {env.glibc}"
    for distribution, origin, text in (
        (
            None if env.base is None else env.base.distribution,
            env.base and env.base.origin,
            env.base and env.base.reference,
        ),
        (None if env.os is None else env.os.distribution, env.os and env.os.origin, env.os and env.os.text),
    ):
        found = None if distribution is None else catalog.distribution(distribution)
        if found is not None:
            return found.glibc, f"{origin}: {text} has glibc {found.glibc}"
    return None, ""


class _Run:
    def __init__(
        self,
        env: Environment,
        catalog: Catalog,
        shelf: Shelf,
        today: date,
        arch: Arch,
        python: PythonVersion | None,
        pythons: tuple[PythonVersion, ...],
    ) -> None:
        self.env = env
        self.catalog = catalog
        self.shelf = shelf
        self.today = today
        self.arch = arch
        self.python = python
        self.pythons = pythons
        self.state: dict[str, Chosen] = {}
        self.replaced: list[Replaced] = []
        self.conflicts: list[Conflicting] = []
        self.undecided: list[InstallStep] = []
        self._requests: dict[int, list[Request]] = {}
        for request in env.requests:
            if request.name and applies(request, env):
                self._requests.setdefault(request.step, []).append(request)

    def take(self, step: InstallStep) -> None:
        for name in step.removes:
            self.state.pop(name, None)
        if step.is_sync:
            self.state.clear()
        requests = self._requests.get(step.number, [])
        if step.is_sync:
            requests = self._one_fork(requests)
        if not requests:
            return
        view = IndexView(self.env, self.catalog, step, requests, self.arch)
        wants = [self._want(request) for request in requests]
        wants += [
            replace(self._want(bound), is_bound_only=True)
            for bound in self.env.constraints
            if bound.step == step.number and applies(bound, self.env)
        ]
        asked = {request.name for request in requests}
        solution = self._solved(step, wants, view, asked)
        self._put(step, requests, solution, view, asked)

    def _one_fork(self, requests: list[Request]) -> list[Request]:
        """A lock holds a package once for each kind of machine; what the markers leave open is the last one's."""
        by_name: dict[str, list[Request]] = {}
        for request in requests:
            by_name.setdefault(request.name, []).append(request)
        kept = []
        for group in by_name.values():
            fits = [one for one in group if applies(one, self.env, self.python)] if len(group) > 1 else group
            kept.append((fits or group)[-1])
        return kept

    def _want(self, request: Request) -> Want:
        version = request.version
        bound = SpecifierSet(f"=={version.public}") if version is not None else request.specifier
        says = f"{request.origin} asks for {request.name}{request.asks}"
        return Want(request.name, bound, says, tuple(map(canonical, request.extras)), version)

    def _solved(self, step: InstallStep, wants: list[Want], view: IndexView, asked: set[str]) -> Solution:
        installed = {
            name: chosen.version
            for name, chosen in self.state.items()
            if chosen.version is not None and not (step.is_upgrade and name in asked)
        }
        if step.no_deps or self._is_lock(step):
            # What is listed is what comes: nothing else is looked for.
            wants = [want for want in wants if want.version is not None or not step.no_deps]
        keeps = _keeps_for(view)
        found = solve(
            wants,
            self.shelf,
            python=self.python,
            pythons=self.pythons,
            today=self.today.isoformat(),
            installed=installed,
            keeps=keeps,
        )
        if not found.is_decided:
            self.undecided.append(step)
        if found.failure is not None and not step.no_deps:
            self.conflicts.append(Conflicting(step=step, failure=found.failure))
        return found

    def _is_lock(self, step: InstallStep) -> bool:
        return step.is_sync

    def _put(
        self,
        step: InstallStep,
        requests: list[Request],
        solution: Solution,
        view: IndexView,
        asked: set[str],
    ) -> None:
        by_name: dict[str, Request] = {}
        for request in requests:
            kept = by_name.get(request.name)
            if kept is None or (kept.version is None and (request.version is not None or not kept.asks)):
                by_name[request.name] = request
        for name, request in by_name.items():
            offer = solution.chosen.get(name)
            version = request.version or (offer.version if offer is not None else None)
            if name == "torch" and request.version is None and request.is_source:
                version = offer = None  # a build of one's own: the newest release says nothing about it
            if version is not None and offer is not None and version.local is None:
                version = offer.version  # `1.10` is written 1.10.0
            self._set(step, self._chosen(step, name, version, request, None, offer, view))
        for name, offer in solution.chosen.items():
            if name in by_name or (step.no_deps and name not in asked):
                continue
            before = self.state.get(name)
            if before is not None and before.version in {None, offer.version}:
                continue  # there already; a nightly is of no known version and stays what it is
            if before is None and self._is_in_unknown_image:
                continue
            via = solution.via.get(name)
            self._set(step, self._chosen(step, name, offer.version, None, self._title(via, solution), offer, view))

    @property
    def _is_in_unknown_image(self) -> bool:
        """An image made for training holds numpy and more in versions that its name does not tell."""
        base = self.env.base
        return self.env.is_image and (base is None or base.repository not in _PLAIN_IMAGES)

    @staticmethod
    def _title(name: str | None, solution: Solution) -> str | None:
        offer = None if name is None else solution.chosen.get(name)
        return name if offer is None else f"{offer.name} {offer.version}"

    def _chosen(
        self,
        step: InstallStep,
        name: str,
        version: Version | None,
        request: Request | None,
        via: str | None,
        offer: Offer | None,
        view: IndexView,
    ) -> Chosen:
        variant: CudaVariant | None = None
        is_own = name == "torch" and version is None and request is not None and request.is_source
        if name in TORCH_FAMILY and not is_own:
            variant = view.variant(name, version, request)
            torch = self.state.get("torch")
            if variant is None and name != "torch" and torch is not None and torch.step == step.number:
                variant = torch.variant
        return Chosen(
            name=name,
            version=None if version is None else Version(version.public),
            step=step.number,
            request=request,
            via=via,
            offer=offer,
            label=None if version is None else version.local,
            variant=variant,
        )

    def _set(self, step: InstallStep, after: Chosen) -> None:
        before = self.state.get(after.name)
        if before is not None and before.version == after.version and after.label in {None, before.label}:
            if after.variant is not None and before.variant is None:
                self.state[after.name] = replace(before, variant=after.variant)
            return
        if (
            before is not None
            and before.step != after.step
            and before.version is not None
            and after.version is not None
        ):
            self.replaced.append(Replaced(before=before, after=after, step=step))
        self.state[after.name] = after


def _keeps_for(view: IndexView) -> Callable[[str, Offer], bool]:
    cache: dict[tuple[str, Version], bool] = {}

    def keeps(name: str, offer: Offer) -> bool:
        if name not in TORCH_FAMILY:
            return True
        key = (name, offer.version)
        if key not in cache:
            cache[key] = view.has(name, offer)
        return cache[key]

    return keeps


def decided(found: Outcome) -> Mapping[str, Chosen]:
    """What is worth showing as understood: everything asked for, and torch's family wherever it came from."""
    return {
        name: chosen for name, chosen in found.packages.items() if chosen.request is not None or name in TORCH_FAMILY
    }
