"""RunReport -> text, JSON, JUnit. The text says what was proven, on what, and what was not checked."""

from __future__ import annotations

import xml.etree.ElementTree as ET  # only writes
from collections.abc import Sequence
from pathlib import Path

from builder import verdict
from builder.atomic import write_whole
from builder.results import CheckResult, ImageLayer, ImageReport, Level, RunReport

LEVEL_NAMES = {
    Level.L0: "pins",
    Level.L1: "files",
    Level.L2: "CPU run",
    Level.L3: "GPU run",
}

# Marks carry a word beside them, so that nothing is said by colour or sign alone.
MARKS = {"passed": "✓", "failed": "✗", "errored": "!", "not-checked": "–"}


def text(report: RunReport) -> str:
    """The verdict as a person reads it."""
    lines: list[str] = []
    for image in report.images:
        lines += _image(image, report)
        lines.append("")
    lines.append(_summary(report))
    return "\n".join(lines) + "\n"


def _image(image: ImageReport, report: RunReport) -> list[str]:
    lines = [f"{image.image_id}: {headline(image)}", ""]
    if image.reference:
        kind = {"image-id": "image ID", "manifest": "manifest", "installed-files": "digest of the installed files"}
        what = "image" if image.engine == "docker" else "environment"
        lines.append(f"  {what:<12}{image.reference}")
        lines.append(f"  {'digest':<12}{image.digest} ({kind[str(image.digest_kind)]})")
        lines.append(f"  {'built':<12}{_built(image, report)}")
    if image.image_layers:
        lines.append(f"  {'layers':<12}{largest(image.image_layers)}")
    if image.lock_digest:
        count = f"{len(image.packages)} packages, every file with its hash"
        if image.source_built:
            count += f"; built from source: {', '.join(image.source_built)}"
        lines.append(f"  {'lock':<12}sha256:{image.lock_digest[:16]}… {count}")
    if image.packages:
        lines.append(f"  {'holds':<12}{holds(image)}")
    if image.error is not None:
        lines += [f"  {line}".rstrip() for line in str(image.error["text"]).splitlines()]
    if image.checks:
        lines.append("")
        for level in verdict.LADDER:
            lines += _level(image, level)
    lines += _targets(image)
    for warning in image.warnings:
        lines.append(f"  warning: {warning}")
    return lines


_MIB = 2.0**20


def largest(layers: Sequence[ImageLayer], most: int = 4) -> str:
    """The largest layers in words, each with what it holds or what made it; the rest is counted."""
    by_size = [layer for layer in sorted(layers, key=lambda one: -one.size_bytes) if layer.size_bytes >= _MIB][:most]
    words = [f"{layer.size_bytes / _MIB:.0f} MiB {layer.holds or shortened(layer.step)}" for layer in by_size]
    rest = len(layers) - len(words)
    return "; ".join([*words, f"{rest} smaller"] if rest and words else words)


def shortened(step: str, most: int = 48) -> str:
    return step if len(step) <= most else f"{step[: most - 1].rstrip()}…"


def headline(image: ImageReport) -> str:
    """One line: the level, or how far the line got."""
    if image.error is not None:
        return f"not proven, stopped at {image.stage}"
    failed = image.failed
    if failed:
        which = f"{len(failed)} checks failed" if len(failed) > 1 else f"{failed[0].id} {failed[0].status}"
        return f"not proven, {which}" + (f" (holds up to {_name(image.level)})" if image.level > Level.NONE else "")
    if image.level < image.required:
        return f"proven to {_name(image.level)} only; {_name(image.required)} is required"
    return f"proven to {_name(image.level)}"


def _name(level: Level) -> str:
    return f"{level.value} {LEVEL_NAMES[level]}" if level in LEVEL_NAMES else "no level"


def _built(image: ImageReport, report: RunReport) -> str:
    size = f"{(image.size_bytes or 0) / 2**30:.2f} GiB"
    where = f"by Docker {report.engine_version}" if image.engine == "docker" else "in place, without a container"
    cut = "" if image.network_cut is not False else "; its checks could reach the network"
    return f"{where} in {image.build_seconds or 0:.0f} s, {size}, on {image.base}{cut}"


def holds(image: ImageReport) -> str:
    shown = [f"Python {image.python}"]
    for name in ("torch", "transformers", "onnxruntime-gpu", "onnxruntime", "numpy"):
        if name in image.packages:
            shown.append(f"{name} {image.packages[name]}")
    return ", ".join(shown)


def _level(image: ImageReport, level: Level) -> list[str]:
    here = [check for check in image.checks if check.level is level]
    if not here:
        return [f"  {MARKS['not-checked']} {_name(level):<12} no check ran"]
    passed = [check for check in here if check.status == "passed"]
    bad = [check for check in here if check.status in ("failed", "errored")]
    open_ = [check for check in here if check.status == "not-checked" and not verdict.is_not_applicable(check)]
    if bad:
        mark, word = MARKS["failed"], "FAILED"
    elif open_:
        mark, word = MARKS["not-checked"], "not checked"
    else:
        mark, word = MARKS["passed"], "passed"
    counts = f"{len(passed)} of {len(passed) + len(bad) + len(open_)} checks passed"
    lines = [f"  {mark} {_name(level):<12} {word}: {counts}"]
    for check in bad:
        lines += _failure(check)
    # What was not looked at is told, once for each reason; what only waited for that goes with it.
    reasons: dict[str, list[str]] = {}
    for check in open_:
        reasons.setdefault(check.message.rsplit("which was not checked: ", 1)[-1], []).append(check.id)
    for reason, ids in reasons.items():
        lines.append(f"      {MARKS['not-checked']} not checked: {', '.join(ids)}: {reason}")
    if not bad:
        lines += [f"      {line}" for line in _told(here)]
    return lines


