"""Topic torch: releases and their builds."""

from __future__ import annotations

from datetime import date
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.base import Arch, Raw, Row, codes, cuda_library, pythons, span
from builder.catalog_rows.packages import requirement
from builder.catalog_rows.torch_parts import COMPANIONS, Abi, Companion, CompanionName, Features, OnnxExport
from builder.versions import (
    ComputeCapability,
    CudaVariant,
    CudaVersion,
    GlibcVersion,
    GpuCode,
    PythonVersion,
    best_code,
)

CPU = CudaVariant("cpu")
_NO_TOOLKIT = CudaVersion((0, 0))


class TorchBuild(Row):
    """One CUDA variant of one release on one architecture. `archs` or `ptx` None: not in the facts."""

    def __init__(self, torch: Version, variant: CudaVariant, arch: Arch, raw: Raw) -> None:
        super().__init__(raw)
        self.torch = torch
        self.variant = variant
        self.arch = arch

    @cached_property
    def archs(self) -> tuple[GpuCode, ...] | None:
        return codes(self._raw.get("archs"))

    @cached_property
    def ptx(self) -> tuple[GpuCode, ...] | None:
        return codes(self._raw.get("ptx"))

    @property
    def cudnn(self) -> str | None:
        return self._raw.get("cudnn")

    @property
    def cudnn_major(self) -> int | None:
        return None if self.cudnn is None else int(self.cudnn.split(".")[0])

    @property
    def nccl(self) -> str | None:
        return self._raw.get("nccl")

    def code_for(self, device: ComputeCapability) -> GpuCode | None:
        """The code that would run on the device; None where there is none or it is not known (see `runs_on`)."""
        return best_code((*(self.archs or ()), *(self.ptx or ())), device, self.variant.toolkit)

    def runs_on(self, device: ComputeCapability) -> bool | None:
        """Whether the build has code for the device; None: the facts do not say."""
        if self.code_for(device) is not None:
            return True
        if self.archs and device < min(code.capability for code in self.archs):
            return False  # PTX is made for architectures of the same list, and an older card takes no newer PTX
        return None if self.archs is None or self.ptx is None else False

    @property
    def name(self) -> str:
        return f"torch {self.torch} {self.variant}" + ("" if self.arch == "x86_64" else f" {self.arch}")

    @property
    def fact(self) -> str:
        if self.variant.is_cpu:
            return self.cite(f"{self.name}: no GPU code")
        if self.archs is None:
            return self.cite(f"{self.name}: architectures not in the facts")
        ptx = f", PTX {span(self.ptx)}" if self.ptx else ""
        return self.cite(f"{self.name}: architectures {span(self.archs)}{ptx}")


