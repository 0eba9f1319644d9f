"""The files that an image is built from: what a name inside the image was copied from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import PurePosixPath

from builder.inputs.reading import Included, Reader

_MARKS = (".git/HEAD", "pyproject.toml", "setup.py")


class BuildContext:
    """`copies` grows while the Dockerfile is read: (source, destination) of every COPY so far."""

    def __init__(self, reader: Reader, file: str, copies: Sequence[tuple[str, str]]) -> None:
        self._reader = reader
        self._file = file
        self._copies = copies

    def find(self, name: str, cwd: str) -> Included:
        """A file named inside the image: where it was copied from, else by its name beside the Dockerfile.

        Images are mostly built from the project's own folder: what was copied is looked for there as well.
        """
        if "$" in name or "://" in name:
            why = "its name hangs on a variable" if "$" in name else "it is on the network, which is never asked"
            return Included(name, why=why)
        inside = str(PurePosixPath(cwd) / name)
        leaf = inside.rsplit("/", 1)[-1]
        copied: list[str] = []
        for source, destination in reversed(self._copies[-200:]):
            if "$" in source or "://" in source:
                continue
            target = str(PurePosixPath(cwd) / destination)
            if inside == target or source.rsplit("/", 1)[-1] == leaf:
                copied.append(source)
            elif "*" in source:
                copied.append(str(PurePosixPath(source).parent / leaf))
            elif inside.startswith(target.rstrip("/") + "/"):
                copied.append(str(PurePosixPath(source) / inside[len(target.rstrip("/")) + 1 :]))
        names = [*([name] if not name.startswith("/") else []), *copied, leaf]
        found = Included(name, why="there is no such file beside the Dockerfile")
        for candidate in dict.fromkeys(names[:8]):
            found = self._reader.read(candidate.lstrip("/"), beside=self._file)
            if found.text is not None:
                return found
        for candidate in dict.fromkeys(copied[:3] if self._way_up else ()):
            upper = self._reader.read(f"{self._way_up}{candidate.lstrip('/')}", beside=self._file)
            if upper.text is not None:
                return upper
        return replace(found, file=name)

    @cached_property
    def _way_up(self) -> str:
        """`../` to the folder of the project that the Dockerfile belongs to; "" where it lies there or none is seen."""
        for way in ("", "../", "../../", "../../../"):
            if any(self._reader.read(way + mark, beside=self._file).text is not None for mark in _MARKS):
                return way
        return ""
