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
import faulthandler
import importlib.util
import json
import math
import os
import platform
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback

from _request import SCHEMA_VERSION, BadRequestError, read_request

try:
    import resource
except ImportError:  # not a Unix
    resource = None

EXIT_PASSED, EXIT_FAILED, EXIT_ERRORED, EXIT_BAD_REQUEST = 0, 1, 2, 3
NOT_APPLICABLE = "not-applicable"

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
    "PYTHONDONTWRITEBYTECODE": "1",
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


class Outcome(Exception):  # noqa: N818
    """How one check ended. It is an exception so that a check can end from any depth."""

    status = ""

    def __init__(self, code, message, measured=None, expected=None, tolerance=None, blame=None, **details):
        super().__init__(message)
        self.code = code
        self.message = message
        self.measured = measured
        self.expected = expected
        self.tolerance = tolerance
        self.blame = blame
        self.details = details


class Passed(Outcome):
    status = "passed"

    def __init__(self, message, **values):
        super().__init__(None, message, **values)


class Failed(Outcome):
    """`blame`: `image` (the default) or `host`, such as a driver that is too old."""

    status = "failed"

    def __init__(self, code, message, blame="image", **values):
        super().__init__(code, message, blame=blame, **values)


class NotChecked(Outcome):
    status = "not-checked"

    def __init__(self, reason, **values):
        super().__init__(None, reason, **values)


class NotApplicable(NotChecked):
    """There is nothing to check in this image, such as a package that the lock does not have.

    The code tells it from proof that is missing: only the latter keeps an image from its level.
    """

    def __init__(self, reason, **values):
        super().__init__(reason, **values)
        self.code = NOT_APPLICABLE


class Errored(Outcome):
    status = "errored"


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
        run = Run(self, Context(request, params, scratch), options.result, out, own_scratch)
        sys.exit(run.to_the_end(request["time_limit_s"]))


class Run:
    """One pass over the checks. The watchdog thread may end it at any moment, so a lock guards the way out."""

    def __init__(self, script, context, result_file, out, own_scratch):
        self.script = script
        self.context = context
        self.result_file = result_file
        self.out = out
        self.own_scratch = own_scratch
        self.started = time.monotonic()
        self.results = []
        self.running = script.checks[0], self.started
        self.ending = threading.Lock()

    def to_the_end(self, time_limit_s):
        watchdog = threading.Timer(time_limit_s, self.stop_at_limit, [time_limit_s])
        watchdog.daemon = True
        watchdog.start()
        for check in self.script.checks:
            self.results.append(self.run_check(check))
        self.ending.acquire()  # never released: from here on the watchdog must not write
        watchdog.cancel()
        return self.finish()

    def run_check(self, check):
        self.running = check, time.monotonic()
        blocked = [result for result in self.results if result["name"] in check.needs and result["status"] != "passed"]
        if blocked:
            return self.as_blocked(check, blocked[0])
        try:
            outcome = check.function(self.context)
        except Outcome as ended:
            outcome = ended
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit: a library that leaves the process must not lose the result
            outcome = Errored(
                "check-broke",
                "the check itself broke: {}".format(one_line(error)),
                blame="tool",
                traceback=traceback.format_exc(),
            )
        if not isinstance(outcome, Outcome):
            outcome = Errored("check-broke", "the check returned {!r} and no outcome".format(outcome), blame="tool")
        return self.as_result(check, outcome)

    def as_blocked(self, check, earlier):
        """Not checked, with the first cause as its reason; what does not apply takes its dependants with it."""
        root = earlier["root"] or earlier
        if root["code"] == NOT_APPLICABLE:
            outcome = NotApplicable(root["message"])
        else:
            ended = {"failed": "failed", "errored": "broke", "not-checked": "was not checked"}[root["status"]]
            outcome = NotChecked("needs `{}`, which {}: {}".format(root["id"], ended, root["message"]))
        return dict(self.as_result(check, outcome), root=root)

    def as_result(self, check, outcome):
        level = check.level(self.context) if callable(check.level) else check.level
        seconds = time.monotonic() - self.running[1]
        return {
            "name": check.name,
            "root": None,
            "id": "{}.{}".format(self.script.name, check.name),
            "level": level,
            "status": outcome.status,
            "code": outcome.code,
            "message": outcome.message,
            "measured": outcome.measured,
            "expected": outcome.expected,
            "tolerance": outcome.tolerance,
            "seconds": round(seconds, 3),
            "blame": outcome.blame,
            "details": outcome.details,
        }

    def stop_at_limit(self, time_limit_s):
        """Called by the watchdog: say which check hung and where, and leave without waiting for it."""
        if not self.ending.acquire(False):
            return
        check, _ = self.running
        frame = sys._current_frames().get(threading.main_thread().ident)  # noqa: SLF001
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        message = "not finished after {:g} s, the time limit of the whole script".format(time_limit_s)
        self.results = self.results[: self.script.checks.index(check)]
        self.results.append(self.as_result(check, Failed("time-limit", message, expected=time_limit_s, stack=stack)))
        for later in self.script.checks[len(self.results) :]:
            reason = "`{}.{}` used up the time limit".format(self.script.name, check.name)
            self.results.append(self.as_result(later, NotChecked(reason)))
        os._exit(self.finish())

    def finish(self):
        document = {
            "schema_version": SCHEMA_VERSION,
            "script": self.script.name,
            "seconds": round(time.monotonic() - self.started, 3),
            "environment": self.context.environment,
            "peak_rss_bytes": peak_rss_bytes(),
            "checks": [
                {key: value for key, value in result.items() if key not in ("name", "root")} for result in self.results
            ],
        }
        text = json.dumps(plain(document), indent=1, sort_keys=False, allow_nan=False) + "\n"
        if self.result_file:
            write_atomically(self.result_file, text)
        else:
            write_all(self.out, text)
        if self.own_scratch:
            shutil.rmtree(self.own_scratch, ignore_errors=True)
        statuses = {result["status"] for result in self.results}
        if "errored" in statuses:
            return EXIT_ERRORED
        return EXIT_FAILED if "failed" in statuses else EXIT_PASSED


def blame_stack(error, code, message, **values):
    """Failed, when `error` came out of the stack under test; `error` itself when it is a slip in the script.

    Errors raised in C have no frame of their own, so the kind of the error decides for those that end in our frames.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    in_script = os.path.dirname(os.path.abspath(frame.filename)) == os.path.dirname(os.path.abspath(__file__))
    slip = isinstance(error, (NameError, AttributeError, TypeError, LookupError, AssertionError))
    if isinstance(error, Outcome) or (in_script and slip):
        return error
    values["traceback"] = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Failed(code, "{}: {}".format(message, one_line(error)), **values)


def one_line(error):
    text = " ".join(str(error).split())
    if len(text) > 400:
        text = text[:397] + "..."
    return "{}: {}".format(type(error).__name__, text) if text else type(error).__name__


def take_stdout():
    """A descriptor for the real standard output; whatever a library prints from now on, even from C, goes to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def prepare_process(scratch):
    faulthandler.enable()
    os.environ.update(OFFLINE)
    for name in CACHES:
        os.environ[name] = scratch
    tempfile.tempdir = scratch
    random.seed(0)


def plain(value):
    """`value` as strict JSON: JSON has no NaN, and numbers of the stack (numpy, tensors) are no Python numbers."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in items]
    return str(value)


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


def peak_rss_bytes():
    if resource is None:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
