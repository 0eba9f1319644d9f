"""`facts refresh`: what the configured package index tells today, as an overlay over the shipped facts."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from packaging.version import Version

from builder import refresh_rows
from builder.catalog import Catalog
from builder.errors import PackageIndexError
from builder.package_index import PackageIndex
from builder.package_rows import rows
from builder.sources import Sources

# Named in requirements of the tracked projects and kept in topics of their own.
TRACKED_BESIDE = frozenset({"torch", "torchvision", "torchaudio", "torchtext", "numpy"})


def index_from(sources: Sources, cache: Path | None) -> PackageIndex:
    """The configured index; without one, the address that uv itself would take."""
    return PackageIndex(
        sources.default_index or _uv_default(), cache, ca_bundle=sources.ca_bundle, proxies=sources.proxies
    )


def _uv_default() -> str:
    # No address of an index is written in this code: uv's own help names the one it goes to.
    from uv import find_uv_bin  # noqa: PLC0415

    text = subprocess.run(
        [find_uv_bin(), "help", "pip", "install"], capture_output=True, text=True, check=False, timeout=30
    ).stdout
    match = re.search(r"default package index \(by default: <([^>]+)>\)", " ".join(text.split()))
    if match is None:
        raise PackageIndexError(
            "index-unknown",
            "no package index is configured",
            because=["neither UV_DEFAULT_INDEX, PIP_INDEX_URL nor a configuration file names one"],
            hint="set UV_DEFAULT_INDEX to the simple API of your index",
        )
    return match[1]


@dataclass(frozen=True, kw_only=True)
class Refreshed:
    """`overlay` maps topics to rows, for `--facts`; `told` says per project what is new; `requests`: to the index."""

    overlay: dict[str, dict[str, Any]]
    told: dict[str, list[str]]
    requests: int


_TOPICS = {
    "torch": refresh_rows.torch,
    "numpy": refresh_rows.numpy,
    "onnxruntime": refresh_rows.onnxruntime,
    "transformers": refresh_rows.transformers,
}
OWN_TOPIC = {
    "torch": "torch",
    "torchvision": "torch",
    "torchaudio": "torch",
    "numpy": "numpy",
    "onnxruntime-gpu": "onnxruntime",
    "transformers": "transformers",
}


def refresh(
    catalog: Catalog, index: PackageIndex, names: Sequence[str], today: date, progress: Callable[[str], None]
) -> Refreshed:
    """What the index tells about these projects and the catalog does not have; nothing else is asked for."""
    overlay: dict[str, dict[str, Any]] = {}
    told: dict[str, list[str]] = {}
    for topic in dict.fromkeys(OWN_TOPIC[name] for name in names if name in OWN_TOPIC):
        progress(topic)
        shipped = catalog.raw(topic)
        found = _TOPICS[topic](index, shipped, today)
        if found:
            overlay[topic] = found
        for table in found.values():
            for key, value in table.items():
                is_nested = topic == "torch" and key in refresh_rows.COMPANIONS
                told.setdefault(key if is_nested else topic, []).extend(value if is_nested else [key])
    projects: dict[str, Any] = {}
    tracked = frozenset(catalog.packages) | TRACKED_BESIDE
    for name in names:
        package = catalog.packages.get(name)
        if package is None:
            continue
        progress(name)
        raw = catalog.raw("packages")["projects"][name]
        row, news = _project(index, name, raw, tracked, today)
        if row is not None:
            projects[name] = row
            told.setdefault(name, []).extend(news)
    if projects:
        overlay["packages"] = {"projects": projects}
    return Refreshed(
        overlay=overlay, told={name: list(dict.fromkeys(news)) for name, news in told.items()}, requests=index.requests
    )


def _project(
    index: PackageIndex, name: str, before: Mapping[str, Any], tracked: frozenset[str], today: date
) -> tuple[dict[str, Any] | None, list[str]]:
    """The whole row again where something changed: new, withdrawn or deleted releases."""
    known: Mapping[str, Any] = before["releases"]
    dates = [row["released"] for row in known.values() if "released" in row]
    reads_requirements = bool(before["requirement_sets"])
    since = date.fromisoformat(min(dates)) if dates else None
    found = rows(index, name, tracked=tracked, since=since, is_required_read=False)
    if found is None:
        return None, []
    news = [version for version in found["releases"] if version not in known]
    yanked = [
        v for v, row in found["releases"].items() if row.get("yanked") and v in known and not known[v].get("yanked")
    ]
    deleted = [v for v, row in known.items() if v not in found["releases"] and not row.get("deleted")]
    if not news and not yanked and not deleted:
        return None, []
    if reads_requirements:
        found = rows(index, name, tracked=tracked, since=since)
        assert found is not None  # noqa: S101  (it was there a moment ago)
    releases = {**found["releases"], **{version: {**known[version], "deleted": True} for version in deleted}}
    sets: list[list[str]] = found["requirement_sets"]
    for version in deleted:
        releases[version].pop("requires", None)
    row = {
        "source": f"file list and metadata of {name} on the package index, {today}",
        "confidence": "verified-from-metadata",
        "requirement_sets": sets,
        "releases": dict(sorted(releases.items(), key=lambda item: Version(item[0]))),
    }
    if found.get("older"):
        row["older"] = found["older"]
    return row, [*news, *(f"{version} withdrawn" for version in yanked), *(f"{version} deleted" for version in deleted)]
