"""A conda prefix with the real stack: solved, created, wheels by uv, smoke tests to L2; then one pin is changed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rattler", reason="py-rattler is not installed: pip install 'torchproof[conda]'")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "conda"))

import local_channel
from fakes import Told

from builder import conda_tool, engines, installed, line, lockfile
from builder import lock as locking
from builder.catalog import Catalog
from builder.conda_tool import Wanted
from builder.engines import Chosen
from builder.errors import PackageIndexError
from builder.in_place import InPlaceEngine
from builder.line import Folders
from builder.results import ImageReport, Level
from builder.run import Run
from builder.scripts import SCRIPTS, chosen
from builder.sources import Sources, read_pip_config

pytestmark = pytest.mark.stack

SPEC = """
axes:
  torch: 2.13.0
  variant: cpu
  python: "{python}"
  transformers: auto
  onnxruntime: auto
  packages:
    tqdm: {tqdm}
provider: conda
conda:
  channels: [{channel}]
  packages: [gpu-tool]
"""


class CondaLine:
    def __init__(self, root: Path) -> None:
        self.root = root
        channel = root / "channel"
        local_channel.python_package(channel, depends=["__glibc >=2.17"])
        for version, cuda in (("2.0", "12.4"), ("3.0", "12.6")):
            local_channel.package(channel, "gpu-tool", version, depends=[f"__cuda >={cuda}"])
        self.channel = local_channel.index(channel)
        self.environ = {**os.environ, "RATTLER_CACHE_DIR": str(root / "rattler")}

    def verify(self, tqdm: str, *, scripts: tuple[str, ...]) -> ImageReport:
        spec = self.root / "small.yaml"
        spec.write_text(SPEC.format(python=local_channel.SERIES, tqdm=tqdm, channel=self.channel), encoding="utf-8")
        catalog = Catalog.shipped()
        host = engines.this_host()
        plan = line.plan(spec, catalog, host=host)
        resolution = plan.resolutions[0]
        assert resolution.provider == "conda"
        # The image is a CPU build; the host that it is solved for is said to have a driver for CUDA 12.4.
        wanted = conda_tool.wanted_by(resolution)
        pretended = Wanted(
            image_id=wanted.image_id,
            specs=wanted.specs,
            channels=wanted.channels,
            subdir=wanted.subdir,
            virtual={**wanted.virtual, "__cuda": "12.4"},
        )
        sources = Sources.from_environment(self.environ, read_pip_config(self.environ))
        progress = Told()
        try:
            lock = locking.lock(resolution, sources)
        except PackageIndexError as error:
            pytest.skip(f"the wheels cannot be locked here: {error.what}")
        lock = replace(lock, provider="conda", conda=conda_tool.solve(pretended, self.environ))
        folders = Folders(locks=self.root / "locks", out=self.root / "out")
        lockfile.write(lock, folders.lock_files(resolution.image_id)[0])
        engine = InPlaceEngine(self.root / "envs", environ=self.environ, prefix=self.root / "prefix", proves_first=True)
        run = Run(
            plan=plan,
            folders=folders,
            chosen=Chosen(engine=engine, bases=None, host=host),
            sources=sources,
            progress=progress,
            catalog=catalog,
            spec=spec,
            required=Level.L2 if scripts == SCRIPTS else Level.L1,
            scripts=scripts,
        )
        run.lock_all()
        run.build_all()
        return run.smoke_all().images[0]


def test_conda_prefix_is_proven_to_l2_and_again_after_a_changed_pin(tmp_path: Path) -> None:
    conda_line = CondaLine(tmp_path)
    prefix = tmp_path / "prefix"
    first = conda_line.verify("4.67.1", scripts=SCRIPTS)
    assert first.error is None, first.error
    assert first.level is Level.L2, [check.message for check in first.failed]
    assert first.reference == str(prefix)
    have = installed.conda_records(prefix)
    assert have["conda:python"][0].startswith(local_channel.VERSION)
    assert have["conda:gpu-tool"][0] == "2.0-0"
    second = conda_line.verify("4.67.0", scripts=chosen(level=Level.L1))
    assert second.error is None, second.error
    assert second.level >= Level.L1, [check.message for check in second.failed]
    assert second.digest != first.digest
    records = installed.records(prefix)
    assert records["tqdm"][0] == "4.67.0"
