"""L2: torch.compile gives the outputs and gradients of eager mode, where the image has what it compiles with."""

import os
import shutil
import sys
import sysconfig

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

from _harness import Failed, NotApplicable, Passed, Script, blame_stack  # noqa: E402

script = Script("compile", {"width": 32, "rows": 8, "seed": 20})
# fp32, in another order and with another exponential.
TOLERANCE = 1e-4
# Three small kernels need no pool of processes, no header compiled beforehand, and no try of every kind of vector
# instruction (a compiler run and a new Python each): 11 s of CPU instead of 30, and the same path from Python to C++.
QUICK = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
}
COMPILERS = ("g++", "clang++", "c++")


@script.check("compiles", "L2")
def compiles(ctx):
    """A small net runs compiled, forward and backward; without a compiler in the image there is nothing to check."""
    needs_compiler()  # asked first, since it costs nothing
    for name, value in QUICK.items():
        os.environ.setdefault(name, value)
    torch = ctx.stack("torch")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    if not hasattr(torch, "compile"):
        raise NotApplicable("torch {} has no torch.compile".format(torch.__version__))
    net, data = new_net(ctx, torch)
    eager = outcome(net, data)
    dynamo = ctx.stack("torch._dynamo")  # torch 2.0 does not load it by itself
    try:
        dynamo.reset()  # the counters below start at zero
        compiled = outcome(torch.compile(net), data)
        graphs = ctx.stack("torch._dynamo.utils").counters["stats"]["unique_graphs"]
    except RuntimeError as error:
        if "not supported on" in str(error) or "not yet supported" in str(error):
            raise NotApplicable("this torch does not compile here: {}".format(error)) from None
        raise blame_stack(error, "compile-failed", "torch.compile fails") from None
    except Exception as error:
        raise blame_stack(error, "compile-failed", "torch.compile fails") from None
    ctx.made.update(eager=eager, compiled=compiled, torch=torch)
    if not graphs:
        raise Failed("not-compiled", "the net ran, but no graph was compiled", measured=0, expected=">= 1")
    return Passed("{} graph compiled".format(graphs), measured=graphs)


@script.check("equals_eager", "L2", needs=["compiles"])
def equals_eager(ctx):
    """Outputs and gradients are those of eager mode."""
    off = max(float((left - right).abs().max()) for left, right in zip(ctx.made["eager"], ctx.made["compiled"]))
    found = {"measured": off, "expected": 0, "tolerance": TOLERANCE}
    if not off <= TOLERANCE:
        raise Failed("compiled-differs", "compiled, the net is {:.3g} off eager mode".format(off), **found)
    return Passed("outputs and gradients are those of eager mode, within {:.2g}".format(off), **found)


def needs_compiler():
    asked = os.environ.get("CXX")
    compiler = shutil.which(asked) if asked else next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise NotApplicable("the image has no C++ compiler, which torch.compile needs on a CPU")
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.isfile(header):
        raise NotApplicable("the image has no Python headers, which torch.compile needs on a CPU")


def new_net(ctx, torch):
    torch.manual_seed(ctx.params["seed"])
    torch.set_num_threads(1)
    width = ctx.params["width"]
    net = torch.nn.Sequential(
        torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.LayerNorm(2 * width), torch.nn.Linear(2 * width, 2)
    )
    return net, torch.randn(ctx.params["rows"], width)


def outcome(net, data):
    """The output, and the gradient of every tensor."""
    net.zero_grad()
    output = net(data)
    output.pow(2).mean().backward()
    return [output.detach()] + [tensor.grad.detach().clone() for tensor in net.parameters()]


if __name__ == "__main__":
    script.main()
