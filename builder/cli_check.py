"""The commands `check` and `recommend`: options, files, text and exit status. cli.py registers them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from builder.cli_options import Facts, Json, open_catalog
from builder.cli_output import print_data
from builder.errors import ConflictError, UsageError


def register(app: typer.Typer) -> None:
    app.command()(check)
    app.command()(recommend)


def check(
    file: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE]...", help="requirements, environment.yml, Dockerfile, lock or image spec"),
    ] = None,
    pin: Annotated[list[str] | None, typer.Option("--pin", metavar="REQ", help="a requirement; may repeat")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="X.Y")] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="a card or sm_86; may repeat")] = None,
    driver: Annotated[str | None, typer.Option("--driver", metavar="V", help="the NVIDIA driver")] = None,
    os: Annotated[str | None, typer.Option("--os", metavar="NAME", help="such as `Ubuntu 22.04`")] = None,
    glibc: Annotated[str | None, typer.Option("--glibc", metavar="V")] = None,
    index: Annotated[
        list[str] | None,
        typer.Option("--index", metavar="default|cuNNN|cpu|URL", help="the first is primary, more are additive"),
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", metavar="x86_64|aarch64")] = None,
    date: Annotated[
        str | None, typer.Option("--date", metavar="YYYY-MM-DD", help="judge ranges as of this day")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="KEY=VALUE", help="may repeat")] = None,
    precision: Annotated[list[str] | None, typer.Option("--precision", metavar="fp32|fp16|bf16|tf32")] = None,
    opset: Annotated[int | None, typer.Option("--opset", metavar="N", help="the ONNX operator set asked for")] = None,
    as_json: Json = False,
    fix: Annotated[bool, typer.Option("--fix", help="print the files with the hints applied, as a diff")] = False,
    write: Annotated[bool, typer.Option("--write", help="with --fix: change the files")] = False,
    facts: Facts = None,
) -> None:
    """Is this environment compatible, incompatible or unknown, and why: files, pins, a GPU, a driver, a system."""
    from builder.check_command import run  # noqa: PLC0415
    from builder.inputs import Options  # noqa: PLC0415

    options = Options(
        pins=tuple(pin or ()),
        python=python,
        gpus=tuple(gpu or ()),
        driver=driver,
        os=os,
        glibc=glibc,
        indexes=tuple(index or ()),
        arch=arch,
        date=date,
        env=tuple(env or ()),
        precisions=tuple(precision or ()),
        opset=opset,
    )
    status = run(file or (), options, facts=facts, as_json=as_json, fix=fix, write=write)
    if status:
        raise typer.Exit(status)


def recommend(
    gpu: Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="must be served; may repeat")] = None,
    driver: Annotated[str | None, typer.Option("--driver", metavar="V", help="the NVIDIA driver")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="V", help="a version or range that must hold")] = None,
    python: Annotated[str | None, typer.Option("--python", metavar="X.Y")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="name the smallest card that trains it, and serve it")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", help="with --model")] = 8,
    seq: Annotated[int, typer.Option("--seq", metavar="N", help="with --model")] = 512,
    precision: Annotated[str, typer.Option("--precision", help="with --model: fp32, fp16 or bf16")] = "fp16",
    count: Annotated[int, typer.Option("--count", "-n", help="how many sets to show")] = 5,
    as_json: Json = False,
    facts: Facts = None,
) -> None:
    """The newest sets of torch, CUDA variant, Python and neighbours that run on these cards with this driver."""
    from builder import recommend as recommending  # noqa: PLC0415

    cards: tuple[Any, ...] = ()
    if model is not None:
        from builder.cli_estimate import smallest_cards  # noqa: PLC0415

        cards = smallest_cards(open_catalog(facts), model, batch, seq, precision)
        gpu = gpu or [cards[0].name]
    if not gpu and not driver:
        raise UsageError("recommend-nothing", "neither a card nor a driver is named", hint='say --gpu "RTX 3090"')
    wish = recommending.Wish.parse(gpus=tuple(gpu or ()), driver=driver, torch=torch, python=python)
    answer = recommending.recommend(wish, open_catalog(facts), count=count)
    if as_json:
        smallest = {"cards": [{"name": c.name, "estimate": c.estimate.as_json()} for c in cards]} if cards else {}
        print_data(json.dumps({**answer.to_json(), **smallest}, ensure_ascii=False, indent=1))
    else:
        if cards:
            from builder.vram.smallest import text as card_text  # noqa: PLC0415

            print_data(card_text(cards) + "\n")
        print_data(recommending.text(answer))
    if not answer.sets:
        raise typer.Exit(ConflictError.exit_status)
