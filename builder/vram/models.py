"""A model from its name, its own config.json or explicit sizes. Nothing is downloaded, no weights are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.vram.loop import Architecture, Family, TrainingLoop

if TYPE_CHECKING:
    from builder.catalog import Catalog

TOPIC = "vram_models"

# model_type of a config.json -> the family whose layers the closed form knows.
FAMILIES: Mapping[str, Family] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "distilbert": "distilbert",
    "gpt2": "gpt2",
    "t5": "t5",
    "mt5": "t5",
    "vit": "vit",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
}

# The defaults of the configuration classes (transformers, src/transformers/models/*/configuration_*.py, 4.48).
_DEFAULTS: Mapping[Family, Mapping[str, Any]] = {
    "bert": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
    },
    "distilbert": {
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu",
    },
    "gpt2": {
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "vocab_size": 50257,
        "n_positions": 1024,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "activation_function": "gelu_new",
    },
    "t5": {
        "d_model": 512,
        "num_layers": 6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "d_kv": 64,
        "d_ff": 2048,
        "vocab_size": 32128,
        "dropout_rate": 0.1,
        "feed_forward_proj": "relu",
    },
    "vit": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu",
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
    },
    "llama": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "intermediate_size": 11008,
        "vocab_size": 32000,
        "head_dim": None,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "hidden_act": "silu",
    },
}
_DEFAULTS = {**_DEFAULTS, "roberta": {**_DEFAULTS["bert"], "vocab_size": 50265, "max_position_embeddings": 514}}

# What a person calls the sizes -> their key in a config of each family; `--layers 6` overrides a known model with them.
SIZES: Mapping[Family, Mapping[str, str]] = {
    "distilbert": {
        "hidden": "dim",
        "layers": "n_layers",
        "heads": "n_heads",
        "intermediate": "hidden_dim",
        "vocab": "vocab_size",
        "positions": "max_position_embeddings",
    },
    "gpt2": {
        "hidden": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "intermediate": "n_inner",
        "vocab": "vocab_size",
        "positions": "n_positions",
    },
    "t5": {
        "hidden": "d_model",
        "layers": "num_layers",
        "heads": "num_heads",
        "intermediate": "d_ff",
        "vocab": "vocab_size",
    },
}
_PLAIN_SIZES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
}


@dataclass(frozen=True, slots=True)
class Model:
    """`config` in the keys of its own config.json; `architecture` is None where the closed form knows no such one."""

    name: str
    config: Mapping[str, Any]
    architecture: Architecture | None
    source: str

    @property
    def model_type(self) -> str:
        return str(self.config["model_type"])


def find(name: str, catalog: Catalog, *, sizes: Mapping[str, int] | None = None) -> Model:
    """A known name, the path of a config.json (or its folder), or a family with `sizes`; UsageError otherwise."""
    sizes = {key: value for key, value in (sizes or {}).items() if value}
    path = Path(name)
    if path.suffix == ".json" or path.is_dir():
        return _made(path.stem if path.suffix == ".json" else path.name, _read(path), str(path), sizes)
    rows = catalog.raw(TOPIC)["models"]
    wanted = name.strip().lower()
    for row in rows:
        if wanted == row["name"].lower() or wanted in (alias.lower() for alias in row["aliases"]):
            source = f"{row['confidence']}: {row['source']}"
            return _made(row["name"], row["config"], source, sizes)
    if wanted in FAMILIES and sizes:
        return _made(name, {"model_type": wanted}, "the sizes that were given", sizes)
    raise _unknown(name, [row["name"] for row in rows])


def from_config(config: Mapping[str, Any], *, name: str = "model", source: str = "a config") -> Model:
    return _made(name, config, source, {})


def _unknown(name: str, known: list[str]) -> UsageError:
    import difflib  # noqa: PLC0415  (only a misspelled name gets here)

    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return UsageError(
        "vram-unknown-model",
        f"`{name}` is not a known model",
        because=[
            f"the {len(known)} known models begin with {', '.join(known[:4])}",
            f"`{name}` is no config.json and no folder with one",
        ],
        hint=(f"did you mean {' or '.join(f'`{one}`' for one in near)}; or " if near else "")
        + "give the path of its config.json, or a family with its sizes: `bert --hidden 512 --layers 4 --heads 8`",
    )


def _read(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError("vram-bad-config", f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError("vram-bad-config", f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise UsageError(
            "vram-bad-config",
            f"{file} does not describe a model",
            because=["it has no `model_type`, which says what its other keys mean"],
        )
    return config


def _made(name: str, config: Mapping[str, Any], source: str, sizes: Mapping[str, int]) -> Model:
    family = FAMILIES.get(str(config["model_type"]))
    own = {**config, **_sized(family, config, sizes)}
    return Model(name, own, None if family is None else _architecture(name, family, own), source)


def _sized(family: Family | None, config: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
    keys = {**_PLAIN_SIZES, **SIZES.get(family, {})} if family else _PLAIN_SIZES
    changed = {keys[size]: value for size, value in sizes.items()}
    if family == "t5" and "layers" in sizes:
        changed["num_decoder_layers"] = sizes["layers"]
    if "hidden" in sizes and "intermediate" not in sizes and config.get(keys["intermediate"]) is not None:
        # A model of another width keeps the proportion of its layers.
        changed[keys["intermediate"]] = 4 * sizes["hidden"]
    if family == "llama" and "heads" in sizes:
        changed.setdefault("num_key_value_heads", sizes["heads"])
    return changed


def _architecture(name: str, family: Family, config: Mapping[str, Any]) -> Architecture:
    own = {**_DEFAULTS[family], **config}
    try:
        return _READERS[family](name, own)
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError("vram-bad-config", f"the config of `{name}` has no usable sizes: {error}") from None


def _labels(own: Mapping[str, Any]) -> int:
    labels = own.get("num_labels") or len(own.get("id2label") or ()) or 2
    return int(labels)


def _bert(name: str, own: Mapping[str, Any]) -> Architecture:
    family: Family = "bert" if own["model_type"] == "bert" else "roberta"
    return Architecture(
        name=name,
        family=family,
        hidden=int(own["hidden_size"]),
        intermediate=int(own["intermediate_size"]),
        layers=int(own["num_hidden_layers"]),
        heads=int(own["num_attention_heads"]),
        vocab=int(own["vocab_size"]),
        positions=int(own["max_position_embeddings"]),
        types=int(own["type_vocab_size"]),
        labels=_labels(own),
        hidden_dropout=float(own["hidden_dropout_prob"]),
        attention_dropout=float(own["attention_probs_dropout_prob"]),
        activation=str(own["hidden_act"]),
    )


def _distilbert(name: str, own: Mapping[str, Any]) -> Architecture:
    return Architecture(
        name=name,
        family="distilbert",
        hidden=int(own["dim"]),
        intermediate=int(own["hidden_dim"]),
        layers=int(own["n_layers"]),
        heads=int(own["n_heads"]),
        vocab=int(own["vocab_size"]),
        positions=int(own["max_position_embeddings"]),
        labels=_labels(own),
        hidden_dropout=float(own["dropout"]),
        attention_dropout=float(own["attention_dropout"]),
        activation=str(own["activation"]),
    )


def _gpt2(name: str, own: Mapping[str, Any]) -> Architecture:
    return Architecture(
        name=name,
        family="gpt2",
        hidden=int(own["n_embd"]),
        intermediate=int(own["n_inner"] or 4 * own["n_embd"]),
        layers=int(own["n_layer"]),
        heads=int(own["n_head"]),
        vocab=int(own["vocab_size"]),
        positions=int(own["n_positions"]),
        labels=_labels(own),
        hidden_dropout=float(own["resid_pdrop"]),
        attention_dropout=float(own["attn_pdrop"]),
        activation=str(own["activation_function"]),
    )


def _t5(name: str, own: Mapping[str, Any]) -> Architecture:
    layers = int(own["num_layers"])
    is_gated = str(own["feed_forward_proj"]).startswith("gated-")
    return Architecture(
        name=name,
        family="t5",
        hidden=int(own["d_model"]),
        intermediate=int(own["d_ff"]),
        layers=layers,
        decoder_layers=int(own["num_decoder_layers"] or layers),
        heads=int(own["num_heads"]),
        head_size=int(own["d_kv"]),
        vocab=int(own["vocab_size"]),
        is_tied=bool(own.get("tie_word_embeddings", True)),
        is_gated=is_gated,
        qkv_bias=False,
        hidden_dropout=float(own["dropout_rate"]),
        attention_dropout=float(own["dropout_rate"]),
        # T5Config: gated-gelu means the written-out gelu.
        activation="gelu_new" if is_gated else str(own["feed_forward_proj"]),
    )


def _vit(name: str, own: Mapping[str, Any]) -> Architecture:
    return Architecture(
        name=name,
        family="vit",
        hidden=int(own["hidden_size"]),
        intermediate=int(own["intermediate_size"]),
        layers=int(own["num_hidden_layers"]),
        heads=int(own["num_attention_heads"]),
        vocab=0,
        labels=_labels(own),
        image=int(own["image_size"]),
        patch=int(own["patch_size"]),
        channels=int(own["num_channels"]),
        hidden_dropout=float(own["hidden_dropout_prob"]),
        attention_dropout=float(own["attention_probs_dropout_prob"]),
        activation=str(own["hidden_act"]),
    )


def _llama(name: str, own: Mapping[str, Any]) -> Architecture:
    return Architecture(
        name=name,
        family="llama",
        hidden=int(own["hidden_size"]),
        intermediate=int(own["intermediate_size"]),
        layers=int(own["num_hidden_layers"]),
        heads=int(own["num_attention_heads"]),
        kv_heads=int(own["num_key_value_heads"] or own["num_attention_heads"]),
        head_size=int(own["head_dim"] or 0),
        vocab=int(own["vocab_size"]),
        is_tied=bool(own["tie_word_embeddings"]),
        is_gated=True,
        qkv_bias=own["model_type"] == "qwen2" or bool(own["attention_bias"]),
        hidden_dropout=0.0,
        attention_dropout=float(own["attention_dropout"] or 0),
        activation=str(own["hidden_act"]),
    )


_READERS = {
    "bert": _bert,
    "roberta": _bert,
    "distilbert": _distilbert,
    "gpt2": _gpt2,
    "t5": _t5,
    "vit": _vit,
    "llama": _llama,
}


def check_length(model: Model, loop: TrainingLoop) -> None:
    """UsageError where the sequence is longer than the positions that the model has."""
    arch = model.architecture
    if arch is None or not arch.positions:
        return
    # RoBERTa counts positions from the padding index on, so two of them are never used.
    most = arch.positions - (2 if arch.family == "roberta" else 0)
    if loop.seq > most:
        raise UsageError(
            "vram-too-long",
            f"`{model.name}` cannot take {loop.seq} tokens",
            because=[f"it has {most} positions"],
            hint=f"say --seq {most}",
        )
