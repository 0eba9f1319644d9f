#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["packaging>=24.2"]
# ///
"""Writes bin/packages.json from the configured package index: what it tells about the projects in bin/packages.txt.

import_facts.py makes the facts topic `packages` of it. The index is that of uv's and pip's configuration; answers are
kept in a cache folder and asked for again conditionally.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from builder.package_index import PackageIndex
from builder.package_rows import rows
from builder.refresh import TRACKED_BESIDE, index_from
from builder.sources import Sources, read_pip_config

HERE = Path(__file__).resolve().parent


def projects(text: str) -> dict[str, tuple[date | None, bool]]:
    """Name -> (first day of interest, whether its requirements are read)."""
    found: dict[str, tuple[date | None, bool]] = {}
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if words:
            year = next((word for word in words[1:] if word.isdigit()), None)
            found[words[0]] = date(int(year), 1, 1) if year else None, "files" not in words
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for answers of the index")
    parser.add_argument("--to", type=Path, default=HERE / "packages.json")
    options = parser.parse_args()
    wanted = projects((HERE / "packages.txt").read_text(encoding="utf-8"))
    index: PackageIndex = index_from(Sources.from_environment(os.environ, read_pip_config(os.environ)), options.cache)
    tracked = frozenset(wanted) | TRACKED_BESIDE

    def one(name: str) -> tuple[str, object]:
        since, is_required_read = wanted[name]
        found = rows(index, name, tracked=tracked, since=since, is_required_read=is_required_read)
        print(name, "not on the index" if found is None else len(found["releases"]), index.requests, flush=True)
        return name, found

    # Three at a time: the index is not ours.
    with ThreadPoolExecutor(3) as pool:
        found = dict(pool.map(one, sorted(wanted)))
    content: dict[str, Any] = {
        "confidence": "verified-from-metadata",
        "source": "file lists and wheel metadata of the package index",
        "schema_version": 1,
        "generated": datetime.now(timezone.utc).date().isoformat(),
        "projects": {name: row for name, row in found.items() if row is not None},
    }
    # One project a line.
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in content.pop("projects").items()]
    head = json.dumps(content)[:-1]
    options.to.write_text(f'{head}, "projects": {{\n' + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
