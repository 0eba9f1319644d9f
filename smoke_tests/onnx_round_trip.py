"""L2: BERT exported to ONNX gives the same numbers in onnxruntime at other shapes. L3: the CUDA provider does it."""

import inspect
import json
import os
import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
import _onnx_bytes  # noqa: E402
import _onnx_more  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, blame_stack, one_line  # noqa: E402
from _nvml import Nvml, NvmlError  # noqa: E402
from _placement import count_placement, judge_placement  # noqa: E402

script = Script(
    "onnx_round_trip",
    {
        "layers": 2,
        "hidden": 128,
        "heads": 2,
        "vocab": 512,
        "positions": 64,
        "batch": 2,  # of the export; 1 would be taken for a constant by some exporters
        "seq": 16,
        "opset": 0,  # 0: the exporter's default, lowered to what the runtime reads
        "dtype": "fp32",  # fp32 or fp16
        "provider": "auto",  # auto: CUDA where the lock has onnxruntime-gpu and the host a GPU; a name: it must run
        "seed": 20,
    },
)
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Largest difference of two outputs of about 1 in size. On a CPU both sides round fp32 sums, 3e-8 to 5e-7 was
# seen; on a GPU TF32 keeps 10 bits of each factor; fp16 keeps 10 bits everywhere.
TOLERANCE = {("fp32", CPU): 2e-5, ("fp32", CUDA): 5e-3, ("fp16", CPU): 1e-2, ("fp16", CUDA): 1e-2}
# (batch, seq, padded): batch 1, odd and longer sequences, a padded mask, and the shape of the export itself.
SHAPES = ((1, 7, False), (3, 23, True), (1, 64, True), (2, 16, False))
OPSETS, IR_VERSIONS = range(7, 64), range(3, 32)


@script.check("runtime_reads", "L2")
def runtime_reads(ctx):
    """The highest opset and IR version, found by loading a model of one node, so that no table is needed."""
    package = runtime_package(ctx)
    runtime = ctx.stack("onnxruntime", "InferenceSession")
    ctx.made["runtime"] = runtime
    opset = highest(lambda number: loads(runtime, _onnx_bytes.identity_model(number, 7)), OPSETS)
    if opset is None:
        raise Failed("session-failed", "{} {} loads no model at all".format(package, runtime.__version__))
    ir_version = highest(lambda number: loads(runtime, _onnx_bytes.identity_model(opset, number)), IR_VERSIONS)
    ctx.made["reads"] = {"opset": opset, "ir_version": ir_version}
    return Passed(
        "{} {} reads opsets up to {} and IR versions up to {}".format(package, runtime.__version__, opset, ir_version),
        measured=ctx.made["reads"],
        version=str(runtime.__version__),
    )


@script.check("model", "L2", needs=["runtime_reads"])
def model(ctx):
    """The model to export, and what torch says its outputs are."""
    torch = ctx.stack("torch")
    ctx.stack("numpy")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    torch.set_num_threads(1)  # threads gain nothing on a model this small
    _bert.seed_everything(torch, ctx.params["seed"])
    try:
        wrapped = new_model(ctx, torch)
        cases = [new_case(torch, ctx.params["vocab"], shape) for shape in SHAPES]
        with torch.no_grad():
            wanted = [wrapped(ids, mask) for ids, mask in cases]
            again = [wrapped(ids, mask) for ids, mask in cases]
            unmasked = [wrapped(ids, torch.ones_like(mask)) for ids, mask in cases]
    except Exception as error:
        raise blame_stack(error, "model-failed", "the model does not run in torch") from None
    tolerance = tolerance_for(ctx, CUDA)
    noise = max(difference(torch, first, second) for first, second in zip(wanted, again))
    if not noise == 0:
        raise Failed(
            "model-not-repeatable", "two evaluations differ by {:.3g}".format(noise), measured=noise, expected=0
        )
    effect = max(difference(torch, first, second) for first, second in zip(wanted, unmasked))
    if not effect > tolerance:
        raise Failed(
            "mask-without-effect", "a padded mask moves the outputs by only {:.3g}".format(effect), measured=effect
        )
    ctx.made.update(torch=torch, model=wrapped, cases=cases, wanted=wanted)
    return Passed("two evaluations in torch are equal", measured=noise, expected=0, shapes=SHAPES, mask_effect=effect)


