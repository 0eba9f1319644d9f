"""How many parameters a model has, by part; pure. The counts are exact (tests/stack compares them with the models)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from builder.vram.loop import Architecture, Head


@dataclass(frozen=True, slots=True)
class Parameters:
    """`in_products`: weights and biases of matrix products, of which autocast makes half copies. `buffers`: bytes."""

    embeddings: int
    layers: int
    head: int
    in_products: int
    largest: int
    buffers: int = 0

    @property
    def total(self) -> int:
        return self.embeddings + self.layers + self.head


def count(arch: Architecture, head: Head) -> Parameters:
    return _COUNTS[arch.family](arch, arch.head(head))


def _sum(arch: Architecture, embeddings: int, norms: int, products: int, head: int, head_products: int) -> Parameters:
    """`norms` and `products` of all layers together; the embedding table is the largest tensor of most models."""
    largest = max(arch.vocab * arch.hidden, arch.hidden * arch.intermediate)
    return Parameters(embeddings, norms + products, head, products + head_products, largest)


def _bert(arch: Architecture, head: Head) -> Parameters:
    h, i = arch.hidden, arch.intermediate
    embeddings = (arch.vocab + arch.positions + arch.types) * h + 2 * h
    products = arch.layers * (4 * (h * h + h) + 2 * h * i + i + h)
    norms = arch.layers * 4 * h
    pooler = h * h + h
    table = arch.vocab * h
    if head == "base":
        return _sum(arch, embeddings, norms, products, pooler, pooler)
    if head == "mlm":
        # The table is shared with the embeddings and still cast for its product.
        own = pooler + 2 * h + arch.vocab
        return _sum(arch, embeddings, norms, products, own, pooler + arch.vocab + table)
    if head == "pretraining":
        own = 2 * pooler + 2 * h + arch.vocab + 2 * (h + 1)
        return _sum(arch, embeddings, norms, products, own, 2 * pooler + arch.vocab + 2 * (h + 1) + table)
    own = pooler + arch.labels * (h + 1)
    return _sum(arch, embeddings, norms, products, own, own)


def _distilbert(arch: Architecture, head: Head) -> Parameters:
    h, i = arch.hidden, arch.intermediate
    embeddings = (arch.vocab + arch.positions) * h + 2 * h
    products = arch.layers * (4 * (h * h + h) + 2 * h * i + i + h)
    norms = arch.layers * 4 * h
    dense = h * h + h
    if head == "base":
        return _sum(arch, embeddings, norms, products, 0, 0)
    if head == "mlm":
        own = dense + 2 * h + arch.vocab
        return _sum(arch, embeddings, norms, products, own, dense + arch.vocab + arch.vocab * h)
    own = dense + arch.labels * (h + 1)
    return _sum(arch, embeddings, norms, products, own, own)


def _gpt2(arch: Architecture, head: Head) -> Parameters:
    h, i = arch.hidden, arch.intermediate
    embeddings = (arch.vocab + arch.positions) * h
    products = arch.layers * (4 * (h * h + h) + 2 * h * i + i + h)
    norms = arch.layers * 4 * h + 2 * h
    own = arch.labels * h if head == "classifier" else 0
    counted = _sum(arch, embeddings, norms, products, own, own + (arch.vocab * h if head == "lm" else 0))
    # Every layer has a causal mask of its own, one byte a pair of positions.
    return replace(counted, buffers=arch.layers * arch.positions**2)


def _llama(arch: Architecture, head: Head) -> Parameters:
    h, i, q, kv = arch.hidden, arch.intermediate, arch.inner, arch.kv_inner
    embeddings = arch.vocab * h
    bias = q + 2 * kv if arch.qkv_bias else 0
    products = arch.layers * (h * q + 2 * h * kv + q * h + bias + 3 * h * i)
    norms = arch.layers * 2 * h + h
    if head == "classifier":
        return _sum(arch, embeddings, norms, products, arch.labels * h, arch.labels * h)
    table = arch.vocab * h if head == "lm" else 0
    return _sum(arch, embeddings, norms, products, 0 if arch.is_tied else table, table)


def _t5(arch: Architecture, head: Head) -> Parameters:
    h, i, q = arch.hidden, arch.intermediate, arch.inner
    both = arch.layers + arch.decoder_layers
    # 32 buckets of relative distance a head, once for the encoder and once for the decoder (T5Config).
    buckets = 2 * 32 * arch.heads
    products = (both + arch.decoder_layers) * 4 * h * q + both * (3 if arch.is_gated else 2) * h * i
    norms = (2 * arch.layers + 3 * arch.decoder_layers + 2) * h
    table = arch.vocab * h
    own = 0 if arch.is_tied or head != "seq2seq" else table
    return _sum(arch, table, norms + buckets, products, own, table if head == "seq2seq" else 0)


def _vit(arch: Architecture, head: Head) -> Parameters:
    h, i = arch.hidden, arch.intermediate
    patches = (arch.image // arch.patch) ** 2
    convolution = arch.channels * arch.patch**2 * h + h
    embeddings = (patches + 2) * h + convolution
    products = arch.layers * (4 * (h * h + h) + 2 * h * i + i + h)
    norms = arch.layers * 4 * h + 2 * h
    own = h * h + h if head == "base" else arch.labels * (h + 1)
    counted = _sum(arch, embeddings, norms, products, own, own + convolution)
    return Parameters(counted.embeddings, counted.layers, own, counted.in_products, h * i)


_COUNTS = {
    "bert": _bert,
    "roberta": _bert,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "llama": _llama,
    "t5": _t5,
    "vit": _vit,
}
