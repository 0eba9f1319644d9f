"""Seconds to load each topic of the facts, beside reading the same content as YAML: python bench/catalog_load.py

Each figure is the best of several runs: of loading in this process, of importing in fresh interpreters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from builder.catalog import Catalog  # noqa: E402
from builder.facts_schema import validate  # noqa: E402

RUNS = 7
FIRST_ROWS: dict[str, Callable[[Catalog], object]] = {
    "cuda_driver": lambda catalog: catalog.toolkits(),
    "cuda_images": lambda catalog: catalog.cuda_image_tags(),
    "gpus": lambda catalog: catalog.gpu("RTX 3090"),
    "numpy": lambda catalog: catalog.numpy_releases(),
    "onnxruntime": lambda catalog: catalog.onnxruntime_gpu_releases(),
    "python": lambda catalog: catalog.distributions(),
    "torch": lambda catalog: catalog.torch_releases(),
    "transformers": lambda catalog: catalog.transformers_releases(),
}


def best_ms(work: Callable[[], object], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


def whole(topic: str) -> object:
    return Catalog.shipped().raw(topic)


def first(rows: Callable[[Catalog], object]) -> object:
    return rows(Catalog.shipped())


def import_ms(code: str, before: str = "pass") -> float:
    """Milliseconds of `code` in a fresh interpreter, after `before`: the best of several."""
    timed = f"import time\n{before}\nstart = time.perf_counter()\n{code}\nprint(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", timed], check=True, cwd=ROOT, capture_output=True) for _ in range(9)]
    return 1000 * min(float(run.stdout) for run in runs)


def main() -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    heads = f"{'load ms':>9}{'+ rows ms':>11}{'schema ms':>11}{'YAML ms':>9}{'YAML, C ms':>12}"
    print(f"{'topic':14}{'kB':>6}{'rows':>6}{heads}")
    index = json.loads((ROOT / "builder/facts/index.json").read_text())["topics"]
    totals = [0.0] * 5
    for topic, about in index.items():
        text = (ROOT / f"builder/facts/{topic}.json").read_text()
        content = json.loads(text)
        sheet = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        rows = FIRST_ROWS.get(topic, methodcaller("raw", topic))
        figures = [
            best_ms(partial(whole, topic)),
            best_ms(partial(first, rows)),
            best_ms(partial(validate, topic, content, topic), 3),
            best_ms(partial(yaml.load, sheet, yaml.SafeLoader), 1),
            best_ms(partial(yaml.load, sheet, loader), 2),
        ]
        totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        print(
            f"{topic:14}{len(text) / 1000:6.0f}{about['rows']:6}{figures[0]:9.2f}{figures[1]:11.2f}"
            f"{figures[2]:11.1f}{figures[3]:9.0f}{figures[4]:12.0f}"
        )
    print(f"{'all':26}{totals[0]:9.2f}{totals[1]:11.2f}{totals[2]:11.1f}{totals[3]:9.0f}{totals[4]:12.0f}")
    print()
    pydantic = "import pydantic; pydantic.BaseModel"
    for code in ("import pydantic", pydantic, "import builder.catalog"):
        print(f"{code:45}{import_ms(code):7.1f} ms")
    print(f"{'import builder.catalog, after pydantic':45}{import_ms('import builder.catalog', pydantic):7.1f} ms")


if __name__ == "__main__":
    main()
