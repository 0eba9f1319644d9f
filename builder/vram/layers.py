"""What one layer of each family keeps for its backward pass, in bytes; pure.

Every term is a tensor that autograd saves. n: tokens, h: hidden size, i: width of the feed-forward part, e: bytes of
an element in the residual stream, lo: bytes inside matrix products. Under autocast each matrix product casts its own
input, so an input with three consumers (query, key, value) is kept three times; LayerNorm, softmax and pow run and
save in fp32; a dropout saves one byte an element. Checked against the traced layer over a grid (tests/stack).
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.vram.loop import Architecture, TrainingLoop

# LoRA as people set it (peft's defaults): adapters on query and value of every attention.
LORA_PRODUCTS = 2


@dataclass(frozen=True, slots=True)
class Kept:
    """`kept`: saved by one layer. `entry`: what its checkpoint keeps. `work`: the most its backward pass adds."""

    kept: int
    entry: int
    work: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Where a layer runs: `queries` and `keys` differ in the cross-attention of a decoder."""

    batch: int
    queries: int
    keys: int

    @property
    def count(self) -> int:
        return self.batch * self.queries

    def scores(self, heads: int) -> int:
        return heads * self.batch * self.queries * self.keys


def has(probability: float) -> int:
    """One byte of mask an element where dropout drops anything; it keeps nothing where it does not."""
    return 1 if probability > 0 else 0


def attention_kept(arch: Architecture, loop: TrainingLoop, at: Tokens) -> int:
    """Of the scores: the log-sum-exp of a fused kernel, or softmax, dropout mask and dropped-out probabilities."""
    if arch.attention(loop.attention) == "sdpa":
        return 4 * arch.heads * at.count
    lo = loop.matmul_width
    softmax = 2 if loop.is_pure_half and arch.family not in ("llama", "t5") else 4
    mask = has(arch.attention_dropout)
    # Without dropout the softmax itself enters the product, unless it has to be cast.
    probabilities = lo if mask or softmax != lo else 0
    return (softmax + mask + probabilities) * at.scores(arch.heads)


def attention_work(arch: Architecture, loop: TrainingLoop, at: Tokens) -> int:
    """The gradients of scores and probabilities that are alive together in the backward pass of eager attention."""
    if arch.attention(loop.attention) == "sdpa":
        return 0
    width = 2 if loop.is_pure_half and arch.family not in ("llama", "t5") else 4
    return 2 * width * at.scores(arch.heads)


def activation_kept(name: str, loop: TrainingLoop) -> int:
    """Bytes an element of the feed-forward width: input and output of the activation, with all between them."""
    e, lo = loop.weight_width, loop.matmul_width
    if name == "gelu_new":
        # Written out: pow saves its input and tanh its output, both fp32 under autocast; the two factors of the last
        # product; what enters the next matrix product.
        return 2 * e + lo + e + lo if loop.is_autocast else 5 * e
    if name == "gelu_python":
        # Older model code: what erf reads, both factors of the product, and the product; torch of that time also kept
        # the input, since a product saved both factors even when one was a plain number.
        return 3 * e + 2 * lo if loop.is_autocast else 5 * e
    if name == "relu":
        return lo
    return 2 * lo


def _consumers(loop: TrainingLoop) -> int:
    """Products that keep the input of the attention: query, key and value; under LoRA the adapters of two of them."""
    return LORA_PRODUCTS if loop.lora_rank else 3


def _feed_forward(arch: Architecture, loop: TrainingLoop) -> int:
    """Bytes an element of the inner width. A product with a frozen weight does not keep its input."""
    return activation_kept(arch.activation, loop) - (loop.matmul_width if loop.lora_rank else 0)


def post_norm(arch: Architecture, loop: TrainingLoop, at: Tokens) -> Kept:
    """BERT, RoBERTa, DistilBERT: attention, add, norm, feed-forward, add, norm."""
    e, lo, h, i, n = loop.weight_width, loop.matmul_width, arch.hidden, arch.intermediate, at.count
    entry = _consumers(loop) * lo if loop.is_autocast else e
    norms = 2 * e + (0 if loop.lora_rank else lo if loop.is_autocast else e)
    masks = (1 if arch.family == "distilbert" else 2) * has(arch.hidden_dropout)
    kept = (entry + 4 * lo + norms + masks) * n * h + _feed_forward(arch, loop) * n * i
    # Mean and deviation of both norms.
    kept += 2 * 2 * 4 * n
    freed = _feed_forward(arch, loop) * n * i
    return Kept(kept + attention_kept(arch, loop, at), e * n * h, _work(arch, loop, at, freed))


def pre_norm(arch: Architecture, loop: TrainingLoop, at: Tokens) -> Kept:
    """GPT-2 and ViT: norm, attention, add, norm, feed-forward, add."""
    e, lo, h, i, n = loop.weight_width, loop.matmul_width, arch.hidden, arch.intermediate, at.count
    # GPT-2 computes query, key and value in one product, ViT in three that cast their input each.
    copies = _consumers(loop) if arch.family == "vit" and loop.is_autocast else 1
    copies += 0 if loop.lora_rank else 1
    masks = 2 * has(arch.hidden_dropout)
    kept = (2 * e + copies * lo + 4 * lo + masks) * n * h + _feed_forward(arch, loop) * n * i
    kept += 2 * 2 * 4 * n
    if arch.family == "gpt2" and returns_cache(loop):
        # The kernels read contiguous copies; the cache keeps the product that key and value are views of.
        kept += 3 * lo * n * h
    freed = _feed_forward(arch, loop) * n * i
    return Kept(kept + attention_kept(arch, loop, at), e * n * h, _work(arch, loop, at, freed))


