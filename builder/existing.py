"""What an environment that exists holds: a prefix, the output of `pip freeze`, or that of `conda list`. Only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder import adopted, installed
from builder.errors import UsageError
from builder.inputs import names
from builder.lockfile import LockedConda

# What installs is no part of what was installed.
INSTALLERS = frozenset({"pip", "uv"})
_EDITABLE = "an editable installation: its files are a checkout"


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """One Python package. `origin`: why an index cannot give the same again; None when it can."""

    name: str
    version: str
    origin: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Existing:
    """`conda` are the packages of conda that are no Python packages, with the interpreter; empty outside conda.
    `libraries` are those of a list, which tells too little to lock them.
    """

    where: str
    python: str | None
    packages: tuple[Held, ...]
    conda: tuple[LockedConda, ...] = ()
    libraries: tuple[str, ...] = ()
    unread: tuple[str, ...] = field(default=())


def read(where: Path, environ: Mapping[str, str]) -> Existing:
    if where.is_dir():
        return _of_prefix(where, environ)
    try:
        text = where.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("environment-unreadable", f"`{where}` cannot be read: {error}") from None
    if re.search(r"^# +Name +Version|^# packages in environment|^@EXPLICIT|^# platform:", text, re.MULTILINE):
        return _of_conda_list(text, str(where))
    return _of_freeze(text, str(where))


# --- a prefix --------------------------------------------------------------------------------------------------------


def _of_prefix(prefix: Path, environ: Mapping[str, str]) -> Existing:
    found = adopted.find(prefix, environ)
    packages: dict[str, Held] = {}
    for site in installed.site_folders(prefix):
        for info in sorted(site.glob("*.dist-info")):
            name, _, version = info.name.removesuffix(".dist-info").partition("-")
            name = canonicalize_name(name)
            packages.setdefault(name, Held(name=name, version=version, origin=_origin(info)))
        for egg in sorted(site.glob("*.egg-info")):
            name, _, version = egg.name.removesuffix(".egg-info").partition("-")
            name = canonicalize_name(name)
            why = "installed by setuptools, without a record of its files"
            packages.setdefault(name, Held(name=name, version=version.split("-py")[0], origin=why))
    return Existing(
        where=str(prefix),
        python=found.python,
        packages=tuple(packages[name] for name in sorted(packages)),
        conda=tuple(_conda_meta(prefix, set(packages))),
    )


def _origin(info: Path) -> str | None:
    with suppress(OSError, ValueError):
        direct: dict[str, Any] = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
        if direct.get("dir_info", {}).get("editable"):
            return _EDITABLE
        if "vcs_info" in direct:
            return f"built from a commit, {direct['vcs_info'].get('commit_id', 'unknown')[:12]}"
        return "installed from a file or an address, not from an index"
    with suppress(OSError):
        if (info / "INSTALLER").read_text(encoding="utf-8").strip() == "conda":
            return "conda's build, for which the wheel of the same version is taken"
    return None


def _conda_meta(prefix: Path, python_packages: set[str]) -> list[LockedConda]:
    found = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        meta = json.loads(path.read_text(encoding="utf-8"))
        if canonicalize_name(meta["name"]) in python_packages or not meta.get("sha256"):
            continue
        channel = str(meta.get("url") or "").rsplit("/", 2)[0]
        found.append(
            LockedConda(
                name=meta["name"],
                version=meta["version"],
                build=meta["build"],
                build_number=int(meta.get("build_number") or 0),
                subdir=meta["subdir"],
                noarch=meta.get("noarch"),
                channel=channel,
                filename=meta.get("fn") or str(meta["url"]).rsplit("/", 1)[-1],
                sha256=meta["sha256"],
                size=meta.get("size"),
            )
        )
    return sorted(found, key=lambda package: package.name)


# --- lists -----------------------------------------------------------------------------------------------------------


def _of_freeze(text: str, where: str) -> Existing:
    packages: dict[str, Held] = {}
    unread: list[str] = []
    for raw in text.splitlines():
        line = raw.split(" #", 1)[0].strip()
        if not line or line.startswith("#"):
            continue
        egg = re.search(r"#egg=([\w.-]+)", raw)
        if line.startswith(("-e ", "--editable")):
            name = canonicalize_name(egg[1]) if egg else ""
            if name:
                packages[name] = Held(name=name, version="", origin=_EDITABLE)
            else:
                unread.append(raw.strip())
        elif match := re.fullmatch(r"([\w.-]+)\s*===?\s*(\S+)", line):
            name = canonicalize_name(match[1])
            packages[name] = Held(name=name, version=match[2])
        elif match := re.fullmatch(r"([\w.-]+)\s*@\s*(\S+)", line):
            name = canonicalize_name(match[1])
            version = re.search(rf"{match[1].replace('-', '[-_]')}-([^-/]+)-", match[2], re.IGNORECASE)
            why = "installed from a file or an address, not from an index"
            packages[name] = Held(name=name, version=version[1] if version else "", origin=why)
        else:
            unread.append(raw.strip())
    held = tuple(packages[name] for name in sorted(packages))
    return Existing(where=where, python=None, packages=held, unread=tuple(unread))


def _of_conda_list(text: str, where: str) -> Existing:
    """The table of `conda list`, its `--export` or its `--explicit`. A build string that names a Python is that of a
    Python package, for which the wheel is taken; the rest are libraries, and are told: a name of theirs may be another
    project's on the index.
    """
    python = None
    packages: dict[str, Held] = {}
    libraries: list[str] = []
    unread: list[str] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith(("#", "@EXPLICIT")):
            continue
        found = _of_line(line)
        if found is None:
            unread.append(line)
            continue
        name, version, build = found
        if build == "pypi":
            packages[canonicalize_name(name)] = Held(name=canonicalize_name(name), version=version)
        elif name == "python":
            python = ".".join(version.split(".")[:2])
        elif "py" in build:
            name = names.of_conda(name)
            why = "conda's build, for which the wheel of the same version is taken"
            packages.setdefault(name, Held(name=name, version=version, origin=why))
        else:
            libraries.append(f"{name} {version}")
    held = tuple(packages[name] for name in sorted(packages))
    return Existing(where=where, python=python, packages=held, libraries=tuple(libraries), unread=tuple(unread))


def _of_line(line: str) -> tuple[str, str, str] | None:
    """Name, version and build; `pypi` stands for the build of what pip installed."""
    if archive := re.fullmatch(r"\S+/([^/\s]+)-([^-/\s]+)-([^-/\s]+)\.(?:conda|tar\.bz2)(?:#\S+)?", line):
        return archive[1], archive[2], archive[3]
    parts = line.split("=") if re.fullmatch(r"[^\s=]+=[^\s=]+=[^\s=]+", line) else line.split()
    if len(parts) < 3 or "://" in parts[0]:
        return None
    is_pip = parts[2].startswith("pypi") or parts[-1] == "pypi"
    return parts[0], parts[1], "pypi" if is_pip else parts[2]
