"""How much disk an environment needs, told before anything is downloaded."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from builder import lockfile
from builder.engine import BuildPlan
from builder.errors import BuildError
from builder.lockfile import ImageLock, LockedConda, LockedPackage

# Unpacked bytes for each byte of a wheel that is not here to be looked into. Low on purpose, since a refusal must be
# right: torch 2.13 for the CPU grows 3.6 times (measured from the wheel's table of contents).
_GROWTH = 1.5

# Links, metadata and folders of an environment without packages: `uv venv` makes 40 KiB, RECORD files the rest.
_OWN_BYTES = 4 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class DiskNeed:
    """`at` maps a folder, one for each file system concerned, to the bytes that will be written there."""

    at: Mapping[Path, int]
    is_exact: bool


def uv_cache(env: Mapping[str, str]) -> Path:
    home = Path(env.get("HOME") or "~").expanduser()
    return Path(env.get("UV_CACHE_DIR") or Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "uv")


def need(lock: ImageLock, *, wheels: Path | None, cache: Path, target: Path, env: Mapping[str, str]) -> DiskNeed:
    """What uv has not cached is unpacked into its cache, and linked from there; to another disk it is copied."""
    cached = {package.name for package in lock.packages if _is_cached(package, cache)}
    cache_folder, target_folder = _existing(cache), _existing(target)
    is_linked = _device(cache_folder) == _device(target_folder) and env.get("UV_LINK_MODE", "hardlink") != "copy"
    written = [package for package in lock.packages if package.name not in cached or not is_linked]
    sizes = {package.name: _unpacked(package, wheels) for package in written}
    at: dict[Path, int] = {target_folder: _OWN_BYTES}
    if not is_linked:
        at[target_folder] += sum(size for size, _ in sizes.values())
    at[target_folder] += sum(int((one.size or 0) * _GROWTH) for one in _conda_to_unpack(lock, env))
    shared = target_folder if _device(cache_folder) == _device(target_folder) else cache_folder
    at[shared] = at.get(shared, 0) + sum(size for name, (size, _) in sizes.items() if name not in cached)
    return DiskNeed(at=at, is_exact=all(is_exact for _, is_exact in sizes.values()))


def refuse_full(
    plan: BuildPlan, context: Path, target: Path, env: Mapping[str, str], image_id: str, *, done: Collection[str] = ()
) -> DiskNeed | None:
    """Raise when the lock of `context` cannot fit; `done` are groups that are installed already."""
    wheels = Path(plan.contexts["wheelhouse"]) if "wheelhouse" in plan.contexts else None
    file = context / "torchproof.lock"
    if not file.is_file() or done:
        # Without a lock, or with part of it on the disk, only the lower bound that the line knows can be told.
        found = DiskNeed(at={_existing(target): 0 if done else plan.installed_bytes or 0}, is_exact=False)
    else:
        found = need(lockfile.read(file), wheels=wheels, cache=uv_cache(env), target=target, env=env)
    for folder, wanted in found.at.items():
        free = shutil.disk_usage(folder).free
        if wanted > free:
            raise BuildError(
                "disk-full",
                f"`{image_id}` does not fit on the disk",
                because=(
                    f"{'' if found.is_exact else 'at least '}{_gib(wanted)} will be written below {folder}",
                    f"{_gib(free)} are left there",
                ),
                conclusion="nothing was downloaded",
                hint="free some space, build into a folder on another disk, or move uv's cache with UV_CACHE_DIR",
            )
    return found


def is_here(context: Path, plan: BuildPlan, env: Mapping[str, str]) -> bool:
    """Whether nothing of the lock has to be fetched: it is in uv's cache, or in the folder of wheels."""
    file = context / "torchproof.lock"
    wheels = Path(plan.contexts["wheelhouse"]) if "wheelhouse" in plan.contexts else None
    cache = uv_cache(env)
    return file.is_file() and all(
        (wheels is not None and (wheels / package.filename).is_file()) or _is_cached(package, cache)
        for package in lockfile.read(file).packages
    )


def full_disk(plan: BuildPlan, reason: str) -> BuildError:
    images = ", ".join(target.image_id for target in plan.targets)
    return BuildError(
        "disk-full",
        f"`{images}` cannot be installed in place",
        because=("the disk is full", reason),
        hint="free some space, or build into a folder on another disk",
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.0f} MiB"


def _unpacked(package: LockedPackage, wheels: Path | None) -> tuple[int, bool]:
    """Bytes when installed, and whether they were counted rather than estimated."""
    if wheels is not None and package.filename.endswith((".whl", ".zip")):
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(wheels / package.filename) as archive:
            return sum(entry.file_size for entry in archive.infolist()), True
    return int((package.size or 0) * _GROWTH), False


def _is_cached(package: LockedPackage, cache: Path) -> bool:
    stem = f"{package.version}-*"
    patterns: Sequence[str] = (f"wheels-v*/pypi/{package.name}/{stem}", f"wheels-v*/*/*/{package.name}/{stem}")
    return any(next(iter(cache.glob(pattern)), None) is not None for pattern in patterns)


def _conda_to_unpack(lock: ImageLock, env: Mapping[str, str]) -> list[LockedConda]:
    """Archives that py-rattler does not have unpacked in its cache."""
    home = Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or "~").expanduser() / ".cache")
    cache = Path(env.get("RATTLER_CACHE_DIR") or home / "rattler") / "pkgs"
    # The folder's name may go on with the channel that it came from.
    return [one for one in lock.conda or () if not any(cache.glob(f"{one.name}-{one.version}-{one.build}*"))]


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there already."""
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - links stay: the disk that they lead to is the one meant
    return next((one for one in (folder, *folder.parents) if one.is_dir()), Path("/"))


def _device(folder: Path) -> int:
    return folder.stat().st_dev
