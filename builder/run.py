"""One matrix on its way down the line, as the commands `build`, `smoke` and `verify` share it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from builder import line, render, settle
from builder.catalog import Catalog
from builder.engine import Budget, Limits
from builder.engines import Chosen
from builder.errors import TorchproofError
from builder.line import Folders, Plan, Progress, Work
from builder.results import Level, RunReport
from builder.scripts import SCRIPTS, not_run
from builder.sources import Sources
from builder.spec_values import size_bytes


@dataclass(kw_only=True)
class Run:
    """`required` is the level below which an image fails the run; `scripts` are the smoke scripts to run.

    `adopts`: an environment is proven that somebody else made, so it is also held against its lock.
    """

    plan: Plan
    folders: Folders
    chosen: Chosen
    sources: Sources
    progress: Progress
    catalog: Catalog
    spec: Path
    required: Level
    scripts: tuple[str, ...] = SCRIPTS
    adopts: bool = False
    started: float = field(default_factory=time.time)
    works: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.works = [Work(resolution=resolution) for resolution in self.plan.resolutions]

    def lock_all(self) -> None:
        # In place, an automatic Python follows the machine: a kept lock for another one is then not meant.
        is_strict = self.chosen.host is None
        for work in self.works:
            self.progress.stage("lock", work.resolution.image_id)
            work.stage = "lock"
            try:
                work.lock = line.locked(
                    work.resolution, self.folders, self.sources, self.chosen.bases, self.progress, is_strict=is_strict
                )
            except TorchproofError as error:
                work.error = error

    def build_all(self) -> None:
        line.built(
            self.works,
            self.plan.loaded.name,
            self.folders,
            self.chosen.engine,
            self.sources,
            self.chosen.bases,
            self.progress,
            catalog=self.catalog,
        )
        if self.adopts:
            from builder.adopted import checks_against  # noqa: PLC0415 - the rare way

            for work in self.works:
                if work.image is not None and work.lock is not None:
                    work.checks += checks_against(work.lock, Path(work.image.reference))

    def find_all(self) -> None:
        """Locks and images as they are: nothing is locked or built."""
        for work in self.works:
            work.stage = "smoke"
            try:
                work.lock = line.kept_lock(self.folders, work.resolution)
                found = self.chosen.engine.image(render.tag(self.plan.loaded.name, work.resolution.image_id))
                work.image = replace(found, image_id=work.resolution.image_id)
            except TorchproofError as error:
                work.error = error

    def smoke_all(self) -> RunReport:
        settings, sizes = self.plan.loaded.matrix.smoke, self.plan.loaded.matrix.budget
        runs = line.proven(
            self.works,
            self.chosen.engine,
            self.progress,
            limits=Limits(memory_bytes=size_bytes(settings.memory), shm_bytes=size_bytes(settings.shm)),
            time_limit_s=float(settings.time_limit),
            scripts=self.scripts,
            budget=Budget(
                image_bytes=size_bytes(sizes.image) if sizes.image else None,
                packages_bytes=size_bytes(sizes.packages) if sizes.packages else None,
            ),
        )
        engine = self.chosen.engine
        images = []
        for work in self.works:
            run = runs.get(work.resolution.image_id)
            if run is not None and work.lock is not None:
                work.checks += not_run(self.scripts, {package.name for package in work.lock.packages})
            report = line.image_report(work, run, engine=engine, required=self.required)
            images.append(settle.settled(report, work, engine, self.folders.out))
        return line.run_report(
            images,
            spec_file=str(self.spec),
            started=self.started,
            engine=self.chosen.engine,
            catalog=self.catalog,
            engine_reason=self.chosen.why,
        )
