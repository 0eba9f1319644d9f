"""Packages with compiled parts of their own: ready wheels by torch, CUDA and ABI, and what is built on the spot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.version import Version

from builder.catalog_rows.packages import Hazard
from builder.environment import BaseImage, Request, Variable
from builder.explain import joined
from builder.in_force import applies
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, Severity, finding
from builder.versions import CudaVariant, CudaVersion

# flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-..., natten-0.17.1+torch240cu121-..., x-0.5.1+pt28cu128-...
_LABEL = {
    "cuda": re.compile(r"cu([0-9]{2,3})(?![0-9])"),
    "torch": re.compile(r"(?:torch|pt)([0-9]+(?:\.[0-9]+)*)"),
    "abi": re.compile(r"cxx11abi(true|false)", re.IGNORECASE),
}


def native_library_exists(o: Outcome) -> Iterator[Finding]:
    """A package such as bitsandbytes takes the library of torch's CUDA version; a release has a fixed set."""
    torch, toolkit = o.torch, o.torch_toolkit
    if torch is None or toolkit is None:
        return
    for name in {row.package for row in o.catalog.hazards.all("native_libraries")}:
        chosen = o.package(name)
        if chosen is None or chosen.version is None:
            continue
        rows = o.catalog.hazards.of("native_libraries", name, chosen.version)
        if not rows or o.is_conda(chosen):
            continue
        have = [CudaVersion.parse(text) for text in rows[0].get("cuda")]
        if toolkit.series in have:
            continue
        fits = [
            offer.version
            for offer in reversed(o.shelf.offers(name))
            if any(
                str(toolkit.series) in row.get("cuda")
                for row in o.catalog.hazards.of("native_libraries", name, offer.version)
            )
        ]
        yield finding(
            "native-library-missing",
            # A lock holds what its extras need, whether they are installed or not.
            "warning" if o.env.is_lock else "error",
            f"{name} {chosen.version}",
            [chosen.says, rows[0].fact, f"{torch.says}, built for CUDA {toolkit}"],
            f"{name} {chosen.version} has no library for CUDA {toolkit.series}",
            tries=[
                *(Change("pin", name, f"=={version}") for version in fits[:1]),
                *(Change("variant", "torch", cuda.variant) for cuda in reversed(have[-3:])),
            ],
        )


@dataclass(frozen=True)
class _Label:
    cuda: CudaVersion | None
    cuda_major: int | None
    torch: tuple[str, ...]  # minor versions that it may mean: `210` is 2.1.0 or 2.10
    is_cxx11: bool | None


def _label(text: str) -> _Label | None:
    local = text.partition("+")[2] if "+" in text else text
    cuda, torch, abi = (_LABEL[key].search(local) for key in ("cuda", "torch", "abi"))
    if torch is None and abi is None and ("+" not in text or cuda is None):
        return None  # a name may hold `cu` for other reasons; a local label that does is a CUDA build
    number = cuda[1] if cuda is not None else None
    full = CudaVersion.from_variant(f"cu{number}") if number is not None and len(number) == 3 else None
    major = full.major if full is not None else int(number) if number is not None else None
    minors = () if torch is None else _torch_minors(torch[1])
    return _Label(full, major, minors, None if abi is None else abi[1].lower() == "true")


def _torch_minors(text: str) -> tuple[str, ...]:
    """`2.4.0`, `240` and `24` are 2.4; `113` and `1131` are 1.13, `2100` is 2.10; `210` may be either."""
    if "." in text:
        return (".".join(text.split(".")[:2]),)
    one, two = f"{text[0]}.{text[1:2]}", f"{text[0]}.{text[1:3]}"
    if len(text) < 3:
        return (one,)
    if text[1] != "1":
        return (one,)
    return (one, two) if len(text) == 3 and text[0] != "1" else (two,)


def wheel_label_matches(o: Outcome) -> Iterator[Finding]:
    """A ready wheel whose name says for which torch, CUDA, ABI and Python it was built."""
    for request in o.env.requests:
        if request.name in {"torch", "torchvision", "torchaudio"} or not applies(request, o.env):
            continue
        text = request.wheel.filename if request.wheel is not None else f"+{request.local}" if request.local else ""
        label = _label(text.replace("%2B", "+")) if text else None
        if label is not None:
            yield from _label_faults(o, request, text, label)
        if request.wheel is not None:
            yield from _python_faults(o, request)


