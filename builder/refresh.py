"""`facts refresh`: what the configured package index tells today, as an overlay over the shipped facts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from builder.errors import PackageIndexError
from builder.package_index import PackageIndex
from builder.sources import Sources

# Named in requirements of the tracked projects and kept in topics of their own.
TRACKED_BESIDE = frozenset({"torch", "torchvision", "torchaudio", "torchtext", "numpy"})


def index_from(sources: Sources, cache: Path | None) -> PackageIndex:
    """The configured index; without one, the address that uv itself would take."""
    return PackageIndex(
        sources.default_index or _uv_default(), cache, ca_bundle=sources.ca_bundle, proxies=sources.proxies
    )


def _uv_default() -> str:
    # No address of an index is written in this code: uv's own help names the one it goes to.
    from uv import find_uv_bin  # noqa: PLC0415

    text = subprocess.run(
        [find_uv_bin(), "help", "pip", "install"], capture_output=True, text=True, check=False, timeout=30
    ).stdout
    match = re.search(r"default package index \(by default: <([^>]+)>\)", " ".join(text.split()))
    if match is None:
        raise PackageIndexError(
            "index-unknown",
            "no package index is configured",
            because=["neither UV_DEFAULT_INDEX, PIP_INDEX_URL nor a configuration file names one"],
            hint="set UV_DEFAULT_INDEX to the simple API of your index",
        )
    return match[1]
