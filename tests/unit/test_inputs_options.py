"""Options of `check`, as people type them."""

from __future__ import annotations

import pytest

from builder.environment import Origin
from builder.inputs import Options, load, parse_options
from builder.inputs.options import gpu, operating_system

HERE = Origin("--gpu")


@pytest.mark.parametrize(
    ("text", "name", "capability", "mig", "count"),
    [
        ("RTX 3090", "RTX 3090", "None", None, 1),
        ("sm_86", "sm_86", "8.6", None, 1),
        ("8.6", "8.6", "8.6", None, 1),
        ("2 x RTX 3090", "RTX 3090", "None", None, 2),
        ("8xH100", "H100", "None", None, 8),
        ("A100 x4", "A100", "None", None, 4),
        ("A100 80GB, 2 x MIG 3g.40gb", "A100 80GB", "None", "3g.40gb", 2),
        ("A100-SXM4-40GB MIG 1g.5gb", "A100-SXM4-40GB", "None", "1g.5gb", 1),
        ("H100 MIG", "H100", "None", "unknown", 1),
        ("any Ampere+", "any Ampere+", "None", None, 1),
        ("GTX 1080 Ti", "GTX 1080 Ti", "None", None, 1),
        ("x", "x", "None", None, 1),
    ],
)
def test_gpus(text: str, name: str, capability: str, mig: str | None, count: int) -> None:
    found = gpu(text, HERE)
    assert (found.name, str(found.capability), found.mig, found.count) == (name, capability, mig, count)


@pytest.mark.parametrize(
    ("text", "family", "distribution"),
    [
        ("Ubuntu 22.04", "linux", "ubuntu22.04"),
        ("ubuntu22.04", "linux", "ubuntu22.04"),
        ("debian:12", "linux", "debian:12"),
        ("Debian bookworm", "linux", "debian:bookworm"),
        ("CentOS 7.9", "linux", "rhel7"),
        ("Rocky Linux 8.9", "linux", "rhel8"),
        ("Red Hat Enterprise Linux release 9.2 (Plow)", "linux", "rhel9"),
        ("AlmaLinux 8", "linux", "rhel8"),
        ("SLES 15 SP5", "linux", "opensuse15.5"),
        ("Alpine 3.18", "linux", "alpine"),
        ("jammy", "linux", "jammy"),
        ("Amazon Linux 2023", "linux", "amazonlinux2023"),
        ("Windows 10 build 19042 + WSL2 kernel 5.4.72", "wsl", None),
        ("Windows 11", "windows", None),
        ("macOS 14", "macos", None),
        ("Gentoo", "linux", None),
    ],
)
def test_operating_systems(text: str, family: str, distribution: str | None) -> None:
    found = operating_system(text, Origin("--os"))
    assert (found.family, found.distribution, found.text) == (family, distribution, text)


def test_everything_said_is_there() -> None:
    env = parse_options(
        Options(
            pins=("torch==2.6.0", "numpy<2"),
            python="3.11",
            driver="470.76 (Windows)",
            glibc="2.17",
            arch="arm64",
            date="after 2024-06-16",
            env=("LD_LIBRARY_PATH=/usr/local/cuda/lib64",),
            precisions=("BF16",),
            opset=12,
        )
    )
    assert env.to_json()["packages"]["torch"] == {"version": "2.6.0", "variant": None, "origin": "--pin"}
    assert env.driver is not None
    assert env.date is not None
    assert (str(env.driver.version), env.driver.is_windows) == ("470.76", True)
    assert (str(env.glibc), env.arch, env.opset, env.precisions[0][0]) == ("2.17", "aarch64", 12, "bf16")
    assert (env.date.day.isoformat(), env.date.after) == ("2024-06-16", True)
    assert env.variable("LD_LIBRARY_PATH").value == "/usr/local/cuda/lib64"  # type: ignore[union-attr]
    assert env.unparsed == ()


def test_what_cannot_be_read_is_named_with_its_option() -> None:
    env = parse_options(
        Options(
            pins=("torch=2.0",),
            python="three",
            driver="12.4",
            glibc="x",
            arch="mips",
            date="2024-13-40",
            env=("NOVALUE", "A B=c"),
        )
    )
    assert [str(u.origin) for u in env.unparsed] == [
        "--pin",
        "--env",
        "--env",
        "--python",
        "--arch",
        "--glibc",
        "--driver",
        "--date",
    ]


@pytest.mark.parametrize(
    ("text", "version", "specifier"),
    [
        ("3.10.12", "3.10.12", None),
        ("Python 3.10", "3.10", None),
        ("py310", "3.10", None),
        ("cp39", "3.9", None),
        (">=3.9,<3.12", None, "<3.12,>=3.9"),
    ],
)
def test_pythons_as_people_write_them(text: str, version: str | None, specifier: str | None) -> None:
    (ask,) = parse_options(Options(python=text)).pythons
    assert (ask.version and str(ask.version)) == version
    assert (ask.specifier and str(ask.specifier)) == specifier


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("bf16-mixed", "bf16"),
        ("16-mixed", "fp16"),
        ("torch.float16", "fp16"),
        ("mixed_bf16", "bf16"),
        ("FP8", "fp8"),
        ("half", "fp16"),
        ("int8", "int8"),
    ],
)
def test_precisions_as_people_write_them(text: str, kind: str) -> None:
    assert parse_options(Options(precisions=(text,))).precisions[0][0] == kind


def test_a_month_is_judged_by_its_end() -> None:
    asked = parse_options(Options(date="2024-06", glibc="glibc 2.31-0ubuntu9.14", arch="linux-aarch64"))
    assert asked.date is not None
    assert (asked.date.day.isoformat(), str(asked.glibc), asked.arch) == ("2024-06-28", "2.31", "aarch64")


def test_no_input_gives_one_empty_environment() -> None:
    (loaded,) = load([])
    assert loaded.environment.in_force() == {}
    assert not loaded.environment.is_lock
