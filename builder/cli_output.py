"""What the command line says: data on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal

from builder.errors import TorchproofError

if TYPE_CHECKING:
    from rich.console import Console


def say_internal(error: Exception) -> None:
    import traceback  # noqa: PLC0415 - only here

    stderr().print(
        f"error[internal]: torchproof broke: {type(error).__name__}: {error}\n\n"
        + "".join(traceback.format_exception(error))
        + "\nhint: this is a fault of torchproof; please report it with the lines above",
        markup=False,
        highlight=False,
    )


def say_error(error: TorchproofError) -> None:
    from builder.terminal import styled  # noqa: PLC0415

    stderr().print(styled(str(error)), soft_wrap=True)


def stderr() -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, color_system=_colors())


def print_data(text: str) -> None:
    """Data, as it is."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_styled(text: str) -> None:
    from rich.console import Console  # noqa: PLC0415

    from builder.terminal import styled  # noqa: PLC0415

    Console(color_system=_colors()).print(styled(text), soft_wrap=True, end="")


def _colors() -> Literal["auto"] | None:
    """NO_COLOR takes bold and the like away too: what is left is plain text."""
    return None if os.environ.get("NO_COLOR") else "auto"
