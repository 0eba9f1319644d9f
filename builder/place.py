"""Where an environment in place lives, and how one takes the place of another in a single step.

    PREFIX                    a link, the only thing that users name
    .PREFIX.torchproof/       beside it
        <id>/                 one environment; its files never move, so conda's paths inside them stay true
        lock                  held by the one run that works on this place

A rename of a link is atomic, also where the old environment lies in a lower layer of a saved container image, where a
folder cannot be renamed at all. Whoever looks at PREFIX sees the old environment or the new one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from builder.atomic import write_whole
from builder.errors import UsageError
from builder.processes import hold_interrupts

MARKER = ".torchproof.json"


@dataclass(frozen=True, slots=True)
class Place:
    prefix: Path

    @property
    def store(self) -> Path:
        return self.prefix.parent / f".{self.prefix.name}.torchproof"

    def current(self) -> Path | None:
        """The environment that PREFIX stands for; None when there is none of ours."""
        if self.prefix.is_symlink():
            target = Path(os.path.realpath(self.prefix))
            return target if target.parent == Path(os.path.realpath(self.store)) and target.is_dir() else None
        return self.prefix if marker(self.prefix) else None

    def candidate(self, wanted: str) -> Path:
        return Path(os.path.realpath(self.store)) / wanted[:12]

    def refuse_foreign(self, image_id: str) -> None:
        """Anything that torchproof did not make stays as it is."""
        prefix = self.prefix
        if self.current() is not None or not (prefix.exists() or prefix.is_symlink()):
            return
        if not prefix.is_symlink() and prefix.is_dir() and not any(prefix.iterdir()):
            return
        what = f"`{image_id}` is not built into {prefix}"
        strange = "that folder has something in it which torchproof did not make"
        hint = "name another folder; or install the files of `torchproof render --format conda` there yourself, and "
        hint += "prove what is there with `--adopt`"
        if base := base_reason(prefix):
            raise UsageError("base-environment", what, because=(strange, base), hint=hint)
        raise UsageError("prefix-not-ours", what, because=(strange,), hint=hint)

    @contextmanager
    def held(self) -> Iterator[int]:
        """One run at a time. The system lets go of the lock when nobody has it open any more: handed on to children,
        it also covers an installer that goes on after its parent was killed.
        """
        self.store.mkdir(parents=True, exist_ok=True)
        with (self.store / "lock").open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    "prefix-busy",
                    f"another run is working on {self.prefix}",
                    hint="wait for it to end, or name another folder",
                ) from None
            yield stream.fileno()

    def clean(self, *keep: Path) -> None:
        """Remove what earlier runs left beside; the environment in use and `keep` stay."""
        spared = {self.current(), *keep}
        if not self.store.is_dir():
            return
        for folder in self.store.iterdir():
            if folder.is_dir() and not folder.is_symlink() and Path(os.path.realpath(folder)) not in spared:
                remove_folder(folder)

    def switch(self, folder: Path) -> None:
        """PREFIX stands for `folder` from now on; the environment before it is removed afterwards."""
        link = self.store / "next"
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(folder, os.path.realpath(self.prefix.parent)))
        with hold_interrupts():
            if self.prefix.is_dir() and not self.prefix.is_symlink():
                # An empty folder of the user's, or an environment made before environments were links.
                self.prefix.rename(self.store / "before")
            link.replace(self.prefix)
        self.clean(folder)

    def refuse_removal(self) -> None:
        """What torchproof did not make is not removed by it, nor is what it runs in."""
        what = f"{self.prefix} is not removed"
        current = self.current()
        if current is None and not (self.store / "lock").is_file():
            strange = "there is no such folder"
            if self.prefix.exists() or self.prefix.is_symlink():
                strange = "torchproof did not make it"
            raise UsageError("prefix-not-ours", what, because=(strange,))
        if current is not None and Path(os.path.realpath(sys.prefix)).is_relative_to(os.path.realpath(current)):
            raise UsageError("prefix-in-use", what, because=("this torchproof runs in it",))

    def remove(self) -> None:
        """The name goes first, so that no half of an environment has it. Called again, it ends what was cut off."""
        if self.current() is None:
            if not self.prefix.exists() and not self.prefix.is_symlink():
                shutil.rmtree(self.store, ignore_errors=True)
            return
        if self.prefix.is_symlink():
            self.prefix.unlink()
        else:
            remove_folder(self.prefix)
        shutil.rmtree(self.store, ignore_errors=True)


def base_reason(prefix: Path) -> str | None:
    """Why a prefix counts as a base environment, which is never installed into; None when it does not."""
    if next(iter(prefix.glob("lib/python3*/EXTERNALLY-MANAGED")), None) is not None:
        return "its Python says that it is managed by something else (PEP 668)"
    if (prefix / "conda-meta").is_dir() and (prefix / "condabin").is_dir():
        return "it is the base environment of a conda installation"
    if (prefix / "bin").is_dir() and os.path.realpath(prefix) in {"/usr", "/usr/local", "/"}:
        return "it is the Python of the system"
    return None


def marker(prefix: Path) -> Mapping[str, object]:
    """What torchproof noted about an environment of its own; empty for any other."""
    with suppress(OSError, ValueError):
        found = json.loads((prefix / MARKER).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


def mark(prefix: Path, **values: object) -> None:
    write_whole(prefix / MARKER, json.dumps({**marker(prefix), **values}, sort_keys=True))


def remove_folder(folder: Path) -> None:
    """Named so that a cut-off removal is never mistaken for an environment: the marker goes first."""
    if folder.exists():
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
