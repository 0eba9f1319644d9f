"""Base images: tags that never existed or were deleted, and system libraries that a wheel takes for granted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from builder.catalog_rows.cuda import CudaImage
from builder.environment import BaseImage
from builder.explain import joined
from builder.outcome import Outcome
from builder.rules.base import Finding, finding
from builder.versions import CudaVariant, InvalidVersionError


def cuda_tag_exists(o: Outcome) -> Iterator[Finding]:
    for base in o.env.bases:
        if base.repository not in {"nvidia/cuda", "cuda"} or base.digest is not None or "$" in base.reference:
            continue
        tag = base.tag or "latest"
        if o.catalog.cuda_image(tag) is not None:
            continue
        found = _cuda_tag(o, base, tag)
        if found is not None:
            yield found


def _cuda_tag(o: Outcome, base: BaseImage, tag: str) -> Finding | None:
    says = f"{base.origin}: FROM {base.reference}"
    if tag == "latest":
        unnamed = "no tag is named, which stands for `latest`" if base.tag is None else ""
        tags = [image for image in o.catalog.cuda_image_tags(flavor="runtime") if image.is_end_of_life is not True]
        tags = [image for image in tags if image.os.startswith("ubuntu")]
        example = max(tags, key=lambda image: (image.version.parts, image.os), default=None)
        return finding(
            "base-image-missing", "error", base.reference,
            [says, unnamed, o.catalog.hazards.row("singles", "cuda-no-latest").fact], "there is no such tag to pull",
            hint=None if example is None else f"name one, such as nvidia/cuda:{example.tag}",
        )  # fmt: skip
    parts = CudaImage.parts(tag)
    if parts is None:
        version = re.match(r"([0-9]+\.[0-9]+(?:\.[0-9]+)?)", tag)
        if version is None:
            return None
        parts = (version[1], None, "", "")
    version_text, cudnn, flavor, os = parts
    if version_text.count(".") == 1 and int(version_text.split(".")[0]) <= 11:
        return finding(
            "base-image-gone", "error", base.reference,
            [says, o.catalog.note("three-part").fact, o.catalog.note("deletion").fact],
            f"the image was deleted: tags of CUDA {version_text} in two parts are out of support",
            hint=_nearest_hint(o, base),
        )  # fmt: skip
    known = {str(image.version) for image in o.catalog.cuda_image_tags()}
    if version_text not in known:
        newest = max(image.version for image in o.catalog.cuda_image_tags())
        if base.toolkit is not None and base.toolkit > newest:
            return finding(
                "base-image-unknown", "info", base.reference,
                [says, f"the newest image in the facts is of CUDA {newest}"], "whether the tag exists is not known",
            )  # fmt: skip
        same = sorted({v for v in known if v.split(".")[:2] == version_text.split(".")[:2]})
        because = [says, o.catalog.note("three-part" if version_text.count(".") == 1 else "form").fact]
        if same:
            because.append(f"the images of that CUDA are {joined(same)}")
        return finding(
            "base-image-missing", "error", base.reference, because,
            f"there is no image of that name: none has the version {version_text}", hint=_nearest_hint(o, base),
        )  # fmt: skip
    variants = sorted(
        {
            _variant(image)
            for image in o.catalog.cuda_image_tags()
            if str(image.version) == version_text and image.os == os
        }
    )
    is_numbered = cudnn is not None and any(each.startswith("cudnn") for each in variants)
    because = [says, o.catalog.note("cudnn-in-tag" if is_numbered else "no-cudnn-tags" if cudnn else "os-range").fact]
    if variants:
        because.append(f"for {os} there are {joined(variants, limit=8)}")
    elif not flavor or not os:
        because.append("a tag names the flavour and the system")
    if flavor and os and not variants and any(i.os == os for i in o.catalog.cuda_image_tags()) is False:
        return None  # a system the facts do not list
    return finding(
        "base-image-missing",
        "error",
        base.reference,
        because,
        "there is no such tag to pull",
        hint=_nearest_hint(o, base),
    )


def _variant(image: CudaImage) -> str:
    return f"{image.cudnn}-{image.flavor}" if image.cudnn else image.flavor


def _nearest_hint(o: Outcome, base: BaseImage) -> str | None:
    """A tag that is listed: the same flavour and system, the nearest CUDA of the same major version."""
    toolkit = base.toolkit
    if toolkit is None:
        return None
    images = [
        image
        for image in o.catalog.cuda_image_tags()
        if image.version.major == toolkit.major
        and (base.flavor is None or image.flavor == base.flavor)
        and (base.cudnn is None) == (image.cudnn is None)
        and image.is_end_of_life is not True
    ]
    if not images:
        images = [
            image
            for image in o.catalog.cuda_image_tags(flavor=base.flavor)
            if image.version >= toolkit
            and (base.cudnn is None) == (image.cudnn is None)
            and image.is_end_of_life is not True
        ]
    if not images:
        return None
    os = (base.distribution or "").replace(":", "")

    def rank(image: CudaImage) -> tuple[bool, bool, int]:
        apart = abs(image.version.major - toolkit.major) * 100 + abs(image.version.minor - toolkit.minor)
        return image.os != os, image.os.rstrip("0123456789.") != os.rstrip("0123456789."), apart

    return f"use nvidia/cuda:{min(images, key=rank).tag}"


def pytorch_tag_exists(o: Outcome) -> Iterator[Finding]:
    """pytorch/pytorch:<torch>-cuda<x.y>-cudnn<n>-<flavor>: the torch must have had such a build."""
    for base in o.env.bases:
        if base.repository != "pytorch/pytorch" or base.torch is None or base.toolkit is None:
            continue
        release = o.catalog.torch_release(base.torch)
        if release is None:
            continue
        try:
            variant = CudaVariant.parse(base.toolkit.variant)
        except InvalidVersionError:
            continue
        if release.build(variant) is None:
            yield finding(
                "base-image-missing",
                "error",
                base.reference,
                [f"{base.origin}: FROM {base.reference}", release.variants_fact],
                f"torch {base.torch} was never built for CUDA {base.toolkit}, so there is no such image",
            )


def end_of_life(o: Outcome) -> Iterator[Finding]:
    for base in o.env.bases:
        image = None if base.repository != "nvidia/cuda" or base.tag is None else o.catalog.cuda_image(base.tag)
        if image is not None and image.is_end_of_life and base.digest is None:
            yield finding(
                "base-image-end-of-life",
                "info",
                base.reference,
                [f"{base.origin}: FROM {base.reference}", image.cite(f"nvidia/cuda:{image.tag} is out of support"),
                 o.catalog.note("deletion").fact],
                "it may be deleted from the registry: mirror it, or pin a supported one",
            )  # fmt: skip


def system_libraries(o: Outcome) -> Iterator[Finding]:
    """Wheels that load libraries of the system, in an image that lacks them."""
    base = o.env.base
    if base is None or not o.env.is_image:
        return
    row = next((r for r in o.catalog.hazards.all("base_images") if r.text("repository") == base.repository), None)
    if row is None or not row.get("lacks") or (base.repository == "python" and "slim" not in (base.tag or "")):
        return
    installed = {package.name.split("=")[0] for package in o.env.apt}
    for hazard in o.catalog.hazards.all("system_libraries"):
        chosen = o.package(hazard.package)
        if chosen is None or installed & set(hazard.get("apt")) or any(n.startswith("libgl1") for n in installed):
            continue
        if chosen.version is not None and not hazard.holds_for(chosen.version):
            continue
        if chosen.request is None or chosen.request.installer not in {"pip", "uv"}:
            continue
        instead = hazard.get("instead")
        yield finding(
            "system-library-missing",
            "warning",
            chosen.title,
            [chosen.says, hazard.fact, f"{base.origin}: FROM {base.reference}", row.fact],
            f"importing it would stop at {hazard.get('libraries')[0]}",
            hint=f"use {instead}, or install {hazard.get('apt')[0]}" if instead else f"install {hazard.get('apt')[0]}",
        )


def system_python_is_managed(o: Outcome) -> Iterator[Finding]:
    """Debian 12 and Ubuntu 24.04 refuse pip outside a virtual environment."""
    base = o.env.base
    if base is None or base.distribution is None or base.repository in {"python", "pytorch/pytorch"}:
        return
    found = o.catalog.distribution(base.distribution)
    if found is None or (found.name, found.release) not in {
        ("debian", "12"),
        ("debian", "13"),
        ("ubuntu", "24.04"),
        ("ubuntu", "26.04"),
    }:
        return
    variables = {variable.name for variable in o.env.variables}
    commands = " ".join(command.text for command in o.env.commands)
    if (
        variables & {"VIRTUAL_ENV", "PIP_BREAK_SYSTEM_PACKAGES", "CONDA_DIR"}
        or "venv" in commands
        or "EXTERNALLY-MANAGED" in commands
    ):
        return
    for step in o.env.steps:
        words = step.text
        if (
            step.installer != "pip"
            or "break-system-packages" in words
            or "/bin/pip" in words
            or step.python is not None
        ):
            continue
        if step.origin.file and o.env.is_image and not any(s.installer == "conda" for s in o.env.steps):
            yield finding(
                "system-python-managed",
                "warning",
                base.reference,
                [f"{step.origin} runs `{words[:80]}`", found.fact, o.catalog.note("pep668").fact],
                "pip would refuse to install into the system's Python",
                hint="make a virtual environment first",
            )
            return


RULES = (cuda_tag_exists, pytorch_tag_exists, end_of_life, system_libraries, system_python_is_managed)
