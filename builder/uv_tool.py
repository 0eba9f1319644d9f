"""Asks uv for the packages of one target: a temporary project in, a `pylock.toml` out."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder import processes
from builder.errors import PackageIndexError, TorchproofError
from builder.sources import Sources
from builder.versions import GlibcVersion

# The name of the temporary project; uv's explanations call the image by it.
PROJECT = "torchproof-image"

# One resolution takes seconds; a slow mirror with cold caches took two minutes. Above this, something hangs.
LIMIT_S = 900.0

_EXPECTED_WARNING = re.compile(r"requested Python version .* is not available|is missing an upload date")

# What `--torch-backend` looks up on the PyTorch wheel index alone, as uv has it (crates/uv-torch/src/backend.rs).
ON_TORCH_INDEX = frozenset(
    {
        "pytorch-triton",
        "pytorch-triton-rocm",
        "pytorch-triton-xpu",
        "torch",
        "torch-model-archiver",
        "torch-tb-profiler",
        "torcharrow",
        "torchaudio",
        "torchcsprng",
        "torchdata",
        "torchdistx",
        "torchserve",
        "torchtext",
        "torchvision",
        "triton",
    }
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What uv is asked. `routes`: package -> index of `explicit` that alone may serve it.

    uv applies a route to direct requirements only, so every routed package becomes one.
    `undated` packages are exempt from the date limit; `pretended` ones get empty metadata instead of being built.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    routes: Mapping[str, str] = field(default_factory=dict)
    explicit: Mapping[str, str] = field(default_factory=dict)
    torch_backend: str | None = None
    exclude_newer: str | None = None
    undated: frozenset[str] = frozenset()
    from_source: frozenset[str] = frozenset()
    pretended: frozenset[str] = frozenset()
    with_dependencies: bool = True
    lowest: bool = False

    def project(self) -> str:
        """The pyproject.toml. JSON strings are TOML strings."""
        named = {canonicalize_name(Requirement(text).name) for text in self.requirements}
        lines = [
            "[project]",
            f'name = "{PROJECT}"',
            'version = "0"',
            f"dependencies = {json.dumps([*self.requirements, *sorted(set(self.routes) - named)])}",
            "[tool.uv]",
            f"constraint-dependencies = {json.dumps(self.constraints)}",
        ]
        for name in sorted(self.pretended):
            lines += ["[[tool.uv.dependency-metadata]]", f"name = {json.dumps(name)}", "requires-dist = []"]
        for name, url in sorted(self.explicit.items()):
            lines += ["[[tool.uv.index]]", f"name = {json.dumps(name)}", f"url = {json.dumps(url)}", "explicit = true"]
        if self.routes:
            lines.append("[tool.uv.sources]")
            lines += [f"{json.dumps(name)} = {{ index = {json.dumps(index)} }}" for name, index in self.routes.items()]
        return "\n".join(lines) + "\n"

    def arguments(self) -> list[str]:
        found = ["--resolution", "lowest-direct" if self.lowest else "highest"]
        for name in sorted(self.from_source):
            found += ["--no-binary", name]
        if not self.with_dependencies:
            found.append("--no-deps")
        if self.torch_backend:
            found += ["--torch-backend", self.torch_backend]
        if self.exclude_newer:
            found += ["--exclude-newer", self.exclude_newer]
            for name in sorted(self.undated):
                found += ["--exclude-newer-package", f"{name}=false"]
        return found


@dataclass(frozen=True, kw_only=True)
class Outcome:
    status: int
    lines: tuple[str, ...]
    pylock: Path

    @property
    def is_solved(self) -> bool:
        return self.status == 0

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def missing_upload_times(self) -> bool:
        return any("is missing an upload date" in line for line in self.lines)


def find_uv() -> Path:
    """The binary of the `uv` package that torchproof depends on, or one on the search path."""
    try:
        import uv  # noqa: PLC0415

        return Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if not found:
        raise TorchproofError("uv-missing", "uv is not installed", hint="install torchproof again: it depends on uv")
    return Path(found)


@dataclass(frozen=True, kw_only=True)
class Uv:
    """uv for one target. `folder` takes its files and is the caller's to remove; `wheels` is a folder of wheels.

    `python_version` may carry a patch number; `cache_dir` None is uv's own cache.
    """

    python_version: str
    platform: str
    sources: Sources
    folder: Path
    wheels: Path | None
    cache_dir: Path | None
    on_line: Callable[[str], None]

    def ask(self, question: Question) -> Outcome:
        """The answer; nothing that is kept of it holds a password."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        (folder / "pyproject.toml").write_text(question.project(), encoding="utf-8")
        output = folder / "pylock.toml"
        arguments = [
            *("pip", "compile", "pyproject.toml", "--output-file", str(output), "--format", "pylock.toml"),
            *("--python-version", self.python_version, "--python-platform", self.platform),
            *("--only-binary", ":all:", "--index-strategy", "first-index", "--no-header", "--no-python-downloads"),
            *question.arguments(),
            *self.place(),
        ]
        if not question.from_source:
            # Nothing is built, so any interpreter will do; uv would search for a while for the target's own.
            arguments += ["--python", sys.executable]
        if self.wheels:
            arguments += ["--find-links", str(self.wheels)]
        lines: list[str] = []

        def take(raw: str) -> None:
            line = self.sources.redact(raw)
            lines.append(line)
            if line.startswith("warning: ") and not _EXPECTED_WARNING.search(line):
                self.on_line(line)

        status = processes.stream(
            [str(find_uv()), *arguments], cwd=folder, env=self.environment, on_line=take, limit_s=LIMIT_S
        )
        if status is None:
            raise PackageIndexError("index-unreachable", f"uv did not finish within {LIMIT_S:.0f} s")
        return Outcome(status=status, lines=tuple(lines), pylock=output)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.sources.environment, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}

    def place(self) -> list[str]:
        arguments = ["--cache-dir", str(self.cache_dir)] if self.cache_dir else []
        return [*arguments, "--offline"] if self.sources.offline else arguments

    def cached_sources(self, name: str, version: str) -> Path | None:
        """The folder into which uv unpacked a source archive that it has just resolved; the newest one."""
        done = subprocess.run(
            [find_uv(), "cache", "dir", *self.place()],
            capture_output=True,
            text=True,
            check=True,
            env=self.environment,
            timeout=60,
        )
        cache = Path(done.stdout.strip())
        found = [
            path
            for pattern in (f"sdists-v*/pypi/{name}/{version}/*/src", f"sdists-v*/index/*/{name}/{version}/*/src")
            for path in cache.glob(pattern)
        ]
        return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


@functools.cache
def _known_platforms(uv: Path) -> tuple[str, ...]:
    """The glibc platforms that this uv knows; it has a fixed list that grows with its releases."""
    done = subprocess.run(
        [uv, "pip", "compile", "--help"], capture_output=True, text=True, check=True, env={"NO_COLOR": "1"}
    )
    return tuple(sorted(set(re.findall(r"\b(?:x86_64|aarch64)-manylinux_\d+_\d+\b", done.stdout))))


def platform_for(arch: str, glibc: str, known: Sequence[str] | None = None) -> str:
    """The name, as uv has it, of the newest platform that needs no newer glibc than the target has."""
    wanted = GlibcVersion.parse(glibc)
    prefix = f"{arch}-manylinux_"
    levels = [
        GlibcVersion.parse(name.removeprefix(prefix).replace("_", "."))
        for name in (known if known is not None else _known_platforms(find_uv()))
        if name.startswith(prefix)
    ]
    fitting = [level for level in levels if level <= wanted]
    if not fitting:
        raise TorchproofError("uv-platform", f"uv cannot resolve for {arch} with glibc {glibc}")
    best = max(fitting)
    return f"{prefix}{best.major}_{best.minor}"
