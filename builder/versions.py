"""Versions of things that are not Python packages: frozen, hashable, ordered, parsed from text and printed back.

    CudaVersion        12.4, 12.4.127       a toolkit; `variant` gives cu124
    CudaVariant        cpu, cu124, rocm6.2  the local label of a torch wheel
    DriverVersion      525.60.13, 570       a branch alone compares as branch.0
    ComputeCapability  8.6                  of a device
    GpuCode            sm_86, compute_90    what a binary holds: native code (SASS) or PTX
    PythonVersion      3.10, 3.10.4
    GlibcVersion       2.31

Package versions (torch, transformers, ...) are `packaging.version.Version`. Text that does not fit raises
`InvalidVersionError`, a ValueError, so that pydantic models may use these types as fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema
    from typing_extensions import Self


class InvalidVersionError(ValueError):
    """`kind` says what was expected, `text` is what was given."""

    def __init__(self, kind: str, text: object, expected: str) -> None:
        super().__init__(f"`{text}` is not a {kind}: expected {expected}")
        self.kind = kind
        self.text = text
        self.expected = expected


class _Value:
    """What the types share: immutable, equal and ordered by `_key`, made by `parse`, printed by `str`, text in JSON.

    Written out because five generated comparisons in each of seven dataclasses cost 10 ms of every start.
    """

    __slots__ = ("_key",)
    _key: tuple[Any, ...]
    example: ClassVar[str]

    def __init__(self, *key: Any) -> None:
        object.__setattr__(self, "_key", key)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).parse, (str(self),)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, type(self)) else NotImplemented

    def __lt__(self, other: Self) -> bool:
        return self._key < other._key if isinstance(other, type(self)) else NotImplemented

    def __le__(self, other: Self) -> bool:
        return self._key <= other._key if isinstance(other, type(self)) else NotImplemented

    def __gt__(self, other: Self) -> bool:
        return self._key > other._key if isinstance(other, type(self)) else NotImplemented

    def __ge__(self, other: Self) -> bool:
        return self._key >= other._key if isinstance(other, type(self)) else NotImplemented

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> Self:
        raise NotImplementedError

    @classmethod
    def _accept(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            # A float would already have lost the zero of 3.10.
            raise InvalidVersionError(cls.__name__, value, f"text such as {cls.example}")
        return cls.parse(value)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema  # noqa: PLC0415  (this module is used without pydantic too)

        return core_schema.no_info_plain_validator_function(
            cls._accept, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "examples": [cls.example]}


_NUMBER = re.compile(r"[0-9]{1,9}")


@lru_cache(maxsize=4096)
def _numbers(text: str, least: int, most: int) -> tuple[int, ...] | None:
    parts = text.split(".")
    if not least <= len(parts) <= most or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    return tuple(int(part) for part in parts)


class CudaVersion(_Value):
    """A CUDA toolkit. 12.4 sorts before 12.4.0: the less precise one is the lower bound of the more precise ones."""

    __slots__ = ()
    example: ClassVar[str] = "12.4"

    def __init__(self, parts: tuple[int, ...]) -> None:
        super().__init__(*parts)

    @property
    def parts(self) -> tuple[int, ...]:
        return self._key

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = _numbers(text.strip(), 2, 3)
        if parts is None:
            raise InvalidVersionError("CUDA toolkit version", text, "MAJOR.MINOR or MAJOR.MINOR.PATCH, such as 12.4")
        return cls(parts)

    @classmethod
    def from_variant(cls, text: str) -> Self:
        """`cu124` -> 12.4, `cu92` -> 9.2, `cu130` -> 13.0: the last digit is the minor version."""
        match = re.fullmatch(r"cu([1-9][0-9]{1,2})", text)
        if match is None:
            raise InvalidVersionError("CUDA variant", text, "cu and two or three digits, such as cu124")
        return cls((int(match[1][:-1]), int(match[1][-1])))

    @property
    def major(self) -> int:
        return self.parts[0]

    @property
    def minor(self) -> int:
        return self.parts[1]

    @property
    def series(self) -> CudaVersion:
        """Without the patch: 12.4.127 -> 12.4."""
        return self if len(self.parts) == 2 else CudaVersion(self.parts[:2])

    @property
    def variant(self) -> str:
        if self.minor > 9:
            raise InvalidVersionError("CUDA version with a variant name", self, "a minor version of one digit")
        return f"cu{self.major}{self.minor}"

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))


# Other vendors' wheels are carried, not judged: a file that asks for them is understood and answered with "unknown".
_OTHER_VARIANT = re.compile(r"rocm[0-9]+(\.[0-9]+)*|xpu")


class CudaVariant(_Value):
    """The local label of a torch wheel. `toolkit` is None for cpu and for builds of other vendors."""

    __slots__ = ("toolkit",)
    toolkit: CudaVersion | None
    example: ClassVar[str] = "cu124"

    def __init__(self, tag: str, toolkit: CudaVersion | None = None) -> None:
        super().__init__(tag)
        object.__setattr__(self, "toolkit", toolkit)

    @property
    def tag(self) -> str:
        return str(self._key[0])

    @classmethod
    def parse(cls, text: str) -> Self:
        tag = text.strip().lower()
        if tag == "cpu" or _OTHER_VARIANT.fullmatch(tag):
            return cls(tag)
        try:
            return cls(tag, CudaVersion.from_variant(tag))
        except InvalidVersionError as error:
            raise InvalidVersionError("CUDA variant", text, f"cpu or {error.expected}") from None

    @classmethod
    def of_local(cls, local: str | None) -> Self | None:
        """The variant in a local version: `cu121.with.pypi.cudnn` -> cu121; None where there is none."""
        if not local:
            return None
        # `rocm6.2` has a dot of its own, every other label ends at the first one.
        match = _OTHER_VARIANT.match(local.lower())
        try:
            return cls.parse(match[0] if match else local.split(".")[0])
        except InvalidVersionError:
            return None

    @property
    def is_cpu(self) -> bool:
        return self.tag == "cpu"

    @property
    def is_cuda(self) -> bool:
        return self.toolkit is not None

    @property
    def is_other(self) -> bool:
        """Built for another vendor's hardware: there are no facts about it."""
        return not self.is_cpu and not self.is_cuda

    def __str__(self) -> str:
        return self.tag


