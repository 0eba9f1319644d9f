"""L2 on a CPU, L3 on a GPU: a BERT trains with half precision, loss scaling, clipping and warm-up, as people do."""

import math
import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
import _train_more  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, blame_stack  # noqa: E402
from _train_loop import Loop, total_norm  # noqa: E402

script = Script(
    "train_step",
    {
        "device": "auto",  # auto, cpu or cuda; auto takes the GPU when torch can use one
        "precision": "auto",  # auto, fp16, bf16 or fp32; auto: fp16 on a GPU, bf16 on a CPU
        "threads": 1,  # on a CPU; 0 leaves it to torch. More gain nothing here, and on a busy machine they wait
        "steps": 40,
        "warmup_steps": 5,
        "batch": 16,
        "seq": 32,
        "layers": 2,
        "hidden": 128,
        "heads": 2,
        "vocab": 512,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "clip_norm": 1.0,
        "loss_factor": 0.5,  # the mean of the last four losses is at most this part of the mean of the first four
        "seed": 20,
    },
)
# Softmax does not change when one number is added to all keys' scores: the gradient of this tensor is zero in theory
# and rounding noise in practice.
NO_GRADIENT = "attention.self.key.bias"
# AdamW moves an entry with a steady gradient by about the learning rate; decay alone moves it by weight_decay times
# that times its size, below 0.001 here. A tensor whose largest move is below this part of the summed rates was not
# trained.
LEAST_MOVE = 0.05
# fp16 starts at a scale that may be too high on purpose; each skipped step halves it.
MOST_SKIPPED = 0.25


def run_level(ctx):
    return "L3" if ctx.environment["device"] == "cuda" else "L2"


@script.check("run", run_level)
def run(ctx):
    """The whole loop runs to its end; what it recorded is judged by the checks below."""
    torch = ctx.stack("torch")
    ctx.environment.update(torch=str(torch.__version__), device=choose_device(ctx, torch))
    if ctx.environment["device"] == "cuda":
        ctx.environment["gpu"] = _bert.gpu_in_use(torch)
    elif ctx.params["threads"]:
        torch.set_num_threads(ctx.params["threads"])
    _bert.seed_everything(torch, ctx.params["seed"])
    try:
        loop = Loop(ctx, torch)
    except Exception as error:
        raise blame_stack(error, "model-failed", "the model, its optimizer or its data cannot be made") from None
    try:
        loop.train()
    except Exception as error:
        step = "step {} of {} does not run".format(len(loop.losses) + 1, ctx.params["steps"])
        raise blame_stack(error, "step-failed", step) from None
    ctx.made["loop"] = loop
    return Passed(
        "{} steps ran on {} in {}".format(ctx.params["steps"], ctx.environment["device"], loop.precision),
        measured=len(loop.losses),
        expected=ctx.params["steps"],
        parameters=sum(tensor.numel() for tensor in loop.model.parameters()),
        precision=loop.precision,
        attention=getattr(loop.model.config, "_attn_implementation", "eager"),
        threads=torch.get_num_threads(),
    )


@script.check("loss_finite", run_level, needs=["run"])
def loss_finite(ctx):
    """The loss is finite at every step."""
    losses = ctx.made["loop"].losses
    bad = [step for step, loss in enumerate(losses, 1) if not math.isfinite(loss)]
    if bad:
        raise Failed(
            "loss-not-finite",
            "the loss is {} at step {}; {} of {} steps are not finite".format(
                losses[bad[0] - 1], bad[0], len(bad), len(losses)
            ),
            measured=losses[bad[0] - 1],
            expected="finite",
            steps=bad,
        )
    return Passed("the loss is finite at every step", measured=len(losses))


@script.check("loss_falls", run_level, needs=["loss_finite"])
def loss_falls(ctx):
    """The mean of the last four losses is at most half of the first four's (loss_factor)."""
    losses = ctx.made["loop"].losses
    first, last = mean(losses[:4]), mean(losses[-4:])
    bound = ctx.params["loss_factor"] * first
    values = {"measured": round(last, 6), "expected": "<= {:.4g}".format(bound), "losses": rounded(losses)}
    if not last <= bound:
        raise Failed(
            "loss-not-falling",
            "loss went from {:.4g} to {:.4g} in {} steps, it must fall to {:.4g}".format(
                first, last, len(losses), bound
            ),
            **values,
        )
    return Passed("loss fell from {:.4g} to {:.4g} in {} steps".format(first, last, len(losses)), **values)


@script.check("gradients_reach_all", run_level, needs=["run"])
def gradients_reach_all(ctx):
    """Every tensor gets a gradient that is not zero."""
    loop = ctx.made["loop"]
    without = sorted(name for name in loop.names if not loop.gradient_seen[name] and not name.endswith(NO_GRADIENT))
    if without:
        raise Failed(
            "gradient-missing",
            "{} of {} tensors never get a gradient: {}".format(len(without), len(loop.names), shorten(without)),
            measured=len(loop.names) - len(without),
            expected=len(loop.names),
            without=without,
        )
    return Passed("every tensor gets a gradient", measured=len(loop.names))