def _label_faults(o: Outcome, request: Request, text: str, label: _Label) -> Iterator[Finding]:
    torch, release = o.torch, o.torch_release
    if torch is None or torch.version is None:
        return
    forks = [one for one in o.env.requests if one.name == "torch" and one.step == torch.step and applies(one, o.env)]
    if len({str(one.version) for one in forks}) > 1:
        return  # a lock for several builds of torch: which one goes with this file is not told
    says = f"{request.origin}: the name of `{request.name if text.startswith('+') else ''}{text}`"
    wrong: list[str] = []
    because: list[str] = []
    if label.torch and ".".join(map(str, torch.version.release[:2])) not in label.torch:
        wrong.append(f"it is built for torch {label.torch[-1]}")
    toolkit = o.torch_toolkit
    if label.cuda_major is not None and toolkit is not None and label.cuda_major != toolkit.major:
        wrong.append(f"it is built for CUDA {label.cuda or label.cuda_major}")
    if label.is_cxx11 is not None and release is not None and not wrong and not o.is_conda(torch):
        is_cxx11 = release.abi.is_cxx11 or (
            release.version.release[:2] == (2, 6) and torch.variant == CudaVariant("cu126")
        )
        if is_cxx11 != label.is_cxx11 and torch.request is not None and torch.request.installer != "base-image":
            wrong.append(f"it is built {'with' if label.is_cxx11 else 'without'} the C++11 ABI")
            because.append(o.catalog.note("cxx11-abi").fact)
    if wrong:
        yield finding(
            "extension-abi",
            # An open range may be held at the right torch by something that was not given.
            "error" if torch.is_pinned or torch.request is None else "warning",
            request.name,
            [f"{says} says that {joined(wrong)}", torch.says, *because],
            "its native module would miss a symbol of torch",
            hint="take the file whose torch, CUDA, ABI and Python agree, or build it",
        )


def _python_faults(o: Outcome, request: Request) -> Iterator[Finding]:
    wheel = request.wheel
    if wheel is None or o.python is None or request.name == "":
        return
    tags = {tag for tag in wheel.pythons if tag.startswith("cp3")}
    if not tags or any(tag.startswith("py3") for tag in wheel.pythons):
        return
    if "abi3" in wheel.abis and any(int(tag[3:]) <= o.python.minor for tag in tags):
        return
    if o.python.series.tag not in tags:
        is_soft = o.env.python is None
        yield finding(
            "no-wheel-for-python",
            "warning" if is_soft else "error",
            request.name,
            [f"{request.origin}: `{wheel.filename}` is for {', '.join(sorted(tags))}", o.python_says],
            f"it cannot be installed on Python {o.python}",
        )


def prebuilt_exists(o: Outcome) -> Iterator[Finding]:
    """flash-attn and the like by version: whether the project has a ready wheel for this torch."""
    torch = o.torch
    if torch is None or torch.version is None:
        return
    minor = ".".join(map(str, torch.version.release[:2]))
    for name in {row.package for row in o.catalog.hazards.all("prebuilt")}:
        chosen = o.package(name)
        if chosen is None or chosen.version is None or (chosen.request is not None and chosen.request.wheel):
            continue
        if chosen.label is not None:
            continue
        rows = o.catalog.hazards.of("prebuilt", name, chosen.version)
        if not rows or minor in rows[0].get("torch"):
            continue
        fits = [
            offer.version
            for offer in o.shelf.offers(name)
            if any(minor in row.get("torch") for row in o.catalog.hazards.of("prebuilt", name, offer.version))
        ]
        yield finding(
            "extension-abi",
            "warning",
            f"{name} {chosen.version}",
            [chosen.says, rows[0].fact, torch.says],
            f"there is no ready wheel for torch {minor}: one for another torch misses a symbol, "
            "and building it takes a compiler and an hour",
            tries=[Change("pin", name, f"=={version}") for version in fits[:1]],
        )


# ---- what is compiled on the spot


@dataclass(frozen=True)
class _Build:
    says: str
    hazard: Hazard
    step: int
    variables: tuple[Variable, ...]
    version: Version | None
    base: BaseImage | None  # of the stage in which it is built


