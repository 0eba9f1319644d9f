"""What an environment in place costs beside `uv pip install` of the same lock, measured in turns.

    python bench/in_place_cost.py images/quickstart.yaml [--runs 5] [--cold] [--out bench/in_place_cost.json]

Both start from nothing and end with a virtual environment: `uv` makes one and installs the rendered requirements in one
call; `torchproof` does what `verify --in-place` does up to the smoke tests. `--cold` gives each run an empty cache, so
that every file is downloaded or unpacked again. The steps of torchproof are told apart, because the last ones (every
installed file hashed, the record written) are no installation: uv has nothing like them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder import engines, installed_record, line, lockfile, render
from builder.catalog import Catalog
from builder.engine import BuildPlan, BuildTarget
from builder.in_place import InPlaceEngine
from builder.in_place_install import install_arguments, install_environment
from builder.lockfile import ImageLock
from builder.place import Place
from builder.sources import Sources, read_pip_config
from builder.uv_tool import find_uv


class Cost:
    def __init__(self, spec: Path, root: Path, *, is_cold: bool) -> None:
        self.root = root
        self.is_cold = is_cold
        host = engines.this_host()
        resolution = line.plan(spec, Catalog.shipped(), host=host).resolutions[0]
        self.sources = Sources.from_environment(os.environ, read_pip_config(os.environ))
        self.lock: ImageLock = line.made(resolution, self.sources, None, _Quiet())
        wheelhouse = root / "wheelhouse"
        wheelhouse.mkdir()
        self.sources.stage_wheelhouse(self.lock, wheelhouse)
        folder = line.rendered([self.lock], "bench", root / "context", link=True)
        self.context = folder / self.lock.image_id
        self.plan = BuildPlan(
            folder=folder,
            bake_file="docker-bake.json",
            targets=(BuildTarget(image_id=self.lock.image_id, tag=render.tag("bench", self.lock.image_id)),),
            contexts={"wheelhouse": str(wheelhouse)},
            secrets=self.sources.build_secrets(root / "secrets", variant=self.lock.variant),
            log_file=root / "build.log",
            python=resolution.python,
            variant=resolution.variant,
        )

    def environ(self) -> dict[str, str]:
        env = dict(os.environ)
        if self.is_cold:
            cache = self.root / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            env["UV_CACHE_DIR"] = str(cache)
        return env

    def uv(self) -> dict[str, float]:
        """One `uv venv` and one `uv pip install`."""
        target = self.root / "by-uv"
        shutil.rmtree(target, ignore_errors=True)
        kept = {name: value for name, value in self.environ().items() if not name.startswith(("PIP_", "PYTHON"))}
        env = install_environment(kept, self.plan)
        started = time.perf_counter()
        _run([str(find_uv()), "venv", "--quiet", "--python", self.lock.python, str(target)], env)
        files = sorted((self.context / "requirements").glob("[0-9][0-9]-*.txt"))
        arguments = install_arguments(files[0], self.plan, env)
        more = [word for file in files[1:] for word in ("-r", str(file))]
        _run([str(find_uv()), "pip", "install", "--python", str(target / "bin/python"), *arguments, *more], env)
        return {"install": time.perf_counter() - started}

    def torchproof(self) -> dict[str, float]:
        place = Place(self.root / "by-torchproof")
        place.remove()
        engine = InPlaceEngine(self.root / "envs", environ=self.environ(), prefix=place.prefix, proves_first=True)
        spent = {"hash files": 0.0, "record": 0.0}
        damaged, take = installed_record.damaged, installed_record.take
        installed_record.damaged = _timed(damaged, spent, "hash files")
        installed_record.take = _timed(take, spent, "record")
        started = time.perf_counter()
        try:
            image = engine.build(self.plan, lambda _: None)[self.lock.image_id]
        finally:
            installed_record.damaged, installed_record.take = damaged, take
        total = time.perf_counter() - started
        switching = time.perf_counter()
        engine.settle(image, is_proven=True)
        # `take` also runs inside `damaged`; what is left of it is the record that is kept.
        proof = spent["hash files"]
        return {"install": total - proof, "hash files": proof, "switch": time.perf_counter() - switching}


def _timed(function: Callable[..., Any], spent: dict[str, float], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - started

    return call


def _run(argv: list[str], env: dict[str, str]) -> None:
    subprocess.run(argv, env=env, check=True, capture_output=True)


class _Quiet:
    def stage(self, name: str, image_id: str | None = None) -> None:
        pass

    def line(self, text: str) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torchproof-bench-") as folder:
        cost = Cost(options.spec, Path(folder), is_cold=options.cold)
        cost.uv()  # fills the cache, and the system's
        rows: dict[str, list[dict[str, float]]] = {"uv": [], "torchproof": []}
        for number in range(options.runs):
            order = ("uv", "torchproof") if number % 2 == 0 else ("torchproof", "uv")
            for name in order:
                rows[name].append(getattr(cost, name)())
    medians = {
        name: {step: round(statistics.median(run[step] for run in runs), 3) for step in runs[0]}
        for name, runs in rows.items()
    }
    document = {
        "image": cost.lock.image_id,
        "lock": lockfile.digest(cost.lock),
        "packages": len(cost.lock.packages),
        "is_cold": options.cold,
        "runs": options.runs,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "median_s": medians,
        "ratio_of_installation": round(medians["torchproof"]["install"] / medians["uv"]["install"], 3),
        "all_runs_s": {name: [{k: round(v, 3) for k, v in run.items()} for run in runs] for name, runs in rows.items()},
    }
    text = json.dumps(document, indent=2) + "\n"
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
