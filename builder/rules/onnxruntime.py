"""onnxruntime-gpu loads CUDA and cuDNN of one major version each, or falls back to the CPU without an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.catalog_rows.onnxruntime import OnnxRuntimeGpu
from builder.catalog_rows.packages import requirement
from builder.outcome import Chosen, Outcome
from builder.rules.base import Change, Finding, finding
from builder.versions import CudaVersion

NAME = "onnxruntime-gpu"
_FALLS_BACK = "would not load its CUDA provider and would fall back to the CPU without an error"


def one_runtime(o: Outcome) -> Iterator[Finding]:
    cpu, gpu = o.package("onnxruntime"), o.package(NAME)
    if cpu is None or gpu is None:
        return
    yield finding(
        "onnxruntime-both",
        "error",
        "onnxruntime, onnxruntime-gpu",
        [cpu.says, gpu.says, o.catalog.hazards.row("singles", "onnxruntime-shared-files").fact],
        "the one unpacked last wins: the CUDA provider may be gone",
        hint=None if cpu.request else f"{cpu.via} asks for onnxruntime: install it without that dependency",
        tries=[Change("remove", "onnxruntime", "")] if cpu.request else [],
    )


@dataclass(frozen=True)
class _Libraries:
    """A CUDA that the environment holds. `cudnn` None: not known, 0: there is none."""

    says: str
    toolkit: CudaVersion
    cudnn: int | None


def _row(o: Outcome) -> tuple[Chosen, OnnxRuntimeGpu] | None:
    chosen = o.package(NAME)
    if chosen is None or chosen.version is None:
        return None
    row = o.catalog.onnxruntime_gpu(chosen.version)
    return None if row is None else (chosen, row)


def _libraries(o: Outcome) -> list[_Libraries]:
    found = []
    torch, toolkit, release = o.torch, o.torch_toolkit, o.torch_release
    if torch is not None and toolkit is not None:
        cudnn = None if release is None else release.cudnn_major(torch.variant, o.arch)
        if cudnn is None and release is not None:
            cudnn = release.cudnn_major(None, o.arch)
        text = f"{torch.says}, whose {torch.variant} build brings CUDA {toolkit.major}"
        found.append(_Libraries(text + (f" and cuDNN {cudnn}" if cudnn else ""), toolkit, cudnn))
    base = o.env.base
    if base is not None and base.toolkit is not None and base.flavor != "base":
        cudnn = base.cudnn or (_cudnn_of_tag(base.toolkit) if base.cudnn == 0 else 0)
        if any(package.name.startswith("libcudnn") for package in o.env.apt):
            cudnn = None
        found.append(_Libraries(f"{base.origin}: {base.reference} holds CUDA {base.toolkit}", base.toolkit, cudnn))
    return found


def _cudnn_of_tag(toolkit: CudaVersion) -> int:
    """Tags say plain `cudnn` from 12.4 on, where it is cuDNN 9 (facts note cudnn-in-tag)."""
    return 9 if toolkit >= CudaVersion((12, 4)) else 8


def libraries_match(o: Outcome) -> Iterator[Finding]:
    pair = _row(o)
    if pair is None:
        return
    chosen, row = pair
    settings = o.indexes_of(chosen)
    if o.is_conda(chosen) or (settings and any(index.kind == "other" for index in settings.of(NAME))):
        return  # a build of another channel or feed: for which CUDA is not known
    if {"cuda", "cudnn"} <= set(chosen.request.extras if chosen.request else ()):
        return  # brings its own libraries
    if any(name.startswith("nvidia-cudnn-") or name == "cudatoolkit" for name in o.packages if name != NAME):
        own = [name for name, each in o.packages.items() if name.startswith("nvidia-cudnn-") and each.request]
        if own or "cudatoolkit" in o.packages:
            return
    have = _libraries(o)
    if not have:
        yield from _nothing(o, chosen, row)
        return
    if any(_fits(each, row) is not False for each in have):
        return
    cuda_fits = any(each.toolkit.major == row.cuda_major for each in have)
    because = [chosen.says, row.fact, *(each.says for each in have)]
    name, tries = f"{NAME} {chosen.version} {_FALLS_BACK}", _tries(o, have)
    if cuda_fits:
        says = f"there is no cuDNN {row.cudnn_major}: {name}"
        yield finding("onnxruntime-cudnn", "error", chosen.title, because, says, tries=tries)
    else:
        says = f"there is no CUDA {row.cuda_major}: {name}"
        yield finding("onnxruntime-cuda", "error", chosen.title, because, says, tries=tries)


def libraries_are_brought(o: Outcome) -> Iterator[Finding]:
    """Since 2.15 torch asks for fewer CUDA libraries: what only the runtime loads no longer comes with it."""
    pair = _row(o)
    torch, release = o.torch, o.torch_release
    if pair is None or torch is None or release is None or o.is_conda(pair[0]):
        return
    chosen, row = pair
    base = o.env.base
    if (
        torch.variant is None
        or torch.variant != release.default_variant(o.arch)
        or _fits(_Libraries("", o.torch_toolkit or CudaVersion((0, 0)), None), row) is False
        or (base is not None and base.toolkit is not None and base.flavor != "base")
    ):
        return
    extras = chosen.request.extras if chosen.request else ()
    for library, text in row.cuda_packages.items():
        package = requirement(text)
        if release.brings(library) is not False:
            continue
        because = [chosen.says, row.cuda_package_fact(library), f"{torch.says}, which asks for no {package.name}"]
        if package.name not in o.packages and "cuda" not in extras:
            yield finding(
                "onnxruntime-library",
                "error",
                chosen.title,
                because,
                f"there is no lib{library}: {NAME} {chosen.version} {_FALLS_BACK}",
                tries=[Change("add", package.name, str(package.specifier))],
            )
        else:
            yield finding(
                "onnxruntime-preload",
                "warning",
                chosen.title,
                because,
                f"importing torch does not load lib{library}: without more {NAME} {chosen.version} {_FALLS_BACK}",
                hint="call onnxruntime.preload_dlls() before the first session is made",
            )


def _fits(have: _Libraries, row: OnnxRuntimeGpu) -> bool | None:
    if have.toolkit.major != row.cuda_major:
        return False
    return None if have.cudnn is None else have.cudnn == row.cudnn_major


def _nothing(o: Outcome, chosen: Chosen, row: OnnxRuntimeGpu) -> Iterator[Finding]:
    """No CUDA at all: certain in an image whose base is known, otherwise the machine may have it."""
    torch, base = o.torch, o.env.base
    if torch is not None and torch.variant is not None and torch.variant.is_cpu:
        because = [chosen.says, row.fact, f"{torch.says}, a CPU build without CUDA libraries"]
    elif (
        torch is None
        and base is not None
        and base.toolkit is None
        and base.repository in {"python", "ubuntu", "debian"}
    ):
        because = [chosen.says, row.fact, f"{base.origin}: {base.reference} holds no CUDA"]
    else:
        return
    if any(package.name.startswith(("cuda-", "libcudnn", "nvidia-cuda")) for package in o.env.apt):
        return
    yield finding(
        "onnxruntime-cuda",
        "error" if o.gpus else "warning",
        chosen.title,
        because,
        f"there are no CUDA libraries: {NAME} {chosen.version} {_FALLS_BACK}",
        hint=f"install {NAME}[cuda,cudnn], which brings them" if row.version >= Version("1.21") else None,
    )


def _tries(o: Outcome, have: list[_Libraries]) -> list[Change]:
    fits = [
        row
        for row in o.catalog.onnxruntime_gpu_releases()
        if row.is_on_index
        and not row.is_series
        and any(_fits(each, row) is not False for each in have)
        and (o.python is None or o.python.series in (row.pythons(o.arch) or ()))
        and (row.released is None or row.released <= o.today)
    ]
    found = [Change("pin", NAME, f"=={row.version}") for row in [*fits[:2], *fits[-1:]]]
    pair = _row(o)
    torch = o.torch
    if pair is not None and torch is not None and torch.version is not None and torch.label is None:
        releases = [row for row in reversed(o.catalog.torch_releases()) if row.version > torch.version]
        for release in releases:
            variant = release.default_variant(o.arch)
            cudnn = release.cudnn_major(None, o.arch)
            if (
                variant
                and variant.toolkit
                and variant.toolkit.major == pair[1].cuda_major
                and cudnn == pair[1].cudnn_major
            ):
                found.append(Change("pin", "torch", f"=={release.version}"))
                break
    return found


def runtime_covers_gpus(o: Outcome) -> Iterator[Finding]:
    pair = _row(o)
    if pair is None or o.is_conda(pair[0]):
        return
    chosen, row = pair
    for ask, gpu in o.gpus:
        if gpu is None or row.runs_on(gpu.compute_capability, o.arch) is not False:
            continue
        fits = [
            each
            for each in o.catalog.onnxruntime_gpu_releases()
            if each.is_on_index and not each.is_series and each.runs_on(gpu.compute_capability, o.arch)
        ]
        near = [each for each in fits if each.cuda_major == row.cuda_major] or fits
        yield finding(
            "onnxruntime-gpu-not-covered",
            "error",
            chosen.title,
            [f"{ask.origin} asks for {ask.name}", gpu.fact, chosen.says, row.archs_fact],
            f"{NAME} {chosen.version} has no kernel for the card",
            tries=[Change("pin", NAME, f"=={each.version}") for each in near[:2]],
        )


def driver_meets_runtime(o: Outcome) -> Iterator[Finding]:
    pair = _row(o)
    if pair is None or o.driver is None:
        return
    chosen, row = pair
    toolkit = CudaVersion((row.cuda_major, 0))
    floor = o.driver_floor(toolkit)
    torch = o.torch_toolkit
    if floor.driver is None or o.driver >= floor.driver or (torch is not None and torch.major == row.cuda_major):
        return
    yield finding(
        "driver-too-old",
        "error",
        chosen.title,
        [o.driver_says, chosen.says, row.fact, floor.fact],
        f"the driver must be {floor.driver} or newer: {NAME} would fall back to the CPU without an error",
        tries=[
            Change("pin", NAME, f"=={each.version}")
            for each in o.catalog.onnxruntime_gpu_releases()
            if each.is_on_index and not each.is_series and each.cuda_major < row.cuda_major
        ][:2],
    )


def extra_is_installable(o: Outcome) -> Iterator[Finding]:
    pair = _row(o)
    if pair is None or pair[0].request is None:
        return
    for extra in pair[0].request.extras:
        if pair[1].is_extra_installable(extra) is False:
            yield finding(
                "extra-not-installable",
                "error",
                f"{NAME}[{extra}] {pair[1].version}",
                [pair[0].says, o.catalog.note("broken-extra-1.27").fact],
                "what the extra asks for is not on the index",
            )


def onnx_ir_is_read(o: Outcome) -> Iterator[Finding]:
    onnx = o.package("onnx")
    if onnx is None or onnx.version is None:
        return
    rows = o.catalog.hazards.of("onnx_ir", "onnx", onnx.version)
    for name in ("onnxruntime", NAME):
        chosen = o.package(name)
        if chosen is None or chosen.version is None or not rows:
            continue
        runtime = o.catalog.onnxruntime_gpu(chosen.version) or o.catalog.onnxruntime_cpu(chosen.version)
        if runtime is None or rows[0].get("ir") <= runtime.max_ir:
            continue
        fits = [row for row in o.catalog.hazards.all("onnx_ir") if row.get("ir") <= runtime.max_ir]
        older = [
            offer.version
            for offer in o.shelf.offers("onnx")
            if fits and fits[-1].holds_for(offer.version) and (o.python is None or offer.has_wheel(o.python))
        ]
        newer = [
            row.version
            for row in reversed(o.catalog.onnxruntime_gpu_releases())
            if row.max_ir >= rows[0].get("ir") and not row.is_series and row.is_on_index
        ]
        yield finding(
            "onnx-ir-too-new",
            "error" if onnx.is_pinned else "warning",
            f"onnx {onnx.version}, {name} {chosen.version}",
            [onnx.says, rows[0].fact, chosen.says, runtime.onnx.fact],
            f"{name} would refuse the models that this onnx writes",
            hint="or set `ir_version` before saving a model",
            tries=[
                *(Change("pin", "onnx", f"=={version}") for version in older[:1]),
                *(Change("pin", name, f"=={version}") for version in newer[:1]),
            ],
        )


def opset_is_known(o: Outcome) -> Iterator[Finding]:
    """The opset asked for, against what torch writes and onnxruntime reads."""
    opset, origin = o.env.opset, o.env.opset_origin
    if opset is None:
        return
    asked = f"{origin} asks for opset {opset}"
    for name in ("onnxruntime", NAME):
        chosen = o.package(name)
        if chosen is None or chosen.version is None:
            continue
        row = o.catalog.onnxruntime_gpu(chosen.version) or o.catalog.onnxruntime_cpu(chosen.version)
        if row is not None and opset > row.max_opset:
            yield finding(
                "opset-too-new",
                "error",
                f"{name} {chosen.version}",
                [asked, chosen.says, row.onnx.fact],
                f"{name} would refuse the model when it loads it",
                hint=f"use opset {row.max_opset}",
            )
    torch, release = o.torch, o.torch_release
    if torch is None or release is None:
        return
    export = release.onnx_export
    most = max((bound for bound in (export.max_opset, export.max_opset_torchscript) if bound is not None), default=None)
    if most is not None and opset > most:
        yield finding(
            "opset-too-new",
            "error",
            torch.title,
            [asked, torch.says, export.cite(f"torch {release.version} exports up to opset {most}")],
            "the exporter does not know this opset",
            hint=f"use opset {most}",
        )
    yield from _sdpa(o, torch, opset, asked)


def _sdpa(o: Outcome, torch: Chosen, opset: int, asked: str) -> Iterator[Finding]:
    transformers = o.package("transformers")
    singles = o.catalog.hazards
    floor, first = singles.row("singles", "sdpa-opset"), singles.row("singles", "sdpa-transformers")
    if transformers is None or transformers.version is None or torch.version is None:
        return
    if opset >= int(floor.text("value")) or transformers.version < Version(first.text("value")):
        return
    if torch.version not in SpecifierSet(">=2.1.1"):
        return
    yield finding(
        "opset-too-low",
        "error",
        f"opset {opset}",
        [asked, transformers.says, first.fact, torch.says, floor.fact],
        "the export would stop at the attention",
        hint="use opset 17, or load the model with attn_implementation='eager'",
    )


def exporter_has_onnxscript(o: Outcome) -> Iterator[Finding]:
    """From 2.9 the default exporter needs onnxscript, which torch does not declare."""
    torch, release, onnx = o.torch, o.torch_release, o.package("onnx")
    if torch is None or release is None or not release.onnx_export.needs_onnxscript_by_default:
        return
    if (onnx is None or onnx.request is None) and o.env.opset is None:
        return
    script = o.package("onnxscript")
    if script is None:
        plan = onnx.says if onnx is not None else f"{o.env.opset_origin} asks for opset {o.env.opset}"
        # A lock pins everything, and onnx may be there to be read alone.
        is_pinned = onnx is not None and onnx.is_pinned and not o.env.is_lock
        yield finding(
            "onnxscript-missing",
            "error" if o.env.opset is not None or is_pinned else "warning",
            torch.title,
            [torch.says, release.onnx_export.fact, o.catalog.note("onnx-dynamo").fact, plan],
            "exporting to ONNX would stop at a missing module",
            hint="or pass dynamo=False to the exporter",
            tries=[Change("add", "onnxscript", "")],
        )
        return
    api = release.onnx_export.onnxscript_api
    rows = [row for row in o.catalog.onnxscript_releases() if row.version == script.version]
    if script.version is not None and api is not None and rows and api not in rows[0].torch_apis:
        fits = [row for row in o.catalog.onnxscript_releases() if api in row.torch_apis]
        yield finding(
            "onnxscript-too-old",
            "error",
            f"onnxscript {script.version}",
            [torch.says, o.catalog.note("onnxscript-api").fact, script.says, rows[0].fact],
            "exporting to ONNX would stop at a missing module",
            tries=[Change("pin", "onnxscript", f"=={row.version}") for row in fits[:1]],
        )


RULES = (
    one_runtime,
    libraries_match,
    libraries_are_brought,
    runtime_covers_gpus,
    driver_meets_runtime,
    extra_is_installable,
    onnx_ir_is_read,
    opset_is_known,
    exporter_has_onnxscript,
)
