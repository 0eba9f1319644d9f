#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["packaging>=24.2", "pydantic>=2.7", "pyyaml>=6.0.1"]
# ///
"""Feeds case files to `check` and compares: score_cases.py CASES.yaml... [--all] [--list] [--hints].

Scores what is decidable from the input as given; a case whose truth is uncertain counts only with --all. Right is:
`accept` without an error, `warn` with a warning and no error, `reject` with an error (a warning is enough where the
case hangs on something that no option can say, such as a job in words). Prints a table a kind, then every miss with
what was found.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from builder.catalog import Catalog
from builder.check import CheckDocument, check
from builder.inputs import Options, load

SAYABLE = frozenset({"pins", "requirements", "conda", "dockerfile"})
# A case with one of these hangs on something that no option of `check` says.
WORDS = frozenset({"job", "model", "note", "host", "rustc", "pip", "host_cuda", "run", "workers"})
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TORCH_PAGE = "https://wheels.example.org/whl/torch_stable.html"


@dataclass(frozen=True)
class Score:
    """What became of one case. `got` may be `misread ...` where torch was understood otherwise than the case says."""

    case: dict[str, Any]
    got: str
    document: CheckDocument

    @property
    def want(self) -> str:
        return str(self.case["verdict"]["decision"])

    @property
    def is_right(self) -> bool:
        if self.got == self.want or (self.want == "accept" and self.got == "warn"):
            return True
        return self.want == "reject" and self.got == "warn" and bool(WORDS & set(self.case["input"]))

    @property
    def is_false_rejection(self) -> bool:
        return self.want in {"accept", "warn"} and self.got == "reject"


def is_scored(case: dict[str, Any]) -> bool:
    given = case["input"]
    is_settled = case.get("truth", {}).get("status") != "uncertain"
    return case["decidable"] == "static" and is_settled and bool(SAYABLE & set(given)) and "steps" not in given


def files(case: dict[str, Any], folder: Path) -> list[str]:
    """Writes the files of a case; the names of those that are handed to `check`."""
    given, named = case["input"], []
    for key, name in (("requirements", "requirements.txt"), ("conda", "environment.yml"), ("dockerfile", "Dockerfile")):
        if key not in given:
            continue
        body = given[key]
        if isinstance(body, list):
            body = "\n".join(map(str, body)) + "\n"
        elif not isinstance(body, str):
            body = yaml.safe_dump(body, sort_keys=False)
        (folder / name).write_text(body, encoding="utf-8", newline="")
        named.append(str(folder / name))
    for name, body in (given.get("includes") or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
    return named


def options(case: dict[str, Any]) -> Options:
    given = case["input"]
    precisions = [str(given["precision"])] if given.get("precision") else []
    precisions += [word for word in ("bf16", "tf32") if f"{word}=True" in str(given.get("args", ""))]
    # A case says `<cpu index>` where a person has an address.
    pair = re.sub(r"<(cu\d+|cpu) index>", r"https://wheels.example.org/whl/\1", str(given.get("env", "")))
    glibc = given.get("glibc")
    return Options(
        pins=tuple(map(str, given.get("pins") or ())),
        python=_text(given.get("python")),
        gpus=tuple(_gpus(given.get("gpu"))),
        driver=_text(given.get("driver")),
        glibc=_text(glibc),
        os=None if glibc else _text(given.get("os")),
        arch=_text(given.get("arch")),
        date=_text(given.get("date")),
        precisions=tuple(precisions),
        opset=given.get("opset"),
        env=(pair,) if re.fullmatch(r"\w+=\S+", pair) else (),
        indexes=tuple(_indexes(str(given.get("index") or ""), given.get("cuda_build"))),
    )


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _gpus(given: Any) -> list[str]:
    found = []
    for gpu in given if isinstance(given, list) else [given] if given else []:
        if isinstance(gpu, dict):
            found.append(str(gpu.get("name") or "sm_" + str(gpu["sm"]).replace(".", "")))
        else:
            found.append(str(gpu))
    return found


def _indexes(words: str, build: object) -> list[str]:
    found = []
    for part in filter(None, map(str.strip, words.split("+"))):
        variant = re.search(r"\b(cu\d{2,3}|cpu)\b", part)
        if "torch_stable" in part:
            found.append(TORCH_PAGE)
        elif variant:
            nightly = f"https://wheels.example.org/whl/nightly/{variant[1]}"
            found.append(nightly if "nightly" in part else variant[1])
        elif "default" in part:
            found.append("default")
    return found or ([str(build)] if build and not words else [])


def score(case: dict[str, Any], catalog: Catalog, *, hints: bool = False) -> Score:
    with tempfile.TemporaryDirectory() as name:
        loaded = load(files(case, Path(name)), options(case))
    document = check(loaded[0].environment, catalog, hints=hints)
    severities = {found.severity for found in document.findings}
    if "error" in severities:
        return Score(case, "reject", document)
    torch = document.outcome.packages.get("torch")
    wanted = (case.get("truth", {}).get("resolves") or {}).get("torch")
    version = None if torch is None else str(torch.version)
    if wanted and version != str(wanted):
        return Score(case, f"misread (torch {version}, not {wanted})", document)
    got = "unknown" if document.verdict == "unknown" else "warn" if "warning" in severities else "accept"
    return Score(case, got, document)


def report(scores: list[Score], *, is_listed: bool) -> str:
    lines, kinds = [], defaultdict(list)
    for each in scores:
        kinds[str(each.case["kind"])].append(each)
    lines.append(f"{'kind':24} {'cases':>6} {'right':>6} {'false rejections':>17}")
    for kind, group in sorted(kinds.items()):
        false = sum(each.is_false_rejection for each in group)
        lines.append(f"{kind:24} {len(group):6} {sum(each.is_right for each in group):6} {false:17}")
    for each in scores:
        if is_listed or not each.is_right:
            found = "; ".join(
                f"{f.code} ({f.severity}): {f.conclusion}" for f in each.document.findings if f.severity != "info"
            )
            hints = "".join(
                f"\n      hint: {f.hint}" for f in each.document.findings if f.hint and f.severity != "info"
            )
            says = str(each.case["verdict"].get("says", ""))[:200]
            lines.append(
                f"{'ok  ' if each.is_right else 'MISS'} {each.case['id']} want {each.want}, got {each.got}\n"
                f"      found: {found or 'nothing'}{hints if is_listed else ''}\n      truth: {says}"
            )
    right = sum(each.is_right for each in scores)
    false = sum(each.is_false_rejection for each in scores)
    share = right / max(1, len(scores))
    lines.append(f"{right}/{len(scores)} right ({share:.0%}), {false} false rejections")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="CASES.yaml")
    parser.add_argument("--all", action="store_true", help="those not decidable from the input, or uncertain, too")
    parser.add_argument("--list", action="store_true", help="every case, not only the misses")
    parser.add_argument("--hints", action="store_true", help="compute the hints as well")
    parser.add_argument("--only", default="", help="ids, separated by commas")
    chosen = parser.parse_args(arguments)
    catalog = Catalog.shipped()
    is_clean = True
    for path in chosen.files:
        cases = yaml.load(path.read_text(encoding="utf-8"), LOADER)["cases"]  # noqa: S506  (both are safe loaders)
        wanted = set(filter(None, chosen.only.split(",")))
        cases = [case for case in cases if (not wanted or case["id"] in wanted) and (chosen.all or is_scored(case))]
        scores = [score(case, catalog, hints=chosen.hints) for case in cases]
        print(f"{path.name}\n{report(scores, is_listed=chosen.list)}")
        is_clean = is_clean and all(each.is_right for each in scores)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
