"""Is the driver new enough for the CUDA of torch and onnxruntime, and does it drive the card at all?"""

from __future__ import annotations

from collections.abc import Iterator

from builder.catalog_rows.gpus import Gpu
from builder.outcome import Outcome
from builder.rules.base import Change, Finding, Severity, finding
from builder.rules.gpu import covering_variants
from builder.versions import CudaVersion


def driver_meets_torch(o: Outcome) -> Iterator[Finding]:
    torch, toolkit = o.torch, o.torch_toolkit
    if torch is None or toolkit is None:
        return
    tries = [] if torch.version is None else _variants(o)
    floor = o.driver_floor(toolkit)
    if floor.driver is not None and torch.version is not None:
        tries.append(Change("driver", "driver", str(floor.driver)))
    yield from _too_old(o, toolkit, torch.title, torch.says, tries)


def _variants(o: Outcome) -> list[Change]:
    torch = o.torch
    if torch is None or torch.version is None:
        return []
    found = [Change("variant", "torch", tag) for tag in covering_variants(o, torch.version, list(o.known_gpus))]
    for release in o.catalog.torch_releases():
        if release.version >= torch.version or (
            o.python is not None and o.python.series not in release.pythons(o.arch)
        ):
            continue
        default = release.default_variant(o.arch)
        floor = None if default is None or default.toolkit is None else o.driver_floor(default.toolkit).driver
        if floor is not None and o.driver is not None and o.driver >= floor and not _is_labelled(o):
            found.append(Change("pin", "torch", f"=={release.version}"))
            break
    return found


def _is_labelled(o: Outcome) -> bool:
    return o.torch is not None and o.torch.label is not None


def _too_old(o: Outcome, toolkit: CudaVersion, subject: str, says: str, tries: list[Change]) -> Iterator[Finding]:
    driver = o.driver
    floor = o.driver_floor(toolkit)
    if driver is None or floor.driver is None or driver >= floor.driver:
        return
    because = [o.driver_says, f"{says}, built for CUDA {toolkit}", floor.fact]
    severity: Severity = "error"
    conclusion = f"the driver must be {floor.driver} or newer: CUDA would not initialise"
    hint = None
    if driver.is_branch_only and driver.branch == floor.driver.branch:
        severity, conclusion = "warning", f"only a driver of {floor.driver} or newer of this branch will do"
    elif _has_compat_libraries(o, toolkit):
        severity = "warning"
        because.append(o.catalog.note("forward-compat").fact)
        conclusion = "it runs only through the compat libraries of the base image"
    yield finding("driver-too-old", severity, subject, because, conclusion, tries=tries, hint=hint)


def _has_compat_libraries(o: Outcome, toolkit: CudaVersion) -> bool:
    base = o.env.base
    if base is None or base.repository != "nvidia/cuda" or base.toolkit is None or not o.known_gpus:
        return False
    return base.toolkit.major >= toolkit.major and all(is_datacenter(gpu) for gpu in o.known_gpus)


def is_datacenter(gpu: Gpu) -> bool:
    return gpu.kind == "datacenter"


def driver_drives_gpu(o: Outcome) -> Iterator[Finding]:
    """A card newer than the driver's branch, or one that the branch has dropped."""
    driver = o.driver
    if driver is None or o.has_embedded_driver:
        return
    # Windows numbers run on through a branch: those of 580 are 580 to 589.
    branch = driver.branch // 10 * 10 if o.has_windows_driver else driver.branch
    for ask, gpu in o.gpus:
        row = None if gpu is None else o.catalog.generation_drivers(gpu)
        if row is None or gpu is None:
            continue
        because = [f"{ask.origin} asks for {ask.name}", row.fact, o.driver_says]
        if row.first_branch is not None and driver.branch < row.first_branch:
            tries = [Change("driver", "driver", f"{row.first_branch}")]
            yield finding(
                "driver-without-gpu", "error", ask.name, because, "the driver does not know the card", tries=tries
            )
        elif row.last_branch is not None and branch > row.last_branch:
            yield finding(
                "driver-without-gpu",
                "error",
                ask.name,
                because,
                "the driver no longer drives the card",
                hint=f"use the last branch that does, {row.last_branch}",
            )


