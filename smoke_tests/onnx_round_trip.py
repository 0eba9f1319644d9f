"""L2: BERT exported to ONNX gives the same numbers in onnxruntime at other shapes. L3: the CUDA provider does it."""

import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
import _onnx_bytes  # noqa: E402
import _onnx_kit  # noqa: E402
import _onnx_more  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, blame_stack  # noqa: E402
from _nvml import Nvml, NvmlError  # noqa: E402
from _onnx_exporter import Exporter  # noqa: E402
from _onnx_kit import CPU, CUDA, SHAPES  # noqa: E402
from _placement import judge_placement  # noqa: E402

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
        wrapped = _onnx_kit.new_model(ctx, torch)
        cases = [_onnx_kit.new_case(torch, ctx.params["vocab"], shape) for shape in SHAPES]
        with torch.no_grad():
            wanted = [wrapped(ids, mask) for ids, mask in cases]
            again = [wrapped(ids, mask) for ids, mask in cases]
            unmasked = [wrapped(ids, torch.ones_like(mask)) for ids, mask in cases]
    except Exception as error:
        raise blame_stack(error, "model-failed", "the model does not run in torch") from None
    tolerance = _onnx_kit.tolerance_for(ctx, CUDA)
    noise = max(_onnx_kit.difference(torch, first, second) for first, second in zip(wanted, again))
    if not noise == 0:
        raise Failed(
            "model-not-repeatable", "two evaluations differ by {:.3g}".format(noise), measured=noise, expected=0
        )
    effect = max(_onnx_kit.difference(torch, first, second) for first, second in zip(wanted, unmasked))
    if not effect > tolerance:
        raise Failed(
            "mask-without-effect", "a padded mask moves the outputs by only {:.3g}".format(effect), measured=effect
        )
    ctx.made.update(torch=torch, model=wrapped, cases=cases, wanted=wanted)
    return Passed("two evaluations in torch are equal", measured=noise, expected=0, shapes=SHAPES, mask_effect=effect)


EXPORTERS = [Exporter("torchscript"), Exporter("dynamo")]
for exporter in EXPORTERS:
    exporter.register(script)
script.check("external_data", "L2", needs=["torchscript.outputs_agree"])(_onnx_more.external_data)


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
        session = _onnx_kit.new_session(ctx, exported[-1]["path"], [wanted] if wanted == CPU else [wanted, CPU])
        outputs = [_onnx_kit.infer(session, ids, mask) for ids, mask in ctx.made["cases"]]
    except Exception as error:
        raise blame_stack(error, "session-failed", "{} does not run the model".format(wanted)) from None
    placed = judge_placement(wanted, session.get_providers(), _onnx_kit.placement(session))
    if placed.status != "passed":
        return placed
    agreed = _onnx_kit.judge_outputs(ctx, outputs, wanted)
    if agreed.status != "passed":
        return agreed
    if wanted == CUDA:
        ctx.environment.update(device="cuda")
        if ctx.made["torch"].cuda.is_available():
            ctx.environment["gpu"] = _bert.gpu_in_use(ctx.made["torch"])
    return placed


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


def loads(runtime, data):
    try:
        runtime.InferenceSession(data, _onnx_kit.quiet_options(runtime), providers=[CPU])
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


if __name__ == "__main__":
    script.main()
