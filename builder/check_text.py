"""CheckDocument -> text in the form of style.md section 5: code, premises, conclusion, hint. No logic."""

from __future__ import annotations

from collections.abc import Sequence

from builder.check import CheckDocument
from builder.explain import joined
from builder.rules.base import Finding


def text(documents: Sequence[CheckDocument]) -> str:
    blocks = []
    for document in documents:
        shown = [each for each in document.findings if each.severity != "info" or each.is_unknown]
        blocks += [_block(each, document.name) for each in shown]
        blocks += _left_out(document)
        blocks.append(_verdict(document))
    return "\n\n".join(blocks) + "\n"


def _block(found: Finding, name: str) -> str:
    subject = f"`{name}`: {found.subject}" if name else found.subject
    lines = [f"{found.severity}[{found.code}]: {subject}", ""]
    premises = list(found.because)
    for number, premise in enumerate(premises):
        comma = "," if number == len(premises) - 1 else ""
        lines.append(f"  {'because' if number == 0 else 'and'} {premise}{comma}")
    lines.append(f"  {found.conclusion}.")
    if found.hint:
        lines += ["", f"hint: {found.hint}"]
    return "\n".join(lines)


def _left_out(document: CheckDocument) -> list[str]:
    rows = document.outcome.env.unparsed
    if not rows:
        return []
    lines = [f"note: {len(rows)} {'line was' if len(rows) == 1 else 'lines were'} not understood, the rest was checked"]
    lines += [f"  {row.origin}: {row.text[:80]}  ({row.why})" for row in rows[:6]]
    if len(rows) > 6:
        lines.append(f"  and {len(rows) - 6} more")
    return ["\n".join(lines)]


def _verdict(document: CheckDocument) -> str:
    outcome = document.outcome
    parts = [
        chosen.title
        for name in ("torch", "torchvision", "transformers", "onnxruntime-gpu")
        if (chosen := outcome.packages.get(name)) is not None and chosen.version is not None
    ]
    if outcome.python is not None:
        parts.append(f"Python {outcome.python}")
    parts += [ask.name for ask, _ in outcome.gpus]
    if outcome.driver is not None:
        parts.append(f"driver {outcome.driver}")
    if not parts and outcome.env.base is not None:
        parts = [outcome.env.base.reference]
    if not parts:
        parts = [each.title for name, each in outcome.packages.items() if outcome.shelf.knows(name) and each.version][
            :4
        ]
    mark = {"compatible": "✓", "incompatible": "✗", "unknown": "–"}[document.verdict]
    name = f" {document.name}" if document.name else ""
    return f"{mark} {document.verdict}{name}: {joined(parts, limit=9) if parts else 'nothing that the facts judge'}"
