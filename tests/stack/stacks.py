"""The environments that the smoke scripts are tried on, and what the tests have to know of them.

TORCHPROOF_STACK_PYTHON lists their interpreters, separated as in PATH. Each needs torch, transformers, numpy and
onnxruntime (or onnxruntime-gpu).
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from functools import cache
from pathlib import Path

SMOKE_TESTS = Path(__file__).parents[2] / "smoke_tests"
PYTHONS = [path for path in os.environ.get("TORCHPROOF_STACK_PYTHON", "").split(os.pathsep) if path]
MOST_SECONDS = 60


def allowed_seconds():
    """Of one script; a machine that others load takes longer by as much."""
    return MOST_SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@cache
def installed(python):
    """The environment as a lock would give it."""
    listed = subprocess.run(
        [python, "-c", "import json, _installed as i; print(json.dumps(i.first_of_each(i.packages())))"],
        env={**os.environ, "PYTHONPATH": str(SMOKE_TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(listed.stdout)


@cache
def facts(python):
    """What the tests have to know of the environment."""
    code = """
        import json, platform, inspect, torch
        options = inspect.signature(torch.onnx.export).parameters
        def halves():
            try:
                torch.nn.LayerNorm(2).half()(torch.ones(1, 2).half())
            except RuntimeError:
                return False
            return True
        print(json.dumps({
            "python": platform.python_version(),
            "variant": "cu" + torch.version.cuda.replace(".", "") if torch.version.cuda else "cpu",
            "compiles": hasattr(torch, "compile"),
            "chooses": hasattr(torch.nn.functional, "scaled_dot_product_attention"),
            "halves": halves(),
            "gpu": torch.cuda.is_available(),
            "dynamo": "dynamo" in options and options["dynamo"].default is True,
            "cpu_scaler": hasattr(torch.amp, "GradScaler") if hasattr(torch, "amp") else False,
        }))"""
    told = subprocess.run([python, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


def codes(checks):
    return {name: check["code"] for name, check in checks.items() if check["status"] == "failed"}
