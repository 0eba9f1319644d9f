"""What is trained and how: everything that decides how much memory a step takes."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from builder.errors import UsageError

Precision = Literal["fp32", "fp16", "bf16", "fp16-pure", "bf16-pure"]
Optimizer = Literal[
    "adamw",
    "adamw-single",
    "adamw-fused",
    "adam",
    "sgd",
    "sgd-momentum",
    "adafactor",
    "adafactor-hf",
    "adam8bit",
    "none",
]
Attention = Literal["auto", "sdpa", "eager"]
Head = Literal["auto", "classifier", "mlm", "lm", "seq2seq", "pretraining", "base"]
ZeroGrad = Literal["none", "keep"]
Mask = Literal["none", "full", "padded"]
Frozen = Literal["nothing", "embeddings", "backbone"]
Outputs = Literal["dropped", "step", "loop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLoop:
    """`fp16` and `bf16` are autocast over fp32 weights, with loss scaling for fp16; `-pure` has 16-bit weights too.

    `zero_grad`: `none` drops the gradients before each step (the default of torch since 2.0), `keep` zeroes them in
    place or never. `mask`: none is passed, one of ones, or one with padding. `steps`: the first forward pass has no
    optimizer state yet. `outputs`: how long the loop's variable for the model's outputs (logits, keys and values)
    lives: it is dropped before the backward pass, it lives to the end of the step (as in a function), or until the next
    step's forward pass is done (as in a plain loop).
    """

    batch: int
    seq: int
    target_seq: int | None = None
    precision: Precision = "fp16"
    optimizer: Optimizer = "adamw"
    attention: Attention = "auto"
    head: Head = "auto"
    mask: Mask = "none"
    clip: bool = True
    steps: int = 2
    accumulation: int = 1
    zero_grad: ZeroGrad = "none"
    checkpointing: bool = False
    outputs: Outputs = "step"
    use_cache: bool = True
    frozen: Frozen = "nothing"
    lora_rank: int = 0
    forward_only: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "steps", "accumulation"):
            if getattr(self, name) < 1:
                raise _bad(name, getattr(self, name), "a number from 1 up")
        if self.lora_rank < 0:
            raise _bad("lora_rank", self.lora_rank, "0 (no LoRA) or a rank")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise _bad(name, getattr(self, name), ", ".join(choices))

    @property
    def is_autocast(self) -> bool:
        return self.precision in ("fp16", "bf16")

    @property
    def is_pure_half(self) -> bool:
        return self.precision.endswith("-pure")

    @property
    def weight_width(self) -> int:
        """Bytes of one element of a weight, and of whatever is not inside a matrix product."""
        return 2 if self.is_pure_half else 4

    @property
    def matmul_width(self) -> int:
        """Bytes of one element inside a matrix product."""
        return 4 if self.precision == "fp32" else 2

    @property
    def keeps_outputs(self) -> bool:
        """Outputs are there while the backward pass runs."""
        return self.outputs != "dropped"

    @property
    def repeats(self) -> bool:
        """A forward pass comes after another one."""
        return self.steps > 1 or self.accumulation > 1

    @property
    def keeps_gradients(self) -> bool:
        """Gradients of an earlier step, or of an earlier part of this one, are there while the forward pass runs."""
        return (self.zero_grad == "keep" and self.steps > 1) or self.accumulation > 1

    def with_(self, **changes: Any) -> TrainingLoop:
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(hint)
    for name, hint in get_type_hints(TrainingLoop).items()
    if get_args(hint) and type(None) not in get_args(hint)
}


def _bad(name: str, value: object, wanted: str) -> UsageError:
    return UsageError("vram-bad-loop", f"`{name.replace('_', '-')}` cannot be {value!r}", hint=f"say {wanted}")


Family = Literal["bert", "roberta", "distilbert", "gpt2", "t5", "vit", "llama"]


# The heads whose tensors the closed form knows; a trace takes whatever transformers has.
HEADS: dict[Family, tuple[Head, ...]] = {
    "bert": ("classifier", "mlm", "pretraining", "base"),
    "roberta": ("classifier", "mlm", "base"),
    "distilbert": ("classifier", "mlm", "base"),
    "gpt2": ("lm", "classifier", "base"),
    "t5": ("seq2seq",),
    "vit": ("classifier", "base"),
    "llama": ("lm", "classifier", "base"),
}


def nothing_trained(name: str, loop: TrainingLoop) -> UsageError:
    return UsageError(
        "vram-bad-loop",
        f"nothing of `{name}` is left to train",
        because=[f"with frozen {loop.frozen} the rest of the model has no weights of its own"],
        hint="say --frozen embeddings, or --lora 8",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A transformer as the closed form needs it. `inner` is heads x head size, which T5 and others set freely."""

    name: str
    family: Family
    hidden: int
    intermediate: int
    layers: int
    heads: int
    vocab: int
    positions: int = 0
    types: int = 0
    kv_heads: int = 0
    head_size: int = 0
    decoder_layers: int = 0
    labels: int = 2
    is_tied: bool = True
    is_gated: bool = False
    qkv_bias: bool = True
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "gelu"
    image: int = 0
    patch: int = 0
    channels: int = 3

    def __post_init__(self) -> None:
        if min(self.hidden, self.intermediate, self.layers, self.heads) < 1:
            raise UsageError("vram-bad-model", f"`{self.name}` needs at least one layer, one head, and widths above 0")
        if not self.head_size and self.hidden % self.heads:
            raise UsageError(
                "vram-bad-model",
                f"`{self.name}` cannot be built",
                because=[f"hidden size {self.hidden} does not divide into {self.heads} heads"],
                hint=f"{self._near_heads()} heads divide {self.hidden}",
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise UsageError(
                "vram-bad-model",
                f"`{self.name}` cannot be built",
                because=[f"{self.heads} heads do not share {self.kv_heads} key and value heads evenly"],
            )

    def _near_heads(self) -> int:
        return min((n for n in range(1, self.hidden + 1) if self.hidden % n == 0), key=lambda n: abs(n - self.heads))

    @property
    def inner(self) -> int:
        return self.heads * (self.head_size or self.hidden // self.heads)

    @property
    def kv_inner(self) -> int:
        return self.inner // self.heads * (self.kv_heads or self.heads)

    @property
    def is_decoder(self) -> bool:
        return self.family in ("gpt2", "llama")

    def head(self, asked: Head) -> Head:
        """What `auto` means for this family."""
        if asked != "auto":
            return asked
        return {"t5": "seq2seq", "gpt2": "lm", "llama": "lm"}.get(self.family, "classifier")  # type: ignore[return-value]

    def has_head(self, asked: Head) -> bool:
        return self.head(asked) in HEADS[self.family]

    def attention(self, asked: Attention) -> Attention:
        """T5 had no fused attention in transformers 4; the other families take it by default."""
        if asked != "auto":
            return asked
        return "eager" if self.family == "t5" else "sdpa"
