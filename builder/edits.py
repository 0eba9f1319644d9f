"""Hints as edits of the person's own files: the line changes, comments, order and spacing stay. The diff is unified.

Only what can be said in the file itself is edited: a version, a label, an index line, a package more or less. Where a
line is built by a shell or stands in an option, nothing is edited and the hint stays advice.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.catalog import Catalog
from builder.check import CheckDocument, judge
from builder.environment import Environment, Request
from builder.fixes import Fix, fixes
from builder.installer import TORCH_FAMILY
from builder.rules.base import Change

_ROUNDS = 8


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            fromfile=f"a/{str(self.path).lstrip('/')}",
            tofile=f"b/{str(self.path).lstrip('/')}",
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def diffs(document: CheckDocument, catalog: Catalog) -> list[FileEdit]:
    """One edit a file, with every fix that holds on top of those before it."""
    env = document.outcome.env
    texts: dict[str, str] = {}
    first: dict[str, str] = {}
    refused: set[tuple[str, str]] = set()
    for _ in range(_ROUNDS):
        _, found = judge(env, catalog)
        open_ones = [each for each in found if each.severity != "info" and (each.code, each.subject) not in refused]
        made = fixes(env, catalog, open_ones[:1])
        if not open_ones:
            break
        fix = made[0] if made else None
        if fix is None or not _edited(env, fix, texts, first):
            refused.add((open_ones[0].code, open_ones[0].subject))
            continue
        env = fix.environment
    return [
        FileEdit(path=Path(name), before=first[name], after=text) for name, text in texts.items() if text != first[name]
    ]


def written(edits: list[FileEdit]) -> list[Path]:
    """Writes the files; a file that changed since it was read is left alone."""
    done = []
    for edit in edits:
        with edit.path.open(encoding="utf-8", newline="") as stream:
            is_same = stream.read() == edit.before
        if is_same:
            edit.path.write_text(edit.after, encoding="utf-8", newline="")
            done.append(edit.path)
    return done


def _edited(env: Environment, fix: Fix, texts: dict[str, str], first: dict[str, str]) -> bool:
    change = fix.change
    if change.kind in {"python", "driver"}:
        return False
    names = set(TORCH_FAMILY) if change.kind == "variant" else {change.name}
    requests = [request for request in env.requests if request.name in names and request.origin.line is not None]
    if change.kind in {"add", "index"}:
        torch = [request for request in env.requests if request.name in TORCH_FAMILY]
        requests = (torch or list(env.requests))[:1]
    if not requests or any(
        request.origin.file not in texts and not Path(request.origin.file).is_file() for request in requests
    ):
        return False
    done = False
    for request in requests:
        name = request.origin.file
        if name not in texts:
            with Path(name).open(encoding="utf-8", newline="") as stream:
                texts[name] = first[name] = stream.read()
        kind = next((source.kind for source in env.sources if source.file == name), "requirements")
        after = _changed(texts[name], request, change, kind)
        if after is not None:
            texts[name] = after
            done = True
        if change.kind in {"add", "index"}:
            break
    return done


def _changed(text: str, request: Request, change: Change, kind: str) -> str | None:
    lines = text.splitlines(keepends=True)
    place = (request.origin.line or 0) - 1
    if not 0 <= place < len(lines):
        return None
    ending = "\r\n" if lines[place].endswith("\r\n") else "\n"
    if change.kind == "add":
        return _with_line(lines, place, request, change, kind, ending)
    if change.kind == "index":
        return _with_index(lines, change, kind, ending)
    if change.kind == "remove":
        is_alone = kind in {"requirements", "conda"}
        return "".join(lines[:place] + lines[place + 1 :]) if is_alone else None
    if change.kind == "variant":
        return _relabelled(lines, place, request, change.value)
    found = _on_line(lines, place, request)
    if found is None:
        return None
    number, match = found
    value = change.value
    if request.local and value.startswith("==") and "+" not in value:
        value = f"{value}+{request.local}"
    if request.installer == "conda":
        value = value.replace("==", "=", 1)
    line = lines[number]
    if match["spec"].strip() and request.version is None and not value.startswith(("==", "=")):
        value = f"{match['spec'].rstrip()},{value}"  # a range keeps its lower end
    lines[number] = f"{line[: match.start('spec')]}{value}{line[match.end('spec') :]}"
    return "".join(lines)


def _on_line(lines: list[str], place: int, request: Request) -> tuple[int, re.Match[str]] | None:
    """The name with its specifier, on the request's line or the next ones of the same command."""
    names = {request.name, request.asked_as, canonicalize_name(request.asked_as or request.name)}
    spelled = "|".join(
        re.escape(name).replace(r"\-", "[-_.]") for name in sorted(filter(None, names), key=len, reverse=True)
    )
    one = r"[=<>!~]=?=?[ \t]*[\w.*+!-]+"
    pattern = re.compile(
        rf"(?<![\w.-])(?:{spelled})(?:\[[^\]]*\])?(?P<spec>(?:[ \t]*{one}(?:[ \t]*,[ \t]*{one})*)?)"
        r"(?=[\s;'\"\\#]|$)",
        re.IGNORECASE,
    )
    for number in range(place, min(len(lines), place + 30)):
        code = lines[number].split(" #")[0]
        match = pattern.search(code)
        if match is not None and not code.lstrip().startswith("#"):
            return number, match
        if not lines[number].rstrip().endswith("\\") and number > place:
            break
        if not lines[number].rstrip().endswith("\\"):
            break
    return None


