"""The files of facts/ and the overlays over them: topic name -> validated content.

Content is trusted when its checksum is the one that was written to facts/index.json after validation. Anything else,
and every topic an overlay touches, is validated first (facts_schema), so a row without a source is never served.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from builder.errors import TorchproofError, UsageError

if TYPE_CHECKING:
    from importlib.abc import ResourceLoader
    from pathlib import Path

Raw = Mapping[str, Any]


class FactsError(TorchproofError):
    """The shipped facts cannot be used: the installation is damaged."""


def _shipped(name: str) -> bytes:
    """The bytes of facts/<name>.json, from a folder or a zip.

    The loader is asked itself, because importing importlib.resources costs 9 ms of every start.
    """
    loader = cast("ResourceLoader", __spec__.loader)
    return loader.get_data(f"{__file__.removesuffix('facts_store.py')}facts/{name}.json")


class FactsStore:
    """`read` gives the bytes of a file by its name without `.json`; nothing is read before it is asked for."""

    def __init__(self, read: Callable[[str], bytes], overlay: Raw | None = None) -> None:
        self._read_file = read
        self._overlay: Raw = overlay or {}
        self._topics: dict[str, Raw] = {}

    @classmethod
    def shipped(cls) -> FactsStore:
        return cls(_shipped)

    def with_overlay(self, path: Path) -> FactsStore:
        from builder.facts_schema import read_overlay  # noqa: PLC0415  (pydantic costs more than the whole catalog)

        overlay = read_overlay(path)
        unknown = sorted(set(overlay) - set(self.topics))
        if unknown:
            raise UsageError(
                "facts-overlay",
                f"{path}: `{unknown[0]}` is not a topic of the facts",
                because=[f"the topics are {', '.join(sorted(self.topics))}"],
            )
        both = dict(self._overlay)
        for name, rows in overlay.items():
            both[name] = _merged(both.get(name, {}), rows, f"{path}: {name}")
        store = FactsStore(self._read_file, both)
        for name in overlay:
            store.topic(name, origin=str(path))
        return store

    @cached_property
    def _index(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self._load("index", self._read("index")))

    def _read(self, name: str) -> bytes:
        try:
            return self._read_file(name)
        except OSError as error:
            raise FactsError("facts-unreadable", f"the facts about {name} cannot be read: {error}") from None

    def _load(self, name: str, data: bytes) -> Raw:
        try:
            return cast("Raw", json.loads(data))
        except ValueError as error:
            raise FactsError("facts-unreadable", f"facts/{name}.json is not JSON: {error}") from None

    def topic(self, name: str, *, origin: str | None = None) -> Raw:
        """`origin` names an overlay in messages."""
        if name not in self._topics:
            data = self._read(name)
            content = self._load(name, data)
            is_trusted = zlib.crc32(data) == self._index["topics"][name].get("crc32")
            if name in self._overlay:
                content, is_trusted = _merged(content, self._overlay[name], f"{origin or 'overlay'}: {name}"), False
            if not is_trusted:
                from builder.facts_schema import validate  # noqa: PLC0415  (as in with_overlay)

                validate(name, content, origin or f"facts/{name}.json")
            self._topics[name] = content
        return self._topics[name]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._index["topics"])

    @property
    def generated(self) -> date:
        return date.fromisoformat(self._index["generated"])

    @cached_property
    def digest(self) -> str:
        import hashlib  # noqa: PLC0415  (loads OpenSSL: 4 ms, and only locks ask)

        text = json.dumps([self._index["topics"], self._overlay], sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _merged(base: Raw, overlay: Raw, place: str) -> Raw:
    from builder.facts_merge import OverlayRefusedError, merge  # noqa: PLC0415  (only with an overlay)

    try:
        return cast("Raw", merge(base, overlay, place))
    except OverlayRefusedError as error:
        raise UsageError("facts-overlay", str(error)) from None