class DriverVersion(_Value):
    """An NVIDIA Linux driver. Printed as written: 450.80.02 keeps its zero."""

    __slots__ = ("text",)
    text: str
    example: ClassVar[str] = "525.60.13"

    def __init__(self, parts: tuple[int, ...], text: str) -> None:
        super().__init__(*parts)
        object.__setattr__(self, "text", text)

    @property
    def parts(self) -> tuple[int, ...]:
        return self._key

    @classmethod
    def parse(cls, text: str) -> Self:
        stripped = text.strip()
        parts = _numbers(stripped, 1, 3)
        if parts is None or parts[0] < 100:
            # Every driver since CUDA 8 has a branch of three digits; 12.4 is a toolkit, typed here by mistake.
            raise InvalidVersionError("driver version", text, "a branch of three digits, such as 470.57 or 570")
        return cls(parts if len(parts) > 1 else (*parts, 0), stripped)

    @property
    def branch(self) -> int:
        return self.parts[0]

    @property
    def is_branch_only(self) -> bool:
        """Only the branch was given, so a floor inside the branch can be neither met nor missed for certain."""
        return "." not in self.text

    def __str__(self) -> str:
        return self.text


# Chips of the Jetson line: NVIDIA promises no binary compatibility between them and the other devices of their major
# (CUDA C++ Programming Guide, "Binary Compatibility"; torch's own device table agrees, facts note `same-major`).
_EMBEDDED = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})
# From this toolkit on one build serves both lines (facts note `same-major`).
_UNIFIED_TOOLKIT = CudaVersion((13, 0))


