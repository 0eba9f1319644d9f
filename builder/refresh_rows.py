"""Releases that the index has and a topic has not yet, in the form of that topic's rows.

What an index cannot tell (code of a build, what an exporter does) is taken from the release before it and says so in
its source, with confidence from-memory; architectures are left unknown, so that nothing is claimed about a card.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.package_index import IndexFile, PackageIndex
from builder.package_rows import glibc, pythons

Raw = dict[str, Any]
COMPANIONS = ("torchvision", "torchaudio")


def new_versions(files: Iterable[IndexFile], known: Iterable[str]) -> dict[Version, list[IndexFile]]:
    """Final releases newer than the newest known one, oldest first."""
    newest = max(map(Version, known))
    found: dict[Version, list[IndexFile]] = {}
    for file in files:
        if file.version > newest and not file.version.is_prerelease and file.version.local is None:
            found.setdefault(file.version, []).append(file)
    return dict(sorted(found.items()))


def _list(wheels: list[IndexFile], arch: str = "x86_64") -> list[str]:
    found = pythons(wheels, arch)
    return [] if isinstance(found, str) else found


def _manylinux(wheels: Iterable[IndexFile], arch: str = "x86_64") -> list[str]:
    tags = {
        match[1]
        for wheel in wheels
        for tag in wheel.tags
        if (match := re.search(rf"(manylinux(?:_\d+_\d+|\d+))_{arch}$", tag)) is not None
    }
    return sorted(tags)


def _released(files: Iterable[IndexFile], today: date) -> str:
    return min((file.uploaded for file in files if file.uploaded), default=today).isoformat()


def _requires_python(files: Iterable[IndexFile]) -> str | None:
    return next((file.requires_python for file in files if file.requires_python), None)


def _metadata(index: PackageIndex, files: list[IndexFile]) -> list[Requirement]:
    wheels = [file for file in files if file.is_wheel]
    wheels.sort(key=lambda file: not any("x86_64" in tag for tag in file.tags))
    texts = index.requirements(wheels[0]) if wheels else None
    return [Requirement(text) for text in texts or ()]


def _bound(found: list[Requirement], name: str, extra: str | None = None) -> str | None:
    for requirement in found:
        marker = str(requirement.marker or "")
        if canonicalize_name(requirement.name) == name and (f'"{extra}"' in marker if extra else "extra" not in marker):
            return str(requirement.specifier)
    return None


def _as_before(row: Raw, before: str, name: str) -> Raw:
    """A copied part of the release before: marked as taken over, not as known."""
    taken = copy.deepcopy(row)
    taken["confidence"] = "from-memory"
    taken["source"] = f"taken over from {name} {before} until it is read"
    return taken


def numpy(index: PackageIndex, topic: Mapping[str, Any], today: date) -> Raw:
    files = index.files("numpy") or []
    rows = {
        str(version): {
            "released": _released(group, today),
            "requires_python": _requires_python(group) or ">=3.8",
            "python": _list([file for file in group if file.is_wheel]),
            "manylinux": _manylinux(group),
            "yanked": all(file.is_yanked for file in group),
        }
        for version, group in new_versions(files, topic["releases"]).items()
    }
    return {"releases": rows} if rows else {}


def transformers(index: PackageIndex, topic: Mapping[str, Any], today: date) -> Raw:
    files = index.files("transformers") or []
    known = [version for row in topic["minors"].values() for version in (*row["releases"], *row["yanked"])]
    minors: dict[str, Raw] = {}
    for version, group in new_versions(files, known).items():
        label = f"{version.major}.{version.minor}"
        row = minors.get(label)
        if row is None:
            before = topic["minors"].get(label)
            newest = max(topic["minors"], key=Version)
            base: Raw = dict(before if before is not None else topic["minors"][newest])
            row = {**copy.deepcopy(base), "source": "", "confidence": "verified-from-metadata"}
            if before is None:
                row |= {
                    "releases": [],
                    "yanked": [],
                    "first_released": _released(group, today),
                    "changed_within_minor": None,
                }
                row |= {
                    "code_confidence": "from-memory",
                    "code_source": f"taken over from transformers {newest} until it is read",
                }
            minors[label] = row
        row["yanked" if all(file.is_yanked for file in group) else "releases"].append(str(version))
        found = _metadata(index, group)
        row |= {
            "last_released": _released(group, today),
            "requires_python": _requires_python(group) or row["requires_python"],
            "source": f"index metadata of transformers {version}, {today}",
        }
        for key, name, extra in (
            ("numpy", "numpy", None), ("tokenizers", "tokenizers", None), ("huggingface_hub", "huggingface-hub", None),
            ("safetensors", "safetensors", None), ("torch_extra", "torch", "torch"),
        ):  # fmt: skip
            row[key] = _bound(found, name, extra) or row[key]
    return {"minors": minors} if minors else {}


def onnxruntime(index: PackageIndex, topic: Mapping[str, Any], today: date) -> Raw:
    files = index.files("onnxruntime-gpu") or []
    rows: dict[str, Raw] = {}
    labels = [label for label in topic["releases"] if not label.endswith(".x")]
    newest = max(labels, key=Version)
    for version, group in new_versions(files, labels).items():
        found = _metadata(index, group)
        row: Raw = copy.deepcopy(dict(topic["releases"][newest]))
        source = f"index metadata of onnxruntime-gpu {version}, {today}"
        row["released"] = _released(group, today)
        row["onnx"] = _as_before(row["onnx"], newest, "onnxruntime")
        row["numpy_abi"] = _as_before(row["numpy_abi"], newest, "onnxruntime")
        row["gpu_archs"] = {"sass": None, "ptx": None, "confidence": "from-memory", "source": "not read yet"}
        cuda = next((major for r in found if (major := _cuda_major(r)) is not None), None)
        if cuda is None:
            row["cuda"] = _as_before(row["cuda"], newest, "onnxruntime-gpu")
        else:
            row["cuda"] = {
                **row["cuda"],
                "cuda_major": cuda,
                "default_wheel": f"{cuda}.x",
                "confidence": "verified-from-metadata",
                "source": source,
            }
        extras: dict[str, list[str]] = {}
        for requirement in found:
            match = re.search(r'extra == [\'"]([^\'"]+)', str(requirement.marker or ""))
            if match is not None:
                extras.setdefault(match[1], []).append(f"{requirement.name}{requirement.specifier}")
        wheels = [file for file in group if file.is_wheel]
        row["pypi"] = {
            "confidence": "verified-from-metadata",
            "source": source,
            "python": _list(wheels),
            "manylinux": _manylinux(wheels),
            "glibc_floor": glibc(wheels) or row["pypi"]["glibc_floor"],
            "requires_python": _requires_python(group),
            "requires": sorted(f"{r.name}{r.specifier}" for r in found if r.marker is None),
            "numpy_by_python": row["pypi"]["numpy_by_python"],
            "extras": extras,
            "aarch64": {
                "python": _list(wheels, "aarch64"),
                "manylinux": _manylinux(wheels, "aarch64"),
                "glibc_floor": row["pypi"]["aarch64"]["glibc_floor"],
            },
        }
        rows[str(version)] = row
    return {"releases": rows} if rows else {}


def _cuda_major(requirement: Requirement) -> str | None:
    """Of the extra `cuda`: `nvidia-cuda-runtime~=13.0`, `nvidia-cuda-runtime-cu12~=12.0`."""
    if not requirement.name.startswith("nvidia-cuda-runtime"):
        return None
    match = re.search(r"[~=>]=\s*(\d+)", str(requirement.specifier)) or re.search(r"-cu(\d+)$", requirement.name)
    return None if match is None else match[1]


def torch(index: PackageIndex, topic: Mapping[str, Any], today: date) -> Raw:
    """New releases of torch and of its companions, and the pairs that their metadata allows."""
    change: Raw = {}
    companions: dict[str, Raw] = {}
    for name in COMPANIONS:
        files = index.files(name) or []
        for version, group in new_versions(files, topic["companion_packages"][name]).items():
            wheels = [file for file in group if file.is_wheel]
            found = pythons(wheels, "x86_64")
            is_any = isinstance(found, str) or len(found) >= 10
            row: Raw = {
                "released": _released(group, today),
                "yanked": all(file.is_yanked for file in group),
                "requires_torch": _bound(_metadata(index, group), "torch"),
                "python": [] if is_any else found,
                "manylinux": _manylinux(wheels),
                "source": f"index metadata of {name} {version}, {today}",
                "confidence": "verified-from-metadata",
            }
            companions.setdefault(name, {})[str(version)] = {**row, "any_python3": True} if is_any else row
    if companions:
        change["companion_packages"] = companions
    releases = {}
    newest = max(topic["releases"], key=Version)
    for version, group in new_versions(index.files("torch") or [], topic["releases"]).items():
        releases[str(version)] = _torch_row(index, topic, newest, version, group, companions, today)
    if releases:
        change["releases"] = releases
    return change


def _torch_row(
    index: PackageIndex,
    topic: Mapping[str, Any],
    newest: str,
    version: Version,
    group: list[IndexFile],
    companions: Mapping[str, Raw],
    today: date,
) -> Raw:
    before: Raw = topic["releases"][newest]
    found = _metadata(index, group)
    source = f"index metadata of torch {version}, {today}"
    nvidia = sorted(str(r) for r in found if r.name.startswith(("nvidia-", "cuda-")))
    exact: dict[str, str | None] = {
        canonicalize_name(r.name): next((s.version for s in r.specifier if s.operator == "=="), None) for r in found
    }
    toolkit = exact.get("cuda-toolkit") or exact.get("nvidia-cuda-runtime-cu12") or exact.get("nvidia-cuda-runtime")
    parts = (toolkit or before["pypi"]["cuda_toolkit"]).split(".")
    default = f"cu{parts[0]}{parts[1]}"
    cudnn = next((value for name, value in exact.items() if name.startswith("nvidia-cudnn-cu")), None)
    nccl = next((value for name, value in exact.items() if name.startswith("nvidia-nccl-cu")), None)
    triton = next((r for r in found if r.name == "triton"), None)
    wheels = [file for file in group if file.is_wheel]
    size = {"largest_wheel_mib": before["pypi"]["x86_64"]["largest_wheel_mib"]}
    arm = _list(wheels, "aarch64")
    pypi = {
        "confidence": "verified-from-metadata",
        "source": source,
        "requires_python": _requires_python(group) or before["pypi"]["requires_python"],
        "python": _list(wheels),
        "x86_64": {**size, "manylinux": _manylinux(wheels)},
        "aarch64": None
        if not arm
        else {**before["pypi"]["aarch64"], "python": arm, "manylinux": _manylinux(wheels, "aarch64")},
        "default_build": default,
        "default_build_from": f"CUDA pins in the metadata of {version}",
        "cuda_runtime": toolkit,
        "cuda_toolkit": toolkit,
        "cudnn": cudnn,
        "nccl": nccl,
        "triton": None if triton is None else str(triton.specifier).removeprefix("=="),
        "triton_marker": None if triton is None or triton.marker is None else str(triton.marker),
        "nvidia_requirements": nvidia,
        "setuptools_requirement": _bound(found, "setuptools"),
        "numpy_requirement": _bound(found, "numpy"),
    }
    known = {name: {**topic["companion_packages"][name], **companions.get(name, {})} for name in COMPANIONS}
    pairs: dict[str, list[Raw]] = {"torchtext": []}
    for name, table in known.items():
        pairs[name] = [
            {key: row[key] for key in ("requires_torch", "python", "any_python3") if key in row} | {"version": other}
            for other, row in sorted(table.items(), key=lambda item: Version(item[0]))
            if row["requires_torch"] and Requirement(f"torch{row['requires_torch']}").specifier.contains(version)
        ][-3:]
    abi = _as_before(before["abi"], newest, "torch")
    abi["glibc_floor"] = glibc(wheels) or abi["glibc_floor"]
    builds = {"tags": [default], "per_build": {}, "source": source, "confidence": "verified-from-metadata"}
    return {
        "released": _released(group, today),
        "pypi": pypi,
        "cuda_builds": builds,
        "companions": pairs,
        "abi": abi,
        "onnx_export": _as_before(before["onnx_export"], newest, "torch"),
        "features": _as_before(before["features"], newest, "torch"),
        "official_conda_channel": False,
    }
