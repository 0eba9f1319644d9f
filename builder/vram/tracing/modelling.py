"""A model of random nothing on the meta device, and one batch for it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from builder.errors import UsageError
from builder.vram.loop import Head, TrainingLoop
from builder.vram.models import Model
from builder.vram.tracing import contexts

AUTO = {
    "classifier": "AutoModelForSequenceClassification",
    "mlm": "AutoModelForMaskedLM",
    "lm": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "pretraining": "AutoModelForPreTraining",
    "base": "AutoModel",
}
IMAGES = frozenset({"vit", "deit", "beit", "swin", "convnext", "resnet"})
AUDIO = frozenset({"whisper"})
AUDIO_FRAMES = 3000


def default_head(model: Model) -> Head:
    if model.architecture is not None:
        return model.architecture.head("auto")
    kind = model.model_type
    if kind in ("whisper", *IMAGES):
        return "classifier"
    if kind in ("bart", "mbart", "pegasus", "t5", "mt5", "longt5"):
        return "seq2seq"
    is_decoder = kind in ("opt", "gpt_neo", "gpt_neox", "gptj", "bloom", "falcon", "phi", "gemma", "gemma2", "qwen3")
    return "lm" if is_decoder else "classifier"


def build(model: Model, loop: TrainingLoop, device: str) -> torch.nn.Module:
    """The real class of transformers, in training mode, weights not initialised."""
    head = default_head(model) if loop.head == "auto" else loop.head
    own = {key: value for key, value in model.config.items() if key not in ("model_type", "architectures")}
    if model.model_type == "t5":
        own.setdefault("decoder_start_token_id", 0)
    try:
        config = transformers.AutoConfig.for_model(model.model_type, **own)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "vram-unknown-family",
            f"transformers {transformers.__version__} cannot build `{model.name}`: {_one_line(error)}",
        ) from None
    if head == "classifier" and getattr(config, "pad_token_id", None) is None:
        # A decoder reads its answer off the last token that is no padding, and refuses batches without one.
        config.pad_token_id = 0
    if not loop.use_cache and hasattr(config, "use_cache"):
        config.use_cache = False
    name = AUTO[head]
    if head == "classifier" and model.model_type in IMAGES:
        name = "AutoModelForImageClassification"
    if head == "classifier" and model.model_type in AUDIO:
        name = "AutoModelForAudioClassification"
    factory = getattr(transformers, name)
    attention = attention_in_use(model, loop)
    try:
        with torch.device(device):
            built = factory.from_config(config, **({} if attention is None else {"attn_implementation": attention}))
    except ValueError as error:
        if attention is not None and loop.attention == "auto" and "attention" in str(error):
            return build(model, loop.with_(attention="eager"), device)
        raise UsageError(
            "vram-no-such-head",
            f"transformers {transformers.__version__} has no `{head}` model of `{model.model_type}`",
            because=[_one_line(error)],
        ) from None
    if loop.checkpointing:
        # Reentrant is what transformers takes by default; it needs an input with a gradient, which frozen parts lack.
        is_plain = loop.frozen == "nothing" and not loop.lora_rank
        built.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": is_plain})
    return prepared(built, loop, head)


def attention_in_use(model: Model, loop: TrainingLoop) -> str | None:
    if model.architecture is not None:
        return model.architecture.attention(loop.attention)
    return "sdpa" if loop.attention == "auto" else loop.attention


def prepared(built: torch.nn.Module, loop: TrainingLoop, head: Head) -> torch.nn.Module:
    """Pure 16-bit weights, frozen parts and adapters, as a person would set them up."""
    if loop.is_pure_half:
        built = built.to(torch.bfloat16 if loop.precision.startswith("bf16") else torch.float16)
    if loop.lora_rank:
        add_adapters(built, loop.lora_rank)
        head_names = ("classifier", "pre_classifier", "score", "classification_head") if head == "classifier" else ()
        _freeze(built, lambda name: ".adapter_" in name or name.startswith(head_names or "\0"))
    elif loop.frozen == "backbone":
        base = getattr(built, "base_model_prefix", "")
        # T5 has no module of that name: its parts stand beside the head.
        is_backbone = f"{base}." if hasattr(built, base) else ("shared.", "encoder.", "decoder.")
        _freeze(built, lambda name: not name.startswith(is_backbone))
    elif loop.frozen == "embeddings":
        _freeze(
            built, lambda name: not any(part in name for part in ("embeddings", "embed_tokens", "wte", "wpe", "shared"))
        )
    return built.train()


def _freeze(built: torch.nn.Module, is_trained: Any) -> None:
    for name, parameter in built.named_parameters():
        parameter.requires_grad_(is_trained(name))


class Adapter(torch.nn.Module):
    """LoRA as peft does it: dropout-free, in fp32 unless the model is 16-bit, scale 1."""

    def __init__(self, base: torch.nn.Module, width_in: int, width_out: int, rank: int) -> None:
        super().__init__()
        self.base = base
        like = next(base.parameters())
        self.adapter_a = torch.nn.Linear(width_in, rank, bias=False, device=like.device, dtype=like.dtype)
        self.adapter_b = torch.nn.Linear(rank, width_out, bias=False, device=like.device, dtype=like.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.base(x)
        return result + self.adapter_b(self.adapter_a(x)) * 2.0


# The names that peft's defaults target (peft, utils/constants.py, LoRA target modules).
LORA_TARGETS = frozenset({"query", "value", "q_lin", "v_lin", "q_proj", "v_proj", "q", "v", "c_attn"})


def add_adapters(built: torch.nn.Module, rank: int) -> None:
    for parent in list(built.modules()):
        if isinstance(parent, Adapter):
            continue
        for name, child in list(parent.named_children()):
            if name in LORA_TARGETS:
                weight = child.weight
                wide, narrow = weight.shape
                is_linear = isinstance(child, torch.nn.Linear)
                width_in, width_out = (narrow, wide) if is_linear else (wide, narrow)
                setattr(parent, name, Adapter(child, width_in, width_out, rank))
    if hasattr(built, "enable_input_require_grads") and getattr(built, "is_gradient_checkpointing", False):
        built.enable_input_require_grads()


def batch(model: Model, built: torch.nn.Module, loop: TrainingLoop, device: str) -> dict[str, Any]:
    """The tensors of one step, made inside the tracker so that they count."""
    head = default_head(model) if loop.head == "auto" else loop.head
    wanted = inspect.signature(built.forward).parameters
    made: dict[str, Any] = {}
    labels_shape: tuple[int, ...] = (loop.batch, loop.seq)
    if "pixel_values" in wanted and "input_ids" not in wanted:
        size, channels = int(model.config.get("image_size", 224)), int(model.config.get("num_channels", 3))
        made["pixel_values"] = torch.zeros(loop.batch, channels, size, size, device=device)
    elif "input_features" in wanted:
        bins = int(model.config.get("num_mel_bins", 80))
        made["input_features"] = torch.zeros(loop.batch, bins, AUDIO_FRAMES, device=device)
    else:
        made["input_ids"] = torch.zeros(loop.batch, loop.seq, dtype=torch.long, device=device)
        if loop.mask != "none":
            made["attention_mask"] = torch.ones(loop.batch, loop.seq, dtype=torch.long, device=device)
    if loop.is_pure_half and "input_ids" not in made:
        made = {key: value.to(next(built.parameters()).dtype) for key, value in made.items()}
    if head == "classifier":
        labels_shape = (loop.batch,)
    elif head == "seq2seq":
        labels_shape = (loop.batch, loop.target_seq or loop.seq)
    if head == "pretraining" and "next_sentence_label" in wanted:
        made["next_sentence_label"] = torch.zeros(loop.batch, dtype=torch.long, device=device)
    if "labels" in wanted:
        made["labels"] = torch.zeros(*labels_shape, dtype=torch.long, device=device)
    if head == "seq2seq" and returns_no_cache_with_labels() and loop.use_cache and not loop.checkpointing:
        made["decoder_input_ids"] = torch.zeros(*labels_shape, dtype=torch.long, device=device)
    return made


def returns_no_cache_with_labels() -> bool:
    """From transformers 5 on, a model that is given labels returns no keys and values; release 4 does."""
    return int(transformers.__version__.split(".")[0]) >= 5


def options(built: torch.nn.Module, loop: TrainingLoop) -> dict[str, Any]:
    """Said outright, since releases of transformers differ in what they take by themselves."""
    if "use_cache" not in inspect.signature(built.forward).parameters:
        return {}
    return {"use_cache": loop.use_cache and not loop.checkpointing}


def outputs_and_loss(built: torch.nn.Module, batch: dict[str, Any], loop: TrainingLoop) -> tuple[Any, torch.Tensor]:
    """As the loop has them. Where release 5 acts as release 4, the loss is worked out here, as the model does it."""
    if "decoder_input_ids" not in batch:
        outputs = built(**batch, **options(built, loop))
        return outputs, loss_of(outputs)
    given = {key: value for key, value in batch.items() if key != "labels"}
    with contexts.cache_as_it_came():
        outputs = built(**given, **options(built, loop))
    logits = outputs.logits
    return outputs, torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), batch["labels"].view(-1))


def loss_of(outputs: Any) -> torch.Tensor:
    loss = getattr(outputs, "loss", None)
    if loss is not None:
        return loss
    first: torch.Tensor = outputs[0]
    return first.float().mean()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


Config = Mapping[str, Any]
