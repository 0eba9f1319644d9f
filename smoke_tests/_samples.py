"""What NVML says of a card while something runs on it, and a plot of it in two lines of text."""

import contextlib
import threading
import time

from _nvml import Nvml, NvmlError

PERIOD_S = 0.1
SIGNS = "▁▂▃▄▅▆▇█"
MOST_SIGNS = 60
GIB = 2.0**30


class Sampler:
    """Asks NVML in a thread while the block runs; without NVML it keeps nothing."""

    def __init__(self, during):
        self.during = during
        self.rows = []
        self.stop = threading.Event()

    def __enter__(self):
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.stop.set()
        self.thread.join(2)

    def watch(self):
        started = time.monotonic()
        with contextlib.suppress(NvmlError), Nvml() as nvml:
            while not self.stop.wait(PERIOD_S):
                utilization, used = nvml.load(0)
                row = {"at_s": round(time.monotonic() - started, 2), "utilization": utilization, "used_bytes": used}
                self.rows.append(dict(row, during=self.during))


def plot(rows):
    """Two lines: utilization on a scale to 100 %, memory on one to its own peak; one sign a sample, or a few."""
    lines = [line("utilization", [row["utilization"] for row in rows], 100.0, "{:.0f} to {:.0f} %")]
    used = [row["used_bytes"] / GIB for row in rows if row["used_bytes"] is not None]
    if used:
        lines.append(line("memory", used, max(used), "{:.1f} to {:.1f} GiB"))
    return lines


def line(name, values, top, span):
    return "{:<11} {} {}".format(name, "".join(signs(values, top)), span.format(min(values), max(values)))


def signs(values, top):
    """Where there are more values than signs, the highest of each group stands for it."""
    count = min(len(values), MOST_SIGNS)
    for index in range(count):
        group = values[index * len(values) // count : (index + 1) * len(values) // count]
        yield SIGNS[min(len(SIGNS) - 1, int(max(group) / (top or 1.0) * len(SIGNS)))]