def _with_line(lines: list[str], place: int, request: Request, change: Change, kind: str, ending: str) -> str | None:
    wanted = f"{change.name}{change.value}"
    line = lines[place]
    if kind == "requirements":
        if not line.endswith(("\n", "\r\n")):
            lines[place] = line + ending
        while lines[place].rstrip().endswith("\\") and place + 1 < len(lines):
            place += 1
        return "".join([*lines[: place + 1], f"{wanted}{ending}", *lines[place + 1 :]])
    if kind == "conda":
        item = re.match(r"(\s*-\s+)", line)
        if item is None:
            return None
        return "".join([*lines[: place + 1], f"{item[1]}{wanted}{ending}", *lines[place + 1 :]])
    found = _on_line(lines, place, request)
    if kind != "dockerfile" or found is None:
        return None
    number, match = found
    quoted = f'"{wanted}"' if re.search(r"[<>]", wanted) else wanted
    end = match.end("spec")
    if lines[number][end : end + 1] in {'"', "'"}:
        end += 1
    lines[number] = f"{lines[number][:end]} {quoted}{lines[number][end:]}"
    return "".join(lines)


def _with_index(lines: list[str], change: Change, kind: str, ending: str) -> str | None:
    if kind != "requirements":
        return None
    known = next((m[1] for line in lines if (m := re.search(r"(https?://\S+/whl/)(?:cu\d+|cpu)", line))), None)
    address = f"{known}{change.value}" if known else f"${{TORCH_INDEX}}/{change.value}"
    return "".join([f"--extra-index-url {address}{ending}", *lines])


def _relabelled(lines: list[str], place: int, request: Request, variant: str) -> str | None:
    """A label on the line, or the last part of an index address anywhere in the file."""
    changed = False
    if request.local and (found := _on_line(lines, place, request)) is not None:
        number, match = found
        spec = match["spec"].replace(f"+{request.local}", f"+{variant}")
        lines[number] = lines[number][: match.start("spec")] + spec + lines[number][match.end("spec") :]
        changed = spec != match["spec"]
    for number, line in enumerate(lines):
        after = re.sub(r"(/whl/)(?:cu\d{2,3}|cpu)\b", rf"\g<1>{variant}", line)
        changed = changed or after != line
        lines[number] = after
    return "".join(lines) if changed else None
