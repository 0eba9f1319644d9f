"""Many cells, one question: does torch with this variant, Python, card and driver fit together? Pure and quick.

The answers of the catalog are kept by what they hang on, so that a matrix of ten thousand cells asks each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from builder.catalog import Catalog
from builder.catalog_rows.base import Arch
from builder.catalog_rows.gpus import Gpu
from builder.catalog_rows.torch import TorchBuild
from builder.versions import DriverVersion, PythonVersion


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    torch: str
    variant: str
    python: str
    gpu: str | None = None
    driver: str | None = None
    arch: Arch = "x86_64"


class Cells:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._pythons = lru_cache(maxsize=None)(self._python_fits)
        self._build = lru_cache(maxsize=None)(self._find_build)
        self._gpu = lru_cache(maxsize=None)(self._find_gpu)
        self._covers = lru_cache(maxsize=None)(self._gpu_is_covered)
        self._drives = lru_cache(maxsize=None)(self._driver_is_enough)

    def fits(self, cell: Cell) -> bool:
        """Whether nothing that the facts know speaks against it; what they do not know does not count as fitting."""
        return self.reason(cell) is None

    def reason(self, cell: Cell) -> str | None:
        """The code of the first thing in the way, as the rules name it; None: it fits."""
        if self._build(cell.torch, cell.variant, cell.arch) is None:
            return "torch-no-variant"
        if not self._pythons(cell.torch, cell.python, cell.arch):
            return "no-wheel-for-python"
        if cell.gpu is not None:
            if cell.variant == "cpu":
                return "cpu-build-for-gpu"
            covered = self._covers(cell.torch, cell.variant, cell.gpu, cell.arch)
            if not covered:
                return "gpu-code-unknown" if covered is None else "gpu-not-covered"
        if cell.driver is not None and not self._drives(cell.torch, cell.variant, cell.driver, cell.arch):
            return "driver-too-old"
        return None

    def _find_build(self, torch: str, variant: str, arch: Arch) -> TorchBuild | None:
        release = self._catalog.torch_release(torch)
        return None if release is None else release.build(variant, arch)

    def _python_fits(self, torch: str, python: str, arch: Arch) -> bool:
        release = self._catalog.torch_release(torch)
        return release is not None and PythonVersion.parse(python).series in release.pythons(arch)

    def _find_gpu(self, name: str) -> Gpu | None:
        return self._catalog.gpu(name)

    def _gpu_is_covered(self, torch: str, variant: str, gpu: str, arch: Arch) -> bool | None:
        build, found = self._build(torch, variant, arch), self._gpu(gpu)
        return None if build is None or found is None else build.runs_on(found.compute_capability)

    def _driver_is_enough(self, torch: str, variant: str, driver: str, arch: Arch) -> bool:
        build = self._build(torch, variant, arch)
        toolkit = None if build is None else build.variant.toolkit
        floor = None if toolkit is None else self._catalog.driver_floor(toolkit).driver
        return floor is None or DriverVersion.parse(driver) >= floor
