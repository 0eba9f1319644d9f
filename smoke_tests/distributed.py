"""L2: two processes over gloo compute the gradient of one. L3: NCCL starts on the card and adds up on several."""

import contextlib
import importlib
import json
import os
import socket
import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

from _harness import Failed, NotApplicable, NotChecked, Passed, Script  # noqa: E402
from _processes import run_files, run_forks  # noqa: E402

script = Script("distributed", {"processes": 2, "limit_s": 90.0, "rows": 8, "width": 16, "seed": 20})
# Sums of a few products in fp32, added up in another order.
TOLERANCE = 1e-5


@script.check("gloo_gradients", "L2")
def gloo_gradients(ctx):
    """Two processes, each with half of the batch, end with the gradient that one process has for all of it."""
    torch = ctx.stack("torch")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    if not torch.distributed.is_available() or not hasattr(torch.distributed, "ProcessGroupGloo"):
        raise Failed("gloo-missing", "this torch is built without gloo", measured=False, expected=True)
    rank_gradients = work(ctx, "gloo", ctx.params["processes"])
    alone = gradients(torch, ctx.params, 0, 1)
    off = max(abs(left - right) for told in rank_gradients for left, right in zip(told, alone))
    values = {"measured": off, "expected": 0, "tolerance": TOLERANCE}
    if not off <= TOLERANCE or any(len(told) != len(alone) for told in rank_gradients):
        raise Failed(
            "gradients-differ",
            "{} processes end with a gradient that is {:.3g} off that of one".format(len(rank_gradients), off),
            **values,
        )
    return Passed("{} processes give the gradient of one, within {:.2g}".format(len(rank_gradients), off), **values)


@script.check("nccl", "L3")
def nccl(ctx):
    """NCCL starts with every card at hand and gives the gradient of one process."""
    torch = ctx.stack("torch")
    if not torch.version.cuda:
        raise NotApplicable("this torch is a CPU build, which has no NCCL")
    if not torch.cuda.is_available():
        raise NotChecked("torch can use no GPU here")
    if not torch.distributed.is_nccl_available():
        raise Failed("nccl-missing", "this torch is built without NCCL", measured=False, expected=True)
    cards = min(torch.cuda.device_count(), ctx.params["rows"])
    told = work(ctx, "nccl", cards)
    alone = gradients(torch, ctx.params, 0, 1)
    off = max(abs(left - right) for one in told for left, right in zip(one, alone))
    values = {"measured": off, "expected": 0, "tolerance": 1e-3, "cards": cards}
    if not off <= 1e-3:  # TF32 may be in use
        raise Failed("gradients-differ", "over NCCL the gradient is {:.3g} off".format(off), **values)
    return Passed("NCCL ran on {} card{}".format(cards, "" if cards == 1 else "s"), **values)


def work(ctx, backend, count):
    """The gradients that each process ends with."""
    port, params = free_port(), ctx.params
    if backend == "nccl":  # CUDA does not survive a fork
        argument_lists = [("--rank", rank, backend, count, port, json.dumps(params)) for rank in range(count)]
        ended = run_files(__file__, argument_lists, params["limit_s"])
    else:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")  # DistributedDataParallel does, and here once is enough
        ended = run_forks(lambda rank: one_of_many(rank, backend, count, port, params), count, params["limit_s"])
    bad = [(rank, one) for rank, one in enumerate(ended) if one.status != 0]
    if bad:
        # the first to fail by itself is the cause; the others only waited for it
        rank, one = next(((rank, one) for rank, one in bad if one.status is not None), bad[0])
        how = "did not end within {:g} s".format(params["limit_s"]) if one.status is None else "failed"
        raise Failed(
            "processes-fail",
            "process {} of {} over {} {}: {}".format(rank, count, backend, how, one.last_words() or "no word"),
            measured=[one.status for one in ended],
            expected=[0] * count,
        )
    return [json.loads(one.said.splitlines()[-1]) for one in ended]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def gradients(torch, params, rank, count, device="cpu", parallel=None):
    """Of a small net on this rank's part of one batch."""
    torch.manual_seed(params["seed"])
    width, rows = params["width"], params["rows"] - params["rows"] % count
    net = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).to(device)
    data = torch.randn(params["rows"], width)[: rows // count * count]
    part = data[rank * (rows // count) : (rank + 1) * (rows // count)].to(device)
    model = parallel(net) if parallel else net
    model(part).pow(2).mean().backward()
    return [float(value) for tensor in net.parameters() for value in tensor.grad.flatten().cpu()]


def one_of_many(rank, backend, count, port, params):
    """What each of the processes does; prints its gradient."""
    # gloo takes the address of the host's name otherwise, which a container without network cannot look up
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    torch.distributed.init_process_group(backend, rank=rank, world_size=count)
    device = "cuda:{}".format(rank) if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    wrap = torch.nn.parallel.DistributedDataParallel
    options = {"device_ids": [rank]} if backend == "nccl" else {}
    found = gradients(torch, params, rank, count, device, lambda net: wrap(net, **options))
    torch.distributed.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        one_of_many(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5], json.loads(sys.argv[6]))
    else:
        script.main()
