"""Topic onnxruntime: releases of onnxruntime-gpu, and what they say about the CPU package onnxruntime."""

from __future__ import annotations

from datetime import date
from functools import cached_property

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.base import Arch, Raw, Row, codes, cuda_library, pythons, span
from builder.catalog_rows.packages import requirement
from builder.versions import ComputeCapability, CudaVersion, GlibcVersion, GpuCode, PythonVersion, best_code


class Feed(Row):
    """A package feed of the project itself with a build for another toolkit."""

    @property
    def name(self) -> str:
        return str(self._raw["feed"])

    @property
    def cuda(self) -> str:
        """`12.2`, or `12.x`."""
        return str(self._raw["cuda"])

    @property
    def cudnn(self) -> str:
        return str(self._raw["cudnn"])

    @property
    def versions(self) -> str | None:
        return self._raw.get("versions")

    @property
    def fact(self) -> str:
        return self.cite(f"feed {self.name} has a CUDA {self.cuda} build")


class OnnxSupport(Row):
    """Same for the GPU and the CPU package."""

    def __init__(self, label: str, raw: Raw) -> None:
        super().__init__(raw)
        self.label = label

    @property
    def built_with_onnx(self) -> str:
        return str(self._raw["built_with_onnx"])

    @property
    def max_opset(self) -> int:
        return int(self._raw["max_opset"])

    @property
    def max_ir(self) -> int:
        return int(self._raw["max_ir"])

    @property
    def note(self) -> str | None:
        return self._raw.get("note")

    @property
    def fact(self) -> str:
        return self.cite(f"onnxruntime {self.label} loads opset {self.max_opset} and IR {self.max_ir} at most")


