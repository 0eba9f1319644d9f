"""How an overlay changes facts: one rule, used for a user's file and for what the fact sheets leave open.

A mapping with its own `source` takes the place of the shipped one; it may not lose rows that stand inside. A mapping
without is merged key by key. Rows of a list are found by `id`, `name`, `image` or `version`; a row that is not there is
added. A bare value may be added but never replaced, because it would then stand under a source that did not say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROW_KEYS = ("id", "name", "image", "version", "driver_branch")


class OverlayRefusedError(ValueError):
    pass


def merge(topic: Mapping[str, Any], overlay: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The topic with the overlay over it; neither is changed."""
    result = dict(topic)
    for key, value in overlay.items():
        result[key] = _merged(topic[key], value, f"{place}.{key}") if key in topic else value
    return result


def _merged(base: Any, overlay: Any, place: str) -> Any:
    if isinstance(base, dict) and isinstance(overlay, dict):
        if "source" not in overlay:
            return merge(base, overlay, place)
        if lost := _lost(base, overlay):
            raise OverlayRefusedError(
                f"{place}: a new source for the whole would lose {lost}; give it to the rows inside"
            )
        return overlay
    if isinstance(base, list) and isinstance(overlay, list):
        return _merged_list(base, overlay, place)
    if base == overlay:
        return base
    raise OverlayRefusedError(
        f"{place}: {overlay!r} would replace {base!r} without a source of its own; repeat the whole row with its source"
    )


def _lost(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> str | None:
    """The first mapping inside `base` that `overlay` does not have."""
    for key, value in base.items():
        if not isinstance(value, dict):
            continue
        if not isinstance(overlay.get(key), dict):
            return key
        if lost := _lost(value, overlay[key]):
            return f"{key}.{lost}"
    return None


def _merged_list(base: list[Any], overlay: list[Any], place: str) -> list[Any]:
    result = list(base)
    for row in overlay:
        if not isinstance(row, dict):
            result += [] if row in base else [row]
            continue
        key = next((key for key in _ROW_KEYS if key in row), None)
        if key is None:
            raise OverlayRefusedError(f"{place}: a row needs one of {', '.join(_ROW_KEYS)} to be told from the others")
        places = [
            number for number, other in enumerate(result) if isinstance(other, dict) and other.get(key) == row[key]
        ]
        if places:
            result[places[0]] = _merged(result[places[0]], row, f"{place}[{row[key]}]")
        else:
            result.append(row)
    return result
