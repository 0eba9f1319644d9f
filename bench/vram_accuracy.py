"""Estimates against published measurements: one table by kind of point, each bound with its verdict.

    python bench/vram_accuracy.py [--points FILE] [--layer traced|analytic] [--each] [--json]

Without `--layer` both layers are shown, the traced one where torch and transformers are installed. `--points` adds rows
of the same form (YAML or JSON, under `points`). Exit status 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from builder.catalog import Catalog
from builder.errors import TorchproofError
from builder.versions import CudaVersion
from builder.vram import models, offsets, points, traced
from builder.vram.estimate import Layer, VramEstimate, estimate
from builder.vram.events import replay
from builder.vram.points import Point, Unusable

MIB = 2**20
# (kind of point, layer) -> bounds in percent: (median, 90th percentile or None, largest or None).
BOUNDS: dict[tuple[str, str], tuple[float | None, float | None, float | None]] = {
    ("BERT", "traced"): (0.3, 1.0, None),
    ("T5", "traced"): (1.5, None, 1.5),
    ("BERT", "analytic"): (3.0, 8.0, None),
    ("T5", "analytic"): (3.0, 8.0, None),
    ("old stacks", "analytic"): (None, None, 10.0),
}


@dataclass(frozen=True, slots=True)
class Result:
    point: Point
    layer: Layer
    estimate_bytes: int | None
    rule_bytes: int
    seconds: float
    reason: str | None = None

    @property
    def error(self) -> float:
        assert self.estimate_bytes is not None
        return 100 * (self.estimate_bytes / MIB / self.point.measured_mib - 1)


def measure(point: Point, layer: Layer, catalog: Catalog) -> Result:
    try:
        model = models.find(point.model, catalog)
        if point.changes:
            model = models.from_config({**model.config, **point.changes}, name=model.name)
        card = _card(point, catalog)
        found = estimate(model, point.loop, card, layer=layer, is_old_stack=point.is_old)
    except TorchproofError as error:
        return Result(point, layer, None, 0, 0, reason=f"{error.what}; {'; '.join(error.because)}")
    except Exception as error:  # noqa: BLE001 - model code of any kind runs in the trace
        return Result(point, layer, None, 0, 0, reason=f"the trace fails: {type(error).__name__}: {str(error)[:100]}")
    return Result(point, layer, _quantity(point, found), found.rule, found.trace.seconds if found.trace else 0)


def _card(point: Point, catalog: Catalog) -> offsets.Card:
    cuda = CudaVersion.parse(point.cuda) if point.cuda else None
    name = point.gpu.split("-SXM")[0].removesuffix(" 24GB").removesuffix(" 12GB")
    try:
        card = offsets.card(name, catalog, cuda=cuda)
    except TorchproofError:
        card = offsets.unknown_card(catalog)
    # Before 2.0 cuBLAS took its workspace from the driver, so it is in the context.
    return replace(card, workspace=0) if point.is_old else card


def _quantity(point: Point, found: VramEstimate) -> int:
    if point.quantity == "driver view":
        return found.driver.value
    if point.quantity == "peak allocated" or found.trace is None:
        return found.allocated.value
    # The trace of a forward pass alone ends with everything that the graph keeps.
    alive = 0

    def note(pool: Any) -> None:
        nonlocal alive
        alive = pool.allocated

    replay(found.trace, on_event=note)
    return alive


def read_points(catalog: Catalog, extra: list[Path]) -> tuple[list[Point], list[Unusable]]:
    rows = list(catalog.raw("vram_measured")["points"])
    for path in extra:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        rows += content["points"] if isinstance(content, dict) else content
    read = [points.read(row) for row in rows]
    return [p for p in read if isinstance(p, Point)], [p for p in read if isinstance(p, Unusable)]


def percentile(values: list[float], part: float) -> float:
    """The smallest value that at least `part` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(part * 100) * len(ordered) // 100) - 1))]


