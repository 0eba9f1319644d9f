#!/usr/bin/env python3
"""How long `check` takes: check_speed.py [--rounds N].

1. Start to exit of `torchproof check` on a requirements file of 200 lines, beside `python -c "import pydantic"`, by
   turns on the same machine; at most 3 times as long is wanted.
2. Cells of a matrix through the library, on one core: at least 5,000 a second are wanted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from builder.catalog import Catalog
from builder.cells import Cell, Cells

MOST_TIMES = 3.0
LEAST_CELLS_A_SECOND = 5000
HEAD = """# a training stack with its neighbours
--extra-index-url https://wheels.example.org/whl/cu124
torch==2.6.0+cu124
torchvision==0.21.0+cu124
transformers==4.49.0
accelerate>=1.4,<2
datasets>=3.0
peft==0.14.0
onnxruntime-gpu==1.20.2
numpy>=1.26,<3
scipy>=1.11
pandas~=2.2
scikit-learn==1.6.1
tensorboard==2.19.0
bitsandbytes==0.45.3
"""


def requirements(lines: int) -> str:
    """Known packages at the top, then names that the facts do not know, as in a frozen application."""
    head = HEAD.splitlines()
    rest = [f"internal-package-{number}=={number % 9}.{number % 7}.0  # pinned" for number in range(lines - len(head))]
    return "\n".join([*head, *rest]) + "\n"


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def start_to_exit(rounds: int) -> dict[str, float]:
    tool = [sys.executable, "-m", "builder", "check"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text(requirements(200), encoding="utf-8")
        commands = {
            "check": [*tool, str(file), "--python", "3.11", "--gpu", "RTX 4090", "--driver", "550.54.15"],
            "pydantic": [sys.executable, "-c", "import pydantic"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for name, command in itertools.chain.from_iterable([commands.items()] * (rounds + 1)):
            times[name].append(seconds(command))
    # The first round fills the caches of the disk.
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def cells_a_second(count: int) -> tuple[int, float]:
    catalog = Catalog.shipped()
    cells = Cells(catalog)
    releases = [str(release.version) for release in catalog.torch_releases()]
    variants = ("cu118", "cu121", "cu124", "cu126", "cu128", "cu130", "cpu")
    pythons = ("3.9", "3.10", "3.11", "3.12", "3.13")
    gpus = ("V100", "T4", "RTX 3090", "H100 SXM", "RTX 5090")
    drivers = ("525.60.13", "550.54.15", "580.65.06")
    wanted = itertools.islice(itertools.cycle(itertools.product(releases, variants, pythons, gpus, drivers)), count)
    made = [Cell(torch=t, variant=v, python=p, gpu=g, driver=d) for t, v, p, g, d in wanted]
    started = time.perf_counter()
    good = sum(1 for cell in made if cells.fits(cell))
    return good, count / (time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cells", type=int, default=10_000)
    chosen = parser.parse_args()
    times = start_to_exit(chosen.rounds)
    ratio = times["check"] / times["pydantic"]
    good, rate = cells_a_second(chosen.cells)
    print(
        json.dumps(
            {
                "check_ms": round(times["check"] * 1000),
                "import_pydantic_ms": round(times["pydantic"] * 1000),
                "times": round(ratio, 2),
                "cells": chosen.cells,
                "cells_that_fit": good,
                "cells_a_second": round(rate),
            }
        )
    )
    return 0 if ratio <= MOST_TIMES and rate >= LEAST_CELLS_A_SECOND else 1


if __name__ == "__main__":
    sys.exit(main())
