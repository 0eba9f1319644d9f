"""Topic torch, what belongs to a release: companions, ABI, export and interfaces; triton and onnxscript."""

from __future__ import annotations

from datetime import date
from functools import cached_property
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.base import Raw, Row, pythons, span
from builder.versions import GlibcVersion, PythonVersion

CompanionName = Literal["torchvision", "torchaudio", "torchtext"]
COMPANIONS: tuple[CompanionName, ...] = ("torchvision", "torchaudio", "torchtext")


class Companion(Row):
    """A release of torchvision, torchaudio or torchtext, alone or as the partner of one torch release.

    `raw` is the row of the pair; `package` what the default index has under that version, empty where it has nothing.
    """

    def __init__(self, name: CompanionName, version: str, raw: Raw, package: Raw, table: Raw) -> None:
        super().__init__(raw, table)
        self.name = name
        self.version = Version(version)
        self._package = package

    @cached_property
    def requires_torch(self) -> SpecifierSet | None:
        """What its own metadata asks for; empty for "any torch", None where it names no torch at all."""
        text = self._raw["requires_torch"]
        return None if text is None else SpecifierSet(text)

    @cached_property
    def pythons(self) -> tuple[PythonVersion, ...] | None:
        """Pythons with a wheel on the default index; None: any Python 3, or not in the facts (see `serves`)."""
        return pythons(self._raw["python"]) if "python" in self._raw else None

    @property
    def released(self) -> date | None:
        return date.fromisoformat(self._package["released"]) if "released" in self._package else None

    @property
    def is_yanked(self) -> bool | None:
        """None: not on the default index as far as the facts know."""
        return self._package.get("yanked")

    def serves(self, python: PythonVersion) -> bool | None:
        """Whether there is a wheel for this Python; None: not in the facts."""
        if self._raw.get("any_python3"):
            return python.major == 3
        return None if self.pythons is None else python.series in self.pythons

    @property
    def fact(self) -> str:
        wants = {None: "names no torch", "": "takes any torch"}.get(self._raw["requires_torch"])
        return self.cite(f"{self.name} {self.version} {wants or 'requires torch' + self._raw['requires_torch']}")


class OnnxExport(Row):
    def __init__(self, torch: Version, raw: Raw) -> None:
        super().__init__(raw)
        self.torch = torch

    @property
    def default_opset(self) -> int:
        return int(self._raw["default_opset"])

    @property
    def max_opset(self) -> int | None:
        return self._raw["max_opset"]  # type: ignore[no-any-return]

    @property
    def max_opset_torchscript(self) -> int | None:
        return self._raw["max_opset_torchscript"]  # type: ignore[no-any-return]

    @property
    def is_dynamo_default(self) -> bool:
        """False also where the exporter has no such parameter."""
        return bool(self._raw["dynamo_default"])

    @property
    def has_dynamo(self) -> bool:
        return self._raw["dynamo_default"] is not None

    @property
    def needs_onnxscript_by_default(self) -> bool:
        return bool(self._raw["needs_onnxscript_by_default"])

    @property
    def onnxscript_api(self) -> str | None:
        return self._raw["onnxscript_api"]  # type: ignore[no-any-return]

    @property
    def fact(self) -> str:
        needs = " and needs onnxscript" if self.needs_onnxscript_by_default else ""
        return self.cite(f"torch {self.torch} exports ONNX at opset {self.default_opset} by default{needs}")


class Abi(Row):
    def __init__(self, torch: Version, raw: Raw) -> None:
        super().__init__(raw)
        self.torch = torch

    @property
    def is_cxx11(self) -> bool:
        return bool(self._raw["cxx11"])

    @property
    def numpy_c_api(self) -> int:
        return int(self._raw["numpy_c_api"])

    @cached_property
    def numpy_upper(self) -> SpecifierSet | None:
        text = self._raw["numpy_upper"]
        return None if text is None else SpecifierSet(text)

    @cached_property
    def glibc_floor(self) -> GlibcVersion:
        return GlibcVersion.parse(self._raw["glibc_floor"])

    @property
    def fact(self) -> str:
        """What the numpy bound rests on."""
        takes = "any numpy" if self.numpy_upper is None else f"numpy{self.numpy_upper} only"
        return self.cite(f"torch {self.torch} is built against the NumPy {self.numpy_c_api} C ABI and takes {takes}")

    @property
    def glibc_fact(self) -> str:
        return self.cite(f"torch {self.torch} needs glibc {self.glibc_floor}")


class Features(Row):
    def __init__(self, torch: Version, raw: Raw) -> None:
        super().__init__(raw)
        self.torch = torch

    @property
    def is_weights_only_default(self) -> bool:
        return bool(self._raw["torch_load_weights_only_default"])

    @property
    def has_amp_gradscaler(self) -> bool:
        return bool(self._raw["torch_amp_gradscaler"])

    @property
    def is_cuda_amp_gradscaler_deprecated(self) -> bool:
        return bool(self._raw["torch_cuda_amp_gradscaler_deprecated"])

    @property
    def has_compile(self) -> bool:
        return bool(self._raw["torch_compile"])

    @property
    def fact(self) -> str:
        return self.cite(f"torch {self.torch}: torch.load, AMP and compile interfaces")


class TritonRelease(Row):
    def __init__(self, version: str, raw: Raw) -> None:
        super().__init__(raw)
        self.version = Version(version)

    @cached_property
    def pythons(self) -> tuple[PythonVersion, ...]:
        return pythons(self._raw["python"])

    @property
    def used_by_torch(self) -> tuple[str, ...]:
        return tuple(self._raw["used_by_torch"])

    def serves(self, python: PythonVersion) -> bool:
        """An abi3 wheel serves its own Python and every later one."""
        floor = self._raw.get("abi3_from")
        return python.series in self.pythons or (floor is not None and python.series >= PythonVersion.parse(floor))

    @property
    def fact(self) -> str:
        return self.cite(f"triton {self.version} has wheels for Python {', '.join(map(str, self.pythons))}")


class OnnxScriptRelease(Row):
    def __init__(self, version: str, raw: Raw, table: Raw) -> None:
        super().__init__(raw, table)
        self.version = Version(version)

    @property
    def released(self) -> date:
        return date.fromisoformat(self._raw["released"])

    @cached_property
    def python_requires(self) -> SpecifierSet:
        return SpecifierSet(self._raw["requires_python"])

    @property
    def requires(self) -> tuple[str, ...]:
        return tuple(self._raw["requires"])

    @property
    def torch_apis(self) -> tuple[str, ...]:
        return tuple(self._raw["torch_apis"])

    @property
    def fact(self) -> str:
        return self.cite(f"onnxscript {self.version} has the interfaces {span(self.torch_apis)}")