def _extension(o: Outcome, name: str) -> Hazard | None:
    """By the package's name or that of its repository."""
    for row in o.catalog.hazards.all("source_extensions"):
        if name in {row.package, *(row.get("repositories") or ())}:
            return row
    return None


def _cloned_before(o: Outcome, step: int) -> str:
    """The repository cloned last before a build of `.`; the folder that it is built in is rarely another one."""
    clones = [c.words for c in o.env.commands if c.words[:2] == ("git", "clone") and c.step <= step]
    addresses = [word for word in (clones[-1] if clones else ()) if "/" in word]
    return _last_part(addresses[0]) if addresses else ""


def _last_part(text: str) -> str:
    """`detectron2` of `git+https://.../detectron2.git@v0.6`."""
    words = [word for word in text.split() if "/" in word] or [text]
    path = re.split(r"[@#?]", re.sub(r"^\w+\+?\w*://[^/]*", "", words[-1]))[0]
    return path.rstrip("/").rpartition("/")[2].removesuffix(".git").lower()


def _builds(o: Outcome) -> list[_Build]:
    found: dict[str, _Build] = {}
    for build in o.env.builds:
        name = build.name or _last_part(build.text)
        row = _extension(o, name if name.strip(".") else _cloned_before(o, build.step))
        if row is not None:
            says = f"{build.origin} builds {build.name or build.text[:80]}"
            found[row.package] = _Build(says, row, build.step, build.variables, None, build.base or o.env.base)
    for chosen in o.packages.values():
        rows = o.catalog.hazards.of("source_extensions", chosen.name)
        if not rows or chosen.name in found or o.is_conda(chosen) or chosen.label is not None:
            continue
        request = chosen.request
        is_ready = request is not None and request.wheel is not None
        package = o.catalog.packages.get(chosen.name)
        is_source = (
            (request is not None and request.is_source)
            or (chosen.offer is not None and not chosen.offer.pythons and chosen.offer.pythons is not None)
            or (package is not None and package.is_source_only)
        )
        settings = o.indexes_of(chosen)
        has_page = settings is not None and any(index.kind == "other" for index in settings.of(chosen.name))
        if is_source and not is_ready and not has_page:
            step = o.step_of(chosen)
            variables = () if step is None else step.variables
            base = o.env.base if step is None or step.base is None else step.base
            found[chosen.name] = _Build(chosen.says, rows[0], chosen.step, variables, chosen.version, base)
    return list(found.values())


def compiler_is_there(o: Outcome) -> Iterator[Finding]:
    """A source package that needs nvcc, in an image without it."""
    base = o.env.base
    if base is None or not o.env.is_image:
        return
    has_nvcc = base.flavor == "devel" or "devel" in (base.tag or "") or _installs_compiler(o)
    is_known = base.repository in {"nvidia/cuda", "pytorch/pytorch", "python", "ubuntu", "debian"}
    if has_nvcc or not is_known:
        return
    for build in _builds(o):
        # What another stage installs beside its base is not kept, so nothing is said about one.
        if build.hazard.get("needs_compiler") and build.base == base:
            yield finding(
                "nvcc-missing",
                "error",
                build.hazard.package,
                [build.says, build.hazard.fact, f"{base.origin}: {base.reference} has no CUDA compiler"],
                "the installation would stop: there is no CUDA home",
                hint="build it on the devel flavour of the same CUDA, in a stage of its own",
            )


def _installs_compiler(o: Outcome) -> bool:
    if any(
        re.search(r"cuda-(toolkit|nvcc|compiler|minimal-build|1[0-9])|nvidia-cuda-toolkit", p.name) for p in o.env.apt
    ):
        return True
    if any(name in o.packages for name in ("cuda", "cuda-toolkit", "cuda-nvcc", "cuda-compiler", "cudatoolkit-dev")):
        return True
    return any(("cuda" in c.text and ".run" in c.text) or "cuda_" in c.text for c in o.env.commands)


