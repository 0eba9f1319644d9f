"""What people build around the loop of train_step: accumulation, checkpoints, seeds, rates by layer, mixed devices."""

import copy
import os

import _bert
from _harness import Failed, NotChecked, Passed, blame_stack
from _train_loop import Loop

# fp32 sums in another order: 1e-7 was seen on a CPU, relative to the largest entry.
ACCUMULATION_TOLERANCE = 1e-4
# On a CPU the same work is done in the same order. On a GPU the embedding's gradient is added up by atomics.
REPEAT_TOLERANCE = {"cpu": 0.0, "cuda": 1e-3}
SOME_STEPS = 3


def accumulation_equal(ctx):
    """Four small batches, each with a quarter of the loss, add up to the gradient of the large one."""
    loop = ctx.made["loop"]
    model = copy.deepcopy(loop.model).eval()  # without dropout, which no two ways of batching share
    batch, parts = loop.batches[0], 4
    rows = batch["labels"].shape[0] // parts * parts
    batch = {name: tensor[:rows] for name, tensor in batch.items()}
    whole = gradients(model, [batch], 1)
    size = rows // parts
    pieces = [{name: tensor[at : at + size] for name, tensor in batch.items()} for at in range(0, rows, size)]
    summed = gradients(model, pieces, parts)
    largest = max(float(tensor.abs().max()) for tensor in whole)
    off = max(float((left - right).abs().max()) for left, right in zip(whole, summed)) / largest
    values = {"measured": off, "expected": 0, "tolerance": ACCUMULATION_TOLERANCE}
    if not off <= ACCUMULATION_TOLERANCE:
        raise Failed(
            "accumulation-differs",
            "{} small batches give a gradient that is {:.3g} off that of the large one".format(parts, off),
            **values,
        )
    return Passed("{} small batches give the gradient of the large one, within {:.2g}".format(parts, off), **values)


def gradients(model, batches, parts):
    model.zero_grad()
    for batch in batches:
        (model(**batch).loss / parts).backward()
    return [tensor.grad.detach().clone() for tensor in model.parameters()]


def some_losses(loop, start):
    for step in range(start, start + SOME_STEPS):
        loop.one_step(step)
    return loop.losses[-SOME_STEPS:]


def fresh_loop(ctx, torch):
    _bert.seed_everything(torch, ctx.params["seed"])
    return Loop(ctx, torch)


def checkpoint_resumes(ctx):
    """A run that is saved, loaded into a new model and carried on gives the losses of the run that went on."""
    torch, device = ctx.made["loop"].torch, ctx.environment["device"]
    path = os.path.join(ctx.scratch, "checkpoint.pt")
    try:
        first = fresh_loop(ctx, torch)
        some_losses(first, 0)
        state = {part: getattr(first, part).state_dict() for part in ("model", "optimizer", "schedule")}
        state["random"] = torch.get_rng_state()
        if first.scaler is not None:
            state["scaler"] = first.scaler.state_dict()
        if device == "cuda":
            state["cuda_random"] = torch.cuda.get_rng_state()
        torch.save(state, path)
        wanted = some_losses(first, SOME_STEPS)
        _bert.seed_everything(torch, ctx.params["seed"] + 1)  # another start, which loading has to overwrite
        second = Loop(ctx, torch)
        state = torch.load(path, map_location="cpu")
        for part in ("model", "optimizer", "schedule") + (("scaler",) if first.scaler is not None else ()):
            getattr(second, part).load_state_dict(state[part])
        torch.set_rng_state(state["random"])
        if device == "cuda":
            torch.cuda.set_rng_state(state["cuda_random"])
        found = some_losses(second, SOME_STEPS)
    except Exception as error:
        raise blame_stack(error, "checkpoint-failed", "a run cannot be saved and carried on") from None
    return judge_repeat(device, wanted, found, "resume-differs", "the resumed run")


def seed_repeats(ctx):
    """The same seed gives the same losses twice, dropout and all."""
    torch = ctx.made["loop"].torch
    runs = [some_losses(fresh_loop(ctx, torch), 0) for _ in range(2)]
    return judge_repeat(ctx.environment["device"], runs[0], runs[1], "seed-not-repeatable", "the second run")


def judge_repeat(device, wanted, found, code, what):
    off = max(abs(left - right) for left, right in zip(wanted, found))
    values = {"measured": off, "expected": 0, "tolerance": REPEAT_TOLERANCE[device], "losses": [wanted, found]}
    if not off <= REPEAT_TOLERANCE[device]:
        raise Failed(code, "{} is {:.3g} off in {} steps".format(what, off, len(wanted)), **values)
    return Passed("{} gives the same {} losses".format(what, len(wanted)), **values)


def layer_rates(ctx):
    """With a rate for each layer, every tensor moves by its own layer's rate."""
    loop = ctx.made["loop"]
    torch, model = loop.torch, copy.deepcopy(loop.model).eval()
    layers = ctx.params["layers"]
    groups = {}
    for name, tensor in model.named_parameters():
        depth = next((index for index in range(layers) if ".layer.{}.".format(index) in name), None)
        if depth is None:
            depth = -1 if ".embeddings." in name else layers
        groups.setdefault(depth, []).append(tensor)
    rates = {depth: 0.1 * 0.5 ** (layers - depth) for depth in groups}
    optimizer = torch.optim.SGD([{"params": groups[depth], "lr": rates[depth]} for depth in sorted(groups)], lr=1.0)
    before = {depth: [tensor.detach().clone() for tensor in groups[depth]] for depth in groups}
    model(**loop.batches[0]).loss.backward()
    optimizer.step()
    off = 0.0
    for depth, tensors in groups.items():
        for tensor, old in zip(tensors, before[depth]):
            wanted = old - rates[depth] * tensor.grad
            scale = max(rates[depth] * float(tensor.grad.abs().max()), 1e-6)
            off = max(off, float((tensor.detach() - wanted).abs().max()) / scale)
    values = {"measured": off, "expected": 0, "tolerance": 0.01, "rates": rates}
    if not off <= 0.01:
        raise Failed(
            "layer-rate-ignored", "a tensor does not move by its layer's rate: {:.3g} off".format(off), **values
        )
    return Passed("every tensor moves by its layer's own rate, {} rates".format(len(rates)), **values)


def device_mix(ctx):
    """Inputs that stayed on the CPU are refused by a model on the card, with an error that names the devices."""
    loop = ctx.made["loop"]
    if loop.device != "cuda":
        raise NotChecked("the loop ran on the CPU; {}".format(ctx.made["why_cpu"]))
    batch = {name: tensor.cpu() for name, tensor in loop.batches[0].items()}
    try:
        loop.model(**batch)
    except RuntimeError as error:
        if "cuda" in str(error) and "cpu" in str(error):
            return Passed("a batch on the CPU is refused", measured=str(error).splitlines()[0])
        raise Failed("device-mix-unclear", "the error does not name the devices: {}".format(error)) from None
    raise Failed("device-mix-accepted", "a model on the card takes a batch on the CPU", measured="no error")