# Checks whose measured value a reader wants to see even when it passed.
_TOLD = (
    *("loss_falls", "outputs_agree", "provider", "arch_list", "allocated", "reserved", "driver_view"),
    *("expected_speed", "training_speed", "samples"),
)


def _told(checks: Sequence[CheckResult]) -> list[str]:
    lines = []
    for check in checks:
        if check.status == "passed" and check.id.endswith(_TOLD):
            lines.append(f"{check.id}: {check.message}")
            lines += [f"    {line}" for line in check.details.get("plot", [])]
    return lines


def _failure(check: CheckResult) -> list[str]:
    lines = [f"      {MARKS[check.status]} {check.status} [{check.code}] {check.id}: {check.message}"]
    if check.measured is not None or check.expected is not None:
        lines.append(f"          measured {_short(check.measured)}, expected {_short(check.expected)}")
    if check.blame == "host":
        lines.append("          this is about the host, not about the image")
    lines += [f"          {line}" for line in check.details.get("plot", [])]
    for line in check.details.get("last_lines", [])[-6:]:
        lines.append(f"          | {line}")
    trace = str(check.details.get("traceback", "")).strip().splitlines()
    lines += [f"          | {line}" for line in trace[-4:]]
    return lines


def _short(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= 160 else f"{shown[:157]}..."


def _targets(image: ImageReport) -> list[str]:
    if not image.gpus:
        return []
    lines = [""]
    for gpu in image.gpus:
        reason = f"; not further: {gpu.reason}" if gpu.reason else ""
        lines.append(f"  for {gpu.gpu} ({gpu.compute_capability}): {_name(gpu.level)}{reason}")
    return lines


def _summary(report: RunReport) -> str:
    proven = sum(verdict.image_status(image) == 0 for image in report.images)
    noun = "image" if len(report.images) == 1 else "images"
    where: str = report.engine or "no engine"
    if report.engine_reason:
        where += f" ({report.engine_reason})"
    gpu = f"GPU: {', '.join(report.host_gpus)}" if report.host_gpus else f"no GPU ({report.host_gpu_reason})"
    return (
        f"{proven} of {len(report.images)} {noun} proven as required, {report.seconds:.0f} s, {where}, {gpu}; "
        f"facts of {report.facts_generated}; exit {report.exit_status}"
    )


def json_text(report: RunReport) -> str:
    return report.model_dump_json(indent=2) + "\n"


def junit(report: RunReport) -> str:
    """One suite an image, one case a check; not-checked is skipped with its reason."""
    root = ET.Element("testsuites", name="torchproof", time=f"{report.seconds:.3f}")
    for image in report.images:
        suite = ET.SubElement(root, "testsuite", name=image.image_id, timestamp=report.started)
        failures = sum(check.status == "failed" for check in image.checks)
        errors = sum(check.status == "errored" for check in image.checks) + (image.error is not None)
        skipped = len(image.not_checked)
        total = len(image.checks) + (image.error is not None)
        suite.attrib |= {
            "tests": str(total),
            "failures": str(failures),
            "errors": str(errors),
            "skipped": str(skipped),
            "time": f"{sum(script.seconds for script in image.scripts):.3f}",
        }
        properties = ET.SubElement(suite, "properties")
        for name, value in (("level", image.level.value), ("digest", image.digest), ("lock", image.lock_digest)):
            ET.SubElement(properties, "property", name=name, value=str(value))
        if image.error is not None:
            case = ET.SubElement(suite, "testcase", classname=image.image_id, name=image.stage)
            error = ET.SubElement(case, "error", type=str(image.error["code"]), message=str(image.error["what"]))
            error.text = _xml_text(str(image.error["text"]))
        for check in image.checks:
            case = ET.SubElement(suite, "testcase", classname=image.image_id, name=check.id)
            case.set("time", f"{check.seconds or 0:.3f}")
            if check.status == "not-checked":
                ET.SubElement(case, "skipped", message=_xml_text(check.message))
            elif check.status != "passed":
                tag = "failure" if check.status == "failed" else "error"
                node = ET.SubElement(case, tag, type=str(check.code), message=_xml_text(check.message))
                node.text = _xml_text("\n".join(_failure(check)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _xml_text(value: str) -> str:
    """XML 1.0 has no way to hold control characters, which terminals print freely."""
    return "".join(char if char in "\t\n" or " " <= char <= "\ud7ff" or char >= "\ue000" else "�" for char in value)


def write(report: RunReport, folder: Path) -> list[Path]:
    """`report.json`, `junit.xml` and `summary.txt`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"report.json": json_text(report), "junit.xml": junit(report), "summary.txt": text(report)}
    return [write_whole(folder / name, content) for name, content in files.items()]