class ComputeCapability(_Value):
    """What a device is. Parses `8.6` and, because people write it, `sm_86` and `compute_86`."""

    __slots__ = ()
    example: ClassVar[str] = "8.6"

    def __init__(self, major: int, minor: int) -> None:
        super().__init__(major, minor)

    @property
    def major(self) -> int:
        return int(self._key[0])

    @property
    def minor(self) -> int:
        return int(self._key[1])

    @classmethod
    def parse(cls, text: str) -> Self:
        stripped = text.strip().lower()
        parts = _numbers(stripped, 2, 2)
        if parts is None:
            match = re.fullmatch(r"(?:sm|compute)_?([0-9]{1,2})([0-9])", stripped)
            parts = (int(match[1]), int(match[2])) if match else None
        if parts is None or parts[1] > 9:
            raise InvalidVersionError("compute capability", text, "MAJOR.MINOR, such as 8.6, or sm_86")
        return cls(parts[0], parts[1])

    @property
    def is_embedded(self) -> bool:
        return (self.major, self.minor) in _EMBEDDED

    @property
    def sm(self) -> GpuCode:
        return GpuCode("sm", self)

    def runs_sass_of(self, code: GpuCode, toolkit: CudaVersion | None = None) -> bool:
        """Native code runs on the same major and an equal or higher minor; `a` code on exactly its own capability.

        `toolkit` is what built the code: it lifts the Jetson exception from CUDA 13 on. Without it the exception holds.
        """
        built_for = code.capability
        if code.kind != "sm" or built_for.major != self.major:
            return False
        if built_for == self:
            return True
        if code.suffix == "a" or built_for.minor > self.minor:
            return False
        unified = toolkit is not None and toolkit >= _UNIFIED_TOOLKIT
        return unified or not (self.is_embedded or built_for.is_embedded)

    def runs_ptx_of(self, code: GpuCode) -> bool:
        """PTX runs on any equal or higher capability (the driver compiles it); `a` on its own, `f` on its own major."""
        if code.kind != "compute" or code.capability > self:
            return False
        if code.suffix == "a":
            return code.capability == self
        return code.suffix != "f" or code.capability.major == self.major

    def runs(self, code: GpuCode, toolkit: CudaVersion | None = None) -> bool:
        return self.runs_sass_of(code, toolkit) or self.runs_ptx_of(code)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class GpuCode(_Value):
    """One target a binary was compiled for: `sm_` is native code, `compute_` is PTX."""

    __slots__ = ("capability", "kind", "suffix")
    kind: Literal["sm", "compute"]
    capability: ComputeCapability
    suffix: str
    example: ClassVar[str] = "sm_86"

    def __init__(self, kind: Literal["sm", "compute"], capability: ComputeCapability, suffix: str = "") -> None:
        super().__init__(kind, capability, suffix)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "capability", capability)
        object.__setattr__(self, "suffix", suffix)

    @classmethod
    def parse(cls, text: str) -> Self:
        match = re.fullmatch(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)", text.strip())
        if match is None:
            raise InvalidVersionError("GPU code target", text, "sm_86, sm_90a, compute_90 or the like")
        kind: Literal["sm", "compute"] = "sm" if match[1] == "sm" else "compute"
        return cls(kind, ComputeCapability(int(match[2]), int(match[3])), match[4])

    @property
    def is_ptx(self) -> bool:
        return self.kind == "compute"

    def __str__(self) -> str:
        return f"{self.kind}_{self.capability.major}{self.capability.minor}{self.suffix}"


def best_code(
    codes: Iterable[GpuCode], device: ComputeCapability, toolkit: CudaVersion | None = None
) -> GpuCode | None:
    """The code the driver would take on this device: the nearest native one, else the nearest PTX, else None."""
    runnable = [code for code in codes if device.runs(code, toolkit)]
    return max(runnable, key=lambda code: (not code.is_ptx, code.capability, code.suffix), default=None)


class PythonVersion(_Value):
    """`3.10` stands for the whole minor version; 3.10.4 is accepted where a file names a patch."""

    __slots__ = ()
    example: ClassVar[str] = "3.10"

    def __init__(self, parts: tuple[int, ...]) -> None:
        super().__init__(*parts)

    @property
    def parts(self) -> tuple[int, ...]:
        return self._key

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = _numbers(text.strip(), 2, 3)
        if parts is None or parts[0] not in {2, 3}:
            raise InvalidVersionError("Python version", text, "MAJOR.MINOR, such as 3.10")
        return cls(parts)

    @property
    def major(self) -> int:
        return self.parts[0]

    @property
    def minor(self) -> int:
        return self.parts[1]

    @property
    def series(self) -> PythonVersion:
        """Without the patch: what wheels are built for."""
        return self if len(self.parts) == 2 else PythonVersion(self.parts[:2])

    @property
    def tag(self) -> str:
        """`cp310`."""
        return f"cp{self.major}{self.minor}"

    def satisfies(self, specifier: SpecifierSet) -> bool:
        """Whether requires-python lets this Python in; 3.6 counts as its newest patch, so >=3.6.2 lets it in."""
        return specifier.contains(str(self) if len(self.parts) == 3 else f"{self}.99", prereleases=True)

    def __str__(self) -> str:
        return ".".join(map(str, self.parts))


class GlibcVersion(_Value):
    __slots__ = ()
    example: ClassVar[str] = "2.31"

    def __init__(self, major: int, minor: int) -> None:
        super().__init__(major, minor)

    @property
    def major(self) -> int:
        return int(self._key[0])

    @property
    def minor(self) -> int:
        return int(self._key[1])

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = _numbers(text.strip(), 2, 2)
        if parts is None:
            raise InvalidVersionError("glibc version", text, "MAJOR.MINOR, such as 2.31")
        return cls(parts[0], parts[1])

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"
