"""Where conda archives are. Needs no py-rattler: what renders and what installs must agree on it."""

from __future__ import annotations

from collections.abc import Mapping

from builder.lockfile import ImageLock, LockedConda

# conda's own default for a channel that is a name; `channel_alias` of a .condarc, as CONDA_CHANNEL_ALIAS, replaces it.
CHANNEL_ALIAS = "https://conda.anaconda.org"


def alias(environ: Mapping[str, str]) -> str:
    return (environ.get("CONDA_CHANNEL_ALIAS") or CHANNEL_ALIAS).rstrip("/")


def url_of(package: LockedConda, environ: Mapping[str, str]) -> str:
    """A channel that is a name lies below the alias of this machine."""
    base = package.channel if "://" in package.channel else f"{alias(environ)}/{package.channel}"
    return f"{base.rstrip('/')}/{package.subdir}/{package.filename}"


def channels(lock: ImageLock) -> list[str]:
    found = list(dict.fromkeys(package.channel for package in lock.conda or ()))
    return found or ["conda-forge"]
