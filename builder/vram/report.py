"""VramEstimate -> text; pure."""

from __future__ import annotations

from collections.abc import Sequence

from builder.vram.estimate import Interval, VramEstimate
from builder.vram.fit import Fit

GIB = 2**30
VERDICTS = {
    "fits": "fits",
    "does-not-fit": "does not fit",
    "too-close-to-call": "too close to call",
}


def gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def text(found: VramEstimate) -> str:
    lines = [
        f"{found.model}: {millions(found.parameters)} parameters"
        + (f", {millions(found.trained)} trained" if found.trained != found.parameters else ""),
        f"  {loop_line(found)}",
        f"  {layer_line(found)}",
        "",
        f"At the peak of allocated memory ({moment(found.moment)}):",
    ]
    width = max(len(name) for name in found.terms)
    total = sum(found.terms.values())
    for name, size in sorted(found.terms.items(), key=lambda term: -term[1]):
        lines.append(f"  {name:<{width}}  {gib(size):>10}  {100 * size / total:5.1f} %")
    lines += [
        "",
        _number("peak allocated", found.allocated),
        _number("peak reserved", found.reserved),
        _number("driver view", found.driver) + f"   (with {gib(found.card.offset)} of context and kernels)",
        f"  {'rule of thumb':<14}  {gib(found.rule):>10}   (4 x parameters + 8 x batch x sequence x hidden; no use)",
    ]
    if found.verdict is not None:
        lines += ["", f"{found.card.name}, {gib(found.card.total)}: {VERDICTS[found.verdict]}"]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines) + "\n"


def moment(phase: str) -> str:
    """`forward 2.3` of a trace is the third part of the second step."""
    name, _, number = phase.rpartition(" ")
    step, _, part = number.partition(".")
    if not name or not step.isdigit():
        return phase
    return f"{name} of step {step}" + (f", part {part}" if part else "")


def loop_line(found: VramEstimate) -> str:
    loop = found.loop
    parts = [f"batch {loop.batch}", f"sequence {loop.seq}", loop.precision, loop.optimizer]
    if loop.accumulation > 1:
        parts.append(f"accumulation {loop.accumulation}")
    if loop.attention != "auto":
        parts.append(f"{loop.attention} attention")
    if loop.checkpointing:
        parts.append("checkpointing")
    if loop.lora_rank:
        parts.append(f"LoRA rank {loop.lora_rank}")
    if loop.frozen != "nothing":
        parts.append(f"{loop.frozen} frozen")
    if loop.zero_grad == "keep":
        parts.append("gradients kept")
    if loop.outputs != "step":
        parts.append("outputs dropped early" if loop.outputs == "dropped" else "outputs kept into the next step")
    parts.append("1 step" if loop.steps == 1 else f"{loop.steps} steps")
    return ", ".join(parts)


def layer_line(found: VramEstimate) -> str:
    if found.trace is None:
        return "closed form (no torch needed)"
    trace = found.trace
    return f"traced: {trace.operators} operators of torch {trace.torch} and transformers {trace.transformers}, no GPU"


def millions(count: int) -> str:
    return f"{count / 1e9:.2f} G" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _number(name: str, value: Interval) -> str:
    return f"  {name:<14}  {gib(value.value):>10}   {value.low / GIB:.2f} to {gib(value.high)}"


def fit_text(found: Fit) -> str:
    asked = found.asked
    seq = asked.loop.seq
    if found.largest and found.at_largest is not None:
        view = f"{gib(found.at_largest.driver.value)} of {gib(asked.card.total)} in the driver's view"
        lines = [f"largest batch on {asked.card.name} at sequence {seq}: {found.largest} ({view})"]
    else:
        lines = [f"not even batch 1 at sequence {seq} fits {asked.card.name} ({gib(asked.card.total)})"]
    if asked.verdict == "fits":
        return lines[0] + "\n"
    verdict = VERDICTS[asked.verdict or "does-not-fit"]
    lines.append(f"batch {asked.loop.batch} {verdict}: {gib(asked.driver.value)} in the driver's view")
    lines.append("")
    lines.append(
        "changes, least harm first:" if found.changes else "no change of the loop makes it fit; take a larger card"
    )
    width = max((len(change.name) for change in found.tried), default=0)
    lines += [
        f"  {change.name:<{width}}  {gib(change.estimate.driver.value):>10}  "
        f"{VERDICTS[change.estimate.verdict or 'does-not-fit']:<17}  {change.harm}"
        for change in found.tried
    ]
    return "\n".join(lines) + "\n"


def table_text(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[VramEstimate]], corner: str
) -> str:
    """Driver view in GiB; `x` marks what does not fit, `?` what is too close to call."""
    marks = {"does-not-fit": " x", "too-close-to-call": " ?", "fits": "  ", None: "  "}
    shown = [[f"{cell.driver.value / GIB:.2f}{marks[cell.verdict]}" for cell in line] for line in cells]
    widths = [max(len(column), *(len(line[number]) for line in shown)) for number, column in enumerate(columns)]
    first = max(len(corner), *(len(row) for row in rows))
    lines = ["  ".join([f"{corner:<{first}}", *(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True))])]
    for row, line in zip(rows, shown, strict=True):
        lines.append("  ".join([f"{row:<{first}}", *(f"{c:>{w}}" for c, w in zip(line, widths, strict=True))]))
    lines.append("driver view in GiB; x: does not fit, ?: too close to call")
    return "\n".join(lines) + "\n"
