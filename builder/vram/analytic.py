"""The closed form: peak allocated memory of a training loop from sizes alone; pure, no torch, well under 5 ms.

A step can peak at six moments; each is a list of terms, and the highest is the estimate:

    end of forward  the loss is worked out; outputs of the step before may still be there
    loss            its gradient is worked out
    backward        the last layer works, all others are still kept
    first layer     the first layer works, nearly all gradients are there
    embeddings      all gradients are there, those of the embeddings among them
    optimizer       gradients, state and the temporaries of the update
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from builder.errors import UsageError
from builder.vram import layers, parameters
from builder.vram.layers import Kept, Tokens
from builder.vram.loop import HEADS, Architecture, TrainingLoop, nothing_trained
from builder.vram.parameters import Parameters

# 8-bit Adam (bitsandbytes): two states of one byte, and one fp32 scale for every block of 256 elements of each.
ADAM8BIT_STATE = 2 * (1 + 4 / 256)

Terms = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Analytic:
    """`moments` maps each candidate to its terms; `moment` names the highest. Bytes."""

    parameters: int
    trained: int
    moment: str
    moments: Mapping[str, Terms]

    @property
    def terms(self) -> Terms:
        return self.moments[self.moment]

    @property
    def peak_bytes(self) -> int:
        return sum(self.terms.values())


@dataclass(frozen=True, slots=True)
class _Static:
    """What does not grow with the batch. `last_gradients`: those that are not there while the first layer works."""

    weights: int
    gradients: int
    state: int
    state_temporary: int
    half_copies: int
    extra_tables: int
    last_gradients: int


def analytic(arch: Architecture, loop: TrainingLoop) -> Analytic:
    """UsageError for a head that the family does not have, and for a loop that trains nothing."""
    if not arch.has_head(loop.head):
        raise UsageError(
            "vram-no-such-head",
            f"the closed form has no `{loop.head}` head for `{arch.name}`",
            because=[f"of {arch.family} it knows {', '.join(HEADS[arch.family])}"],
        )
    counted = parameters.count(arch, loop.head)
    trained, adapters = trained_parameters(arch, loop, counted)
    if not trained and not loop.forward_only:
        raise nothing_trained(arch.name, loop)
    static = _static(arch, loop, counted, trained, adapters)
    blocks = _blocks(arch, loop)
    moments = _moments(arch, loop, static, blocks, counted, trained)
    highest = max(moments, key=lambda moment: sum(moments[moment].values()))
    return Analytic(counted.total + adapters, trained, highest, moments)


def trained_parameters(arch: Architecture, loop: TrainingLoop, counted: Parameters) -> tuple[int, int]:
    """(parameters with a gradient, parameters of LoRA adapters). BERT's pooler belongs to its backbone."""
    pooler = arch.hidden * (arch.hidden + 1) if arch.family == "bert" else 0
    if loop.lora_rank:
        layers_ = arch.layers + 2 * arch.decoder_layers
        adapters = layers_ * loop.lora_rank * (layers.LORA_PRODUCTS * arch.hidden + arch.inner + arch.kv_inner)
        # peft keeps a classifier's own head trained beside the adapters.
        return adapters + (counted.head - pooler if arch.head(loop.head) == "classifier" else 0), adapters
    if loop.frozen == "backbone":
        has_pooler = arch.head(loop.head) in ("classifier", "pretraining", "base")
        return counted.head - (pooler if has_pooler else 0), 0
    if loop.frozen == "embeddings":
        return counted.total - counted.embeddings, 0
    return counted.total, 0


def optimizer_bytes(loop: TrainingLoop, trained: int, counted: Parameters) -> tuple[int, int]:
    """(state, temporaries of one update). Foreach variants work on a list as large as all trained weights."""
    w = loop.weight_width
    # A single-tensor update holds two temporaries of the tensor at hand.
    one_tensor = 2 * w * min(counted.largest, trained)
    match loop.optimizer:
        case "adamw" | "adam":
            return 2 * w * trained, w * trained
        case "adamw-single":
            return 2 * w * trained, one_tensor
        case "adamw-fused":
            return 2 * w * trained, 0
        case "sgd-momentum":
            return w * trained, 0
        case "adafactor":
            # torch's own: a row and a column a matrix, and the update of the tensor at hand.
            return 0, one_tensor // 2
        case "adafactor-hf":
            # 16-bit weights and gradients are copied to fp32 for the update.
            return 0, one_tensor * (4 if loop.is_pure_half else 1)
        case "adam8bit":
            return int(ADAM8BIT_STATE * trained), 0
        case _:
            return 0, 0


