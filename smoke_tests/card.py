"""L3: what the card itself gives: attention kernels (on a CPU, too: L2), bfloat16, speed, memory over time."""

import sys
import time

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, blame_stack  # noqa: E402
from _nvml import Nvml, NvmlError  # noqa: E402
from _samples import Sampler, plot  # noqa: E402

script = Script(
    "card",
    {
        "device": "auto",  # auto or cpu
        # {name of a board, without NVIDIA: [most, least on a host in order]}, TFLOP/s of a product of two fp16 matrices
        "expected_tflops": {},
        "matrix": 8192,
        "seconds": 3.0,  # that the product is repeated for, and then the training step
        "layers": 4,  # of the BERT that trains
        "hidden": 768,
        "heads": 12,
        "vocab": 30522,
        "batch": 32,
        "seq": 128,
        "most_foreign_bytes": 256 * 2**20,  # of other processes on the card
        "seed": 20,
    },
)
MIB = 2.0**20
BACKENDS = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
# Of outputs of about 1; half types keep 10 and 7 bits.
TOLERANCE = {"torch.float32": 1e-4, "torch.float16": 5e-3, "torch.bfloat16": 4e-2}


def run_level(ctx):
    return "L3" if ctx.environment["device"] == "cuda" else "L2"


@script.check("others_on_card", "L3")
def others_on_card(ctx):
    """No other process holds much of the card; those that do are named."""
    needs_card(
        ctx
    )  # which makes no context yet: what is seen now belongs to others, whatever a container calls its pids
    try:
        with Nvml() as nvml:
            found = nvml.processes(0)
    except NvmlError as error:
        raise NotChecked("NVML does not tell: {}".format(error)) from None
    held = sum(row["used_bytes"] or 0 for row in found)
    values = {"measured": held, "expected": "<= {}".format(ctx.params["most_foreign_bytes"]), "processes": found}
    if held > ctx.params["most_foreign_bytes"]:
        shown = ", ".join(
            "{pid} {used:.0f} MiB".format(pid=row["pid"], used=(row["used_bytes"] or 0) / MIB) for row in found
        )
        raise Failed(
            "card-in-use", "other processes hold {:.0f} MiB: {}".format(held / MIB, shown), blame="host", **values
        )
    return Passed("{} other processes, {:.0f} MiB".format(len(found), held / MIB), **values)


@script.check("attention_kernels", run_level)
def attention_kernels(ctx):
    """Every attention kernel that takes the input gives the numbers of plain mathematics."""
    torch, device = ready(ctx)
    attend = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    choose = kernel_chooser(torch)
    if attend is None or choose is None:
        raise NotApplicable("torch {} lets no attention kernel be chosen".format(torch.__version__))
    torch.manual_seed(ctx.params["seed"])
    kind = torch.float16 if device == "cuda" else torch.float32
    query, key, value = (torch.randn(2, 4, 64, 32, device=device, dtype=kind) for _ in range(3))
    scores = (query.double() @ key.double().transpose(-1, -2)) / 32**0.5
    wanted = scores.softmax(-1) @ value.double()
    off, refused = {}, {}
    for name in BACKENDS:
        found = attended(choose, name, attend, (query, key, value))
        if isinstance(found, str):
            refused[name] = found
        else:
            off[name] = float((found.double() - wanted).abs().max())
    values = {"measured": off, "expected": 0, "tolerance": TOLERANCE[str(kind)], "refused": refused}
    wrong = sorted(name for name, one in off.items() if not one <= TOLERANCE[str(kind)])
    if wrong or not off:
        raise Failed("attention-differs", "{} gives other numbers".format(", ".join(wrong) or "no kernel"), **values)
    return Passed("{} agree on {}".format(", ".join(sorted(off)), device), **values)


def attended(choose, name, attend, inputs):
    """The output of one kernel, or why it takes no such input."""
    try:
        with choose(name):
            return attend(*inputs)
    except (AttributeError, KeyError, RuntimeError) as error:
        return str(error).splitlines()[0] if str(error) else "not in this torch"


def kernel_chooser(torch):
    """Name -> a block in which only this kernel runs; the way to say so changed with torch 2.3."""
    modern = getattr(getattr(torch.nn, "attention", None), "sdpa_kernel", None)
    if modern is not None:
        return lambda name: modern(getattr(torch.nn.attention.SDPBackend, name))
    old = getattr(torch.backends.cuda, "sdp_kernel", None)
    if old is None:
        return None
    places = {"MATH": "enable_math", "FLASH_ATTENTION": "enable_flash", "EFFICIENT_ATTENTION": "enable_mem_efficient"}
    return lambda name: old(**{option: option == places[name] for option in places.values()})


def ready(ctx):
    """torch, and the device that the checks run on."""
    torch = ctx.stack("torch")
    on_gpu = ctx.params["device"] == "auto" and torch.cuda.is_available()
    ctx.environment.update(torch=str(torch.__version__), device="cuda" if on_gpu else "cpu")
    return torch, ctx.environment["device"]


def needs_card(ctx):
    torch, device = ready(ctx)
    if device != "cuda":
        raise NotChecked("torch can use no GPU here")
    return torch


@script.check("bfloat16", "L3")
def bfloat16(ctx):
    """A product in bfloat16 gives the numbers that its precision allows, where the card has it."""
    torch = needs_card(ctx)
    if torch.cuda.get_device_capability(0) < (8, 0):
        raise NotApplicable("cards before compute capability 8.0 have no bfloat16")
    left, right = (torch.randn(256, 256, device="cuda") for _ in range(2))
    wanted = left.double() @ right.double()
    found = left.bfloat16() @ right.bfloat16()
    off = float((found.double() - wanted).abs().max()) / float(wanted.abs().max())
    values = {"measured": off, "expected": 0, "tolerance": TOLERANCE["torch.bfloat16"]}
    if not off <= TOLERANCE["torch.bfloat16"]:
        raise Failed("bfloat16-wrong", "a product in bfloat16 is {:.3g} off".format(off), **values)
    return Passed("a product in bfloat16 is {:.2g} off".format(off), **values)


