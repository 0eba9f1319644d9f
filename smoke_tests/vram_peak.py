"""L3: the memory that an exactly described training loop takes on the card, against an estimate."""

import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
import _live_bytes  # noqa: E402
from _estimate import MIB, compare_peak, first_estimate, parameter_count  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, blame_stack  # noqa: E402

script = Script(
    "vram_peak",
    {
        "device": "auto",  # auto or cpu; cpu runs the loop without measuring, to see that it runs
        "layers": 12,
        "hidden": 768,
        "heads": 12,
        "intermediate": 3072,
        "vocab": 30522,
        "positions": 512,
        "batch": 8,
        "seq": 128,
        "precision": "fp16",  # fp16 or bf16 by autocast, or fp32
        "attention": "auto",  # auto (what the stack takes by itself), eager or sdpa
        "optimizer": "adamw",  # adamw, adamw-single, adamw-fused or sgd
        "zero_grad": "none",  # none: gradients are dropped before each step; zero: they are kept and zeroed
        "clip_norm": 1.0,  # 0: no clipping
        "padded_mask": False,
        "steps": 3,  # the first forward has no optimizer state yet, so one step measures too little
        "seed": 20,
        "estimate_bytes": 0,  # of the allocated peak; 0: a first closed form is used
        "estimate_reserved_bytes": 0,
        "estimate_terms": {},
        "estimate_of": {},  # what the estimate was made for; where the loop is another, the closed form is used
        "traced_live_bytes": 0,  # the host's own trace of the step of `live_bytes`; 0: it made none
        "why_not_traced": "",  # why it made none
        "tolerance": 0.10,
        "reserved_tolerance": 0.15,
    },
)
LEAST_STEPS = 2
LIVE_BYTES_MODEL = {
    "layers": 2,
    "hidden": 128,
    "heads": 2,
    "intermediate": 512,
    "vocab": 1000,
    "positions": 64,
}
# Releases of torch and transformers differ by a few small tensors.
LIVE_BYTES_TOLERANCE = 0.005
# What the driver hands out beside the pool while the loop runs: kernels loaded late, workspaces outside the pool.
DRIVER_SLACK_BYTES = 400 * 2**20
DRIVER_SLACK = 0.05


@script.check("loop", "L3")
def loop(ctx):
    """The loop runs to its end on the card; what it is, is in the details whether or not it can run."""
    torch = ctx.stack("torch")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    settings = model_config(ctx)
    ctx.made["loop"] = described = describe(ctx, torch, settings)
    ctx.made["estimate"] = estimate = estimate_for(ctx.params, described)
    if described["steps"] < LEAST_STEPS:
        raise NotChecked(
            "{} step holds no optimizer state in its forward pass".format(described["steps"]), loop=described
        )
    on_gpu = torch.cuda.is_available() and ctx.params["device"] != "cpu"
    if on_gpu:
        ctx.environment.update(device="cuda", gpu=_bert.gpu_in_use(torch))
    elif ctx.params["device"] != "cpu":
        raise NotChecked("torch can use no GPU here", loop=described, estimate=estimate)
    try:
        measured = run_loop(ctx, torch, settings, described)
    except Exception as error:
        raise blame_stack(error, "step-failed", "the loop does not run", loop=described) from None
    if not on_gpu:
        raise NotChecked("the loop ran on the CPU, where nothing is measured", loop=described, estimate=estimate)
    ctx.made["measured"] = measured
    return Passed(
        "{steps} steps of batch {batch}, sequence {seq}, {precision}, {optimizer}".format(**described),
        measured=measured,
        loop=described,
        estimate=estimate,
    )


