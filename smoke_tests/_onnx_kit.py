"""The model that is exported, what it is run at, and how its outputs are compared."""

import json
import os

import _bert
from _harness import Failed, Passed
from _placement import count_placement

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Largest difference of two outputs of about 1 in size. On a CPU both sides round fp32 sums, 3e-8 to 5e-7 was
# seen; on a GPU TF32 keeps 10 bits of each factor; fp16 keeps 10 bits everywhere.
TOLERANCE = {("fp32", CPU): 2e-5, ("fp32", CUDA): 5e-3, ("fp16", CPU): 1e-2, ("fp16", CUDA): 1e-2}
# (batch, seq, padded): batch 1, odd and longer sequences, a padded mask, and the shape of the export itself.
SHAPES = ((1, 7, False), (3, 23, True), (1, 64, True), (2, 16, False))


def tolerance_for(ctx, provider):
    return TOLERANCE[ctx.params["dtype"], provider if provider == CUDA else CPU]


def new_model(ctx, torch, layers=None):
    params = dict(ctx.params, layers=layers or ctx.params["layers"])
    names = ("vocab", "hidden", "layers", "heads", "positions")
    # weights five times as large as BERT's make outputs of about 1, so that a lost mask cannot hide below the tolerance
    settings = _bert.config(
        ctx, intermediate=4 * params["hidden"], spread=0.1, **{name: params[name] for name in names}
    )
    inner = _bert.classifier(ctx, settings)
    if params["dtype"] == "fp16":
        inner = inner.half()

    class Logits(torch.nn.Module):
        """Two named tensors in, one out: exporters differ in how they flatten a model's own output object."""

        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids=input_ids, attention_mask=attention_mask).logits

    return Logits().eval()


def new_case(torch, vocab, shape):
    batch, seq, padded = shape
    generator = torch.Generator().manual_seed(1000 * batch + seq)
    ids = torch.randint(5, vocab, (batch, seq), generator=generator)
    mask = torch.ones(batch, seq, dtype=torch.long)
    if padded:
        mask[-1, seq - seq // 3 :] = 0
    return ids, mask


def example(ctx, torch):
    """The inputs of the export itself."""
    return new_case(torch, ctx.params["vocab"], (ctx.params["batch"], ctx.params["seq"], True))


def new_session(ctx, path, providers):
    """With a profile, which tells where each node really ran; get_providers() only tells what was registered."""
    runtime = ctx.made["runtime"]
    if providers[0] == CUDA and hasattr(runtime, "preload_dlls"):
        runtime.preload_dlls()  # of what the provider needs, torch 2.15 loads all but one library
    options = quiet_options(runtime)
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(ctx.scratch, os.path.basename(path) + "." + providers[0])
    return runtime.InferenceSession(path, options, providers=providers)


def quiet_options(runtime):
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def judge_outputs(ctx, outputs, provider):
    torch, tolerance = ctx.made["torch"], tolerance_for(ctx, provider)
    off = {}
    for output, wanted, (batch, seq, padded) in zip(outputs, ctx.made["wanted"], SHAPES):
        name = "{}x{}{}".format(batch, seq, " padded" if padded else "")
        off[name] = difference(torch, torch.from_numpy(output), wanted)
    worst = max(off, key=lambda name: off[name])
    values = {"measured": off[worst], "expected": 0, "tolerance": tolerance, "by_shape": off}
    largest = "largest difference {:.2g} at {}".format(off[worst], worst)
    if not off[worst] <= tolerance:
        return Failed("outputs-differ", "{}, tolerance {:g}".format(largest, tolerance), **values)
    return Passed("{}, tolerance {:g} for {}".format(largest, tolerance, ctx.params["dtype"]), **values)


def infer(session, ids, mask):
    return session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]


def placement(session):
    """{provider: {operator: nodes}} out of the session's profile."""
    with open(session.end_profiling(), encoding="utf-8") as stream:
        return count_placement(json.load(stream))


def difference(torch, left, right):
    """The largest difference, or infinity where one side is not finite."""
    largest = float((left.detach().double() - right.detach().double()).abs().max())
    finite = bool(torch.isfinite(left).all()) and bool(torch.isfinite(right).all())
    return largest if finite else float("inf")
