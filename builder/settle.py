"""After the smoke tests: a proven environment takes its place, one that was not proven stays beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from builder import installed_record, verdict
from builder.engine import Engine, Settling
from builder.line import Work
from builder.place import marker
from builder.results import ImageReport


def settled(report: ImageReport, work: Work, engine: Engine, out: Path) -> ImageReport:
    """The report as it is after the switch, with the verdict noted where `verify --installed` finds it."""
    if work.image is None or not isinstance(engine, Settling):
        return report
    is_proven = verdict.image_status(report) == 0
    image = engine.settle(work.image, is_proven=is_proven)
    reference = Path(image.reference)
    warnings = report.warnings
    if not is_proven and marker(reference):
        place = engine.place_of(image)
        if place is not None and place != reference:
            stays = "stays as it was" if place.exists() else "is not there"
            warnings += (f"not proven, so {place} {stays}; what failed is in {reference}",)
    _note(report, reference, out)
    return report.model_copy(update={"reference": str(reference), "warnings": warnings})


def _note(report: ImageReport, prefix: Path, out: Path) -> None:
    known = {"image_id": report.image_id, "lock_digest": report.lock_digest, "level": report.level.value}
    if marker(prefix):
        record = replace(installed_record.read(prefix), prefix=str(prefix), level=report.level.value)
        installed_record.keep(prefix, record)
        return
    record = installed_record.take(prefix, **known)  # type: ignore[arg-type]
    installed_record.keep(prefix, record, file=out / "installed" / f"{report.image_id}.json")
