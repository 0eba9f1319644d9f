"""L2: a DataLoader with worker processes gives every row once, in order, through shared memory that is large enough."""

import os
import signal
import sys
import time

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

from _harness import Failed, Passed, Script, blame_stack  # noqa: E402

script = Script(
    "data_loader",
    {
        "workers": 2,
        "rows": 64,
        "batch": 8,
        "width": 4096,  # of fp32, so that one batch takes 128 KiB of shared memory
        "limit_s": 60,
        "shm_folder": "/dev/shm",  # noqa: S108 - the kernel's own shared memory, which is what is checked
        "least_shm_bytes": 256 * 2**20,  # Docker's default of 64 MiB is the one that loaders die of
    },
)
MIB = 2.0**20


class Stuck(Exception):  # noqa: N818
    """The time of one check is up."""


@script.check("shared_memory", "L2")
def shared_memory(ctx):
    """The shared memory has room for the batches that workers hand over; Docker's default has not."""
    folder = ctx.params["shm_folder"]
    if not os.path.isdir(folder):
        raise Failed("shm-missing", "there is no {}".format(folder), blame="host")
    state = os.statvfs(folder)
    total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    least = ctx.params["least_shm_bytes"]
    values = {"measured": total, "expected": ">= {}".format(least), "free_bytes": free}
    if total < least:
        raise Failed(
            "shm-too-small",
            "{} has {:.0f} MiB: workers that hand over larger batches die with a bus error; start the container with "
            "--shm-size of {:.0f}m or more".format(folder, total / MIB, least / MIB),
            blame="host",
            **values,
        )
    if free < min(least, 64 * MIB):
        raise Failed(
            "shm-too-small", "{} is full: {:.0f} MiB are free".format(folder, free / MIB), blame="host", **values
        )
    return Passed("{} has {:.0f} MiB".format(folder, total / MIB), **values)


@script.check("workers", "L2", needs=["shared_memory"])
def workers(ctx):
    """Worker processes start, hand over every row once and in order, and end."""
    torch = ctx.stack("torch")
    data = ctx.stack("torch.utils.data")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    params = ctx.params

    class Rows(data.Dataset):
        def __len__(self):
            return params["rows"]

        def __getitem__(self, index):
            return torch.full((params["width"],), float(index)), os.getpid()

    loader = data.DataLoader(Rows(), batch_size=params["batch"], num_workers=params["workers"])
    started = time.monotonic()
    try:
        with time_limit(params["limit_s"]):
            batches = [(rows[:, 0].tolist(), bool((rows == rows[:, :1]).all()), pids.tolist()) for rows, pids in loader]
    except Stuck:
        raise Failed(
            "loader-hangs",
            "the loader gave not all rows within {} s".format(params["limit_s"]),
            expected=params["rows"],
        ) from None
    except Exception as error:
        raise blame_stack(error, "loader-failed", "the loader does not run with worker processes") from None
    seen = [int(index) for rows, _, _ in batches for index in rows]
    wanted = list(range(params["rows"]))
    pids = {pid for _, _, group in batches for pid in group}
    values = {"measured": len(seen), "expected": params["rows"], "seconds": round(time.monotonic() - started, 2)}
    if seen != wanted or not all(whole for _, whole, _ in batches):
        raise Failed("rows-wrong", "rows came twice, not at all, out of order or damaged", rows=seen, **values)
    if os.getpid() in pids or len(pids) != params["workers"]:
        raise Failed("workers-not-used", "{} processes read rows".format(len(pids)), pids=sorted(pids), **values)
    return Passed("{} workers gave {} rows, each once and in order".format(params["workers"], len(seen)), **values)


class time_limit:  # noqa: N801 - used as a statement
    """Raises Stuck inside the block when the time is up."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def stop(_number, _frame):
            raise Stuck

        self.before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *error):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)


if __name__ == "__main__":
    script.main()
