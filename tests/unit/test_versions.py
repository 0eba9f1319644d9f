from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from pydantic import BaseModel, ValidationError

from builder.versions import (
    ComputeCapability,
    CudaVariant,
    CudaVersion,
    DriverVersion,
    GlibcVersion,
    GpuCode,
    InvalidVersionError,
    PythonVersion,
    best_code,
)

number = st.integers(min_value=0, max_value=999)
digit = st.integers(min_value=0, max_value=9)
cuda_versions = st.lists(number, min_size=2, max_size=3).map(lambda parts: ".".join(map(str, parts)))
drivers = st.builds(
    lambda branch, rest: ".".join([str(branch), *rest]),
    st.integers(min_value=100, max_value=999),
    st.lists(st.integers(min_value=0, max_value=199).map(lambda part: f"{part:02}"), max_size=2),
)
capabilities = st.builds(ComputeCapability, st.integers(min_value=1, max_value=99), digit)
codes = st.builds(GpuCode, st.sampled_from(["sm", "compute"]), capabilities, st.sampled_from(["", "a", "f"]))
pythons = st.lists(number, min_size=1, max_size=2).map(lambda rest: ".".join(map(str, [3, *rest])))


def as_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


@given(cuda_versions)
def test_cuda_version_round_trip(text: str) -> None:
    assert str(CudaVersion.parse(text)) == text
    assert CudaVersion.parse(f" {text}\n") == CudaVersion.parse(text)


@given(cuda_versions, cuda_versions)
def test_cuda_versions_are_ordered_as_numbers(one: str, other: str) -> None:
    assert (CudaVersion.parse(one) < CudaVersion.parse(other)) == (as_numbers(one) < as_numbers(other))
    assert (CudaVersion.parse(one) == CudaVersion.parse(other)) == (one == other)


@given(st.integers(min_value=1, max_value=99), digit)
def test_cuda_variant_round_trip(major: int, minor: int) -> None:
    version = CudaVersion((major, minor))
    assert CudaVersion.from_variant(version.variant) == version
    assert CudaVariant.parse(version.variant).toolkit == version


@pytest.mark.parametrize(("tag", "toolkit"), [("cu92", "9.2"), ("cu102", "10.2"), ("cu124", "12.4"), ("cu130", "13.0")])
def test_known_variants(tag: str, toolkit: str) -> None:
    assert str(CudaVersion.from_variant(tag)) == toolkit
    assert CudaVersion.parse(toolkit).variant == tag
    assert CudaVersion.parse(f"{toolkit}.1").variant == tag


def test_a_toolkit_with_a_two_digit_minor_has_no_variant_name() -> None:
    with pytest.raises(InvalidVersionError, match=r"12\.10"):
        _ = CudaVersion.parse("12.10").variant


@pytest.mark.parametrize(
    "text", ["", "12", "12.x", "12.4.1.2", "v12.4", "12.", ".4", "-1.2", "12,4", "1²", "٣.٤", "12.4 1"]
)
def test_what_is_no_cuda_version(text: str) -> None:
    with pytest.raises(InvalidVersionError, match=r"is not a CUDA toolkit version: expected MAJOR\.MINOR"):
        CudaVersion.parse(text)


def test_variants_of_other_vendors_are_carried_and_say_so() -> None:
    rocm = CudaVariant.parse("rocm6.2")
    assert (str(rocm), rocm.is_cuda, rocm.is_cpu, rocm.is_other) == ("rocm6.2", False, False, True)
    assert CudaVariant.parse("cpu").is_cpu
    assert CudaVariant.parse("CU118") == CudaVariant.parse("cu118")


@pytest.mark.parametrize("text", ["", "cuda", "cu", "cu1", "cu1234", "cu12.4", "gpu", "rocm", "cu024"])
def test_what_is_no_variant(text: str) -> None:
    with pytest.raises(InvalidVersionError, match="CUDA variant"):
        CudaVariant.parse(text)


@pytest.mark.parametrize(
    ("local", "tag"),
    [
        ("cu121.with.pypi.cudnn", "cu121"),
        ("cpu.cxx11.abi", "cpu"),
        ("rocm6.2", "rocm6.2"),
        ("rocm6.2.4.git1", "rocm6.2.4"),
        ("computecanada", None),
        ("", None),
        (None, None),
    ],
)
def test_variant_of_a_local_version(local: str | None, tag: str | None) -> None:
    variant = CudaVariant.of_local(local)
    assert (None if variant is None else str(variant)) == tag


