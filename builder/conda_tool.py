"""Conda environments by py-rattler: solve, create, update, remove. No conda installation is needed or asked.

Only this module knows py-rattler, an extra (`torchproof[conda]`). What it is told decides: the host's own `__cuda` and
`__glibc` are never looked at.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from builder.conda_urls import alias, url_of
from builder.errors import BuildError, EngineError, PackageIndexError, StaleLockError, TorchproofError
from builder.lockfile import ImageLock, LockedConda
from builder.resolution import Resolution
from builder.sources import verify_file
from builder.uv_errors import conflict
from builder.versions import CudaVariant

if TYPE_CHECKING:
    import rattler

_T = TypeVar("_T")
_SETTLE_S = 0.2
SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """`virtual` are the facts about the host that the environment is for: name -> version."""

    image_id: str
    specs: tuple[str, ...]
    channels: tuple[str, ...]
    subdir: str
    virtual: Mapping[str, str]


def wanted_by(resolution: Resolution) -> Wanted:
    virtual = {"__glibc": resolution.glibc, "__linux": "0", "__unix": "0", "__archspec": "1"}
    toolkit = CudaVariant.parse(resolution.variant).toolkit
    if toolkit is not None:
        virtual["__cuda"] = str(toolkit)
    return Wanted(
        image_id=resolution.image_id,
        specs=(f"python={resolution.python}", *resolution.conda_packages),
        channels=resolution.conda_channels,
        subdir=SUBDIRS[resolution.arch],
        virtual=virtual,
    )


def solve(wanted: Wanted, environ: Mapping[str, str]) -> tuple[LockedConda, ...]:
    """Every package of the conda part, exact, with its sha256; sorted by name."""
    rattler = _rattler()
    config = _channels(environ, rattler)
    channels = [rattler.Channel(name, config) for name in wanted.channels]
    names = {channel.base_url.rstrip("/"): name for channel, name in zip(channels, wanted.channels, strict=True)}
    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name),
            rattler.Version(version),
            # __archspec says its architecture in its build.
            rattler.BuildString("x86_64" if name == "__archspec" and wanted.subdir == "linux-64" else "0"),
        )
        for name, version in sorted(wanted.virtual.items())
    ]
    try:
        found = _run(
            lambda: rattler.solve(
                channels,
                list(wanted.specs),
                platforms=[wanted.subdir, "noarch"],
                virtual_packages=virtual,
                gateway=rattler.Gateway(cache_dir=_cache(environ, "repodata")),
            )
        )
    except rattler.exceptions.SolverError as error:
        stated = ", ".join(f"{name} {version}" for name, version in sorted(wanted.virtual.items()) if version != "0")
        raise conflict(
            "conda-no-solution",
            f"the conda part of `{wanted.image_id}` cannot be locked",
            because=[
                f"it asks for {', '.join(f'`{spec}`' for spec in wanted.specs)} on {wanted.subdir} with {stated}",
                f"from {', '.join(f'`{name}`' for name in wanted.channels)}",
            ],
            detail=str(error),
        ) from None
    except _faults(rattler) as error:
        raise unreachable(wanted.image_id, wanted.channels, error) from error
    return tuple(sorted((_locked(record, names) for record in found), key=lambda package: package.name))


def unreachable(image_id: str, channels: Sequence[str], error: Exception) -> PackageIndexError:
    return PackageIndexError(
        "conda-unreachable",
        f"the conda part of `{image_id}` cannot be had",
        because=[f"it needs {', '.join(f'`{name}`' for name in channels)}", _first_line(error)],
        conclusion="the channel cannot be reached from here",
        hint="name a mirror in CONDA_CHANNEL_ALIAS, or take Python from elsewhere: `provider: apt` (the base, or this "
        "machine) or `provider: uv`",
    )


def create(lock: ImageLock, prefix: Path, environ: Mapping[str, str], *, installed_as: Path | None = None) -> None:
    """Make `prefix` hold the conda part of `lock` and nothing else of conda's; what is there already is updated.

    Every archive is held against its sha256. `installed_as`: the path that the files will be used at.
    """
    rattler = _rattler()
    records = [_record(package, environ, rattler) for package in lock.conda or ()]
    for package in lock.conda or ():
        url = url_of(package, environ)
        if url.startswith("file://"):
            # py-rattler holds what it downloads against its hash, but not what it finds in a folder.
            path = Path(unquote(urlsplit(url).path))
            if not path.is_file():
                raise unreachable(lock.image_id, (package.channel,), FileNotFoundError(f"there is no {path}"))
            verify_file(path, package.sha256)
    prefix.mkdir(parents=True, exist_ok=True)
    try:
        _run(
            lambda: rattler.install(
                records,
                prefix,
                cache_dir=_cache(environ, "packages"),
                platform=rattler.Subdir(SUBDIRS[lock.arch]),
                execute_link_scripts=False,
                show_progress=False,
                alternative_target_prefix=installed_as,
            )
        )
    except _faults(rattler) as error:
        text = str(error)
        what = f"the conda part of `{lock.image_id}` cannot be installed"
        if "hash mismatch" in text.lower() or "sha256" in text.lower():
            because = ["a downloaded package is not the one that the lock names", _first_line(error)]
            raise StaleLockError("hash-mismatch", what, because=because) from error
        if "No space left" in text:
            raise BuildError("disk-full", what, because=["the disk is full"]) from error
        if any(word in text for word in ("error sending request", "dns", "fetch", "No such file", "onnect")):
            channels = tuple(dict.fromkeys(package.channel for package in lock.conda or ()))
            raise unreachable(lock.image_id, channels, error) from error
        raise BuildError("conda-install", what, because=[_first_line(error)]) from error


def remove(prefix: Path) -> None:
    """Remove a conda prefix, and nothing that is none."""
    if not (prefix / "conda-meta").is_dir():
        raise BuildError("not-conda", f"{prefix} is no conda environment", because=["it has no conda-meta folder"])
    with suppress(FileNotFoundError):
        shutil.rmtree(prefix)


def _rattler() -> Any:
    try:
        import rattler  # noqa: PLC0415 - an extra
        import rattler.exceptions  # noqa: PLC0415
    except ImportError:
        raise EngineError(
            "rattler-missing",
            "conda environments need py-rattler, which is not installed",
            hint="install it with `pip install 'torchproof[conda]'`, or take Python from elsewhere: `provider: apt` or "
            "`provider: uv`",
        ) from None
    return rattler


def _faults(rattler: Any) -> tuple[type[Exception], ...]:
    """What py-rattler raises on purpose; a fault of ours is none of it."""
    found = vars(rattler.exceptions).values()
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, Exception))


def _channels(environ: Mapping[str, str], rattler: Any) -> Any:
    return rattler.ChannelConfig(channel_alias=f"{alias(environ)}/", root_dir=str(Path.cwd()))


def _cache(environ: Mapping[str, str], part: str) -> Path:
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache")
    folder = Path(environ.get("RATTLER_CACHE_DIR") or home / "rattler") / ("pkgs" if part == "packages" else part)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(start: Callable[[], Awaitable[_T]]) -> _T:
    async def main() -> _T:
        return await start()

    try:
        return asyncio.run(main())
    finally:
        # py-rattler's own threads let go of the last Python objects just after the answer. An interpreter that ends in
        # that moment aborts (seen with 0.28, in a script that did nothing afterwards).
        time.sleep(_SETTLE_S)


def _locked(record: rattler.RepoDataRecord, names: Mapping[str, str]) -> LockedConda:
    base, _, _ = record.url.rsplit("/", 2)
    if record.sha256 is None:
        raise TorchproofError("conda-no-hash", f"the channel tells no sha256 of {record.file_name}")
    return LockedConda(
        name=record.name.normalized,
        version=str(record.version),
        build=str(record.build),
        build_number=record.build_number,
        subdir=str(record.subdir),
        noarch=_noarch(record),
        channel=names.get(base, base),
        filename=os.path.basename(urlsplit(record.url).path),  # noqa: PTH119 - a URL's path, not a file's
        sha256=record.sha256.hex(),
        size=record.size,
    )


def _noarch(record: rattler.RepoDataRecord) -> str | None:
    kind = record.noarch
    return "python" if kind.python else "generic" if kind.generic else None


def _record(package: LockedConda, environ: Mapping[str, str], rattler: Any) -> Any:
    url = url_of(package, environ)
    record = rattler.PackageRecord(
        package.name,
        package.version,
        rattler.BuildString(package.build),
        package.build_number,
        package.subdir,
        noarch=package.noarch,
        sha256=bytes.fromhex(package.sha256),
        size=package.size,
    )
    return rattler.RepoDataRecord(record, package.filename, url, url.rsplit("/", 2)[0])


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
