"""What lies in the layers of an image, also where a later layer hides it: read from the tar that `docker save` writes.

A check inside the image sees what is left at the end. A file that one step wrote and the next one removed is still in
the image that everyone pulls; only the layers show it.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from dataclasses import dataclass
from typing import IO

# Paths without a leading slash, as layers hold them. The same kinds as smoke_tests/files.py looks for.
_LEFTOVERS = re.compile(
    r"^(?:root/\.cache/.+|home/[^/]+/\.cache/.+|(?:root|home/[^/]+)/(?:\.netrc|\.pip/.+|\.config/pip/.+|\.docker/.+)"
    r"|run/secrets/.+|mnt/.+|layer(?:/.*)?|var/cache/uv/.+|var/cache/apt/archives/.+\.deb|var/lib/apt/lists/[^/]+_.+"
    r"|etc/pip\.conf|usr/local/bin/uv|(?:tmp|root|opt)/[^/]+\.whl)$"
)
_CREDENTIALS = re.compile(rb"://[^/\s:@'\"]+:[^/\s@'\"]+@")
_SETTINGS = re.compile(r"(?:^|/)(?:pip\.conf|uv\.toml|\.netrc|\.npmrc|\.condarc|environment)$")
_MOST_SETTINGS_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """`size` is of its files, unpacked. `leftovers` are paths, or the step of the history that names a password."""

    name: str
    size: int
    leftovers: tuple[str, ...]


def read(stream: IO[bytes]) -> list[Layer]:
    """The layers in the order of the tar, and one called `history` for what the image's configuration says."""
    found = []
    with tarfile.open(fileobj=stream, mode="r|") as outer:
        for member in outer:
            content = outer.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            if member.name.endswith(".json") or member.size < _MOST_SETTINGS_BYTES:
                data = content.read()
                layer = _history(data) or _layer(member.name, data)
            else:
                layer = _layer(member.name, content)
            if layer is not None:
                found.append(layer)
    return found


def _history(data: bytes) -> Layer | None:
    """None when this is no configuration of an image."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    if not isinstance(document, dict) or "history" not in document:
        return None
    steps = [str(step.get("created_by", "")) for step in document["history"]]
    settings = [str(text) for text in (document.get("config") or {}).get("Env") or ()]
    named = [text for text in [*steps, *settings] if _CREDENTIALS.search(text.encode())]
    return Layer(
        name="history", size=0, leftovers=tuple(_CREDENTIALS.sub(b"://...@", t.encode()).decode() for t in named)
    )


def _layer(name: str, content: bytes | IO[bytes]) -> Layer | None:
    """None when this is no tar: an index, a manifest."""
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    size, leftovers = 0, []
    try:
        with tarfile.open(fileobj=stream, mode="r|*") as layer:
            for member in layer:
                path = member.name.removeprefix("./").strip("/")
                size += member.size
                is_whiteout = path.rsplit("/", 1)[-1].startswith(".wh.")
                if not member.isdir() and not is_whiteout and _LEFTOVERS.match(path):
                    leftovers.append(path)
                elif member.isfile() and member.size < _MOST_SETTINGS_BYTES and _SETTINGS.search(path):
                    text = layer.extractfile(member)
                    if text is not None and _CREDENTIALS.search(text.read()):
                        leftovers.append(f"{path} (names a password)")
    except tarfile.ReadError:
        return None
    return Layer(name=name, size=size, leftovers=tuple(leftovers))