@given(drivers)
def test_driver_round_trip(text: str) -> None:
    assert str(DriverVersion.parse(text)) == text


@given(drivers, drivers)
def test_drivers_are_ordered_as_numbers(one: str, other: str) -> None:
    left, right = (as_numbers(text) + [0] * (text.count(".") == 0) for text in (one, other))
    assert (DriverVersion.parse(one) < DriverVersion.parse(other)) == (left < right)


def test_a_driver_branch_compares_as_branch_0() -> None:
    branch = DriverVersion.parse("570")
    assert branch.is_branch_only
    assert branch == DriverVersion.parse("570.0")
    assert DriverVersion.parse("525.60.13") < branch < DriverVersion.parse("570.86.10")
    assert DriverVersion.parse("450.80.02") == DriverVersion.parse("450.80.2")
    assert hash(DriverVersion.parse("450.80.02")) == hash(DriverVersion.parse("450.80.2"))


@pytest.mark.parametrize("text", ["12.4", "57", "525.60.13.1", "R525", "", "525."])
def test_what_is_no_driver(text: str) -> None:
    with pytest.raises(InvalidVersionError, match="branch of three digits"):
        DriverVersion.parse(text)


@given(capabilities)
def test_capability_round_trip(capability: ComputeCapability) -> None:
    assert ComputeCapability.parse(str(capability)) == capability
    assert ComputeCapability.parse(str(capability.sm)) == capability


@given(codes)
def test_gpu_code_round_trip(code: GpuCode) -> None:
    assert GpuCode.parse(str(code)) == code


@given(capabilities, codes)
def test_code_of_a_newer_device_never_runs(device: ComputeCapability, code: GpuCode) -> None:
    if code.capability > device:
        assert not device.runs(code)
        assert not device.runs(code, CudaVersion((13, 0)))


@given(capabilities, capabilities)
def test_plain_ptx_runs_on_every_equal_or_higher_device(device: ComputeCapability, target: ComputeCapability) -> None:
    assert device.runs_ptx_of(GpuCode("compute", target)) == (target <= device)


@given(capabilities, capabilities, st.sampled_from(["sm", "compute"]))
def test_the_a_suffix_is_exact(device: ComputeCapability, target: ComputeCapability, kind: Any) -> None:
    assert device.runs(GpuCode(kind, target, "a")) == (device == target)


@pytest.mark.parametrize(
    ("device", "code", "runs"),
    [
        ("8.9", "sm_86", True),  # RTX 4090 on the code of the 3090
        ("8.6", "sm_80", True),
        ("8.0", "sm_86", False),
        ("6.1", "sm_60", True),
        ("10.0", "sm_90", False),
        ("10.0", "compute_90", True),
        ("10.0", "compute_90a", False),
        ("9.0", "sm_90a", True),
        ("10.3", "sm_100", True),
        ("10.3", "sm_100f", True),
        ("12.0", "compute_100f", False),
        ("12.1", "sm_120", True),
        ("12.1", "sm_120a", False),
        ("8.7", "sm_86", False),  # Jetson Orin
        ("8.7", "sm_87", True),
        ("8.9", "sm_87", False),
        ("8.7", "compute_80", True),
        ("11.0", "sm_100", False),  # Jetson Thor
        ("10.1", "sm_100", False),
    ],
)
def test_known_pairs(device: str, code: str, runs: bool) -> None:
    assert ComputeCapability.parse(device).runs(GpuCode.parse(code)) is runs


def test_the_jetson_exception_ends_with_cuda_13() -> None:
    orin, code = ComputeCapability(8, 7), GpuCode.parse("sm_80")
    assert not orin.runs_sass_of(code, CudaVersion((12, 9)))
    assert orin.runs_sass_of(code, CudaVersion((13, 0)))


def test_best_code_prefers_the_nearest_native_code() -> None:
    wheel = [GpuCode.parse(text) for text in ("sm_50", "sm_80", "sm_86", "sm_90", "compute_90")]
    assert str(best_code(wheel, ComputeCapability(8, 9))) == "sm_86"
    assert str(best_code(wheel, ComputeCapability(12, 0))) == "compute_90"
    assert best_code(wheel, ComputeCapability(3, 7)) is None
    assert best_code([], ComputeCapability(8, 6)) is None


