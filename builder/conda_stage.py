"""The conda part of an image: unpacked here, for the path that it has in the image, and handed to the build."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from builder import conda_tool, render_conda
from builder.lockfile import ImageLock
from builder.render import FIXED_TIME

INSTALLED_AS = Path("/opt/conda")

# What py-rattler notes about this machine in conda-meta: where its cache is.
_OF_THIS_MACHINE = ("extracted_package_dir", "package_tarball_full_path", "link")


def contexts(lock: ImageLock, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Named context -> folder; made once for every conda part, and the same bytes and times on every machine."""
    name = render_conda.context_name(lock)
    if name is None:
        return {}
    target = folder / name
    if not target.is_dir():
        part = folder / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        conda_tool.create(lock, part, environ, installed_as=INSTALLED_AS)
        _strip(part)
        part.rename(target)
    return {name: str(target)}


def _strip(prefix: Path) -> None:
    for path in (prefix / "conda-meta").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: value for key, value in record.items() if key not in _OF_THIS_MACHINE}
        path.unlink()  # it may be a hard link into the cache
        path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for folder, folders, names in os.walk(prefix, topdown=False):
        for name in [*folders, *names]:
            os.utime(Path(folder, name), (FIXED_TIME, FIXED_TIME), follow_symlinks=False)
