"""The commands `estimate` and `calibrate`: options, files, text and exit status. cli.py registers them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from builder.cli_options import Facts, Json, open_catalog
from builder.cli_output import print_data, print_styled
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.catalog import Catalog
    from builder.vram.estimate import VramEstimate
    from builder.vram.loop import TrainingLoop
    from builder.vram.models import Model
    from builder.vram.smallest import Fitting


def register(app: typer.Typer) -> None:
    app.command()(estimate)
    app.command()(calibrate)


def _size(name: str) -> Any:
    return typer.Option(f"--{name}", metavar="N", help="instead of the model's own", rich_help_panel="sizes")


def estimate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a known name, a config.json, or a family with sizes")],
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="N[,N...]", help="samples a step; several with --table")
    ] = None,
    seq: Annotated[
        str, typer.Option("--seq", metavar="N[,N...]", help="tokens a sample; several with --table")
    ] = "512",
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="a card; may repeat with --table")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help="fp32, fp16 or bf16 (autocast), fp16-pure or bf16-pure")
    ] = "fp16",
    optimizer: Annotated[
        str,
        typer.Option(
            "--optimizer",
            help="adamw, adamw-single, adamw-fused, adam, sgd, sgd-momentum, adafactor, adafactor-hf, adam8bit, none",
        ),
    ] = "adamw",
    attention: Annotated[str, typer.Option("--attention", help="auto, sdpa or eager")] = "auto",
    head: Annotated[
        str, typer.Option("--head", help="auto, classifier, mlm, lm, seq2seq, pretraining or base")
    ] = "auto",
    steps: Annotated[int, typer.Option("--steps", help="the first step has no optimizer state in its forward")] = 2,
    target_seq: Annotated[
        int | None, typer.Option("--target-seq", metavar="N", help="decoder tokens; default: --seq")
    ] = None,
    accumulation: Annotated[int, typer.Option("--accumulation", metavar="N", help="batches a step")] = 1,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="gradient checkpointing")] = False,
    zero_grad: Annotated[
        str, typer.Option("--zero-grad", help="none: gradients are dropped; keep: they stay")
    ] = "none",
    mask: Annotated[
        str, typer.Option("--mask", help="none, full or padded: the attention mask that is passed")
    ] = "none",
    outputs: Annotated[
        str,
        typer.Option(
            "--outputs", help="how long the model's outputs live: dropped before backward, step, or loop (a plain loop)"
        ),
    ] = "step",
    clip: Annotated[bool, typer.Option(help="clip the gradients' norm")] = True,
    frozen: Annotated[str, typer.Option("--frozen", help="nothing, embeddings or backbone")] = "nothing",
    lora: Annotated[int, typer.Option("--lora", metavar="RANK", help="LoRA adapters on query and value; 0: none")] = 0,
    hidden: Annotated[int | None, _size("hidden")] = None,
    layers: Annotated[int | None, _size("layers")] = None,
    heads: Annotated[int | None, _size("heads")] = None,
    intermediate: Annotated[int | None, _size("intermediate")] = None,
    vocab: Annotated[int | None, _size("vocab")] = None,
    torch: Annotated[
        str | None, typer.Option("--torch", metavar="V", help="the release that will run it; default: a current one")
    ] = None,
    transformers: Annotated[
        str | None, typer.Option("--transformers", metavar="V", help="likewise; from 5.0 on a cache is no longer kept")
    ] = None,
    cuda: Annotated[str | None, typer.Option("--cuda", metavar="V", help="its CUDA line, such as 12.6")] = None,
    expandable: Annotated[
        bool, typer.Option("--expandable-segments", help="the allocator's expandable segments")
    ] = False,
    layer: Annotated[str, typer.Option("--layer", help="auto, traced or analytic")] = "auto",
    fit: Annotated[bool, typer.Option("--fit", help="the largest batch, and what would make this one fit")] = False,
    table: Annotated[bool, typer.Option("--table", help="a matrix over batches, sequences or GPUs")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help=".png or .svg: one step, by component")
    ] = None,
    as_json: Json = False,
    facts: Facts = None,
) -> None:
    """How much GPU memory training takes, without a GPU: by component, as three numbers, and whether it fits."""
    from builder.vram import models, report, stack  # noqa: PLC0415
    from builder.vram.loop import TrainingLoop  # noqa: PLC0415

    if batch is None:
        if not fit:
            raise UsageError("vram-no-batch", "no batch is given", hint="say --batch 8, or --fit for the largest")
        batch = "1"
    catalog = open_catalog(facts)
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "intermediate": intermediate, "vocab": vocab}
    found = models.find(model, catalog, sizes={key: value for key, value in sizes.items() if value is not None})
    batches, seqs = _numbers("batch", batch), _numbers("seq", seq)
    loop = TrainingLoop(
        batch=batches[0],
        seq=seqs[0],
        target_seq=target_seq,
        precision=precision,  # type: ignore[arg-type]  # TrainingLoop checks the words itself
        optimizer=optimizer,  # type: ignore[arg-type]
        attention=attention,  # type: ignore[arg-type]
        head=head,  # type: ignore[arg-type]
        mask=mask,  # type: ignore[arg-type]
        outputs=outputs,  # type: ignore[arg-type]
        clip=clip,
        steps=steps,
        accumulation=accumulation,
        zero_grad=zero_grad,  # type: ignore[arg-type]
        checkpointing=checkpointing,
        frozen=frozen,  # type: ignore[arg-type]
        lora_rank=lora,
    )
    loop, is_old = stack.as_of(loop, torch, transformers)
    models.check_length(found, loop)
    asked = _Asked(catalog, found, layer, cuda, expandable, is_old)
    if table:
        _table(asked, loop, batches, seqs, gpu or [], as_json)
        return
    if len(batches) > 1 or len(seqs) > 1 or len(gpu or []) > 1:
        raise UsageError("vram-several", "several batches, sequences or GPUs are given", hint="say --table")
    name = gpu[0] if gpu else None
    if fit:
        _fit(asked, loop, name, as_json)
        return
    result = asked.estimate(loop, name)
    if plot is not None:
        from builder.vram import plot as plotting  # noqa: PLC0415

        plotting.draw(result, plot, expandable=expandable)
    if as_json:
        print_data(json.dumps({"schema_version": 1, **result.as_json()}, indent=2))
        return
    print_styled(report.text(result))
    if plot is not None:
        print_data(f"written: {plot}")


class _Asked:
    """What all estimates of one command share."""

    def __init__(
        self, catalog: Catalog, model: Model, layer: str, cuda: str | None, expandable: bool, is_old: bool
    ) -> None:
        from builder.versions import CudaVersion  # noqa: PLC0415

        if layer not in ("auto", "traced", "analytic"):
            raise UsageError("vram-bad-layer", f"`{layer}` is not a layer", hint="say auto, traced or analytic")
        self.catalog = catalog
        self.model = model
        self.layer: Any = None if layer == "auto" else layer
        self.cuda = CudaVersion.parse(cuda) if cuda else None
        self.expandable = expandable
        self.is_old = is_old

    def estimate(self, loop: TrainingLoop, gpu: str | None, *, layer: Any = None) -> VramEstimate:
        from builder.vram import offsets  # noqa: PLC0415
        from builder.vram.estimate import estimate as estimated  # noqa: PLC0415

        card = offsets.card(gpu, self.catalog, cuda=self.cuda) if gpu else offsets.unknown_card(self.catalog)
        return estimated(
            self.model,
            loop,
            card,
            layer=layer or self.layer,
            expandable=self.expandable,
            is_old_stack=self.is_old,
        )

    @property
    def quick_layer(self) -> str | None:
        """Searches ask many times: the closed form, unless another layer was named or there is none."""
        return self.layer or ("analytic" if self.model.architecture is not None else None)


def smallest_cards(catalog: Catalog, model: str, batch: int, seq: int, precision: str) -> tuple[Fitting, ...]:
    """For `recommend --model`: a plain AdamW loop of these sizes."""
    from builder.vram import models, smallest  # noqa: PLC0415
    from builder.vram.loop import TrainingLoop  # noqa: PLC0415

    found = models.find(model, catalog)
    loop = TrainingLoop(batch=batch, seq=seq, precision=precision)  # type: ignore[arg-type]  # it checks the word
    models.check_length(found, loop)
    return smallest.smallest_cards(found, loop, catalog)


def _fit(asked: _Asked, loop: TrainingLoop, gpu: str | None, as_json: bool) -> None:
    from builder.vram import fit as fitting  # noqa: PLC0415
    from builder.vram import report  # noqa: PLC0415

    if gpu is None:
        raise UsageError("vram-no-gpu", "--fit needs a card", hint="name one with --gpu")
    found = fitting.fit(loop, lambda changed: asked.estimate(changed, gpu, layer=asked.quick_layer))
    if as_json:
        document = {
            "schema_version": 1,
            "asked": found.asked.as_json(),
            "largest_batch": found.largest,
            "at_largest": found.at_largest.as_json() if found.at_largest else None,
            "changes": [
                {
                    "name": change.name,
                    "harm": change.harm,
                    "verdict": change.estimate.verdict,
                    "estimate": change.estimate.as_json(),
                }
                for change in found.tried
            ],
        }
        print_data(json.dumps(document, indent=2))
        return
    print_styled(report.text(found.asked) + "\n" + report.fit_text(found))


def _table(
    asked: _Asked, loop: TrainingLoop, batches: list[int], seqs: list[int], gpus: list[str], as_json: bool
) -> None:
    """Rows are batches; columns are the GPUs when several are named, else the sequences."""
    from builder.vram import report  # noqa: PLC0415

    if len(gpus) > 1 and len(seqs) > 1:
        raise UsageError(
            "vram-several", "a table has two sides", hint="give several GPUs or several sequences, not both"
        )
    one = gpus[0] if gpus else None
    columns: list[tuple[str, str | None, int]] = [(f"seq {seq}", one, seq) for seq in seqs]
    if len(gpus) > 1:
        columns = [(gpu, gpu, seqs[0]) for gpu in gpus]
    cells = [
        [asked.estimate(loop.with_(batch=batch, seq=seq), gpu, layer=asked.quick_layer) for _, gpu, seq in columns]
        for batch in batches
    ]
    if as_json:
        flat = [cell.as_json() for line in cells for cell in line]
        print_data(json.dumps({"schema_version": 1, "estimates": flat}, indent=2))
        return
    corner = asked.model.name + (f" on {one}" if one and len(gpus) == 1 else "")
    print_data(
        report.table_text([f"batch {batch}" for batch in batches], [name for name, _, _ in columns], cells, corner)
    )


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()] or [0]
    except ValueError:
        raise UsageError("vram-bad-loop", f"--{name} `{text}` is no number", hint="say 8, or 8,16,32") from None


def calibrate(
    python: Annotated[
        str | None,
        typer.Option("--python", metavar="FILE", help="the Python whose torch is measured; default: this one"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="where the facts overlay goes")] = Path(
        "offsets.yaml"
    ),
    gpu: Annotated[int, typer.Option("--device", metavar="N", help="which GPU of this machine")] = 0,
    as_json: Json = False,
) -> None:
    """Measure context and workspaces of the card in this machine, and write them as rows for `--facts`."""
    from builder.vram import calibration  # noqa: PLC0415

    measured = calibration.measure(python, gpu)
    overlay = calibration.overlay(measured)
    out.write_text(calibration.overlay_text(overlay), encoding="utf-8")
    if as_json:
        print_data(json.dumps({"schema_version": 1, **measured}, indent=2))
        return
    print_data(calibration.text(measured))
    print_data(f"written: {out}; use it with `torchproof estimate --facts {out}`")
