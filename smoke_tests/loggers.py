"""L2: what is logged to TensorBoard and to wandb (offline) can be read back from disk."""

import glob
import os
import sys
import time

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

from _harness import Failed, Passed, Script, blame_stack  # noqa: E402

script = Script("loggers", {"steps": 5})
WRITTEN_WITHIN_S = 10.0


def values(ctx):
    """Powers of two, which survive a float32 and its text unchanged."""
    return [0.5**step for step in range(1, ctx.params["steps"] + 1)]


@script.check("tensorboard", "L2")
def tensorboard(ctx):
    """Scalars written through torch's SummaryWriter are the ones that TensorBoard reads back."""
    ctx.optional("tensorboard")
    writers = ctx.stack("torch.utils.tensorboard", "SummaryWriter")
    folder = os.path.join(ctx.scratch, "tensorboard")
    try:
        writer = writers.SummaryWriter(folder)
        for step, value in enumerate(values(ctx)):
            writer.add_scalar("loss", value, step)
        writer.close()
        reader = ctx.stack("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(folder)
        reader.Reload()
        found = [event.value for event in reader.Scalars("loss")] if "loss" in reader.Tags()["scalars"] else []
    except Exception as error:
        raise blame_stack(error, "logger-failed", "TensorBoard does not log") from None
    if found != values(ctx):
        raise Failed(
            "log-differs", "TensorBoard reads back other values than were written", measured=found, expected=values(ctx)
        )
    return Passed("TensorBoard reads back {} values".format(len(found)), measured=found)


@script.check("wandb", "L2")
def wandb(ctx):
    """A run logged by wandb without a network is in its file, values and all."""
    module = ctx.optional("wandb")
    try:
        run = module.init(mode="offline", dir=ctx.scratch, project="smoke", settings=module.Settings(silent=True))
        for value in values(ctx):
            run.log({"smoke_loss": value})
        run.finish()
    except Exception as error:
        raise blame_stack(error, "logger-failed", "wandb does not log") from None
    # wandb 0.31 writes on for a moment after `finish`: the file had only its header then in half of the runs.
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    while True:
        files, content = wandb_files(ctx.scratch)
        missing = [value for value in values(ctx) if repr(value).encode() not in content]
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if not files or b"smoke_loss" not in content or missing:
        raise Failed(
            "log-differs",
            "what was logged is not in wandb's file: {}".format(missing or "no file, or no such key"),
            measured=len(content),
            files=files,
        )
    return Passed("wandb's offline run holds {} values".format(ctx.params["steps"]), measured=len(content))


def wandb_files(folder):
    """The run's files, and what is in them."""
    files, content = glob.glob(os.path.join(folder, "**", "run-*.wandb"), recursive=True), b""
    for path in files:
        with open(path, "rb") as stream:
            content += stream.read()
    return files, content


if __name__ == "__main__":
    script.main()
