"""What a person sees while a run goes on: stages, the current step and elapsed time, on standard error."""

from __future__ import annotations

import re
import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from typing_extensions import Self

# Of a plain build log, the lines that say what is being done; everything else is in the log file.
_STEP = re.compile(r"^#\d+ (\[.+|exporting .+|DONE .*|CACHED.*)")
_NOISE = re.compile(r"^#\d+ (DONE|CACHED|\[(\S+ )?(internal|context) |\[internal\]|exporting (?!to image))")
_WIDEST = 110


class Reporter:
    """A live block on a terminal, plain lines elsewhere. `is_quiet` shows nothing, `is_verbose` every line."""

    def __init__(self, console: Console, *, is_quiet: bool = False, is_verbose: bool = False) -> None:
        self._console = console
        self._is_quiet = is_quiet
        self._is_verbose = is_verbose
        self._started = time.monotonic()
        self._stage_started = self._started
        self._stage = ""
        self._step = ""
        self._told: set[str] = set()
        self._live: Live | None = None
        self._spinner = Spinner("dots")

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._is_quiet:
            self._live = Live(get_renderable=self._block, console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._end_stage()

    def stage(self, name: str, image_id: str | None = None) -> None:
        self._end_stage()
        self._stage = f"{name} {image_id}" if image_id else name
        self._step = ""
        self._told.clear()
        self._stage_started = time.monotonic()
        if self._live is None:
            self._print(f"[{self._elapsed()}] {self._stage}")

    def line(self, text: str) -> None:
        if self._is_quiet:
            return
        if not text.strip():
            return
        step = _STEP.match(text)
        shown = step[1] if step else text.strip()
        if self._is_verbose:
            self._print(f"    {text}")
        elif self._live is None and shown not in self._told and _is_worth_telling(text, step is not None):
            # BuildKit names a step again each time that it goes on with it.
            self._told.add(shown)
            self._print(f"    {_cut(shown, _WIDEST)}")
        self._step = shown

    def _end_stage(self) -> None:
        if self._stage and self._live is not None:
            seconds = time.monotonic() - self._stage_started
            self._print(f"[{self._elapsed()}] {self._stage} ({seconds:.0f} s)")
        self._stage = ""

    def _print(self, text: str) -> None:
        if not self._is_quiet:
            self._console.print(Text(text), soft_wrap=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:5.0f} s"

    def _block(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        width = max(20, self._console.width - 30)
        seconds = time.monotonic() - self._stage_started
        grid.add_row(self._spinner, Text(self._stage or "starting"), Text(f"{seconds:.0f} s", style="dim"))
        if self._step:
            grid.add_row("", Text(_cut(self._step, width), style="dim"), "")
        return grid


def _is_worth_telling(text: str, is_step: bool) -> bool:
    return not text.startswith("#") or (is_step and not _NOISE.match(text))


def _cut(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"


_MARKS = {"✓": "green", "✗": "bold red", "!": "bold red", "–": "yellow"}


def styled(text: str) -> Text:
    """A report or an error with colour on its marks; every mark has a word beside it, so colour adds nothing new."""
    out = Text()
    for line in text.splitlines(keepends=True):
        stripped = line.lstrip()
        style = _MARKS.get(stripped[:1], "") if stripped[1:2] == " " else ""
        if stripped.startswith("error["):
            style = "bold red"
        elif stripped.startswith("hint:"):
            style = "cyan"
        elif stripped.startswith("warning:"):
            style = "yellow"
        elif line[:1] not in (" ", "\n") and ": proven to" in line:
            style = "bold green"
        elif line[:1] not in (" ", "\n") and ": not proven" in line:
            style = "bold red"
        if style and stripped[:1] in _MARKS:
            indent = len(line) - len(stripped)
            out.append(line[:indent])
            out.append(stripped[:1], style=style)
            out.append(stripped[1:])
        else:
            out.append(line, style=style)
    return out
