"""Runs the checks of one smoke script and writes one result document. Python 3.7 and newer, standard library only.

A script is a list of check functions in the order they run:

    script = Script("train_step", {"steps": 30})

    @script.check("run", "L2")
    def run(ctx): ...

    script.main()

A check returns `Passed`, or raises `Failed` (the image or the host is not right) or `NotChecked` (with the reason). Any
other exception means that the check itself broke: it is reported as errored. A check whose `needs` did not pass is
not-checked. docs/smoke-contract.md describes the request and the result.
"""

import argparse
import gc
import importlib.util
import json
import os
import platform
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback

from _outcome import Errored, Failed, NotApplicable, NotChecked, Outcome, Passed, blame_stack, one_line
from _request import SCHEMA_VERSION, BadRequestError, read_request
from _run import run_checks

__all__ = [
    "Errored",
    "Failed",
    "NotApplicable",
    "NotChecked",
    "Outcome",
    "Passed",
    "Script",
    "blame_stack",
    "one_line",
]
EXIT_PASSED, EXIT_FAILED, EXIT_ERRORED, EXIT_BAD_REQUEST = 0, 1, 2, 3

# Libraries read these while they are imported, so they are set before any of them is.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "WANDB_MODE": "offline",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
# Caches that would otherwise be written below the home folder; CUDA_CACHE_PATH holds kernels compiled from PTX.
CACHES = (
    "HOME",
    "TMPDIR",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "MPLCONFIGDIR",
    "WANDB_DIR",
)


class Context:
    """What a check may use: the request, the parameters, the scratch folder, and room for what earlier checks made."""

    def __init__(self, request, params, scratch):
        self.packages = request["packages"]
        self.python = request["python"]
        self.variant = request["variant"]
        self.gpus = request["gpus"]
        self.params = params
        self.scratch = scratch
        self.environment = {"python": platform.python_version(), "torch": None, "device": None, "gpu": None}
        self.made = {}

    def stack(self, name, *attributes):
        """A module of the stack under test, with the named attributes loaded, since some packages import late.

        That it cannot be imported is a finding about the image, not a broken check.
        """
        gc.disable()  # an import makes much and drops nothing: a sixth of its time
        try:
            module = importlib.import_module(name)
            for attribute in attributes:
                getattr(module, attribute)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            raise Failed(
                "import-failed",
                "`import {}` fails: {}".format(name, one_line(error)),
                expected="import works",
                module=name,
                traceback=traceback.format_exc(),
            ) from None
        finally:
            gc.enable()
        return module

    def optional(self, name, package=None):
        """Like `stack`, but it does not apply where the lock does not have the package."""
        package = package or name
        if self.packages and package not in self.packages:
            raise NotApplicable("`{}` is not in the lock".format(package))
        if not self.packages and importlib.util.find_spec(name) is None:
            raise NotApplicable("`{}` is not installed and no lock was given".format(package))
        return self.stack(name)


class Check:
    def __init__(self, name, level, needs, function):
        self.name = name
        self.level = level
        self.needs = needs
        self.function = function


class Script:
    """`defaults` are all the parameters the script has, with their values for a run by hand."""

    def __init__(self, name, defaults):
        self.name = name
        self.defaults = defaults
        self.checks = []

    def check(self, name, level, needs=()):
        """Register a check; `level` is a text, or a function of the context where it depends on the device in use."""

        def register(function):
            self.checks.append(Check(name, level, tuple(needs), function))
            return function

        return register

    def main(self, argv=None):
        """Run everything and leave the process with the exit status of the contract."""
        parser = argparse.ArgumentParser(prog=self.name + ".py")
        parser.add_argument("--request", metavar="FILE", help="JSON request; defaults are used without it")
        parser.add_argument("--result", metavar="FILE", help="write the result there and not to standard output")
        options = parser.parse_args(argv)
        out = take_stdout()
        try:
            request, params = read_request(options.request, self.defaults)
        except BadRequestError as error:
            sys.stderr.write("error[bad-request]: {}\n".format(error))
            sys.exit(EXIT_BAD_REQUEST)
        scratch = request["scratch"]
        own_scratch = None
        if scratch is None:
            own_scratch = scratch = tempfile.mkdtemp(prefix="torchproof-")
        os.makedirs(scratch, exist_ok=True)
        prepare_process(scratch)
        context = Context(request, params, scratch)
        started = time.monotonic()
        try:
            results = run_checks(self, context, request["time_limit_s"])
        finally:
            if own_scratch:
                shutil.rmtree(own_scratch, ignore_errors=True)
        document = {
            "schema_version": SCHEMA_VERSION,
            "script": self.name,
            "seconds": round(time.monotonic() - started, 3),
            "environment": context.environment,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "checks": results,
        }
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        if options.result:
            write_atomically(options.result, text)
        else:
            write_all(out, text)
        statuses = {result["status"] for result in results}
        sys.exit(EXIT_ERRORED if "errored" in statuses else EXIT_FAILED if "failed" in statuses else EXIT_PASSED)


def take_stdout():
    """A descriptor for the real standard output; whatever a library prints from now on, even from C, goes to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def prepare_process(scratch):
    os.environ.update(OFFLINE)
    # Compiled files go to the folder that PYTHONPYCACHEPREFIX names, if any: the scripts that follow import in a third
    # of the time. Never beside the stack.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1" if sys.dont_write_bytecode else ""
    for name in CACHES:
        os.environ[name] = scratch
    tempfile.tempdir = scratch
    random.seed(0)


def write_atomically(path, text):
    """A reader sees the whole document or none."""
    partial = "{}.{}.part".format(path, os.getpid())
    with open(partial, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)


def write_all(descriptor, text):
    data = text.encode("utf-8")
    while data:
        data = data[os.write(descriptor, data) :]