def returns_cache(loop: TrainingLoop) -> bool:
    """Decoders return keys and values with their outputs unless told not to; checkpointing turns that off."""
    return loop.use_cache and loop.keeps_outputs and not loop.checkpointing


def cache(arch: Architecture, loop: TrainingLoop) -> int:
    """Keys and values that come with the outputs of a decoder, bytes."""
    if not returns_cache(loop):
        return 0
    lo, n = loop.matmul_width, loop.batch * loop.seq
    match arch.family:
        case "gpt2":
            # Views of the product that query, key and value come from.
            return arch.layers * 3 * lo * n * arch.hidden
        case "llama":
            return arch.layers * 2 * lo * n * arch.kv_inner
        case "t5":
            return arch.decoder_layers * 2 * lo * arch.inner * (loop.batch * (loop.target_seq or loop.seq) + n)
        case _:
            return 0


def rms_norm_kept(loop: TrainingLoop, consumers: int) -> int:
    """Bytes an element: input and normalised input, written out in Python, and what the consumers' products save."""
    if loop.is_pure_half:
        return 4 + 2 + 2
    return 8 + (consumers * loop.matmul_width if loop.is_autocast else 4)


def llama(arch: Architecture, loop: TrainingLoop, at: Tokens) -> Kept:
    """Decoders with RMSNorm, rotary positions and a gated feed-forward part."""
    lo, h, i, n = loop.matmul_width, arch.hidden, arch.intermediate, at.count
    kept = (rms_norm_kept(loop, _consumers(loop)) + rms_norm_kept(loop, 0 if loop.lora_rank else 2)) * n * h
    # Key and value are repeated to all heads before the product.
    kept += 4 * lo * n * arch.inner
    freed = (3 if loop.lora_rank else 4) * lo * n * i
    kept += freed + 2 * 4 * n
    if returns_cache(loop) and arch.kv_inner < arch.inner:
        # What is repeated is a copy; the cache holds the original.
        kept += 2 * lo * n * arch.kv_inner
    return Kept(kept + attention_kept(arch, loop, at), loop.weight_width * n * h, _work(arch, loop, at, freed))


def t5_attention(arch: Architecture, loop: TrainingLoop, at: Tokens, *, is_cross: bool) -> int:
    """One attention of T5 with its norm; a cross-attention casts the encoder's output for key and value again."""
    lo, h, n, keys = loop.matmul_width, arch.hidden, at.count, at.batch * at.keys
    kept = rms_norm_kept(loop, 1 if is_cross else 3) * n * h
    if is_cross and loop.is_autocast:
        kept += 2 * lo * keys * h
    kept += lo * arch.inner * (2 * n + 2 * keys)
    kept += has(arch.hidden_dropout) * n * h + 4 * n
    return kept + attention_kept(arch, loop, at)


def clamps_kept(arch: Architecture, loop: TrainingLoop, at: Tokens) -> int:
    """T5 in pure fp16 clamps its stream behind each part, and each clamp keeps what it was given."""
    return 2 * at.count * arch.hidden if loop.precision == "fp16-pure" else 0


def t5_feed_forward(arch: Architecture, loop: TrainingLoop, at: Tokens) -> int:
    e, lo, h, i, n = loop.weight_width, loop.matmul_width, arch.hidden, arch.intermediate, at.count
    kept = rms_norm_kept(loop, 2 if arch.is_gated else 1) * n * h
    mask = has(arch.hidden_dropout)
    if arch.is_gated:
        # activation, the other factor, their product's mask and what enters the last product
        inside = activation_kept(arch.activation, loop) + lo + (e if loop.is_autocast else 0)
    else:
        inside = activation_kept(arch.activation, loop)
    kept += (inside + (mask + lo if mask else 0)) * n * i
    return kept + mask * n * h + 4 * n


def t5_encoder(arch: Architecture, loop: TrainingLoop, at: Tokens) -> Kept:
    freed = t5_feed_forward(arch, loop, at)
    kept = t5_attention(arch, loop, at, is_cross=False) + freed + 2 * clamps_kept(arch, loop, at)
    return Kept(kept, loop.weight_width * at.count * arch.hidden, _work(arch, loop, at, freed))


def t5_decoder(arch: Architecture, loop: TrainingLoop, at: Tokens, memory: Tokens) -> Kept:
    kept = t5_attention(arch, loop, at, is_cross=False) + t5_attention(arch, loop, memory, is_cross=True)
    freed = t5_feed_forward(arch, loop, at)
    kept += freed + 3 * clamps_kept(arch, loop, at)
    # A decoder that returns its cache keeps key and value of both attentions as they came, beside the saved copies.
    if returns_cache(loop):
        kept += 2 * loop.matmul_width * arch.inner * (at.count + memory.batch * memory.keys)
    return Kept(
        kept,
        loop.weight_width * at.count * arch.hidden,
        max(_work(arch, loop, at, freed), _work(arch, loop, memory, freed)),
    )


def _work(arch: Architecture, loop: TrainingLoop, at: Tokens, freed: int) -> int:
    """The room in which the backward pass of one layer works: gradients of its widest tensors.

    The output of a plain activation is let go of when the gradient of its input comes, so one of them is more than was
    kept; a gated or a written-out one has two. `freed`: what the feed-forward part kept, which is gone when the
    attention works.
    """
    is_plain = not arch.is_gated and arch.activation in ("gelu", "relu")
    wide = (1 if is_plain else 2) * loop.matmul_width * at.count * arch.intermediate
    narrow = 2 * loop.weight_width * at.count * arch.hidden
    return max(wide + narrow, attention_work(arch, loop, at) + narrow - freed)
