"""Hints that are true: one thing is changed, everything is checked again, and only what then holds is told. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from builder.catalog import Catalog
from builder.environment import DriverAsk, Environment, Index, InstallStep, Origin, PythonAsk, Request
from builder.installer import TORCH_FAMILY, outcome
from builder.rules.base import Change, Finding
from builder.rules.registry import findings
from builder.versions import CudaVariant, DriverVersion, PythonVersion

# A check takes a few milliseconds; a person waits for all of the trials together.
MAX_TRIALS = 40
_TRIALS_A_FINDING = 10
_OPTION = Origin("hint")


@dataclass(frozen=True)
class Fix:
    """A change that was tried: with it the finding is gone and no new error has come."""

    finding: Finding
    change: Change
    environment: Environment


def fixes(env: Environment, catalog: Catalog, found: Sequence[Finding]) -> list[Fix]:
    """At most one a finding, the first of its tries that holds."""
    left = MAX_TRIALS
    made: list[Fix] = []
    for each in found:
        for change in list(dict.fromkeys(each.tries))[:_TRIALS_A_FINDING]:
            if left == 0:
                return made
            left -= 1
            changed = apply(env, change)
            if changed is not None and mends(changed, catalog, found, each):
                made.append(Fix(each, change, changed))
                break
    return made


def with_hints(env: Environment, catalog: Catalog, found: Sequence[Finding]) -> list[Finding]:
    """The same findings; where a trial held, its change is the hint."""
    made = {id(fix.finding): fix.change for fix in fixes(env, catalog, found)}
    return [replace(each, hint=_joined(made[id(each)].says, each.hint)) if id(each) in made else each for each in found]


def _joined(says: str, advice: str | None) -> str:
    return f"{says}, {advice}" if advice is not None and advice.startswith("or ") else says


def mends(changed: Environment, catalog: Catalog, before: Sequence[Finding], mended: Finding) -> bool:
    """The finding is gone, whatever its subject is called now, and every error that is left was there before."""
    after = findings(outcome(changed, catalog))
    codes = [each.code for each in before]
    left = [each.code for each in after]
    if left.count(mended.code) >= codes.count(mended.code):
        return False
    errors_before = [each.code for each in before if each.severity == "error"]
    errors_after = [each.code for each in after if each.severity == "error"]
    if any(errors_after.count(code) > errors_before.count(code) for code in set(errors_after)):
        return False
    return not any(each.is_unknown for each in after) or any(each.is_unknown for each in before)


# ---- one change


def apply(env: Environment, change: Change) -> Environment | None:
    """The environment with the change; None: it has no place there."""
    if change.kind == "python":
        asked = PythonAsk(origin=_OPTION, means="hint", version=PythonVersion.parse(change.value))
        return replace(env, pythons=(asked, *env.pythons))
    if change.kind == "driver":
        return replace(env, driver=DriverAsk(version=DriverVersion.parse(change.value), origin=_OPTION))
    if change.kind == "remove":
        kept = tuple(request for request in env.requests if request.name != change.name)
        return replace(env, requests=kept) if len(kept) < len(env.requests) else None
    if change.kind == "variant":
        return _with_variant(env, CudaVariant.parse(change.value))
    if change.kind == "index":
        return _with_index(env, change)
    return _with_pin(env, change)


def _with_pin(env: Environment, change: Change) -> Environment | None:
    text = change.value.replace("=2024.0", "==2024.0") if change.value == "=2024.0" else change.value
    version, bound = _parsed(text)
    holding = env.in_force().get(change.name)
    if holding is None or change.kind == "add":
        if not env.steps:
            return None
        request = Request(
            name=change.name,
            origin=_OPTION,
            installer=env.steps[-1].installer,
            step=_step_for(env),
            text=f"{change.name}{text}",
            specifier=bound,
            version=version,
        )
        return replace(env, requests=(*env.requests, request))
    changed = tuple(
        _repinned(request, version, bound) if request.name == change.name else request for request in env.requests
    )
    bounds = tuple(
        _repinned(request, version, bound) if request.name == change.name else request for request in env.constraints
    )
    return replace(env, requests=changed, constraints=bounds)


def _step_for(env: Environment) -> int:
    """The step that installs torch, else the last one."""
    torch = env.in_force().get("torch")
    return torch.request.step if torch is not None else len(env.steps) - 1


def _parsed(text: str) -> tuple[Version | None, SpecifierSet]:
    try:
        specifier = SpecifierSet(text)
    except InvalidSpecifier:
        return None, SpecifierSet()
    exact = [item for item in specifier if item.operator == "==" and not item.version.endswith(".*")]
    return (Version(exact[0].version), SpecifierSet()) if len(exact) == 1 and len(specifier) == 1 else (None, specifier)


def _repinned(request: Request, version: Version | None, bound: SpecifierSet) -> Request:
    if version is not None and version.local is None and request.local is not None:
        version = Version(f"{version}+{request.local}")  # the build stays what it was
    if version is None and request.version is None:
        bound = request.specifier & bound
    return replace(request, version=version, specifier=bound, wheel=None, url=None)


def _with_variant(env: Environment, variant: CudaVariant) -> Environment | None:
    """Torch's family from the index of this variant: labels are rewritten, or the index is the only one."""
    family = [request for request in env.requests if request.name in TORCH_FAMILY]
    if not family or any(request.installer in {"conda", "base-image"} for request in family):
        return None
    steps = {request.step for request in family}
    requests = tuple(
        _relabelled(request, variant) if request.name in TORCH_FAMILY else request for request in env.requests
    )
    return replace(
        env,
        requests=requests,
        steps=tuple(_from_index(step, variant) if step.number in steps else step for step in env.steps),
    )


def _relabelled(request: Request, variant: CudaVariant) -> Request:
    if request.version is None or request.version.local is None:
        return request
    return replace(request, version=Version(f"{request.version.public}+{variant}"), wheel=None, url=None)


def _from_index(step: InstallStep, variant: CudaVariant) -> InstallStep:
    index = Index(kind="torch", origin=_OPTION, variant=variant)
    settings = replace(step.indexes, primary=index, additive=(), find_links=(), torch_backend=None, for_package=())
    return replace(step, indexes=settings)


def _with_index(env: Environment, change: Change) -> Environment | None:
    variant = CudaVariant.parse(change.value)
    steps = {request.step for request in env.requests if request.name in TORCH_FAMILY}
    if not steps:
        return None
    index = Index(kind="torch", origin=_OPTION, variant=variant)
    return replace(
        env,
        steps=tuple(
            replace(step, indexes=replace(step.indexes, additive=(*step.indexes.additive, index)))
            if step.number in steps
            else step
            for step in env.steps
        ),
    )