def toolkit_matches_torch(o: Outcome) -> Iterator[Finding]:
    """The compiler of the stage's base image against the CUDA of torch."""
    torch, mine = o.torch, o.torch_toolkit
    if torch is None or mine is None or not o.env.is_image:
        return
    if torch.request is not None and torch.request.installer == "base-image":
        return
    for build in _builds(o):
        base = build.base
        if base is None or base.toolkit is None or base.flavor in {"base", "runtime"}:
            continue
        theirs = base.toolkit.series
        if theirs == mine.series:
            continue
        demand = build.hazard.text("toolkit")
        is_major = theirs.major != mine.major
        if demand == "any":
            continue
        severity: Severity = "error" if is_major or demand == "minor" else "warning"
        if severity == "warning" and build.hazard.package != "deepspeed":
            continue  # torch's own helper takes another minor version
        conclusion = (
            f"{build.hazard.package} would not build: CUDA {theirs} of the image is not CUDA {mine.series} of torch"
        )
        if severity == "warning":
            conclusion = f"older releases of {build.hazard.package} refuse a compiler of another minor version"
        yield finding(
            "toolkit-differs",
            severity,
            build.hazard.package,
            [f"{base.origin}: {base.reference} compiles for CUDA {theirs}", f"{torch.says}, built for CUDA {mine}",
             build.says, build.hazard.fact],
            conclusion,
            hint=f"use a devel base of CUDA {mine.series}",
            tries=[Change("variant", "torch", theirs.variant)] if theirs.minor < 10 else [],
        )  # fmt: skip


def arch_list_is_set(o: Outcome) -> Iterator[Finding]:
    """No GPU is visible while an image is built, so the helper must be told for which cards to compile."""
    torch = o.torch
    if not o.env.is_image or torch is None or torch.version is None or torch.variant is None or torch.variant.is_cpu:
        return
    last = o.catalog.hazards.row("singles", "arch-list-without-gpu")
    fails = torch.version.release[:2] <= Version(last.text("value")).release[:2]
    names = {build.hazard.package: build for build in _builds(o) if not build.hazard.get("own_architectures")}
    for build in filter(lambda each: _compiles(each.base), names.values()):
        if not _has_list(o, build.variables, build.step):
            yield _no_list(torch, build.says, build.hazard.package, last, "error" if fails else "warning", fails=fails)
    for source in o.env.builds:
        if not _compiles(source.base or o.env.base):
            continue
        if source.name is None and "setup.py" in source.text and not _has_list(o, source.variables, source.step):
            says = f"{source.origin} runs `{source.text[:80]}`"
            yield _no_list(torch, says, "extension", last, "warning", fails=fails)


def _compiles(base: BaseImage | None) -> bool:
    return base is not None and base.flavor not in {"base", "runtime"} and base.toolkit is not None


def _has_list(o: Outcome, variables: tuple[Variable, ...], step: int) -> bool:
    del step
    names = {"TORCH_CUDA_ARCH_LIST", "TCNN_CUDA_ARCHITECTURES", "FORCE_CUDA_ARCH"}
    return any(v.name in names for v in (*variables, *o.env.variables))


def _no_list(torch: Chosen, says: str, subject: str, last: Hazard, severity: Severity, *, fails: bool) -> Finding:
    return finding(
        "arch-list-missing",
        severity,
        subject,
        [says, torch.says, last.fact, "TORCH_CUDA_ARCH_LIST is set nowhere"],
        "compiling CUDA code would stop with an index error" if fails else "the target card may be left out silently",
        hint="set TORCH_CUDA_ARCH_LIST to the capability of the target card, such as 8.6",
    )


def build_sees_torch(o: Outcome) -> Iterator[Finding]:
    """A setup that imports torch cannot do so under build isolation."""
    for build in _builds(o):
        if not build.hazard.get("imports_torch") or build.hazard.package in {"deepspeed", "pytorch3d", "detectron2"}:
            continue
        chosen = o.package(build.hazard.package)
        step = None if chosen is None else o.step_of(chosen)
        if step is None or step.no_build_isolation or step.installer not in {"pip", "uv"} or step.is_sync:
            continue
        is_beside = o.torch is not None and o.torch.request is not None and o.torch.step == step.number
        if not (o.env.is_image or is_beside):
            continue
        if chosen is None or chosen.request is None or step.no_deps:
            continue
        yield finding(
            "build-isolation",
            "warning",
            build.hazard.package,
            [build.says, build.hazard.fact, f"{step.origin} builds in isolation"],
            "its setup would not find torch",
            hint="install it after torch with --no-build-isolation",
        )


RULES = (
    native_library_exists,
    wheel_label_matches,
    prebuilt_exists,
    compiler_is_there,
    toolkit_matches_torch,
    arch_list_is_set,
    build_sees_torch,
)
