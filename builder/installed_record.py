"""What an environment held when it was proven, kept beside it, and what has changed since."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from builder import installed
from builder.atomic import write_whole
from builder.errors import UsageError
from builder.place import mark

RECORD_NAME = ".torchproof-record.json"
_RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """`files`: path below its site-packages -> hash as in a wheel's RECORD, for each package. `level` says how far
    the environment was proven; None: it was built and not proven.
    """

    image_id: str
    prefix: str
    digest: str
    lock_digest: str | None
    level: str | None
    packages: Mapping[str, str]
    files: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Package by package and file by file; empty when everything is as it was."""

    added: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    changed_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strange_files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(
            (self.added, self.removed, self.versions, self.changed_files, self.missing_files, self.strange_files)
        )


def take(
    prefix: Path, *, image_id: str, lock_digest: str | None = None, level: str | None = None, digest: str | None = None
) -> Record:
    """What is there now; `digest` where it is known already."""
    packages: dict[str, str] = {}
    files: dict[str, dict[str, str]] = {}
    for site in installed.site_folders(prefix):
        for info in sorted(site.glob("*.dist-info")):
            name, version = _name_of(info)
            packages[name] = version
            files[name] = dict(_recorded(info))
    return Record(
        image_id=image_id,
        prefix=str(prefix),
        digest=installed.digest(prefix) if digest is None else digest,
        lock_digest=lock_digest,
        level=level,
        packages=packages,
        files=files,
    )


def keep(prefix: Path, record: Record, *, wanted: str | None = None, file: Path | None = None) -> Path:
    """Written into the environment, whose marker then calls it complete; or to `file`, for one that is not ours."""
    document = {
        "record_version": _RECORD_VERSION,
        "image_id": record.image_id,
        "prefix": record.prefix,
        "digest": record.digest,
        "lock_digest": record.lock_digest,
        "level": record.level,
        "packages": dict(record.packages),
        "files": {name: dict(paths) for name, paths in record.files.items()},
    }
    path = file or prefix / RECORD_NAME
    write_whole(path, json.dumps(document, sort_keys=True) + "\n")
    if file is None:
        known = {} if wanted is None else {"wanted": wanted}
        mark(prefix, image_id=record.image_id, digest=record.digest, level=record.level, **known)
    return path


def read(folder: Path) -> Record:
    """The record in an environment, or in a file that `verify --adopt` wrote."""
    path = folder / RECORD_NAME if folder.is_dir() else folder
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = found.pop("record_version")
        record = Record(**found)
    except FileNotFoundError:
        raise UsageError(
            "record-missing",
            f"nothing is known about {folder}",
            because=(f"there is no {path}",),
            hint="prove the environment first, with `torchproof verify --in-place`",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError("record-unreadable", f"`{path}` is not a record of torchproof: {error}") from None
    if version != _RECORD_VERSION:
        raise UsageError("record-version", f"`{path}` was written by another version of torchproof ({version})")
    return record


def changes(record: Record, prefix: Path) -> Changes:
    """Every recorded file is read and hashed: a RECORD can be rewritten along with what it lists."""
    sites = installed.site_folders(prefix)
    now = _packages(sites)
    before = record.packages
    changed, missing = _file_states(record, now)
    return Changes(
        added={name: now[name][0] for name in sorted(set(now) - set(before))},
        removed={name: before[name] for name in sorted(set(before) - set(now))},
        versions={n: (before[n], now[n][0]) for n in sorted(set(before) & set(now)) if before[n] != now[n][0]},
        changed_files=changed,
        missing_files=missing,
        strange_files=tuple(_strange(sites, _of_conda(prefix))),
    )


_Files = dict[str, tuple[str, ...]]


def _packages(sites: tuple[Path, ...]) -> dict[str, tuple[str, Path]]:
    """Package -> its version and its site-packages; of two, the one that Python imports."""
    now: dict[str, tuple[str, Path]] = {}
    for site in sites:
        for info in sorted(site.glob("*.dist-info")):
            name, version = _name_of(info)
            now.setdefault(name, (version, site))
    return now


def _file_states(record: Record, now: Mapping[str, tuple[str, Path]]) -> tuple[_Files, _Files]:
    """The changed and the missing files of every package that still has its version."""
    before = record.packages
    changed: _Files = {}
    missing: _Files = {}
    # A package of another version has other files; its version says it.
    same = [name for name in sorted(set(before) & set(now)) if now[name][0] == before[name]]
    expected: dict[Path, set[str]] = {}
    for name in same:
        for path, wanted in record.files[name].items():
            # Two packages may bring the same path; the one that came last is there, and nobody changed it.
            expected.setdefault(now[name][1] / path, set()).add(wanted)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # hashing runs without the interpreter's lock
        states = dict(zip(expected, pool.map(_state, expected, expected.values(), chunksize=64), strict=True))
    for name in same:
        site = now[name][1]
        if some := tuple(path for path in sorted(record.files[name]) if states[site / path] == "changed"):
            changed[name] = some
        if some := tuple(path for path in sorted(record.files[name]) if states[site / path] == "missing"):
            missing[name] = some
    return changed, missing


def damaged(prefix: Path) -> dict[str, tuple[str, ...]]:
    """Package -> its files that are missing or are not what its RECORD says."""
    changed, missing = _file_states(take(prefix, image_id="", digest=""), _packages(installed.site_folders(prefix)))
    return {name: (*changed.get(name, ()), *missing.get(name, ())) for name in sorted({*changed, *missing})}


def _name_of(info: Path) -> tuple[str, str]:
    name, _, version = info.name.removesuffix(".dist-info").partition("-")
    return canonicalize_name(name), version


def _recorded(info: Path, *, with_unhashed: bool = False) -> Iterator[tuple[str, str]]:
    record = info / "RECORD"
    text = record.read_text(encoding="utf-8") if record.is_file() else ""
    for row in csv.reader(text.splitlines()):
        if len(row) >= 2 and (row[1] or with_unhashed) and not installed.is_about_the_install(row[0]):
            yield row[0], row[1]


def _state(path: Path, expected: Collection[str]) -> str:
    """`same`, `changed` or `missing`; one of the expected hashes is enough."""
    wanted: dict[str, set[str]] = {}
    for text in expected:
        wanted.setdefault(text.partition("=")[0], set()).add(text.partition("=")[2])
    try:
        totals = {algorithm: hashlib.new(algorithm) for algorithm in wanted}
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                for total in totals.values():
                    total.update(chunk)
    except (OSError, ValueError):
        return "missing"
    found = {name: base64.urlsafe_b64encode(total.digest()).rstrip(b"=").decode() for name, total in totals.items()}
    return "same" if any(found[name] in texts for name, texts in wanted.items()) else "changed"


def _of_conda(prefix: Path) -> set[str]:
    found: set[str] = set()
    for path in (prefix / "conda-meta").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found |= {os.path.normpath(prefix / name) for name in record.get("files") or ()}
    return found


def _strange(sites: tuple[Path, ...], of_conda: set[str]) -> Iterator[str]:
    """Files in site-packages that no package there says to have brought; what Python compiled is not meant."""
    for site in sites:
        owned = of_conda | {
            os.path.normpath(site / path)
            for info in site.glob("*.dist-info")
            for path, _ in _recorded(info, with_unhashed=True)
        }
        for folder, folders, names in os.walk(site):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                path = Path(folder, name)
                is_ours = name.startswith("_virtualenv.") or folder.endswith(".dist-info")
                if str(path) not in owned and not is_ours and not name.endswith(".pyc"):
                    yield str(path.relative_to(site))
