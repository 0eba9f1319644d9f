"""What the facts say about base images, and which one suits a Python. Pure."""

from __future__ import annotations

import re

from builder.catalog import Catalog
from builder.catalog_rows.python import Distribution
from builder.resolution import Base
from builder.spec import AUTO, ImageSpec
from builder.versions import CudaVariant, PythonVersion

_PYTHON_IMAGE = re.compile(r"(?:.*/)?python:(3\.\d+)[\w.]*(?:-slim)?(?:-([a-z]+))?")


def describe(reference: str, catalog: Catalog) -> Base:
    """The base that a spec names, with its Python and glibc where a fact tells them."""
    if reference.startswith("local:"):
        return Base(kind="local", reference=reference.removeprefix("local:"), python=None, glibc=None)
    distribution = distribution_of(reference, catalog)
    if reference.startswith("debian:") and distribution is not None:
        # One name for one thing: `debian:12` and `debian:bookworm` share cache, tag and lock.
        reference = f"debian:{distribution.codename}"
        return Base(kind="debian", reference=reference, python=str(distribution.python), glibc=str(distribution.glibc))
    glibc = None if distribution is None else str(distribution.glibc)
    own = _PYTHON_IMAGE.fullmatch(reference.split("@")[0])
    if own:
        return Base(kind="registry", reference=reference, python=own[1], glibc=glibc)
    python = None if distribution is None else str(distribution.python)
    return Base(kind="registry", reference=reference, python=python, glibc=glibc)


def distribution_of(reference: str, catalog: Catalog) -> Distribution | None:
    """The distribution behind `debian:12`, `ubuntu:22.04`, `nvidia/cuda:...-ubuntu22.04` or `python:3.11-bookworm`."""
    name = reference.split("@", maxsplit=1)[0].rsplit("/", 1)[-1]
    repository, _, tag = name.partition(":")
    if repository == "cuda":
        match = re.search(r"-(ubuntu|rockylinux|debian)(\d[\d.]*)$", tag)
        return catalog.distribution(f"{match[1]}:{match[2]}") if match else None
    if repository == "python":
        match = _PYTHON_IMAGE.fullmatch(name)
        return catalog.distribution(f"debian:{match[2]}") if match and match[2] else None
    if repository in {"debian", "ubuntu"}:
        return catalog.distribution(f"{repository}:{tag.removesuffix('-slim')}")
    return None


def choose(
    cell: ImageSpec, catalog: Catalog, python: PythonVersion, variant: CudaVariant, *, ignore_asked: bool = False
) -> Base | None:
    """The asked base, or for `auto` a distribution that ships this Python: Debian before Ubuntu, since a Debian base
    can be made without a registry. `runtime` and `devel` take NVIDIA's image of the variant's toolkit.
    """
    if cell.base != AUTO and not ignore_asked:
        return describe(cell.base, catalog)
    found = [row for row in catalog.distributions_with_python(python) if row.name in {"debian", "ubuntu"}]
    if cell.flavor != "base" and variant.toolkit is not None:
        for row in found:
            images = catalog.cuda_image_tags(toolkit=variant.toolkit, flavor=cell.flavor, os=f"{row.name}{row.release}")
            if images:
                return describe(f"docker.io/nvidia/cuda:{images[0].tag}", catalog)
        return None
    for row in sorted(found, key=lambda row: row.name != "debian"):
        reference = f"debian:{row.codename}" if row.name == "debian" else f"docker.io/library/{row.image}"
        return describe(reference, catalog)
    return None


def newest_debian(catalog: Catalog) -> Base | None:
    """For a Python that comes from elsewhere, so that the base needs none of its own."""
    rows = [row for row in catalog.distributions() if row.name == "debian"]
    return describe(f"debian:{rows[-1].codename}", catalog) if rows else None
