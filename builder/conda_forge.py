"""What conda-forge has of a lock's torch, as far as the facts tell. Pure."""

from __future__ import annotations

from packaging.version import Version

from builder.catalog import Catalog
from builder.lockfile import ImageLock
from builder.render_conda import ForgeBuild
from builder.versions import CudaVariant


def forge_build(lock: ImageLock, catalog: Catalog) -> ForgeBuild | None:
    """None: a CPU build, or conda-forge has no CUDA build of that release and CUDA major, as far as the facts tell."""
    wanted = CudaVariant.parse(lock.variant).toolkit
    release = catalog.torch_release(Version(Version(lock.torch).public))
    toolkit = None if wanted is None or release is None else release.conda_forge_toolkit(wanted)
    if toolkit is None:
        return None
    return ForgeBuild(toolkit=str(toolkit), last_official=catalog.raw("torch")["conda"]["last_official"])