def table(results: list[Result]) -> tuple[list[str], bool]:
    lines = [
        f"{'points':<12} {'layer':<9} {'n':>3} {'median':>8} {'p90':>7} {'max':>7} {'mean':>8}   bound",
    ]
    holds = True
    groups = dict.fromkeys((r.point.group, r.layer) for r in results if r.estimate_bytes is not None)
    for group, layer in sorted(groups, key=lambda key: (key[1] != "traced", key[0] != "BERT", key[0])):
        errors = [r.error for r in results if (r.point.group, r.layer) == (group, layer) and r.estimate_bytes]
        sizes = [abs(error) for error in errors]
        figures = (statistics.median(sizes), percentile(sizes, 0.9), max(sizes))
        bounds = BOUNDS.get((group, layer), (None, None, None))
        words = [
            f"{name} <= {bound:g} %{'' if value <= bound else ' BROKEN'}"
            for name, value, bound in zip(("median", "p90", "max"), figures, bounds, strict=True)
            if bound is not None
        ]
        holds &= not any("BROKEN" in word for word in words)
        shown = ", ".join(words) or "none set"
        if group == "old stacks":
            shown += "; out of the calibrated range"
        lines.append(
            f"{group:<12} {layer:<9} {len(sizes):>3} {figures[0]:>7.2f}% {figures[1]:>6.2f}% {figures[2]:>6.2f}% "
            f"{statistics.mean(errors):>+7.2f}%   {shown}"
        )
    rules = {r.point.id: 100 * abs(r.rule_bytes / MIB / r.point.measured_mib - 1) for r in results if r.rule_bytes}
    if rules:
        lines.append(f"{'all':<12} {'rule':<9} {len(rules):>3} {statistics.median(rules.values()):>7.2f}%")
    return lines, holds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--layer", choices=("traced", "analytic"))
    parser.add_argument("--group", action="append", help="only points of this kind; may repeat")
    parser.add_argument("--each", action="store_true", help="every point in a line of its own")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    catalog = Catalog.shipped()
    usable, unusable = read_points(catalog, options.points)
    usable = [p for p in usable if not options.group or p.group in options.group]
    layers: list[Layer] = [options.layer] if options.layer else ["traced", "analytic"]
    if traced.why_not() is not None and "traced" in layers:
        print(f"no traced layer: {traced.why_not()}", file=sys.stderr)
        layers.remove("traced")
    # Today's operators are not those of an old stack, so there is nothing to trace for one.
    results = [
        measure(point, layer, catalog)
        for layer in layers
        for point in usable
        if not (point.is_old and layer == "traced")
    ]
    lines, holds = table(results)
    failed = {r.point.id: r for r in results if r.estimate_bytes is None}
    if options.json:
        document = {
            "results": [
                {"id": r.point.id, "layer": r.layer, "measured_mib": r.point.measured_mib, "error_percent": r.error}
                for r in results
                if r.estimate_bytes is not None
            ],
            "unusable": [{"id": u.id, "reason": u.reason} for u in unusable],
            "bounds_hold": holds,
        }
        print(json.dumps(document, indent=1))
        return 0 if holds else 1
    if options.each:
        for r in results:
            shown = f"{r.estimate_bytes / MIB:>9.0f} {r.error:>+7.2f}%" if r.estimate_bytes else f"        - {r.reason}"
            print(f"{r.point.id:<40} {r.layer:<9} {r.point.quantity:<24} {r.point.measured_mib:>7} {shown}")
        print()
    print("\n".join(lines))
    print(f"\nunusable: {len(unusable)} points, and by layer those without a model")
    reasons: dict[str, list[str]] = {}
    for u in unusable:
        reasons.setdefault(u.reason, []).append(u.id)
    for r in failed.values():
        reasons.setdefault(f"{r.layer}: {r.reason}", []).append(r.point.id)
    for reason, ids in reasons.items():
        names = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        print(f"  {len(ids):>3}  {reason}: {names}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
