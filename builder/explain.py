"""Conflicts -> text: premises, conclusion, hint. No logic beyond merging equal causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """Facts and wishes that cannot hold together. `premises` are the user's lines and named facts, in order."""

    code: str
    premises: tuple[str, ...]
    conclusion: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CellConflicts:
    """Everything that stands in one cell's way. `hint` was tried: the cell resolves with it."""

    label: str
    conflicts: tuple[Conflict, ...]
    hint: str | None


def text(cells: Sequence[CellConflicts]) -> str:
    """One block a conflict; a conflict that several cells share is told once, with their number."""
    blocks: list[str] = []
    seen: dict[Conflict, list[CellConflicts]] = {}
    for cell in cells:
        for conflict in cell.conflicts:
            seen.setdefault(conflict, []).append(cell)
    for conflict, owners in seen.items():
        labels = list(dict.fromkeys(owner.label for owner in owners))
        if len(owners) == 1:
            subject = f"`{labels[0]}` cannot be resolved"
        else:
            shown = ", ".join(labels[:4]) + (f" and {len(labels) - 4} more" if len(labels) > 4 else "")
            subject = f"{len(owners)} images cannot be resolved: {shown}"
        lines = [f"error[{conflict.code}]: {subject}", ""]
        for number, premise in enumerate(conflict.premises):
            comma = "," if number == len(conflict.premises) - 1 else ""
            lines.append(f"  {'because' if number == 0 else 'and'} {premise}{comma}")
        lines.append(f"  {conflict.conclusion}.")
        hints = list(dict.fromkeys(owner.hint for owner in owners if owner.hint))
        if hints:
            lines += ["", *(f"hint: {hint}" for hint in hints[:3])]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def joined(values: Sequence[str], *, limit: int = 6) -> str:
    """`a, b and c`; long lists are cut to the nearest `limit` and a count."""
    shown = list(values)
    if not shown:
        return "nothing"
    if len(shown) > limit:
        return f"{', '.join(shown[:limit])} and {len(shown) - limit} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