@script.check("live_bytes", "L2")
def live_bytes(ctx):
    """A trace without data counts the same live bytes as a real step on the CPU, to the byte."""
    torch = ctx.stack("torch")
    if not _live_bytes.can_trace(torch):
        raise NotApplicable(
            "torch {} cannot trace a step without data, which needs {}".format(
                torch.__version__, ".".join(map(str, _live_bytes.OLDEST_TORCH))
            )
        )
    params = ctx.params
    settings = _bert.config(ctx, attention="eager", **LIVE_BYTES_MODEL)

    def build():
        return _bert.classifier(ctx, settings)

    _bert.seed_everything(torch, params["seed"])
    step = {"batch": 2, "seq": 32}
    try:
        run = _live_bytes.peak_live_bytes(torch, build, "cpu", **step)
        traced = _live_bytes.peak_live_bytes(torch, build, "meta", **step)
    except Exception as error:
        raise blame_stack(error, "trace-failed", "a step of the model does not trace") from None
    sizes = "{} bytes alive in a run, {} in a trace".format(run, traced)
    values = {"measured": run, "expected": traced, "tolerance": 0, "model": dict(LIVE_BYTES_MODEL, **step)}
    if run != traced:
        raise Failed("trace-differs", sizes + ": estimates of this image rest on a wrong count", **values)
    ctx.made["live_bytes"] = run
    return Passed(sizes, **values)


@script.check("host_trace", "L2", needs=["live_bytes"])
def host_trace(ctx):
    """The step of `live_bytes` has as many bytes alive as in the trace that torchproof makes of it itself."""
    traced = ctx.params["traced_live_bytes"]
    if not traced:
        # Estimates are then made by the closed form, so nothing rests on such a trace.
        reason = ctx.params["why_not_traced"] or "none was sent"
        raise NotApplicable("the host has no trace to compare with: {}".format(reason))
    run = ctx.made["live_bytes"]
    sizes = "{} bytes alive in this image, {} in the host's trace".format(run, traced)
    values = {"measured": run, "expected": traced, "tolerance": LIVE_BYTES_TOLERANCE}
    if abs(run / float(traced) - 1) > LIVE_BYTES_TOLERANCE:
        raise Failed("host-trace-differs", sizes + ": its estimates do not hold for this image", **values)
    return Passed(sizes, **values)


@script.check("allocated", "L3", needs=["loop"])
def allocated(ctx):
    """Peak allocated is within 10 % of the estimate (tolerance)."""
    estimate = ctx.made["estimate"]
    return compare_peak(
        "peak allocated",
        "vram-estimate-off",
        ctx.made["measured"]["peak_allocated_bytes"],
        estimate["allocated"],
        ctx.params["tolerance"],
        estimate["terms"],
    )


@script.check("reserved", "L3", needs=["loop"])
def reserved(ctx):
    """Peak reserved is within 15 % of the estimate (reserved_tolerance)."""
    estimate = ctx.made["estimate"]
    return compare_peak(
        "peak reserved",
        "vram-reserved-off",
        ctx.made["measured"]["peak_reserved_bytes"],
        estimate["reserved"],
        ctx.params["reserved_tolerance"],
        estimate["terms"],
    )


@script.check("driver_view", "L3", needs=["loop"])
def driver_view(ctx):
    """The driver sees the pool and little else: a second process on the card shows here."""
    measured = ctx.made["measured"]
    grown = measured["free_before_bytes"] - measured["free_after_bytes"]
    pool = measured["reserved_after_bytes"] - measured["reserved_before_bytes"]
    slack = DRIVER_SLACK * pool + DRIVER_SLACK_BYTES
    sizes = "the driver gave out {:.0f} MiB while the pool grew by {:.0f} MiB".format(grown / MIB, pool / MIB)
    values = {"measured": grown, "expected": pool, "tolerance": slack}
    if abs(grown - pool) > slack:
        raise Failed("driver-view-off", sizes + "; another process may use the card", blame="host", **values)
    return Passed(sizes, **values)


def model_config(ctx):
    params = ctx.params
    return _bert.config(
        ctx,
        attention=None if params["attention"] == "auto" else params["attention"],
        **{name: params[name] for name in ("vocab", "hidden", "layers", "heads", "intermediate", "positions")},
    )


