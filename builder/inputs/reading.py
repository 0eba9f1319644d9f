"""Bytes -> text, and the files that a file names. Bounded, so that no input takes more than a moment."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

# A lock of a large project has a few MB; anything much larger is not a file that a person wrote or a tool locked.
MAX_BYTES = 16_000_000
MAX_INCLUDES = 64
MAX_DEPTH = 12

_BOMS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def decode(raw: bytes) -> str:
    """Text with line feeds as line ends, whatever the encoding; bytes that fit none are read as Latin-1."""
    raw = raw[:MAX_BYTES]
    text: str | None = None
    for bom, encoding in _BOMS:
        if raw.startswith(bom):
            text = raw.decode(encoding, errors="replace")
            break
    if text is None and len(raw) > 3 and raw.count(0) >= len(raw) // 3:
        # PowerShell's `>` writes UTF-16; some editors drop its mark.
        text = raw.decode("utf-16-le" if raw[1] == 0 else "utf-16-be", errors="replace")
    if text is None:
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")


@dataclass(frozen=True, slots=True)
class Included:
    """`text` or, where there is none, `why`."""

    file: str
    text: str | None = None
    why: str = ""


@dataclass
class Reader:
    """Reads what a file names, relative to that file, and keeps count.

    `files` serves texts by name without a disk (tests, pins); `is_offline` refuses the disk, for texts without a place.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    is_offline: bool = False
    _seen: int = 0

    def read(self, name: str, *, beside: str) -> Included:
        """`name` as written in the file `beside`."""
        if "://" in name:
            return Included(name, why="it is on the network, which is never asked")
        if not name or "\0" in name or len(name) > 1000:
            return Included(name, why="it is no file name")
        path = self._place(name, beside)
        self._seen += 1
        if self._seen > MAX_INCLUDES:
            return Included(path, why=f"more than {MAX_INCLUDES} files are included")
        if path in self.files:
            return Included(path, text=self.files[path])
        if self.is_offline:
            return Included(path, why="there is no such file")
        try:
            found = Path(path).stat()
            if not stat.S_ISREG(found.st_mode):
                return Included(path, why="it is not a file")
            if found.st_size > MAX_BYTES:
                return Included(path, why=f"it has {found.st_size:,} bytes")
            return Included(path, text=decode(Path(path).read_bytes()))
        except FileNotFoundError:
            return Included(path, why="there is no such file")
        except (OSError, ValueError) as error:
            return Included(path, why=f"it cannot be read ({getattr(error, 'strerror', None) or error})")

    @staticmethod
    def _place(name: str, beside: str) -> str:
        name = name.removeprefix("file:").replace("\\", "/")
        parts: list[str] = []
        joined = PurePosixPath(beside).parent / name
        for part in joined.parts:
            if part == ".." and parts and parts[-1] not in {"..", "/"}:
                parts.pop()
            else:
                parts.append(part)
        return str(PurePosixPath(*parts)) if parts else "."