@script.check("speed", "L3")
def speed(ctx):
    """A product of two large fp16 matrices runs on the card; how fast, is measured."""
    torch = needs_card(ctx)
    ctx.environment["gpu"] = _bert.gpu_in_use(torch)
    size = ctx.params["matrix"]
    sampler = Sampler("a product of two matrices")
    try:
        left, right = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
        for _ in range(3):
            left @ right
        torch.cuda.synchronize()
        with sampler:
            started, count = time.monotonic(), 0
            while time.monotonic() - started < ctx.params["seconds"]:
                for _ in range(8):
                    left @ right
                torch.cuda.synchronize()
                count += 8
            took = time.monotonic() - started
    except Exception as error:
        raise blame_stack(error, "kernel-failed", "a product of two matrices fails on the card") from None
    ctx.made["samples"] = sampler.rows
    ctx.made["tflops"] = reached = 2.0 * size**3 * count / took / 1e12
    return Passed("{:.0f} TFLOP/s in fp16".format(reached), measured=round(reached, 1), products=count)


@script.check("expected_speed", "L3", needs=["speed"])
def expected_speed(ctx):
    """It is about as fast as this card should be: an unfit host is told from a bad image."""
    name, reached = ctx.environment["gpu"]["name"], ctx.made["tflops"]
    known = ctx.params["expected_tflops"].get(name.replace("NVIDIA ", ""))
    if known is None:
        raise NotApplicable(
            "no fact says how fast {} should be; {:.0f} TFLOP/s are told, not judged".format(name, reached)
        )
    peak, least = known
    share = reached / peak
    values = {
        "measured": round(reached, 1),
        "expected": ">= {:.4g}".format(least),
        "peak": peak,
        "share": round(share, 3),
    }
    told = "{:.0f} TFLOP/s in fp16, {:.0f} % of what {} can reach".format(reached, 100 * share, name)
    if reached < least:
        raise Failed(
            "card-too-slow",
            "{}; a host in order reaches {:.0f}: clocks, power or a neighbour hold it".format(told, least),
            blame="host",
            **values,
        )
    return Passed(told, **values)


@script.check("training_speed", "L3", needs=["speed"])
def training_speed(ctx):
    """Samples a second of a BERT that trains in fp16: told, since no table says what it should be."""
    torch = needs_card(ctx)
    sampler = Sampler("a training step")
    try:
        with sampler:
            found = train_for(ctx, torch, "cuda")
    except Exception as error:
        raise blame_stack(error, "kernel-failed", "the training step fails on the card") from None
    ctx.made["samples"] = ctx.made["samples"] + sampler.rows
    return told_training(found)


def told_training(found):
    return Passed(
        "{samples_per_s:.0f} samples a second in {precision}, {tflops:.1f} TFLOP/s of the model".format(**found),
        measured=found["samples_per_s"],
        **{name: found[name] for name in ("precision", "tflops", "steps", "model")},
    )


def train_for(ctx, torch, device):
    """Trains for the given time, without a look at the numbers; what it did."""
    names = ("layers", "hidden", "heads", "vocab", "batch", "seq")
    dims = {name: ctx.params[name] for name in names}
    settings = _bert.config(ctx, intermediate=4 * dims["hidden"], positions=dims["seq"], **dims)
    _bert.seed_everything(torch, ctx.params["seed"])
    model = _bert.classifier(ctx, settings).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    half = torch.float16 if device == "cuda" else torch.bfloat16
    scaler = _bert.new_scaler(torch, device) if device == "cuda" else None
    ids = torch.randint(5, dims["vocab"], (dims["batch"], dims["seq"]), device=device)
    labels = torch.zeros(dims["batch"], dtype=torch.long, device=device)

    def one_step():
        optimizer.zero_grad()
        with _bert.autocast(torch, device, half):
            loss = model(input_ids=ids, labels=labels).loss
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            torch.cuda.synchronize()

    for _ in range(3):
        one_step()
    started, steps = time.monotonic(), 0
    while time.monotonic() - started < ctx.params["seconds"]:
        one_step()
        steps += 1
    took = time.monotonic() - started
    samples_per_s = steps * dims["batch"] / took
    # Forward and backward are three products for each weight of a layer, and those of the attention's scores.
    per_sample = 72.0 * dims["layers"] * dims["hidden"] ** 2 * dims["seq"] * (1 + dims["seq"] / (6.0 * dims["hidden"]))
    return {
        "samples_per_s": round(samples_per_s, 1),
        "tflops": round(samples_per_s * per_sample / 1e12, 3),
        "steps": steps,
        "precision": str(half).replace("torch.", ""),
        "model": dims,
    }


@script.check("samples", "L3", needs=["speed"])
def samples(ctx):
    """NVML saw the card at work: utilization and memory, ten times a second, are in the details."""
    return judge_samples(ctx.made["samples"])


def judge_samples(rows):
    if not rows:
        raise NotChecked("NVML told nothing while the card worked")
    busiest = max(row["utilization"] for row in rows)
    values = {"measured": busiest, "expected": ">= 50", "samples": rows, "plot": plot(rows)}
    if busiest < 50:
        raise Failed(
            "card-idle", "NVML saw at most {} % in use while the card worked".format(busiest), blame="host", **values
        )
    return Passed("up to {} % in use, {} samples".format(busiest, len(rows)), **values)


if __name__ == "__main__":
    script.main()
