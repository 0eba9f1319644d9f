"""Runs the checks in a child process, so that a crash of the stack costs one check and not the whole result.

The child writes one JSON line when a check starts and one when it ends; the parent keeps them, watches the time limit
and says what happened when the child dies. It is a fork and not a new interpreter: nothing is imported twice.
"""

import contextlib
import ctypes
import faulthandler
import json
import math
import os
import select
import signal
import sys
import time
import traceback

from _outcome import NOT_APPLICABLE, Errored, Failed, NotApplicable, NotChecked, Outcome, one_line

TRACEBACK_FILE = "traceback.txt"
# The stack of a hanging check is written at the limit, in C; the child is killed this much later.
KILL_AFTER_S = 0.5
PR_SET_PDEATHSIG = 1


def run_checks(script, context, time_limit_s):
    """One result for every check, whatever happens to the child."""
    reader, writer = os.pipe()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        die_with_parent()
        Child(script, context, writer).run(time_limit_s)
    os.close(writer)
    try:
        return Parent(script, context, child, reader).watch(time_limit_s)
    except BaseException:
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGKILL)
        raise


def die_with_parent():
    """A host that kills the script at its own limit must not leave the child behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Child:
    def __init__(self, script, context, writer):
        self.script = script
        self.context = context
        self.writer = writer
        self.results = []

    def run(self, time_limit_s):
        stacks = open(os.path.join(self.context.scratch, TRACEBACK_FILE), "w")  # noqa: SIM115 - until the process ends
        faulthandler.enable(stacks)
        faulthandler.dump_traceback_later(time_limit_s, file=stacks)
        for check in self.script.checks:
            self.send({"started": check.name})
            result = self.run_check(check)
            self.results.append(result)
            self.send({"ended": result, "environment": self.context.environment})
        faulthandler.cancel_dump_traceback_later()
        sys.exit(0)  # and not os._exit: a stack that crashes while it is taken down is a finding

    def send(self, event):
        data = (json.dumps(plain(event), allow_nan=False) + "\n").encode("utf-8")
        while data:
            data = data[os.write(self.writer, data) :]

    def run_check(self, check):
        started = time.monotonic()
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
        return as_result(self.script, check, outcome, self.context, started)

    def as_blocked(self, check, earlier):
        """Not checked, with the first cause as its reason; what does not apply takes its dependants with it."""
        root = earlier["root"] or earlier
        if root["code"] == NOT_APPLICABLE:
            outcome = NotApplicable(root["message"])
        else:
            ended = {"failed": "failed", "errored": "broke", "not-checked": "was not checked"}[root["status"]]
            outcome = NotChecked("needs `{}`, which {}: {}".format(root["id"], ended, root["message"]))
        return dict(as_result(self.script, check, outcome, self.context, time.monotonic()), root=root)


class Parent:
    def __init__(self, script, context, child, reader):
        self.script = script
        self.context = context
        self.child = child
        self.reader = reader
        self.results = []
        self.running = script.checks[0].name
        self.started = time.monotonic()

    def watch(self, time_limit_s):
        status, over_limit = self.read_events(time.monotonic() + time_limit_s + KILL_AFTER_S)
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        left = self.script.checks[len(self.results) :]
        if over_limit and left:
            message = "not finished after {:g} s, the time limit of the whole script".format(time_limit_s)
            self.end_early(left, Failed("time-limit", message, expected=time_limit_s, stack=self.stacks()))
        elif left:
            self.end_early(left, self.death(signal_number, status))
        elif signal_number is not None and not over_limit:
            self.crashed_at_exit(signal_number)
        return [{key: value for key, value in result.items() if key not in ("name", "root")} for result in self.results]

    def read_events(self, deadline):
        """(wait status, whether the time limit ended it); returns when the child is gone and its pipe is read."""
        buffered, gone, over_limit = b"", None, False
        while True:
            ready, _, _ = select.select([self.reader], [], [], 0 if gone is not None else 0.1)
            if ready:
                data = os.read(self.reader, 65536)
                buffered += data
                while b"\n" in buffered:
                    line, _, buffered = buffered.partition(b"\n")
                    self.take(json.loads(line.decode("utf-8")))
                if data:
                    continue
            if gone is not None:
                return gone, over_limit
            if time.monotonic() > deadline and not over_limit:
                over_limit = True
                os.kill(self.child, signal.SIGKILL)
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                gone = status
            elif ready:
                time.sleep(0.01)  # the pipe is closed and the child is still being taken down

    def take(self, event):
        if "started" in event:
            self.running, self.started = event["started"], time.monotonic()
        else:
            self.results.append(event["ended"])
            self.context.environment.update(event["environment"])

    def end_early(self, left, outcome):
        """`outcome` for the check that was running, not-checked for those that come after it."""
        self.results.append(as_result(self.script, left[0], outcome, self.context, self.started))
        reason = "`{}.{}` ended the script early: {}".format(self.script.name, left[0].name, outcome.message)
        for check in left[1:]:
            self.results.append(as_result(self.script, check, NotChecked(reason), self.context, time.monotonic()))

    def death(self, signal_number, status):
        if signal_number is None:
            message = "a library left the process with status {}".format(os.WEXITSTATUS(status))
            return Failed("process-left", message, measured=os.WEXITSTATUS(status))
        name = signal.Signals(signal_number).name
        if signal_number == signal.SIGKILL:
            return Failed(
                "killed", "the process was killed, as happens when memory runs out", blame="host", measured=name
            )
        return Failed("crashed", "the process crashed with {}".format(name), measured=name, stack=self.stacks())

    def crashed_at_exit(self, signal_number):
        last = self.script.checks[-1]
        outcome = Failed(
            "crashed-at-exit",
            "all checks ran, then the process crashed with {} while it ended".format(
                signal.Signals(signal_number).name
            ),
            stack=self.stacks(),
        )
        exit_check = type(last)("exit", self.script.checks[0].level, (), None)
        self.results.append(as_result(self.script, exit_check, outcome, self.context, time.monotonic()))

    def stacks(self):
        try:
            with open(os.path.join(self.context.scratch, TRACEBACK_FILE)) as stream:
                return stream.read()[-8000:]
        except OSError:
            return ""


def as_result(script, check, outcome, context, started):
    return {
        "name": check.name,
        "root": None,
        "id": "{}.{}".format(script.name, check.name),
        "level": check.level(context) if callable(check.level) else check.level,
        "status": outcome.status,
        "code": outcome.code,
        "message": outcome.message,
        "measured": plain(outcome.measured),
        "expected": plain(outcome.expected),
        "tolerance": plain(outcome.tolerance),
        "seconds": round(time.monotonic() - started, 3),
        "blame": outcome.blame,
        "details": plain(outcome.details),
    }


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
