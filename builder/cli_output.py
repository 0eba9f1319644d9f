"""What the command line says: data on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

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

    return Console(stderr=True, no_color=True if os.environ.get("NO_COLOR") else None)


def print_data(text: str) -> None:
    """Data, as it is."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")


def print_styled(text: str) -> None:
    from rich.console import Console  # noqa: PLC0415

    from builder.terminal import styled  # noqa: PLC0415

    Console(no_color=True if os.environ.get("NO_COLOR") else None).print(styled(text), soft_wrap=True, end="")