def describe(ctx, torch, settings):
    """Everything that an estimator has to know of the loop."""
    params = ctx.params
    names = (
        "layers",
        "hidden",
        "heads",
        "intermediate",
        "vocab",
        "positions",
        "batch",
        "seq",
        "precision",
        "optimizer",
        "zero_grad",
        "clip_norm",
        "padded_mask",
        "steps",
        "seed",
    )
    described = {name: params[name] for name in names}
    described.update(
        model="BertForSequenceClassification",
        attention=attention_in_use(ctx, settings),
        dropout=settings.hidden_dropout_prob,
        parameters=parameter_count(described),
        torch=str(torch.__version__),
        transformers=str(ctx.stack("transformers").__version__),
    )
    if params["optimizer"] == "adamw" and not updates_in_lists(torch):
        described["optimizer"] = "adamw-single"
    return described


def attention_in_use(ctx, settings):
    """What the model will really take; read from a model of the same kind that is too small to matter."""
    tiny = type(settings)(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    if ctx.params["attention"] != "auto":
        tiny = type(settings)(attn_implementation=ctx.params["attention"], **tiny_dims(tiny))
    return getattr(_bert.classifier(ctx, tiny).config, "_attn_implementation", None) or "eager"


def tiny_dims(settings):
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return {name: getattr(settings, name) for name in names}


def updates_in_lists(torch):
    """Since torch 2.0 AdamW updates all tensors on a GPU at once, which takes one more list as large as the weights."""
    return int(torch.__version__.split(".")[0]) >= 2


def estimate_for(params, described):
    """What the request says, else the closed form; reserved follows allocated where only that is given."""
    own = first_estimate(described)
    if not params["estimate_bytes"]:
        return dict(own, source="closed form of the script")
    differs = sorted(name for name, value in params["estimate_of"].items() if described.get(name) != value)
    if differs:
        name = differs[0]
        source = "closed form of the script, since the host's estimate is for {} {!r} and the loop has {!r}".format(
            name, params["estimate_of"][name], described.get(name)
        )
        return dict(own, source=source)
    scale = own["reserved"] / float(own["allocated"])
    return {
        "allocated": params["estimate_bytes"],
        "reserved": params["estimate_reserved_bytes"] or int(params["estimate_bytes"] * scale),
        "terms": params["estimate_terms"],
        "source": "the request",
    }


def run_loop(ctx, torch, settings, described):
    """The measured bytes; None on a CPU, where the loop only runs."""
    device = ctx.environment["device"]
    half = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}[described["precision"]]
    _bert.seed_everything(torch, described["seed"])
    before = None
    if device == "cuda":
        torch.ones(1, device=device)  # makes the context, which is no part of the loop
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    model = _bert.classifier(ctx, settings).to(device).train()
    optimizer = new_optimizer(torch, model, described["optimizer"])
    scaler = _bert.new_scaler(torch, device) if half is torch.float16 and device == "cuda" else None
    for _ in range(described["steps"]):
        one_step(torch, model, optimizer, scaler, half, device, described)
    if before is None:
        return None
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "reserved_before_bytes": before[1],
        "reserved_after_bytes": torch.cuda.memory_reserved(),
        "free_before_bytes": before[0],
        "free_after_bytes": free,
        "total_bytes": total,
    }


def new_optimizer(torch, model, kind):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-5)
    options = {"adamw": {}, "adamw-single": {"foreach": False}, "adamw-fused": {"fused": True}}[kind]
    if kind == "adamw-single" and not updates_in_lists(torch):
        options = {}  # the only way there is; the oldest releases do not know the option
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **options)


def one_step(torch, model, optimizer, scaler, half, device, described):
    batch, seq = described["batch"], described["seq"]
    optimizer.zero_grad(set_to_none=described["zero_grad"] == "none")
    mask = torch.ones(batch, seq, dtype=torch.long, device=device)
    if described["padded_mask"]:
        mask[:, seq - seq // 8 - 1 :] = 0
    with _bert.autocast(torch, device, half):
        loss = model(
            input_ids=torch.randint(5, described["vocab"], (batch, seq), device=device),
            attention_mask=mask,
            labels=torch.zeros(batch, dtype=torch.long, device=device),
        ).loss
    if scaler is None:
        loss.backward()
    else:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    if described["clip_norm"]:
        torch.nn.utils.clip_grad_norm_(model.parameters(), described["clip_norm"])
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    script.main()
