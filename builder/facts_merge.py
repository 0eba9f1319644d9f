"""How an overlay changes facts: one rule, used for a user's file and for what the fact sheets leave open.

A mapping with its own `source` takes the place of the shipped one. A mapping without is merged key by key. Rows of a
list are found by `id`, `name`, `image` or `version`; a row that is not there is added. A bare value may be added but
never replaced, because it would then stand under a source that did not say it.
"""

from __future__ import annotations

from typing import Any

_ROW_KEYS = ("id", "name", "image", "version", "driver_branch")


class OverlayRefusedError(ValueError):
    pass


def merge(base: Any, overlay: Any, place: str) -> Any:
    """`base` with `overlay` over it; neither is changed."""
    if isinstance(base, dict) and isinstance(overlay, dict):
        if "source" in overlay:
            return overlay
        result = dict(base)
        for key, value in overlay.items():
            result[key] = merge(base[key], value, f"{place}.{key}") if key in base else value
        return result
    if isinstance(base, list) and isinstance(overlay, list):
        return _merged_rows(base, overlay, place)
    if base == overlay:
        return base
    raise OverlayRefusedError(
        f"{place}: {overlay!r} would replace {base!r} without a source of its own; repeat the whole row with its source"
    )


def _merged_rows(base: list[Any], overlay: list[Any], place: str) -> list[Any]:
    result = list(base)
    for row in overlay:
        key = next((key for key in _ROW_KEYS if isinstance(row, dict) and key in row), None)
        if key is None:
            raise OverlayRefusedError(f"{place}: a row needs one of {', '.join(_ROW_KEYS)} to be told from the others")
        places = [number for number, other in enumerate(result) if other.get(key) == row[key]]
        if places:
            result[places[0]] = merge(result[places[0]], row, f"{place}[{row[key]}]")
        else:
            result.append(row)
    return result
