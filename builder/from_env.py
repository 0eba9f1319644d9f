"""An environment that exists and works -> the spec and lock that reproduce it, and what they cannot reproduce."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder import line, lockfile
from builder import lock as locking
from builder.atomic import write_whole
from builder.catalog import Catalog
from builder.errors import ConflictError, NothingSelectedError, UsageError
from builder.existing import INSTALLERS, Existing, Held
from builder.lockfile import TORCH_FAMILY, ImageLock
from builder.resolve import Host
from builder.sources import Sources

_AXES = ("torch", "transformers", "onnxruntime", "onnxruntime-gpu")

# Each round leaves out one package that the index no longer has; an environment with more of them is no lock's matter.
_MOST_ROUNDS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """`differences` are sentences: what the lock does not reproduce, each with its reason."""

    spec_file: Path
    lock_file: Path
    lock: ImageLock
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Draft:
    packages: Mapping[str, str]
    left_out: Mapping[str, str]
    allow_source: tuple[str, ...] = ()

    def without(self, name: str, why: str) -> _Draft:
        packages = {key: value for key, value in self.packages.items() if key != name}
        return replace(self, packages=packages, left_out={**self.left_out, name: why})


def export(
    existing: Existing,
    folder: Path,
    name: str,
    catalog: Catalog,
    sources: Sources,
    *,
    python: str | None,
    host: Host,
    on_line: Callable[[str], None],
) -> Export:
    """Write `folder/NAME.yaml` and its lock. Packages are left out only when no index can give them, and then told."""
    series = python or existing.python
    if series is None:
        raise UsageError(
            "python-unknown",
            f"`{existing.where}` does not say for which Python it is",
            hint="say it with --python, such as --python 3.11",
        )
    held = {package.name: package for package in existing.packages if package.name not in INSTALLERS}
    draft = _draft(held)
    if "torch" not in draft.packages:
        raise NothingSelectedError(
            "no-torch", f"{existing.where} has no torch that an index could give", because=["a lock is made around it"]
        )
    spec_file = folder / f"{name}.yaml"
    for _ in range(_MOST_ROUNDS):
        write_whole(spec_file, _spec_text(existing, draft, series, name))
        plan = line.plan(spec_file, catalog, host=replace(host, pythons=(series,)))
        resolution = plan.resolutions[0]
        try:
            lock = locking.lock(resolution, sources, on_line=on_line)
            break
        except ConflictError as error:
            draft = _less(draft, error)
            on_line(f"trying again: {list(draft.left_out.items())[-1] if draft.left_out else draft.allow_source}")
    else:
        what = f"more than {_MOST_ROUNDS} packages of {existing.where} are on no index"
        raise UsageError("too-many-differences", what)
    if existing.conda:
        lock = replace(lock, provider="conda", conda=existing.conda)
    lock_file = folder / "locks" / f"{resolution.image_id}.lock"
    lockfile.write(lock, lock_file)
    differences = tuple(_differences(existing, held, draft, lock))
    return Export(spec_file=spec_file, lock_file=lock_file, lock=lock, differences=differences)


def _draft(held: Mapping[str, Held]) -> _Draft:
    packages: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name, package in held.items():
        why = package.origin if package.origin and not package.origin.startswith("conda's build") else None
        try:
            version = Version(package.version)
        except InvalidVersion:
            left_out[name] = why or f"`{package.version}` is no version"
            continue
        if why is not None:
            left_out[name] = why
        elif version.local is not None and name not in TORCH_FAMILY:
            left_out[name] = f"a local build, {package.version}"
        else:
            packages[name] = package.version
    return _Draft(packages=packages, left_out=left_out)


def _spec_text(existing: Existing, draft: _Draft, python: str, name: str) -> str:
    torch = Version(draft.packages["torch"])
    label = torch.local or "auto"
    axes: dict[str, object] = {"torch": torch.public, "variant": label, "python": python}
    for axis in _AXES[1:]:
        axes[axis] = draft.packages.get(axis, "none")
    rest = {key: Version(v).public if key in TORCH_FAMILY else v for key, v in draft.packages.items()}
    axes["packages"] = {key: value for key, value in rest.items() if key not in _AXES}
    document: dict[str, object] = {"name": re.sub(r"[^a-z0-9_-]", "-", name.lower()), "axes": axes}
    document["exclude_newer"] = "none"
    if draft.allow_source:
        document["allow_source"] = list(draft.allow_source)
    if existing.conda:
        channels = list(dict.fromkeys(package.channel for package in existing.conda))
        packages = [f"{package.name}=={package.version}" for package in existing.conda if package.name != "python"]
        document["provider"] = "conda"
        document["conda"] = {"channels": channels, **({"packages": packages} if packages else {})}
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    return f"# written by `torchproof lock --from-env`; it is yours to change\n{text}"


def _less(draft: _Draft, error: ConflictError) -> _Draft:
    """The draft without what stands in the way; the error itself where that is more than one package of an index."""
    if error.code == "not-on-index" and (match := re.search(r" has no ([\w.-]+) ?(\S*)", str(error).splitlines()[0])):
        name = canonicalize_name(match[1])
        if name in draft.packages and name != "torch":
            return draft.without(name, f"{draft.packages[name]} is gone from the index")
    if error.code == "source-only" and (match := re.search(r"allow_source: \[([^\]]*)\]", str(error))):
        allowed = tuple(canonicalize_name(one.strip()) for one in match[1].split(","))
        if set(allowed) - set(draft.allow_source):
            return replace(draft, allow_source=allowed)
    raise error


def _differences(existing: Existing, held: Mapping[str, Held], draft: _Draft, lock: ImageLock) -> list[str]:
    locked = {package.name: package for package in lock.packages}
    found = []
    for name, package in held.items():
        have = locked.get(name)
        if have is None:
            why = draft.left_out.get(name, "nothing in the spec asks for it on this platform")
            found.append(f"{name} {package.version} is not in the lock: {why}".replace("  ", " "))
        elif not _is_same(have.version, package.version):
            reason = f": {draft.left_out[name]}" if name in draft.left_out else ""
            found.append(f"{name} is {package.version or 'of no version'}, the lock has {have.version}{reason}")
        elif have.kind == "sdist":
            found.append(f"{name} {have.version} has no wheel: the lock builds it from source")
        elif package.origin:
            found.append(f"{name} {have.version}: {package.origin}")
    more = sorted(set(locked) - set(held) - INSTALLERS)
    found += [f"{name} {locked[name].version} is in the lock and not installed" for name in more]
    why = "a library of conda's; where it is needed, `conda.packages` of the spec names it"
    found += [f"{text} is not in the lock: {why}" for text in existing.libraries]
    found += [f"not understood: {text}" for text in existing.unread]
    return found


def _is_same(one: str, other: str) -> bool:
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other
