"""Which engine a run uses, and how bases are had: the wiring between the line and what stands behind the border."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder import bases
from builder.docker_engine import DockerEngine
from builder.engine import Engine
from builder.errors import EngineError
from builder.lockfile import ImageLock
from builder.resolution import Resolution
from builder.resolve import Host
from builder.uv_tool import find_uv


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """`why` says why it is not Docker, when `auto` fell back; `bases` is None in place, where nothing stands below."""

    engine: Engine
    bases: DockerBases | None
    host: Host | None
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InPlace:
    """What a user says about an environment in place: where it goes, or that one is to be proven as it is."""

    prefix: Path | None = None
    adopts: bool = False
    proves_first: bool = False


def choose(kind: str, out: Path, environ: Mapping[str, str], in_place: InPlace | None = None) -> Chosen:
    """`docker`, `in-place`, or `auto`: Docker where an engine answers, else in place."""
    in_place = in_place or InPlace()
    if kind in ("docker", "auto"):
        try:
            engine = DockerEngine.connect(environ=environ)
        except EngineError as error:
            if kind == "docker":
                raise
            why = f"{error.what}: {error.because[-1]}" if error.because else error.what
            return _in_place(out, environ, in_place, why=why)
        return Chosen(engine=engine, bases=DockerBases(engine, out / "bases", environ), host=None)
    return _in_place(out, environ, in_place, why=None)


def _in_place(out: Path, environ: Mapping[str, str], asked: InPlace, why: str | None) -> Chosen:
    # Runs with Docker need neither.
    from builder.adopted import AdoptedEngine, find  # noqa: PLC0415
    from builder.in_place import InPlaceEngine  # noqa: PLC0415

    if asked.adopts:
        found = find(asked.prefix, environ)
        engine = AdoptedEngine(found, environ=environ)
        return Chosen(engine=engine, bases=None, host=this_host(found.python), why=why)
    made = InPlaceEngine(out / "envs", environ=environ, prefix=asked.prefix, proves_first=asked.proves_first)
    return Chosen(engine=made, bases=None, host=this_host(), why=why)


def this_host(python: str | None = None) -> Host:
    """The running Python, unless another is named; an environment is made with it unless the spec names another."""
    version = python or f"{sys.version_info.major}.{sys.version_info.minor}"
    name = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    glibc = (name or "").removeprefix("glibc ").strip() or platform.libc_ver()[1] or "0.0"
    return Host(pythons=(version,), glibc=".".join(glibc.split(".")[:2]), found=pythons_here())


def pythons_here() -> frozenset[str]:
    """The Pythons that uv finds on this machine, such as `3.11`; none of them is downloaded."""
    asked = [str(find_uv()), "python", "list", "--only-installed", "--no-python-downloads", "--output-format", "json"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60)
        rows = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return frozenset()
    return frozenset(f"{row['version_parts']['major']}.{row['version_parts']['minor']}" for row in rows)


class DockerBases:
    """Bases by way of a Docker engine: Debian suites are made, references are pinned, local images must be there."""

    def __init__(self, engine: DockerEngine, cache: Path, environ: Mapping[str, str]) -> None:
        self._engine = engine
        self._cache = cache
        self._environ = environ

    def contexts(self, lock: ImageLock, on_line: Callable[[str], None]) -> Mapping[str, str]:
        base = lock.base
        if base.kind == "debian":
            suite = base.reference.partition(":")[2]
            made = bases.ensure_debian_base(suite, self._engine, self._cache, on_line, environ=self._environ)
            return {base.reference: f"docker-image://{made}"}
        if base.kind == "local" and not self._engine.has_image(base.reference):
            raise EngineError(
                "image-not-found",
                f"`{lock.image_id}` cannot be built",
                because=(f"its base is the local image `{base.reference}`", "this engine has no such image"),
                hint="see what there is with `docker images`",
            )
        return {}

    def digest(self, resolution: Resolution) -> str | None:
        """The digest to pin, for a reference of a registry; None for bases that are made or are here."""
        base = resolution.base
        if base.kind != "registry" or "@" in base.reference:
            return None
        return bases.resolve_reference_digest(base.reference, self._engine).partition("@")[2]