@pytest.mark.parametrize("text", ["86", "8", "8.6.1", "8.10", "sm_8", "sm_90a", "sm86x", "", "eight"])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(InvalidVersionError, match="compute capability"):
        ComputeCapability.parse(text)


@pytest.mark.parametrize("text", ["sm86", "sm_8", "8.6", "sm_90b", "lto_90", "compute_", "SM_86"])
def test_what_is_no_gpu_code(text: str) -> None:
    with pytest.raises(InvalidVersionError, match="GPU code target"):
        GpuCode.parse(text)


@given(pythons, pythons)
def test_pythons_round_trip_and_order(one: str, other: str) -> None:
    assert str(PythonVersion.parse(one)) == one
    assert (PythonVersion.parse(one) < PythonVersion.parse(other)) == (as_numbers(one) < as_numbers(other))


def test_python_3_10_is_after_3_9() -> None:
    assert PythonVersion.parse("3.10") > PythonVersion.parse("3.9")
    assert PythonVersion.parse("3.10.4").series == PythonVersion.parse("3.10")
    assert PythonVersion.parse("3.13").tag == "cp313"


@pytest.mark.parametrize("text", ["3", "3.x", "4.0", "3.13t", "310", "3.10.1.2", "1.5"])
def test_what_is_no_python(text: str) -> None:
    with pytest.raises(InvalidVersionError, match="Python version"):
        PythonVersion.parse(text)


@pytest.mark.parametrize(
    ("python", "specifier", "allowed"),
    [
        ("3.6", ">=3.6.2", True),
        ("3.6.1", ">=3.6.2", False),
        ("3.10", ">=3.9", True),
        ("3.14", "<3.14,>=3.9", False),
        ("3.13", "<3.14,>=3.9", True),
        ("3.1", ">=3.9", False),
    ],
)
def test_requires_python(python: str, specifier: str, allowed: bool) -> None:
    assert PythonVersion.parse(python).satisfies(SpecifierSet(specifier)) is allowed


@given(number, number, number, number)
def test_glibc(a: int, b: int, c: int, d: int) -> None:
    one, other = GlibcVersion.parse(f"{a}.{b}"), GlibcVersion.parse(f"{c}.{d}")
    assert (one < other) == ((a, b) < (c, d))
    assert (one <= other, one > other, one >= other) == (not other < one, other < one, not one < other)
    assert str(one) == f"{a}.{b}"


VALUES = [
    CudaVersion.parse("12.4"),
    CudaVariant.parse("cu124"),
    CudaVariant.parse("cpu"),
    DriverVersion.parse("450.80.02"),
    ComputeCapability.parse("8.6"),
    GpuCode.parse("sm_90a"),
    PythonVersion.parse("3.10"),
    GlibcVersion.parse("2.31"),
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_cannot_be_changed_and_can_be_copied(value: Any) -> None:
    with pytest.raises(AttributeError, match="cannot be changed"):
        value._key = ()
    with pytest.raises(AttributeError, match="cannot be changed"):
        del value._key
    for same in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), type(value).parse(str(value))):  # noqa: S301
        assert same == value
        assert hash(same) == hash(value)
    assert repr(value) == f"{type(value).__name__}('{value}')"


def test_different_types_are_neither_equal_nor_ordered() -> None:
    assert CudaVersion.parse("12.4") != GlibcVersion.parse("12.4")
    with pytest.raises(TypeError):
        _ = CudaVersion.parse("12.4") < GlibcVersion.parse("12.5")  # type: ignore[operator]


class Host(BaseModel):
    python: PythonVersion
    driver: DriverVersion | None = None


def test_as_fields_of_a_model() -> None:
    host = Host.model_validate({"python": "3.10", "driver": "450.80.02"})
    assert host.python == PythonVersion.parse("3.10")
    assert host.model_dump(mode="json") == {"python": "3.10", "driver": "450.80.02"}
    assert Host(python=PythonVersion.parse("3.9")).driver is None
    assert Host.model_json_schema()["properties"]["python"]["type"] == "string"


def test_a_number_is_refused_because_it_lost_its_zero() -> None:
    with pytest.raises(ValidationError, match=r"expected text such as 3\.10"):
        Host.model_validate({"python": 3.10})