class Exporter:
    """The checks of one way to export; each way has its own names, so that both can be seen side by side."""

    def __init__(self, name):
        self.name = name
        earlier = ["model"]
        for step, check in (
            ("export", self.export),
            ("opset", self.opset),
            ("session", self.session),
            ("dynamic_shapes", self.dynamic_shapes),
            ("outputs_agree", self.outputs_agree),
            ("provider", self.provider),
        ):
            script.check("{}.{}".format(name, step), "L2", needs=earlier)(check)
            earlier = ["{}.{}".format(name, step)] if step != "outputs_agree" else earlier

    def export(self, ctx):
        """The export ends with a file, at an opset both sides know."""
        torch = ctx.made["torch"]
        self.applies(ctx, torch)
        asked = self.choose_opset(ctx)
        path = os.path.join(ctx.scratch, self.name + ".onnx")
        ids, mask = new_case(torch, ctx.params["vocab"], (ctx.params["batch"], ctx.params["seq"], True))
        try:
            with torch.no_grad():
                torch.onnx.export(
                    ctx.made["model"],
                    (ids, mask),
                    path,
                    input_names=["input_ids", "attention_mask"],
                    output_names=["logits"],
                    opset_version=asked,
                    **self.options(torch),
                )
        except Exception as error:
            raise blame_stack(error, "export-failed", "{} export at opset {} fails".format(self.name, asked)) from None
        finally:
            ctx.made["model"].eval()  # exporters put back the mode they found, and not all of them for every layer
        if not os.path.isfile(path):
            raise Failed("export-failed", "the {} export ends without a file".format(self.name))
        ctx.made[self.name] = {"path": path, "asked": asked}
        return Passed("exported at opset {}".format(asked), measured=asked, bytes=os.path.getsize(path))

    def applies(self, ctx, torch):
        known = "dynamo" in inspect.signature(torch.onnx.export).parameters
        if self.name == "torchscript":
            return
        default = known and inspect.signature(torch.onnx.export).parameters["dynamo"].default is True
        if not default:
            raise NotApplicable("torch {} does not export through dynamo by default".format(torch.__version__))
        ctx.optional("onnx")
        ctx.optional("onnxscript")

    def options(self, torch):
        if self.name == "dynamo":
            axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim.DYNAMIC}
            return {"dynamo": True, "dynamic_shapes": {"input_ids": axes, "attention_mask": axes}}
        axes = {0: "batch", 1: "sequence"}
        options = {"dynamic_axes": {"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}}}
        if "dynamo" in inspect.signature(torch.onnx.export).parameters:
            options["dynamo"] = False
        return options

    def choose_opset(self, ctx):
        """At most what both sides can: the exporter's own limit and the highest that the runtime loads."""
        default, limit = exporter_opsets(self.name)
        reads = ctx.made["reads"]["opset"]
        asked = ctx.params["opset"] or min(default, reads)
        highest_common = reads if limit is None else min(limit, reads)
        if asked > highest_common:
            raise Failed(
                "opset-too-high",
                "opset {} is asked for; the {} exporter writes up to {}, the runtime reads up to {}".format(
                    asked, self.name, limit or "an unknown opset", reads
                ),
                measured=asked,
                expected="<= {}".format(highest_common),
            )
        return asked

    def opset(self, ctx):
        """What the file really holds: an exporter may write another opset than it was asked for."""
        made, reads = ctx.made[self.name], ctx.made["reads"]
        try:
            with open(made["path"], "rb") as stream:
                opset, ir_version = _onnx_bytes.versions(stream.read())
        except (ValueError, IndexError) as error:
            raise Failed("file-broken", "the exported file cannot be read: {}".format(one_line(error))) from None
        found = {"opset": opset, "ir_version": ir_version}
        if opset > reads["opset"]:
            raise Failed(
                "opset-too-high",
                "the file has opset {}, the runtime reads up to {}".format(opset, reads["opset"]),
                measured=found,
                expected=reads,
            )
        if ir_version > reads["ir_version"]:
            raise Failed(
                "ir-too-high",
                "the file has IR version {}, the runtime reads up to {}".format(ir_version, reads["ir_version"]),
                measured=found,
                expected=reads,
            )
        return Passed(
            "the file has opset {} and IR version {}".format(opset, ir_version), measured=found, expected=reads
        )

    def session(self, ctx):
        """Onnxruntime loads the file with the two inputs."""
        try:
            made = new_session(ctx, ctx.made[self.name]["path"], [CPU])
        except Exception as error:
            raise blame_stack(error, "session-failed", "onnxruntime does not load the file") from None
        ctx.made[self.name]["session"] = made
        inputs = {entry.name: list(entry.shape) for entry in made.get_inputs()}
        if sorted(inputs) != ["attention_mask", "input_ids"]:
            raise Failed(
                "session-failed",
                "the model takes {}".format(", ".join(sorted(inputs)) or "nothing"),
                measured=inputs,
                expected=["attention_mask", "input_ids"],
            )
        return Passed("onnxruntime loads the file", measured=inputs)

    def dynamic_shapes(self, ctx):
        """Declared free, and it runs at every shape: an exporter can bake a size in without declaring it."""
        session = ctx.made[self.name]["session"]
        fixed = {
            entry.name: list(entry.shape)
            for entry in session.get_inputs()
            if any(isinstance(size, int) for size in entry.shape)
        }
        if fixed:
            raise Failed(
                "shape-not-dynamic",
                "the exported inputs have fixed sizes: {}".format(fixed),
                measured=fixed,
                expected="batch and sequence are free",
            )
        outputs = []
        for (ids, mask), shape, wanted in zip(ctx.made["cases"], SHAPES, ctx.made["wanted"]):
            name = "batch {}, sequence {}".format(*shape)
            try:
                outputs.append(infer(session, ids, mask))
            except Exception as error:
                raise blame_stack(error, "shape-not-dynamic", "it does not run at {}".format(name)) from None
            if outputs[-1].shape != tuple(wanted.shape):
                raise Failed(
                    "shape-not-dynamic",
                    "at {} the output is {}".format(name, outputs[-1].shape),
                    measured=outputs[-1].shape,
                    expected=tuple(wanted.shape),
                )
        ctx.made[self.name]["outputs"] = outputs
        return Passed("it runs at {} other shapes than exported".format(len(SHAPES) - 1), measured=SHAPES)

    def outputs_agree(self, ctx):
        """Outputs equal torch's within 2e-5 (fp32) or 1e-2 (fp16)."""
        return judge_outputs(ctx, ctx.made[self.name]["outputs"], CPU)

    def provider(self, ctx):
        """The profile shows which provider ran each node; the matrix products ran on the one named."""
        session = ctx.made[self.name]["session"]
        return judge_placement(CPU, session.get_providers(), placement(session))


EXPORTERS = [Exporter("torchscript"), Exporter("dynamo")]
MORE = _onnx_more.More(sys.modules[__name__])
script.check("opsets", "L2", needs=["torchscript.outputs_agree"])(MORE.opsets)
script.check("fp16", "L2", needs=["torchscript.outputs_agree"])(MORE.half)
script.check("external_data", "L2", needs=["torchscript.outputs_agree"])(MORE.external_data)


@script.check("cuda_provider", "L3", needs=["model"])
def cuda_provider(ctx):
    """The CUDA provider (or the one asked for) runs the heavy nodes and the numbers agree; a silent fall-back fails."""
    wanted = ctx.params["provider"]
    if wanted == "auto":
        wanted = CUDA
        if runtime_package(ctx) != "onnxruntime-gpu":
            raise NotApplicable("the lock has no onnxruntime-gpu")
        needs_gpu()
    exported = [ctx.made[exporter.name] for exporter in EXPORTERS if "outputs" in ctx.made.get(exporter.name, {})]
    if not exported:
        raise NotChecked("there is no exported model that runs on the CPU")
    runtime = ctx.made["runtime"]
    if wanted not in runtime.get_available_providers():
        return judge_placement(wanted, runtime.get_available_providers(), {})
    try:
        session = new_session(ctx, exported[-1]["path"], [wanted] if wanted == CPU else [wanted, CPU])
        outputs = [infer(session, ids, mask) for ids, mask in ctx.made["cases"]]
    except Exception as error:
        raise blame_stack(error, "session-failed", "{} does not run the model".format(wanted)) from None
    placed = judge_placement(wanted, session.get_providers(), placement(session))
    if placed.status != "passed":
        return placed
    agreed = judge_outputs(ctx, outputs, wanted)
    if agreed.status != "passed":
        return agreed
    if wanted == CUDA:
        ctx.environment.update(device="cuda")
        if ctx.made["torch"].cuda.is_available():
            ctx.environment["gpu"] = _bert.gpu_in_use(ctx.made["torch"])
    return placed


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


def tolerance_for(ctx, provider):
    return TOLERANCE[ctx.params["dtype"], provider if provider == CUDA else CPU]


def runtime_package(ctx):
    wanted = [name for name in ("onnxruntime-gpu", "onnxruntime") if name in ctx.packages]
    if not wanted and not ctx.packages:
        runtime = ctx.optional("onnxruntime")
        wanted = ["onnxruntime-gpu" if CUDA in runtime.get_available_providers() else "onnxruntime"]
    if not wanted:
        raise NotApplicable("no onnxruntime is in the lock")
    return wanted[0]


def needs_gpu():
    try:
        with Nvml() as nvml:
            devices = nvml.devices()
    except NvmlError as error:
        raise NotChecked("no GPU in reach: {}".format(error)) from None
    if not devices:
        raise NotChecked("the driver shows no GPU")


def new_model(ctx, torch):
    params = ctx.params
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


def exporter_opsets(name):
    """(default, limit) of an exporter; the constants moved between releases, limit is None where none is told."""
    try:
        from torch.onnx import _constants as constants
    except ImportError:  # before torch 1.12
        from torch.onnx import symbolic_helper as constants

    def first(*names):
        return next((getattr(constants, one) for one in names if hasattr(constants, one)), None)

    default = first("ONNX_DEFAULT_OPSET", "onnx_default_opset", "_default_onnx_opset_version") or 13
    limit = first("ONNX_MAX_OPSET", "onnx_main_opset", "_onnx_main_opset")
    if name == "torchscript":
        limit = first("ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET") or limit
    return default if limit is None else min(default, limit), limit


def new_session(ctx, path, providers):
    """With a profile, which tells where each node really ran; get_providers() only tells what was registered."""
    runtime = ctx.made["runtime"]
    options = quiet_options(runtime)
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(ctx.scratch, os.path.basename(path) + "." + providers[0])
    return runtime.InferenceSession(path, options, providers=providers)


def quiet_options(runtime):
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def loads(runtime, data):
    try:
        runtime.InferenceSession(data, quiet_options(runtime), providers=[CPU])
    except Exception:
        return False
    return True


def highest(works, numbers):
    """The last number for which `works` still holds, walking up to the first that fails after one that did not."""
    last = None
    for number in numbers:
        if works(number):
            last = number
        elif last is not None:
            break
    return last


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


if __name__ == "__main__":
    script.main()