def ptx_needs_driver(o: Outcome) -> Iterator[Finding]:
    """Code that runs only as PTX needs the driver of the toolkit that made it."""
    torch, toolkit, build = o.torch, o.torch_toolkit, o.torch_build
    if torch is None or toolkit is None or build is None or o.driver is None:
        return
    if o.has_windows_driver or o.has_embedded_driver:
        return
    native = o.catalog.driver_branch(o.driver)
    if native is None or native.cuda >= toolkit:
        return
    for ask, gpu in o.gpus:
        code = None if gpu is None else build.code_for(gpu.compute_capability)
        if code is not None and code.is_ptx:
            yield finding(
                "ptx-needs-newer-driver",
                "error",
                torch.title,
                [f"{ask.origin} asks for {ask.name}", build.fact, native.fact, o.catalog.note("ptx-arch-trap").fact],
                f"only PTX would run on the card, and the driver compiles PTX up to CUDA {native.cuda}",
            )


def compat_libraries(o: Outcome) -> Iterator[Finding]:
    """An image whose own libcuda is put before the host's."""
    base = o.env.base
    if base is None or base.toolkit is None:
        return
    forced = next((text for text in _forcing(o)), None)
    hazards = o.catalog.hazards
    native = None if o.driver is None else o.catalog.driver_branch(o.driver)
    consumer = next(
        ((ask, gpu) for ask, gpu in o.gpus if gpu is not None and gpu.kind not in {None, "datacenter"}), None
    )
    is_newer_image = native is not None and o.driver is not None and base.toolkit.series > native.cuda
    base_says = f"{base.origin}: the base image {base.reference} brings libcuda of CUDA {base.toolkit}"
    if forced is not None:
        if consumer is not None:
            fact = hazards.row("singles", "compat-geforce").fact
            who = f"{consumer[0].origin} asks for {consumer[0].name}"
            yield finding(
                "compat-libs-forced",
                "error",
                base.reference,
                [forced, base_says, who, fact],
                "CUDA would not initialise",
            )
        elif native is not None and not is_newer_image:
            fact = hazards.row("singles", "compat-older").fact
            yield finding(
                "compat-libs-forced",
                "error",
                base.reference,
                [forced, base_says, o.driver_says, native.fact, fact],
                "the image's older libcuda would be loaded instead of the driver's, and CUDA would not initialise",
                hint="drop the loader entry; put compat first at start only after comparing versions",
            )
        elif native is None:
            fact = hazards.row("singles", "compat-older").fact
            yield finding(
                "compat-libs-forced",
                "warning",
                base.reference,
                [forced, base_says, fact],
                f"on a host whose driver is newer than CUDA {base.toolkit} CUDA would not initialise",
            )
    elif is_newer_image and consumer is not None and base.repository.startswith("nvidia/") and native is not None:
        fact = hazards.row("singles", "compat-geforce").fact
        who = f"{consumer[0].origin} asks for {consumer[0].name}"
        yield finding(
            "compat-libs",
            "warning",
            base.reference,
            [base_says, o.driver_says, native.fact, who, fact, o.catalog.note("container-gate").fact],
            f"the container may be refused (`unsatisfied condition: cuda>={base.toolkit.series}`), and CUDA would not "
            "initialise (error 804) with the image's compat directory on the loader path",
            hint=f"use a base of CUDA {native.cuda} or older, or a newer driver",
        )


def _forcing(o: Outcome) -> Iterator[str]:
    for command in o.env.commands:
        text = command.text
        is_loader = "ld.so.conf" in text or "ldconfig" in text or "loader.conf" in text
        if "compat" in text and is_loader:
            yield f"{command.origin}: `{text[:100]}` puts a compat directory into the loader configuration"
    path = o.env.variable("LD_LIBRARY_PATH")
    if path is not None and "/compat" in path.value:
        yield f"{path.origin}: LD_LIBRARY_PATH holds a compat directory"


RULES = (driver_meets_torch, driver_drives_gpu, ptx_needs_driver, compat_libraries)