@script.check("gradients_finite", run_level, needs=["run"])
def gradients_finite(ctx):
    """After unscaling. With loss scaling a step may be skipped for it, that is how the scale is found."""
    loop = ctx.made["loop"]
    bad = [step for step, norm in enumerate(loop.norms, 1) if not math.isfinite(norm)]
    allowed = int(MOST_SKIPPED * len(loop.norms)) if loop.scaler is not None else 0
    values = {"measured": len(bad), "expected": "<= {}".format(allowed), "norms": rounded(loop.norms), "steps": bad}
    if len(bad) > allowed:
        raise Failed(
            "gradients-not-finite",
            "the gradients are not finite at {} of {} steps, first at step {}".format(
                len(bad), len(loop.norms), bad[0]
            ),
            **values,
        )
    return Passed(
        "the gradients are finite at {} of {} steps".format(len(loop.norms) - len(bad), len(loop.norms)), **values
    )


@script.check("weights_finite", run_level, needs=["run"])
def weights_finite(ctx):
    """Every weight is finite at the end."""
    loop = ctx.made["loop"]
    bad = sorted(
        name for name, tensor in loop.model.named_parameters() if not bool(loop.torch.isfinite(tensor.detach()).all())
    )
    if bad:
        raise Failed(
            "weights-not-finite",
            "{} of {} tensors hold numbers that are not finite: {}".format(len(bad), len(loop.names), shorten(bad)),
            measured=len(bad),
            expected=0,
            tensors=bad,
        )
    return Passed("every weight is finite", measured=len(loop.names))


@script.check("weights_change", run_level, needs=["weights_finite"])
def weights_change(ctx):
    """Every tensor moves, by more than weight decay alone would move it: one frozen layer is found."""
    loop = ctx.made["loop"]
    least = LEAST_MOVE * sum(loop.rates)
    moves = {name: move for name, move in loop.moves.items() if not name.endswith(NO_GRADIENT)}
    still = sorted(name for name, move in moves.items() if not move >= least)
    values = {
        "measured": min(moves.values()),
        "expected": ">= {:.3g}".format(least),
        "moves": {name: float("{:.3g}".format(move)) for name, move in moves.items()},
        "left_out": sorted(set(loop.names) - set(moves)),
    }
    if still:
        raise Failed(
            "weights-unchanged",
            "{} of {} tensors did not change: {}".format(len(still), len(moves), shorten(still)),
            unchanged=still,
            **values,
        )
    return Passed("all {} tensors changed".format(len(moves)), **values)


@script.check("optimizer_steps", run_level, needs=["run"])
def optimizer_steps(ctx):
    """AdamW counts the updates of each tensor; steps that the scaler skipped are missing there."""
    loop = ctx.made["loop"]
    counts = {
        name: int(loop.optimizer.state.get(tensor, {}).get("step", 0)) for name, tensor in loop.model.named_parameters()
    }
    least = math.ceil((1 - MOST_SKIPPED) * len(loop.losses)) if loop.scaler is not None else len(loop.losses)
    taken = min(counts.values())
    values = {"measured": taken, "expected": ">= {}".format(least), "scales": loop.scales}
    if taken < least:
        behind = sorted(name for name, number in counts.items() if number < least)
        raise Failed(
            "steps-skipped",
            "{} of {} optimizer steps were taken for {}".format(taken, len(loop.losses), shorten(behind)),
            **values,
        )
    return Passed("{} of {} optimizer steps were taken".format(taken, len(loop.losses)), **values)


@script.check("scale_kept", run_level, needs=["run"])
def scale_kept(ctx):
    """The loss scale ends at 1 or above."""
    loop = ctx.made["loop"]
    if loop.scaler is None:
        raise NotApplicable("{} needs no loss scaling".format(loop.precision))
    last = loop.scales[-1]
    values = {"measured": last, "expected": ">= 1", "scales": loop.scales}
    if not (math.isfinite(last) and last >= 1):
        raise Failed("scale-collapsed", "the loss scale went from {:g} to {:g}".format(loop.scales[0], last), **values)
    return Passed("the loss scale ends at {:g}".format(last), **values)


@script.check("half_precision_used", run_level, needs=["run"])
def half_precision_used(ctx):
    """What the linear layers really gave back under autocast, seen by forward hooks."""
    loop = ctx.made["loop"]
    if loop.half is None:
        raise NotChecked("precision {} was used: {}".format(loop.precision, loop.why_not_half))
    wrong = {name: kind for name, kind in loop.linear_outputs.items() if kind != str(loop.half)}
    values = {"measured": sorted(set(loop.linear_outputs.values())), "expected": str(loop.half)}
    if wrong or not loop.linear_outputs:
        raise Failed(
            "autocast-not-half",
            "{} of {} linear layers gave no {}: {}".format(
                len(wrong), len(loop.linear_outputs), loop.half, shorten(sorted(wrong))
            ),
            layers=wrong,
            **values,
        )
    return Passed("all {} linear layers gave {}".format(len(loop.linear_outputs), loop.half), **values)


