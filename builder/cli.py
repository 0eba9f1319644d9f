"""The command line: reads options and the environment, calls the line, prints, exits. Nothing else prints or exits."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from builder import __version__, cli_check, cli_estimate, cli_facts, cli_in_place, cli_line
from builder.cli_options import Facts, open_catalog
from builder.cli_output import print_data, say_error, say_internal, stderr
from builder.errors import TorchproofError, UsageError

app = typer.Typer(
    name="torchproof",
    help="Builds GPU training environments from a matrix and proves that they train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
facts_app = typer.Typer(help="What torchproof knows about the world, with source and confidence.", no_args_is_help=True)
cli_line.register(app)
app.command()(cli_in_place.remove)
cli_check.register(app)
cli_estimate.register(app)
cli_facts.register(facts_app)
app.add_typer(facts_app, name="facts")

INTERRUPTED = 130


def main() -> None:
    """Entry point; the exit statuses are listed in docs/errors.md."""
    try:
        # Without its standalone mode, click hands back the status of an Exit.
        status = app(prog_name="torchproof", standalone_mode=False)
    except TorchproofError as error:
        say_error(error)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, typer.Abort):
        stderr().print("interrupted; what was begun is removed, finished stages are kept for the next run")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe left. Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as error:  # noqa: BLE001 - the last resort, which tells all of it
        if _is_usage(error):
            stderr().print(f"error[usage]: {_usage_text(error)}", markup=False, highlight=False)
            sys.exit(2)
        say_internal(error)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _is_usage(error: Exception) -> bool:
    """Click's own errors: a bad option or a missing argument. typer carries click in different places over time."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage_text(error: Any) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "torchproof")
    return f"{error.format_message()}\n\nhint: `{command} --help` lists what there is"


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        print_data(f"torchproof {__version__}")
        raise typer.Exit


# --- facts -----------------------------------------------------------------------------------------------------------


@facts_app.command("list")
def facts_list(facts: Facts = None) -> None:
    """The topics, with their age."""
    from datetime import date  # noqa: PLC0415

    catalog = open_catalog(facts)
    for topic in catalog.topics:
        print_data(topic)
    print_data(f"gathered {catalog.generated}, {catalog.age(date.today())} days ago")  # noqa: DTZ011 - a day is enough


@facts_app.command("show")
def facts_show(
    topic: Annotated[str, typer.Argument(help="torch, onnxruntime, transformers, gpu, driver or numpy")],
    name: Annotated[str, typer.Argument(help="a version, a card or a CUDA toolkit")],
    facts: Facts = None,
) -> None:
    """One row: what is known, how sure it is, and where it comes from."""
    catalog = open_catalog(facts)
    shown = _SHOWN.get(topic)
    if shown is None:
        raise UsageError("facts-topic", f"`{topic}` has no rows to show", hint=f"say {', '.join(_SHOWN)}")
    lines = shown(catalog, name)
    if not lines:
        raise UsageError("facts-unknown", f"the facts have no {topic} `{name}`")
    for text in lines:
        print_data(text)


def _show_torch(catalog: Any, name: str) -> list[str]:
    row = catalog.torch_release(name)
    if row is None:
        return []
    builds = [build.fact for build in row.builds()]
    companions = [c.fact for kind in ("torchvision", "torchaudio", "torchtext") for c in row.companions(kind)]
    return [row.fact, *builds, *companions, row.abi.fact, row.abi.glibc_fact, row.onnx_export.fact]


def _show_onnxruntime(catalog: Any, name: str) -> list[str]:
    row = catalog.onnxruntime_gpu(name)
    return [row.fact, row.index_fact, row.archs_fact, row.onnx.fact] if row is not None else []


def _show_transformers(catalog: Any, name: str) -> list[str]:
    row = catalog.transformers(name)
    if row is None:
        return []
    return [row.fact, *([row.torch_floor.fact] if row.torch_floor else [])]


def _show_driver(catalog: Any, name: str) -> list[str]:
    from builder.versions import CudaVersion  # noqa: PLC0415

    return [catalog.driver_floor(CudaVersion.parse(name)).fact]


_SHOWN: dict[str, Callable[[Any, str], list[str]]] = {
    "torch": _show_torch,
    "onnxruntime": _show_onnxruntime,
    "transformers": _show_transformers,
    "gpu": lambda catalog, name: [gpu.fact] if (gpu := catalog.gpu(name)) is not None else [],
    "driver": _show_driver,
    "numpy": lambda catalog, name: [row.fact] if (row := catalog.numpy_release(name)) is not None else [],
}