class TorchRelease(Row):
    """One release. `source` and `confidence` are those of its row about the default index; parts carry their own."""

    def __init__(self, version: str, raw: Raw, topic: Raw) -> None:
        super().__init__(raw["pypi"])
        self.version = Version(version)
        self._row = raw
        self._topic = topic

    @cached_property
    def released(self) -> date:
        return date.fromisoformat(self._row["released"])

    @cached_property
    def python_requires(self) -> SpecifierSet:
        return SpecifierSet(self._raw["requires_python"])

    @cached_property
    def _pythons(self) -> dict[Arch, tuple[PythonVersion, ...]]:
        arm = self._raw["aarch64"]
        return {"x86_64": pythons(self._raw["python"]), "aarch64": pythons(arm["python"]) if arm else ()}

    def pythons(self, arch: Arch = "x86_64") -> tuple[PythonVersion, ...]:
        """Pythons with a wheel of the default build; empty where the architecture has no wheel.

        The facts hold no separate list for the wheels of the torch index, which were built for the same Pythons.
        """
        return self._pythons[arch]

    def free_threaded_pythons(self, arch: Arch = "x86_64") -> tuple[PythonVersion, ...]:
        row = self._raw if arch == "x86_64" else self._raw["aarch64"] or {}
        return pythons(row.get("free_threaded", ()))

    def manylinux(self, arch: Arch = "x86_64") -> tuple[str, ...]:
        row = self._raw[arch]
        return tuple(row["manylinux"]) if row else ()

    def wheel_mib(self, arch: Arch = "x86_64") -> int | None:
        """Size of the largest wheel of the default build."""
        row = self._raw[arch]
        return int(row["largest_wheel_mib"]) if row else None

    @cached_property
    def _default_variants(self) -> dict[Arch, CudaVariant | None]:
        default, arm = CudaVariant.parse(self._raw["default_build"]), self._raw["aarch64"]
        # Where the aarch64 wheel is a CUDA build it shares the pins of the x86_64 one (note aarch64-default-cuda).
        return {"x86_64": default, "aarch64": None if arm is None else default if arm["cuda"] else CPU}

    def default_variant(self, arch: Arch = "x86_64") -> CudaVariant | None:
        """What the default index installs; None where it has no wheel for the architecture."""
        return self._default_variants[arch]

    def is_index_only(self, variant: CudaVariant, arch: Arch = "x86_64") -> bool:
        """Whether this variant is only on the torch wheel index, so that a plain install cannot get it."""
        return variant != self.default_variant(arch)

    @cached_property
    def _builds(self) -> dict[Arch, tuple[TorchBuild, ...]]:
        return {"x86_64": tuple(self._x86_64_builds()), "aarch64": tuple(self._aarch64_builds())}

    @property
    def _tags(self) -> list[str]:
        table = self._row["cuda_builds"]
        return [tag for tag in table["tags"] if tag not in self._unpublished]

    @property
    def _unpublished(self) -> tuple[str, ...]:
        return tuple((self._row["cuda_builds"].get("unpublished") or {}).get("tags", ()))

    def _x86_64_builds(self) -> list[TorchBuild]:
        table = self._row["cuda_builds"]
        unknown = {key: table[key] for key in ("source", "confidence")}
        builds = [
            # A tag without a row of its own exists as its table says; what is in it is not known.
            TorchBuild(self.version, CudaVariant.parse(tag), "x86_64", table["per_build"].get(tag, unknown))
            for tag in self._tags
        ]
        return [*self._cpu_build("x86_64"), *sorted(builds, key=lambda build: build.variant.toolkit or _NO_TOOLKIT)]

    def _aarch64_builds(self) -> list[TorchBuild]:
        default = self.default_variant("aarch64")
        if default is None:
            return []
        wheel = {"source": self.source, "confidence": self.confidence}
        table = self._row.get("aarch64_archs", {"per_build": {}})
        raws: dict[str, Raw] = {} if default.is_cpu else {default.tag: wheel}
        for tag, archs in table["per_build"].items():
            if tag not in self._unpublished:
                ptx = (table.get("ptx") or {}).get(tag)
                raws[tag] = {"archs": archs, "ptx": ptx, "source": table["source"], "confidence": table["confidence"]}
        cuda = [TorchBuild(self.version, CudaVariant.parse(tag), "aarch64", raw) for tag, raw in raws.items()]
        if default.is_cpu:
            cpu = [TorchBuild(self.version, CPU, "aarch64", {"archs": (), "ptx": (), **wheel})]
        else:
            cpu = self._cpu_build("aarch64")
        return [*cpu, *sorted(cuda, key=lambda build: build.variant.toolkit or _NO_TOOLKIT)]

    def _cpu_build(self, arch: Arch) -> list[TorchBuild]:
        table = self._topic.get("cpu_builds")
        if table is None or self.version < Version(table["first"]):
            return []
        raw = {"archs": (), "ptx": (), "source": table["source"], "confidence": table["confidence"]}
        return [TorchBuild(self.version, CPU, arch, raw)]

    def builds(self, arch: Arch = "x86_64") -> tuple[TorchBuild, ...]:
        """The CPU build first, then CUDA variants by toolkit. On aarch64 only those that the facts name."""
        return self._builds[arch]

    def build(self, variant: CudaVariant | str, arch: Arch = "x86_64") -> TorchBuild | None:
        """None: no such build is known."""
        tag = str(variant)
        return next((build for build in self._builds[arch] if build.variant.tag == tag), None)

    def variants(self, arch: Arch = "x86_64") -> tuple[CudaVariant, ...]:
        return tuple(build.variant for build in self._builds[arch])

    def default_build(self, arch: Arch = "x86_64") -> TorchBuild | None:
        variant = self.default_variant(arch)
        return None if variant is None else self.build(variant, arch)

    @property
    def cuda_runtime(self) -> str | None:
        """The runtime that the default wheel pins; None where it carries its own and the metadata does not tell."""
        return self._raw["cuda_runtime"]  # type: ignore[no-any-return]

    @property
    def cuda_toolkit(self) -> CudaVersion | None:
        text = self._raw["cuda_toolkit"]
        return None if text is None else CudaVersion.parse(text)

    @property
    def cudnn(self) -> str | None:
        return self._raw["cudnn"]  # type: ignore[no-any-return]

    def cudnn_major(self, variant: CudaVariant | None = None, arch: Arch = "x86_64") -> int | None:
        """Of the variant, or of the default build; None for a CPU build and where the facts do not say."""
        build = self.default_build(arch) if variant is None else self.build(variant, arch)
        if build is None or build.variant.is_cpu:
            return None
        if build.cudnn_major is not None:
            return build.cudnn_major
        is_default = build.variant == self.default_variant("x86_64")
        return int(self.cudnn.split(".")[0]) if self.cudnn and is_default else None

    @property
    def nccl(self) -> str | None:
        return self._raw["nccl"]  # type: ignore[no-any-return]

    @cached_property
    def triton(self) -> SpecifierSet | None:
        text = self._raw["triton"]
        return None if text is None else SpecifierSet(text if text[0] in "=<>~!" else f"=={text}")

    @property
    def triton_marker(self) -> str | None:
        return self._raw["triton_marker"]  # type: ignore[no-any-return]

    @property
    def nvidia_requirements(self) -> tuple[str, ...]:
        """Requirements with markers, as the metadata writes them."""
        return tuple(self._raw["nvidia_requirements"])

    def brings(self, library: str) -> bool | None:
        """Whether the default build asks for the package of a CUDA library, such as `curand`.

        None: not known. Before 2.0 libraries lie inside the wheel.
        """
        if not self.nvidia_requirements or self.version < Version("2.0"):
            return None
        parsed = [requirement(text) for text in self.nvidia_requirements]
        parts = {extra for each in parsed if each.name == "cuda-toolkit" for extra in each.extras}
        return library in {*parts, *(cuda_library(each.name) for each in parsed)}

    @cached_property
    def setuptools_requirement(self) -> SpecifierSet | None:
        """Empty: required without a bound; None: not required."""
        text = self._raw["setuptools_requirement"]
        return None if text is None else SpecifierSet(text)

    @property
    def is_numpy_required(self) -> bool:
        """Whether installing torch installs numpy."""
        return self._raw["numpy_requirement"] is not None

    @cached_property
    def abi(self) -> Abi:
        return Abi(self.version, self._row["abi"])

    @property
    def numpy_upper(self) -> SpecifierSet | None:
        return self.abi.numpy_upper

    @property
    def glibc_floor(self) -> GlibcVersion:
        return self.abi.glibc_floor

    def glibc_of(self, variant: CudaVariant | None, arch: Arch) -> tuple[GlibcVersion, str]:
        """The floor of one build, and what tells it."""
        newer = self._row["cuda_builds"].get("newer_glibc")
        if arch == "x86_64" and newer is not None and variant is not None and variant.tag in newer["tags"]:
            floor = GlibcVersion.parse(newer["floor"])
            return floor, Row(newer).cite(f"torch {self.version} {variant} needs glibc {floor}")
        return self.glibc_floor, self.abi.glibc_fact

    @cached_property
    def onnx_export(self) -> OnnxExport:
        return OnnxExport(self.version, self._row["onnx_export"])

    @property
    def onnx_package_fact(self) -> str | None:
        """Why exporting needs the onnx package, whichever exporter is used; None: the old exporter does without it."""
        table = self._topic.get("onnx_package")
        if table is None or self.version < Version(table["old_exporter_needs_it_from"]):
            return None
        first = table["old_exporter_needs_it_from"]
        return Row(table).cite(f"torch.onnx.export needs the onnx package from torch {first} on")

    @cached_property
    def features(self) -> Features:
        return Features(self.version, self._row["features"])

    @property
    def has_official_conda_package(self) -> bool:
        return bool(self._row["official_conda_channel"])

    def conda_forge_toolkit(self, wanted: CudaVersion) -> CudaVersion | None:
        """Of conda-forge's builds for the same CUDA major the nearest: the same, the next one up, else the last.
        None: conda-forge has none, or no fact tells.
        """
        table = self._topic.get("conda_forge") or {"toolkits": {}}
        found = sorted(map(CudaVersion.parse, table["toolkits"].get(str(self.version), ())))
        same = [toolkit for toolkit in found if toolkit.major == wanted.major]
        return next((toolkit for toolkit in same if toolkit >= wanted), same[-1] if same else None)

    @cached_property
    def _companions(self) -> dict[CompanionName, tuple[Companion, ...]]:
        table = self._topic["companion_packages"]
        return {
            name: tuple(
                Companion(name, row["version"], row, table[name].get(row["version"], {}), table)
                for row in reversed(self._row["companions"][name])
            )
            for name in COMPANIONS
        }

    def companions(self, name: CompanionName) -> tuple[Companion, ...]:
        """Newest first; empty: none was made for this release."""
        return self._companions[name]

    @property
    def fact(self) -> str:
        supported = self.pythons()
        return self.cite(
            f"torch {self.version}: Python {span(supported)}, default build {self.default_variant()}, "
            f"variants {', '.join(map(str, self.variants()))}"
        )

    @property
    def pythons_fact(self) -> str:
        return self.cite(f"torch {self.version} has wheels for Python {', '.join(map(str, self.pythons()))}")

    @property
    def variants_fact(self) -> str:
        table = Row(self._row["cuda_builds"])
        return table.cite(f"torch {self.version} has builds for {', '.join(self._tags)}")