@script.check("clip_applied", run_level, needs=["run", "gradients_reach_all"])
def clip_applied(ctx):
    """On gradients made too large on purpose: the norm comes down to the limit and the direction stays."""
    loop = ctx.made["loop"]
    torch, limit = loop.torch, ctx.params["clip_norm"]
    loop.optimizer.zero_grad()
    loss, _ = loop.forward(0)
    (loss * 1000).backward()
    gradients = [tensor.grad for tensor in loop.model.parameters()]
    before = [gradient.detach().clone() for gradient in gradients]
    norm_before = total_norm(before)
    if not math.isfinite(norm_before) or norm_before <= limit:
        raise NotChecked("the gradient norm is {:.3g}: there is nothing to clip".format(norm_before))
    torch.nn.utils.clip_grad_norm_(loop.model.parameters(), limit)
    norm_after = total_norm(gradients)
    factor = limit / norm_before
    off = max(float((new - old * factor).abs().max()) for new, old in zip(gradients, before))
    seen = max(loop.clipped_norms)
    values = {"measured": norm_after, "expected": limit, "tolerance": 0.001, "norm_before": norm_before}
    if not (abs(norm_after - limit) <= 0.001 * limit and off <= 0.001 * limit and seen <= 1.001 * limit):
        raise Failed(
            "clip-not-applied",
            "a gradient norm of {:.4g} is {:.4g} after clipping to {:g}".format(norm_before, norm_after, limit),
            largest_in_training=seen,
            **values,
        )
    return Passed("a gradient norm of {:.4g} is clipped to {:.4g}".format(norm_before, norm_after), **values)


@script.check("warmup_followed", run_level, needs=["run"])
def warmup_followed(ctx):
    """The learning rate is the linear warm-up's at every step."""
    loop, params = ctx.made["loop"], ctx.params
    steps, warmup, top = params["steps"], params["warmup_steps"], params["learning_rate"]
    wanted = [
        top * (step / warmup if step < warmup else (steps - step) / (steps - warmup)) for step in range(len(loop.rates))
    ]
    off = max(abs(rate - want) for rate, want in zip(loop.rates, wanted))
    values = {"measured": off, "expected": 0, "tolerance": 1e-6 * top, "rates": rounded(loop.rates)}
    if not off <= 1e-6 * top:
        raise Failed("schedule-wrong", "the learning rate is off the linear warm-up by {:.3g}".format(off), **values)
    return Passed("the learning rate rises over {} steps and falls to the end".format(warmup), **values)


@script.check("on_gpu", "L3", needs=["run"])
def on_gpu(ctx):
    """Weights and loss really are on the card."""
    loop = ctx.made["loop"]
    if loop.device != "cuda":
        raise NotChecked("the loop ran on the CPU; {}".format(ctx.made["why_cpu"]))
    places = {tensor.device.type for tensor in loop.model.parameters()} | {loop.loss_place}
    peak = loop.torch.cuda.max_memory_allocated()
    if places != {"cuda"} or not peak:
        raise Failed("not-on-gpu", "weights or loss are on {}".format(", ".join(sorted(places))), measured=places)
    return Passed(
        "weights and loss are on {}".format(ctx.environment["gpu"]["name"]), measured=places, peak_allocated_bytes=peak
    )


script.check("accumulation", run_level, needs=["run", "gradients_reach_all"])(_train_more.accumulation_equal)
script.check("checkpoint", run_level, needs=["run"])(_train_more.checkpoint_resumes)
script.check("seed", run_level, needs=["run"])(_train_more.seed_repeats)
script.check("layer_rates", run_level, needs=["run", "gradients_reach_all"])(_train_more.layer_rates)
script.check("device_mix", "L3", needs=["run"])(_train_more.device_mix)


def choose_device(ctx, torch):
    asked = ctx.params["device"]
    available = torch.cuda.is_available()
    ctx.made["why_cpu"] = "the request asks for it" if asked == "cpu" else "torch can use no GPU here"
    if asked == "cuda" and not available:
        raise Failed("gpu-not-usable", "the request asks for a GPU and torch can use none", blame="host")
    return "cuda" if available and asked != "cpu" else "cpu"


def mean(values):
    return sum(values) / len(values)


def rounded(values):
    return [float("{:.5g}".format(value)) for value in values]


def shorten(names, limit=4):
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (", and {} more".format(rest) if rest > 0 else "")


if __name__ == "__main__":
    script.main()
