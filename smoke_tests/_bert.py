"""The BERT that the smoke scripts train and export: random weights from a config, run in half precision by autocast."""

from _harness import Failed


def config(ctx, **dims):
    """A BertConfig. `attention` is kept out of the call where it is None, so that the stack's own default applies."""
    transformers = ctx.stack("transformers", "BertConfig")
    values = {
        "vocab_size": dims["vocab"],
        "hidden_size": dims["hidden"],
        "num_hidden_layers": dims["layers"],
        "num_attention_heads": dims["heads"],
        "intermediate_size": dims["intermediate"],
        "max_position_embeddings": dims["positions"],
        "num_labels": 2,
    }
    if dims.get("spread") is not None:
        values["initializer_range"] = dims["spread"]
    if dims.get("attention") is not None:
        values["attn_implementation"] = dims["attention"]
    return transformers.BertConfig(**values)


def classifier(ctx, bert_config):
    """BertForSequenceClassification with the attention implementation that the config asks for."""
    transformers = ctx.stack("transformers", "BertForSequenceClassification")
    asked = getattr(bert_config, "_attn_implementation", None)
    if asked is not None and hasattr(transformers.BertForSequenceClassification, "_from_config"):
        # the constructor of some 4.4x releases falls back to eager attention; this way the config is followed
        return transformers.BertForSequenceClassification._from_config(bert_config)  # noqa: SLF001
    return transformers.BertForSequenceClassification(bert_config)


def gpu_in_use(torch):
    """The card that the scripts run on, as the result's `environment.gpu` names it."""
    major, minor = torch.cuda.get_device_capability(0)
    return {"name": torch.cuda.get_device_name(0), "compute_capability": "{}.{}".format(major, minor)}


def seed_everything(torch, seed):
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def autocast(torch, device, half):
    if hasattr(torch, "autocast"):
        return torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None)
    return torch.cuda.amp.autocast(enabled=half is not None)


def new_scaler(torch, device):
    if hasattr(getattr(torch, "amp", None), "GradScaler"):
        return torch.amp.GradScaler(device)
    if device == "cpu":
        raise Failed("step-failed", "torch {} scales no loss on a CPU".format(torch.__version__))
    return torch.cuda.amp.GradScaler()
