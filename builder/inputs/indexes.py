"""Address of a package index -> what it is, from the form of its path: hosts differ, mirrors keep the path."""

from __future__ import annotations

import re

from builder.environment import Index, IndexKind, Origin
from builder.versions import CudaVariant, InvalidVersionError

# `whl/cu121`, `pytorch-wheels/cu121`, `whl/nightly/cu121`: the last part names the variant.
_WHEEL_ROOT = re.compile(r"whl|(pytorch|torch)[\w-]*wheels?|pytorch-whl")
_STAGE = re.compile(r"nightly|test")
_PAGE = re.compile(r"torch(_stable|_nightly|_test)?(\.html)?|simple|index\.html")
# What stands before `/simple` where a whole default index is served.
_MIRROR = re.compile(
    r"pypi([-_](public|proxy|all|group|remote|mirror|central))?|web|root|api|repository|repositories|artifactory|nexus"
    r"|mirrors?|v\d+|python|simple"
)


def classify(url: str, origin: Origin) -> Index:
    """Never fails: an address of no known form is `other`."""
    address = url.strip().strip("'\"")
    path = re.sub(r"^[a-z][a-z0-9+.-]*://", "", address, flags=re.IGNORECASE).split("#")[0].split("?")[0]
    host, *parts = [part for part in path.split("/") if part] or [""]
    kind: IndexKind = "other"
    variant: CudaVariant | None = None
    is_nightly = any(_STAGE.fullmatch(part) for part in parts)
    place = next((number for number, part in enumerate(parts) if _WHEEL_ROOT.fullmatch(part)), None)
    if place is not None and _is_torch(host, parts[:place]):
        rest = [part for part in parts[place + 1 :] if not _STAGE.fullmatch(part)]
        variant = _variant(rest[0]) if rest else None
        pages = rest[1:] if variant is not None else rest
        kind = "torch" if all(_PAGE.fullmatch(part) for part in pages) else "other"
        variant = variant if kind == "torch" else None
    elif parts and parts[-1] == "simple" and all(_MIRROR.fullmatch(part) for part in parts):
        kind = "default"
    return Index(kind=kind, origin=origin, url=address, variant=variant, is_nightly=is_nightly)


def _is_torch(host: str, before: list[str]) -> bool:
    """Other projects serve `<project>/whl/cu121` too: what stands before must be a mirror's own path or name torch."""
    return not before or "torch" in host or any("torch" in part for part in before)


def _variant(text: str) -> CudaVariant | None:
    try:
        return CudaVariant.parse(text)
    except InvalidVersionError:
        return None


def of_word(word: str, origin: Origin) -> Index:
    """The value of `--index`: `default`, a variant such as `cu124` or `cpu`, or an address."""
    text = word.strip()
    if text.lower() == "default":
        return Index(kind="default", origin=origin)
    variant = _variant(text)
    if variant is not None:
        return Index(kind="torch", origin=origin, variant=variant)
    return classify(text, origin)


def is_page(index: Index) -> bool:
    """A flat page of wheels, which goes with `--find-links`."""
    return index.url is not None and index.url.split("#")[0].split("?")[0].endswith((".html", ".htm"))