def _static(arch: Architecture, loop: TrainingLoop, counted: Parameters, trained: int, adapters: int) -> _Static:
    w = loop.weight_width
    state, temporary = optimizer_bytes(loop, trained, counted)
    # At the end of the backward pass the embedding's own gradient comes as a whole table. Where the head shares the
    # table, its part waits for it, and their sum is a third (under autocast the waiting part is summed in place).
    is_shared = arch.head(loop.head) in ("mlm", "pretraining", "lm", "seq2seq") and arch.is_tied
    # T5's third use of it finds such a sum waiting, which only the engine owns, and adds in place too.
    is_in_place = loop.is_autocast or arch.family == "t5"
    waiting = ((1 if is_in_place else 2) if is_shared else 0) + (1 if loop.keeps_gradients else 0)
    if arch.family == "t5" and not is_shared:
        # Encoder and decoder look words up in one table: the gradient of the one waits for that of the other.
        waiting += 1
    tables = waiting if trained == counted.total and arch.family != "vit" else 0
    return _Static(
        weights=w * (counted.total + adapters) + counted.buffers,
        gradients=w * trained,
        state=state if loop.steps > 1 else 0,
        state_temporary=temporary + (0 if loop.steps > 1 else state),
        half_copies=2 * _copied(counted, loop, trained, adapters, is_shared, arch) if loop.is_autocast else 0,
        extra_tables=tables * w * arch.vocab * arch.hidden,
        last_gradients=0
        if trained != counted.total
        else w * (counted.layers // (arch.layers + arch.decoder_layers) + (0 if is_shared else counted.embeddings)),
    )


def _copied(
    counted: Parameters, loop: TrainingLoop, trained: int, adapters: int, is_shared: bool, arch: Architecture
) -> int:
    """Weights with a half copy. Autocast caches those that need a gradient; a frozen backbone's die at once, except for
    the table that a trained head ends in, which the gradient of its input needs.
    """
    if loop.frozen == "backbone":
        return trained + (arch.vocab * arch.hidden if is_shared else 0)
    return counted.in_products + adapters


def _blocks(arch: Architecture, loop: TrainingLoop) -> list[tuple[int, Kept]]:
    """(how many, what each keeps) from first to last."""
    b, s = loop.batch, loop.seq
    here = Tokens(b, s, s)
    match arch.family:
        case "bert" | "roberta" | "distilbert":
            return [(arch.layers, layers.post_norm(arch, loop, here))]
        case "gpt2":
            return [(arch.layers, layers.pre_norm(arch, loop, here))]
        case "vit":
            length = (arch.image // arch.patch) ** 2 + 1
            return [(arch.layers, layers.pre_norm(arch, loop, Tokens(b, length, length)))]
        case "llama":
            return [(arch.layers, layers.llama(arch, loop, here))]
        case "t5":
            target = loop.target_seq or s
            memory = Tokens(b, target, s)
            decoder = layers.t5_decoder(arch, loop, Tokens(b, target, target), memory)
            return [(arch.layers, layers.t5_encoder(arch, loop, here)), (arch.decoder_layers, decoder)]


def _edges(arch: Architecture, loop: TrainingLoop) -> tuple[int, int]:
    """(kept by the embeddings, kept between the last layer and the logits)."""
    e, lo, h, n = loop.weight_width, loop.matmul_width, arch.hidden, loop.batch * loop.seq
    mask = layers.has(arch.hidden_dropout)
    cast = lo if loop.is_autocast else 0
    head = arch.head(loop.head)
    match arch.family:
        case "bert" | "roberta" | "distilbert":
            # The sum that the norm saves, its output as the first layer's residual, the mask of the dropout.
            first = (2 * e + mask) * n * h
            # MLM: cast input, dense output, gelu output, norm output.
            last = (cast + lo + 2 * e + cast) * n * h if head in ("mlm", "pretraining") else 0
            return first, last
        case "gpt2":
            return (e + mask) * n * h, (e + (lo if loop.is_autocast else e)) * n * h
        case "llama":
            return e * n * h, layers.rms_norm_kept(loop, 1) * n * h
        case "vit":
            patches = (arch.image // arch.patch) ** 2 + 1
            pixels = loop.batch * arch.channels * arch.image**2
            return 2 * e * loop.batch * patches * h + (4 + cast) * pixels, e * loop.batch * patches * h
        case "t5":
            target = loop.batch * (loop.target_seq or loop.seq)
            # The position biases of encoder, decoder and cross-attention, with the mask added, are shared by layers.
            bias = _t5_biases(arch, loop)
            ends = 2 * (layers.rms_norm_kept(loop, 1) + mask)
            return (e + mask) * (n + target) * h + bias, ends * target * h // 2 + ends * n * h // 2


def _t5_biases(arch: Architecture, loop: TrainingLoop) -> int:
    if arch.attention(loop.attention) != "eager":
        return 0
    target = loop.target_seq or loop.seq
    e = loop.weight_width
    cross = loop.matmul_width
    scores = (loop.seq**2 + target**2) * e + target * loop.seq * max(cross, e)
    return arch.heads * loop.batch * scores


def _loss_work(arch: Architecture, loop: TrainingLoop) -> int:
    """Logits and what the cross entropy holds beside them when its backward pass begins."""
    head = arch.head(loop.head)
    if head == "base" or arch.family == "vit" or head == "classifier":
        return 0
    tokens = loop.batch * ((loop.target_seq or loop.seq) if arch.family == "t5" else loop.seq)
    if arch.family == "llama":
        # Logits are cast to fp32 before the loss: (half logits), log-probabilities and two gradients.
        width = 16 if loop.precision == "fp32" else 14
    elif loop.precision == "fp32":
        # Logits, log-probabilities, the gradients of both.
        width = 16
    elif loop.is_autocast:
        # Half logits and log-probabilities; nll_loss casts to fp32 and returns an fp32 gradient.
        width = 12
    else:
        width = 8
    if not loop.keeps_outputs:
        width -= loop.matmul_width
    return width * tokens * arch.vocab


def _loss_forward(arch: Architecture, loop: TrainingLoop) -> int:
    """Logits and what the cross entropy holds beside them when the forward pass ends."""
    if not _loss_work(arch, loop):
        return 0
    tokens = loop.batch * ((loop.target_seq or loop.seq) if arch.family == "t5" else loop.seq)
    lo = loop.matmul_width
    # Logits, log-probabilities in their type, and under autocast an fp32 copy of these.
    width = 2 * lo + (4 if loop.is_autocast else 0)
    if arch.family == "gpt2":
        # Logits are shifted by one token, which copies them.
        width += lo
    elif arch.family == "llama":
        # Likewise, but in fp32, to which they are cast first.
        width = lo + (8 if loop.precision == "fp32" else 12)
    return width * tokens * arch.vocab


def _logits(arch: Architecture, loop: TrainingLoop) -> int:
    """What the loop's variable for the outputs holds beside keys and values: one logit a token and word."""
    if not _loss_work(arch, loop):
        return 0
    tokens = loop.batch * ((loop.target_seq or loop.seq) if arch.family == "t5" else loop.seq)
    return loop.matmul_width * tokens * arch.vocab


def _moments(
    arch: Architecture,
    loop: TrainingLoop,
    static: _Static,
    blocks: list[tuple[int, Kept]],
    counted: Parameters,
    trained: int,
) -> dict[str, dict[str, int]]:
    first, last = _edges(arch, loop)
    is_saved = trained == counted.total or loop.lora_rank > 0 or loop.frozen == "embeddings"
    if not is_saved:
        # Nothing in front of the head needs a gradient, so nothing of it is saved: one layer's room is enough.
        kept = 0
        room = max(block.work for _, block in blocks)
    elif loop.checkpointing:
        kept = sum(many * block.entry for many, block in blocks)
        room = max(block.kept + block.work for _, block in blocks)
    else:
        kept = sum(many * block.kept for many, block in blocks)
        room = blocks[-1][1].work
    always = {"weights": static.weights, "optimizer state": static.state}
    held = {"gradients": static.gradients if loop.keeps_gradients else 0}
    full = {**always, **held, "half copies of weights": static.half_copies, "activations": kept + first + last}
    if loop.forward_only:
        # Logits and log-probabilities; no gradient yet.
        return {"end of forward": {**full, "loss": _loss_work(arch, loop) // 2}}
    # Outputs of the step before, in a loop that lets go of them only when it has new ones.
    old = _logits(arch, loop) + layers.cache(arch, loop) if loop.outputs == "loop" else 0
    forward = {**full, "loss": _loss_forward(arch, loop), "outputs of the last step": old if loop.repeats else 0}
    # A checkpoint computes a layer again, and what autocast cached goes with each.
    copies = static.half_copies // (arch.layers + arch.decoder_layers) if loop.checkpointing else static.half_copies
    logits = _logits(arch, loop) if loop.keeps_outputs else 0
    loss = {**full, "half copies of weights": copies, "loss": _loss_work(arch, loop)}
    backward = {**full, "half copies of weights": copies, "loss": logits, "work of one layer": room}
    before = static.gradients if loop.keeps_gradients else static.gradients - static.last_gradients
    end = {
        **always,
        "gradients": before,
        "half copies of weights": copies if loop.checkpointing else 0,
        "activations": first + (blocks[0][1].entry if loop.checkpointing else 0),
        "loss": logits,
        "work of one layer": room if loop.checkpointing else blocks[0][1].work,
    }
    sums = loop.weight_width * loop.batch * loop.seq * arch.hidden
    embedding = {
        **always,
        "gradients": static.gradients,
        "activations": first if arch.family in ("t5", "gpt2", "llama") else sums,
        "loss": logits,
        "gradients of embeddings": static.extra_tables,
    }
    optimizer = {
        **always,
        "gradients": static.gradients,
        "temporaries of the optimizer": static.state_temporary,
        "outputs of the last step": old,
    }
    return {
        "end of forward": forward,
        "loss": loss,
        "backward": backward,
        "first layer": end,
        "embeddings": embedding,
        "optimizer": optimizer,
    }