class OnnxRuntimeGpu(Row):
    """One release, or (`is_series`) what is known of a whole minor version whose releases left the index.

    `source` and `confidence` are those of its CUDA row; the index row, architectures and opsets carry their own.
    """

    def __init__(self, label: str, raw: Raw) -> None:
        super().__init__(raw["cuda"])
        self.label = label
        self._row = raw
        self._pypi: Raw = raw.get("pypi") or {}

    @property
    def is_series(self) -> bool:
        return self.label.endswith(".x")

    @cached_property
    def version(self) -> Version:
        """The release; for a series its first possible one, so that rows can be sorted."""
        return Version(self.label.removesuffix(".x"))

    @property
    def is_on_index(self) -> bool:
        return bool(self._row["on_pypi"])

    @property
    def released(self) -> date | None:
        return date.fromisoformat(self._row["released"]) if "released" in self._row else None

    @property
    def cuda(self) -> str:
        """What the default wheel was built with: `11.8`, or `12.x` where only the major is known."""
        return str(self._raw["default_wheel"])

    @property
    def cuda_major(self) -> int:
        return int(self._raw["cuda_major"])

    @property
    def cudnn_major(self) -> int:
        return int(self._raw["cudnn_major"])

    @property
    def feeds(self) -> tuple[Feed, ...]:
        return tuple(Feed(raw, self._raw) for raw in self._raw["alternative_feeds"])

    @cached_property
    def _pythons(self) -> dict[Arch, tuple[PythonVersion, ...] | None]:
        arm = self._pypi.get("aarch64")
        return {
            "x86_64": pythons(self._pypi["python"]) if self._pypi else None,
            "aarch64": (pythons(arm["python"]) if arm else ()) if self._pypi else None,
        }

    def pythons(self, arch: Arch = "x86_64") -> tuple[PythonVersion, ...] | None:
        """Pythons with a wheel on the default index; empty: none for this architecture; None: not in the facts."""
        return self._pythons[arch]

    @property
    def python_requires(self) -> SpecifierSet | None:
        text = self._pypi.get("requires_python")
        return None if text is None else SpecifierSet(text)

    def glibc_floor(self, arch: Arch = "x86_64") -> GlibcVersion | None:
        row = self._pypi if arch == "x86_64" else self._pypi.get("aarch64") or {}
        return GlibcVersion.parse(row["glibc_floor"]) if "glibc_floor" in row else None

    @property
    def requires(self) -> tuple[str, ...]:
        return tuple(self._pypi.get("requires", ()))

    def numpy_requirement(self, python: PythonVersion) -> SpecifierSet | None:
        """What its metadata asks of numpy on this Python (the row of the nearest earlier one); None: not known."""
        table = {PythonVersion.parse(key): text for key, text in self._pypi.get("numpy_by_python", {}).items()}
        below = [key for key in table if key <= python.series]
        return SpecifierSet(table[max(below)]) if below else None

    @cached_property
    def numpy_upper(self) -> SpecifierSet | None:
        """The bound its binary needs, whatever its metadata says."""
        text = self._row.get("numpy_abi", {}).get("numpy_upper")
        return None if text is None else SpecifierSet(text)

    @property
    def is_numpy_known(self) -> bool:
        return "numpy_abi" in self._row

    @property
    def extras(self) -> dict[str, tuple[str, ...]]:
        """Extra -> requirements."""
        return {name: tuple(requirements) for name, requirements in self._pypi.get("extras", {}).items()}

    @property
    def cuda_packages(self) -> dict[str, str]:
        """Library -> requirement of the CUDA libraries that it loads, as far as its extra `cuda` names them."""
        texts = self.extras.get("cuda", ())
        if self.is_extra_installable("cuda") is False:  # 1.27.0 puts a suffix of CUDA 12 behind them
            texts = tuple(text.replace("-cu13", "") for text in texts)
        return {cuda_library(requirement(text).name): text for text in texts}

    def cuda_package_fact(self, library: str) -> str:
        return self.cite(f"onnxruntime-gpu {self.version} loads {library}: its extra `cuda` asks for the package")

    def is_extra_installable(self, extra: str) -> bool | None:
        """None: there is no such extra."""
        if extra not in self._pypi.get("extras", {}):
            return None
        return bool(self._pypi.get("extras_installable", {}).get(extra, True))

    @cached_property
    def archs(self) -> tuple[GpuCode, ...] | None:
        """None: not in the facts."""
        return codes(self._row["gpu_archs"]["sass"])

    @cached_property
    def ptx(self) -> tuple[GpuCode, ...] | None:
        return codes(self._row["gpu_archs"]["ptx"])

    @cached_property
    def archs_aarch64(self) -> tuple[GpuCode, ...] | None:
        return codes(self._row["gpu_archs"].get("sass_aarch64"))

    def runs_on(self, device: ComputeCapability, arch: Arch = "x86_64") -> bool | None:
        """Whether the wheel has code for the device; None: the facts do not say."""
        archs = self.archs if arch == "x86_64" else self.archs_aarch64
        # PTX of the x86_64 build is not known to be in the other one.
        ptx = self.ptx if arch == "x86_64" else None
        toolkit = CudaVersion((self.cuda_major, 0))
        if best_code((*(archs or ()), *(ptx or ())), device, toolkit) is not None:
            return True
        return None if archs is None or ptx is None else False

    @cached_property
    def onnx(self) -> OnnxSupport:
        return OnnxSupport(self.label, self._row["onnx"])

    @property
    def max_opset(self) -> int:
        return self.onnx.max_opset

    @property
    def max_ir(self) -> int:
        return self.onnx.max_ir

    @property
    def fact(self) -> str:
        return self.cite(f"onnxruntime-gpu {self.label} is built for CUDA {self.cuda} and cuDNN {self.cudnn_major}")

    @property
    def archs_fact(self) -> str:
        ptx = f", PTX {span(self.ptx)}" if self.ptx else ", PTX unknown" if self.ptx is None else ""
        codes_text = (
            "architectures not in the facts" if self.archs is None else f"architectures {span(self.archs)}{ptx}"
        )
        return Row(self._row["gpu_archs"]).cite(f"onnxruntime-gpu {self.label}: {codes_text}")

    @property
    def index_fact(self) -> str:
        if not self._pypi:
            return self.cite(f"onnxruntime-gpu {self.label} is not on the default index")
        supported = ", ".join(map(str, self.pythons() or ()))
        return Row(self._pypi).cite(f"onnxruntime-gpu {self.label} has wheels for Python {supported}")

    @property
    def numpy_fact(self) -> str | None:
        if not self.is_numpy_known:
            return None
        takes = "any numpy" if self.numpy_upper is None else f"numpy{self.numpy_upper} only"
        return Row(self._row["numpy_abi"]).cite(f"onnxruntime {self.label} takes {takes}")


class RemovedOnnxRuntimeGpu(Row):
    """A release that was on the index and is gone."""

    def __init__(self, version: Version, raw: Raw) -> None:
        super().__init__(raw)
        self.version = version

    @property
    def fact(self) -> str:
        return self.cite(f"onnxruntime-gpu {self.version} is no longer on the default index")


class OnnxRuntimeCpu(Row):
    """The CPU package: limits as in the GPU rows of its version or minor; its Pythons are not in the facts."""

    pythons: None = None

    def __init__(self, version: Version, gpu: OnnxRuntimeGpu, raw: Raw) -> None:
        super().__init__(raw)
        self.version = version
        self.onnx = gpu.onnx
        self.numpy_upper = gpu.numpy_upper
        self.is_numpy_known = gpu.is_numpy_known
        self.numpy_fact = gpu.numpy_fact

    @property
    def max_opset(self) -> int:
        return self.onnx.max_opset

    @property
    def max_ir(self) -> int:
        return self.onnx.max_ir

    @property
    def fact(self) -> str:
        return self.onnx.fact
