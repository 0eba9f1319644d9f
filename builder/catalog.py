"""What is known about the world, as typed rows: the one way into facts/.

    Catalog.shipped()              opens nothing; a topic is read when first asked for
    Catalog.with_overlay(path)     the same, with the rows of a user's file over it (facts_merge.py has the rule)

    torch_releases() -> TorchRelease            with builds(arch) -> TorchBuild, companions(name), abi, onnx_export
    driver_floor(toolkit) -> DriverFloor        toolkit(...) -> Toolkit       driver_branch(driver) -> DriverBranch
    gpu(name) -> Gpu                            onnxruntime_gpu_releases() -> OnnxRuntimeGpu
    transformers(version) -> TransformersMinor  numpy_releases() -> NumpyRelease
    distribution(image) -> Distribution         cuda_image(tag), cuda_image_tags(...) -> CudaImage

Lists are newest first. None means "not in the facts", never "no". Every row has `fact`, a citation that ends with its
confidence and source; facts_store.py sees to it that a row without them is never served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from packaging.version import InvalidVersion, Version

from builder.catalog_rows.base import Note, Raw, Row
from builder.catalog_rows.cuda import (
    CudaImage,
    DriverBranch,
    DriverFloor,
    Flavor,
    GenerationDrivers,
    Toolkit,
)
from builder.catalog_rows.gpus import AmbiguousGpuError, Gpu, GpuNames, MatmulSpeed
from builder.catalog_rows.onnxruntime import OnnxRuntimeCpu, OnnxRuntimeGpu, RemovedOnnxRuntimeGpu
from builder.catalog_rows.packages import Hazards, Packages
from builder.catalog_rows.python import CPython, Distribution, NumpyRelease
from builder.catalog_rows.torch import TorchRelease
from builder.catalog_rows.torch_parts import Companion, CompanionName, OnnxScriptRelease, TritonRelease
from builder.catalog_rows.transformers import TransformersMinor, TransformersRelease
from builder.facts_store import FactsError, FactsStore
from builder.versions import ComputeCapability, CudaVersion, DriverVersion, GlibcVersion, PythonVersion

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

NOTE_TOPICS = ("torch", "cuda_driver", "cuda_images", "gpus", "onnxruntime", "transformers", "python")


def _version(text: str | Version) -> Version | None:
    if isinstance(text, Version):
        return text
    try:
        return Version(text)
    except InvalidVersion:
        return None


class Catalog:
    """Pure once its files are read: same content, same answers."""

    def __init__(self, store: FactsStore) -> None:
        self._store = store
        self._notes: dict[str, tuple[Note, ...]] = {}
        self._floors: dict[CudaVersion, DriverFloor] = {}

    @classmethod
    def shipped(cls) -> Catalog:
        return cls(FactsStore.shipped())

    def with_overlay(self, path: Path) -> Catalog:
        """A catalog with the file's rows over this one's; the topics it touches are validated at once."""
        return Catalog(self._store.with_overlay(path))

    def _topic(self, name: str) -> Raw:
        return self._store.topic(name)

    @property
    def generated(self) -> date:
        """When the oldest topic was gathered."""
        return self._store.generated

    def age(self, today: date) -> int:
        """Days since `generated`."""
        return (today - self.generated).days

    @property
    def digest(self) -> str:
        """Changes with any content, overlays included."""
        return self._store.digest

    @property
    def topics(self) -> tuple[str, ...]:
        return self._store.topics

    def raw(self, topic: str) -> Raw:
        """The validated content of a topic, for `facts show` and `facts diff`."""
        return self._store.topic(topic)

    # ---- notes

    def notes(self, topic: str) -> tuple[Note, ...]:
        if topic not in self._notes:
            self._notes[topic] = tuple(Note(raw) for raw in self._topic(topic).get("notes", ()))
        return self._notes[topic]

    def note(self, note_id: str) -> Note:
        """KeyError when there is none: ids are written in code, so a missing one is a mistake there."""
        for topic in NOTE_TOPICS:
            for note in self.notes(topic):
                if note.id == note_id:
                    return note
        raise KeyError(note_id)

    # ---- torch

    @cached_property
    def _torch(self) -> dict[Version, TorchRelease]:
        topic = self._topic("torch")
        rows = (TorchRelease(version, raw, topic) for version, raw in topic["releases"].items())
        return _newest_first({row.version: row for row in rows})

    def torch_releases(self) -> tuple[TorchRelease, ...]:
        return tuple(self._torch.values())

    def torch_release(self, version: str | Version) -> TorchRelease | None:
        """A local label is ignored: 2.6.0+cu124 is release 2.6.0."""
        wanted = _version(version)
        return None if wanted is None else self._torch.get(Version(wanted.public))

    def companion(self, name: CompanionName, version: str | Version) -> Companion | None:
        """A release of torchvision, torchaudio or torchtext that the default index has; None: not in the facts."""
        table, wanted = self._topic("torch")["companion_packages"], _version(version)
        raw = None if wanted is None else table[name].get(wanted.public)
        return None if raw is None else Companion(name, str(wanted), raw, raw, table)

    def triton(self, version: str | Version) -> TritonRelease | None:
        raw = self._topic("torch")["triton"].get(str(version))
        return None if raw is None else TritonRelease(str(version), raw)

    @cached_property
    def _onnxscript(self) -> tuple[OnnxScriptRelease, ...]:
        table = self._topic("torch")["onnxscript"]
        rows = {Version(key): OnnxScriptRelease(key, raw, table) for key, raw in table["versions"].items()}
        return tuple(_newest_first(rows).values())

    def onnxscript_releases(self) -> tuple[OnnxScriptRelease, ...]:
        """The last patch of every minor version; others exist and are not in the facts."""
        return self._onnxscript

    # ---- CUDA, drivers, images

    @cached_property
    def _toolkits(self) -> dict[CudaVersion, Toolkit]:
        rows = [Toolkit(version, raw) for version, raw in self._topic("cuda_driver")["toolkits"].items()]
        return {row.version: row for row in sorted(rows, key=lambda row: row.version, reverse=True)}

    def toolkits(self) -> tuple[Toolkit, ...]:
        return tuple(self._toolkits.values())

    def toolkit(self, version: CudaVersion) -> Toolkit | None:
        return self._toolkits.get(version.series)

    def driver_floor(self, version: CudaVersion) -> DriverFloor:
        """Under minor-version compatibility: a toolkit without a row of its own has the floor of its major version."""
        if version.series not in self._floors:
            self._floors[version.series] = self._driver_floor(version.series)
        return self._floors[version.series]

    def _driver_floor(self, version: CudaVersion) -> DriverFloor:
        if version in self._toolkits:
            row = self._toolkits[version]
            return DriverFloor(row.min_driver, row.fact)
        major = self._topic("cuda_driver")["minor_version_compatibility"].get(str(version.major))
        if major is None:
            return DriverFloor(None, f"no fact about drivers for CUDA {version}")
        if major["min_driver"] is None:
            return DriverFloor(None, Row(major).cite(f"no fact for CUDA {version}; {major['rule']}"))
        what = f"CUDA {version.major}.x runs on driver {major['min_driver']} or newer"
        return DriverFloor(DriverVersion.parse(major["min_driver"]), Row(major).cite(what))

    def windows_driver_floor(self, version: CudaVersion) -> DriverFloor:
        """Windows drivers are numbered on their own: the floor of the toolkit, or of its major version."""
        table = self._topic("cuda_driver").get("windows_min_driver") or {}
        for key in (str(version.series), str(version.major)):
            if key in table.get("floors", {}):
                text = table["floors"][key]
                what = f"CUDA {key}{'' if '.' in key else '.x'} runs on Windows driver {text} or newer"
                return DriverFloor(DriverVersion.parse(text), Row(table).cite(what))
        return DriverFloor(None, f"no fact about Windows drivers for CUDA {version}")

    @cached_property
    def _branches(self) -> tuple[DriverBranch, ...]:
        topic = self._topic("cuda_driver")
        rows = [DriverBranch(raw, {"source": topic["nvidia_smi_source"]}) for raw in topic["nvidia_smi_cuda_version"]]
        return tuple(sorted(rows, key=lambda row: row.branch, reverse=True))

    def driver_branch(self, driver: DriverVersion) -> DriverBranch | None:
        """The row of the driver's branch, or of the nearest older one in the facts."""
        return next((row for row in self._branches if row.branch <= driver.branch), None)

    def generation_drivers(self, gpu: Gpu) -> GenerationDrivers | None:
        """The branches that drive the GPU's generation; None for a bare capability and where there is no row."""
        topic = self._topic("cuda_driver")
        table, generation = topic["generation_driver_range"], gpu.generation
        if generation == "Ampere" and gpu.compute_capability == ComputeCapability(8, 0):
            generation = "Ampere-GA100"
        if generation is None or generation not in table:
            return None
        return GenerationDrivers(generation, table[generation], {"source": topic["generation_source"]})

    @cached_property
    def _images(self) -> tuple[CudaImage, ...]:
        images = [
            CudaImage(version, variant, os, raw)
            for version, raw in self._topic("cuda_images")["images"].items()
            for os, variants in raw["variants"].items()
            for variant in variants
        ]
        return tuple(sorted(images, key=lambda image: image.version, reverse=True))

    def cuda_image(self, tag: str) -> CudaImage | None:
        """The row of `nvidia/cuda:<tag>`; None: no source listed it. That it was listed is no promise for today."""
        parts = CudaImage.parts(tag)
        raw = None if parts is None else self._topic("cuda_images")["images"].get(parts[0])
        if parts is None or raw is None:
            return None
        version, cudnn, flavor, os = parts
        variant = f"{cudnn}-{flavor}" if cudnn else flavor
        return CudaImage(version, variant, os, raw) if variant in raw["variants"].get(os, ()) else None

    def cuda_image_tags(
        self,
        *,
        toolkit: CudaVersion | None = None,
        flavor: Flavor | None = None,
        os: str | None = None,
        cudnn: bool | None = None,
    ) -> tuple[CudaImage, ...]:
        """Newest toolkit first. `toolkit` 12.4 takes every patch, 12.4.1 that one; `os` is `ubuntu22.04`."""
        return tuple(
            image
            for image in self._images
            if (toolkit is None or toolkit in {image.version, image.version.series})
            and flavor in {None, image.flavor}
            and os in {None, image.os}
            and (cudnn is None or cudnn == (image.cudnn is not None))
        )

    # ---- GPUs

    @cached_property
    def _gpus(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(raw) for raw in self._topic("gpus")["gpus"])

    @cached_property
    def _gpu_names(self) -> GpuNames:
        return GpuNames(self._gpus)

    def gpus(self) -> tuple[Gpu, ...]:
        """In the order of the table: oldest capability first."""
        return self._gpus

    def gpu(self, name: str) -> Gpu | None:
        """By product name, alias, short form (`3090`) or capability (`8.6`, `sm_86`); None: unknown.

        A name of several products of one capability (`H100`) gives one row with all their memory sizes; of several
        capabilities (`RTX 6000`) it raises AmbiguousGpuError.
        """
        return self._gpu_names.find(name)

    def matmul_speeds(self) -> tuple[MatmulSpeed, ...]:
        return tuple(MatmulSpeed(raw) for raw in self._topic("gpus")["matmul_tflops"])

    def gpu_matches(self, name: str) -> tuple[Gpu, ...]:
        return self._gpu_names.matches(name)

    def nearest_gpus(self, name: str, count: int = 3) -> tuple[str, ...]:
        return self._gpu_names.nearest(name, count)

    # ---- onnxruntime

    @cached_property
    def _ort(self) -> tuple[OnnxRuntimeGpu, ...]:
        rows = [OnnxRuntimeGpu(label, raw) for label, raw in self._topic("onnxruntime")["releases"].items()]
        return tuple(sorted(rows, key=lambda row: row.version, reverse=True))

    def onnxruntime_gpu_releases(self) -> tuple[OnnxRuntimeGpu, ...]:
        """Series rows (1.8.x) are included; `is_on_index` says what can be installed."""
        return self._ort

    def onnxruntime_gpu(self, version: str | Version) -> OnnxRuntimeGpu | None:
        """The row of the release, or of its series; None: not in the facts (see onnxruntime_gpu_removed)."""
        wanted = _version(version)
        if wanted is None:
            return None
        for row in self._ort:
            if row.version.release[:2] == wanted.release[:2] if row.is_series else row.version == wanted:
                return row
        return None

    def onnxruntime_gpu_removed(self, version: str | Version) -> RemovedOnnxRuntimeGpu | None:
        """Says that a release once was on the default index and is gone; None: the facts know no such removal."""
        table, wanted = self._topic("onnxruntime").get("removed"), _version(version)
        if table is None or wanted is None:
            return None
        is_gone = wanted < Version(table["all_before"]) or wanted in map(Version, table["versions"])
        return RemovedOnnxRuntimeGpu(wanted, table) if is_gone else None

    def onnxruntime_cpu(self, version: str | Version) -> OnnxRuntimeCpu | None:
        """What holds for the CPU package. Patches without a GPU row take the limits their minor version agrees on."""
        table, wanted = self._topic("onnxruntime").get("cpu_package"), _version(version)
        if table is None or wanted is None:
            return None
        exact = self.onnxruntime_gpu(wanted)
        if exact is None:
            minor = [row for row in self._ort if row.version.release[:2] == wanted.release[:2]]
            limits = {(row.max_opset, row.max_ir, str(row.numpy_upper)) for row in minor}
            exact = minor[0] if len(limits) == 1 else None
        return None if exact is None else OnnxRuntimeCpu(wanted, exact, table)

    # ---- transformers, numpy

    @cached_property
    def _transformers(self) -> tuple[TransformersMinor, ...]:
        rows = [TransformersMinor(label, raw) for label, raw in self._topic("transformers")["minors"].items()]
        return tuple(sorted(rows, key=lambda row: row.version, reverse=True))

    @cached_property
    def _transformers_releases(self) -> dict[Version, TransformersRelease]:
        rows = {
            version: TransformersRelease(version, version in minor.yanked, minor)
            for minor in self._transformers
            for version in (*minor.releases, *minor.yanked)
        }
        return _newest_first(rows)

    def transformers_minors(self) -> tuple[TransformersMinor, ...]:
        return self._transformers

    def transformers_releases(self) -> tuple[TransformersRelease, ...]:
        """Every patch, yanked ones marked."""
        return tuple(self._transformers_releases.values())

    def transformers_release(self, version: str | Version) -> TransformersRelease | None:
        wanted = _version(version)
        return None if wanted is None else self._transformers_releases.get(wanted)

    def transformers(self, version: str | Version) -> TransformersMinor | None:
        """The row of a known patch (`4.25.1`) or of a minor version (`4.25`); None: not in the facts."""
        wanted = _version(version)
        if wanted is None:
            return None
        if len(wanted.release) == 2:
            return next((row for row in self._transformers if row.version == wanted), None)
        release = self._transformers_releases.get(wanted)
        return None if release is None else release.minor

    @cached_property
    def _numpy(self) -> dict[Version, NumpyRelease]:
        topic = self._topic("numpy")
        return _newest_first({Version(key): NumpyRelease(key, raw, topic) for key, raw in topic["releases"].items()})

    def numpy_releases(self) -> tuple[NumpyRelease, ...]:
        return tuple(self._numpy.values())

    def numpy_release(self, version: str | Version) -> NumpyRelease | None:
        wanted = _version(version)
        return None if wanted is None else self._numpy.get(wanted)

    # ---- torch's neighbours, and what no index tells

    @cached_property
    def packages(self) -> Packages:
        return Packages(self._topic("packages"))

    @cached_property
    def hazards(self) -> Hazards:
        return Hazards(self._topic("hazards"))

    # ---- Python and distributions

    @cached_property
    def _cpython(self) -> tuple[CPython, ...]:
        topic = self._topic("python")
        rows = [CPython(raw, {"source": topic["row_source"]}) for raw in topic["cpython"]]
        return tuple(sorted(rows, key=lambda row: row.version, reverse=True))

    def cpython_releases(self) -> tuple[CPython, ...]:
        return self._cpython

    def cpython(self, version: PythonVersion) -> CPython | None:
        return next((row for row in self._cpython if row.version == version.series), None)

    @cached_property
    def _distributions(self) -> tuple[Distribution, ...]:
        topic = self._topic("python")
        return tuple(Distribution(raw, {"source": topic["row_source"]}) for raw in topic["distributions"])

    def distributions(self) -> tuple[Distribution, ...]:
        """In the order of the table: per system, oldest first."""
        return self._distributions

    def distribution(self, name: str) -> Distribution | None:
        """By `debian:12`, `debian:bookworm`, `debian:bookworm-slim`, `ubuntu22.04`, `rhel8.9` or a bare codename."""
        match = re.fullmatch(r"(?:([a-z]+):?)??([a-z]+|[0-9]+(?:\.[0-9]+)*)(?:-slim)?", name.strip().lower())
        if match is None:
            return None
        system, release = match[1], match[2]
        if system is None and release[0].isdigit():
            return None  # a bare number names no system
        alike = (self._topic("python").get("same_release") or {}).get("systems", ())
        for row in self._distributions:
            is_system = system in {None, row.name} or (system in alike and row.name in alike)
            if is_system and {release, release.partition(".")[0]} & {row.release, row.codename}:
                return row
        return None

    def distributions_with_python(self, python: PythonVersion | str) -> tuple[Distribution, ...]:
        wanted = PythonVersion.parse(python) if isinstance(python, str) else python
        return tuple(row for row in self._distributions if row.python == wanted.series)

    def manylinux_glibc(self, tag: str) -> GlibcVersion | None:
        """The glibc floor of `manylinux2014`, `manylinux_2_28` and the like."""
        text = self._topic("python")["manylinux_glibc"]["tags"].get(tag)
        if text is not None:
            return GlibcVersion.parse(text)
        match = re.fullmatch(r"manylinux_([0-9]+)_([0-9]+)", tag)  # PEP 600: the floor is the name
        return GlibcVersion(int(match[1]), int(match[2])) if match else None


def _newest_first(rows: Mapping[Version, T]) -> dict[Version, T]:
    return dict(sorted(rows.items(), key=lambda item: item[0], reverse=True))


__all__ = ["AmbiguousGpuError", "Catalog", "FactsError"]
