"""Runs a piece of work in other processes of the same Python, with a time limit, and keeps what they said."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback

# When one process fails, the others would wait for it to the limit.
AFTER_A_FAILURE_S = 5


class Ended:
    """How one process ended: its status (None when it was stopped), and its output."""

    def __init__(self, status, said, errors):
        self.status = status
        self.said = said
        self.errors = errors

    def last_words(self, length=600):
        return " | ".join(line.strip() for line in self.errors[-length:].splitlines() if line.strip())


def run_files(file, argument_lists, limit_s):
    """Start `file` once for each list of arguments, all at the same time; one Ended for each, in their order."""

    def start(number, out, errors):
        command = [sys.executable, file] + [str(argument) for argument in argument_lists[number]]
        process = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)
        return process.poll, process.pid

    return run_together(start, len(argument_lists), limit_s)


def run_forks(function, count, limit_s):
    """Call `function(number)` in `count` forks of this process, which need to import nothing again."""

    def start(number, out, errors):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            status = 1
            try:
                function(number)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        known = []

        def poll():
            if not known:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    known.append(os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status))
            return known[0] if known else None

        return poll, pid

    return run_together(start, count, limit_s)


def run_together(start, count, limit_s):
    with contextlib.ExitStack() as stack:
        outputs = [
            (stack.enter_context(tempfile.TemporaryFile()), stack.enter_context(tempfile.TemporaryFile()))
            for _ in range(count)
        ]
        started = [start(number, *outputs[number]) for number in range(count)]
        deadline, failed = time.monotonic() + limit_s, False
        while any(poll() is None for poll, _ in started) and time.monotonic() < deadline:
            if not failed and any(poll() not in (None, 0) for poll, _ in started):
                failed, deadline = True, min(deadline, time.monotonic() + AFTER_A_FAILURE_S)
            time.sleep(0.02)
        statuses = [poll() for poll, _ in started]
        for status, (poll, pid) in zip(statuses, started):
            if status is None:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                while poll() is None:
                    time.sleep(0.02)
        return [Ended(status, *map(whole, streams)) for status, streams in zip(statuses, outputs)]


def whole(stream):
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")
