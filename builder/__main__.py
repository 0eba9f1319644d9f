"""The start: `check` in its plain form at once, everything else through the command line library (cli.py)."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    if sys.argv[1:2] == ["check"]:
        status = _quick(sys.argv[2:])
        if status is not None:
            sys.exit(status)
    from builder.cli import main as full  # noqa: PLC0415

    full()


def _quick(words: list[str]) -> int | None:
    """None: cli.py takes over, which reads the words again and says what is wrong with them."""
    from builder.check_command import quick  # noqa: PLC0415
    from builder.errors import TorchproofError  # noqa: PLC0415

    try:
        status = quick(words)
        sys.stdout.flush()
    except TorchproofError as error:
        from builder.cli_output import say_error  # noqa: PLC0415

        say_error(error)
        return error.exit_status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader of a pipe left. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001  (a fault of ours has one form, wherever it shows)
        from builder.cli_output import say_internal  # noqa: PLC0415

        say_internal(error)
        return 1
    return status


if __name__ == "__main__":
    main()
