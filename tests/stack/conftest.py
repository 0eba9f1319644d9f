"""Runs smoke scripts on real environments, whole and broken."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap

import pytest
from seeded import observe
from stacks import MOST_SECONDS, PYTHONS, SMOKE_TESTS, facts, installed


@pytest.fixture(params=PYTHONS or [pytest.param(None, marks=pytest.mark.skip("TORCHPROOF_STACK_PYTHON is not set"))])
def python(request):
    return request.param


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Compiled files of the stacks, shared as the scripts of one image share them."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def run(python, tmp_path, compiled):
    def run(script, *, params=None, fault=None, stand_in=None, packages=None, **changes):
        """`fault` and `stand_in` patch the stack before the script imports it; a fault is there to be seen."""
        request = {
            "schema_version": 1,
            "python": facts(python)["python"],
            "packages": packages or installed(python),
            "variant": facts(python)["variant"],
            "scratch": str(tmp_path / "scratch"),
            "time_limit_s": 2 * MOST_SECONDS,
            "params": params or {},
            **changes,
        }
        (tmp_path / "request.json").write_text(json.dumps(request))
        env = {**os.environ, "PYTHONPATH": "", "PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""}
        if fault is not None or stand_in is not None:
            (tmp_path / "faults").mkdir(exist_ok=True)
            (tmp_path / "faults" / "sitecustomize.py").write_text(textwrap.dedent(fault or stand_in or ""))
            env["PYTHONPATH"] = str(tmp_path / "faults")
        done = subprocess.run(
            [python, SMOKE_TESTS / f"{script}.py", "--request", tmp_path / "request.json"],
            env=env,
            capture_output=True,
            text=True,
            timeout=3 * MOST_SECONDS,
            check=False,
        )
        document = json.loads(done.stdout)
        checks = {check["id"].partition(".")[2]: check for check in document["checks"]}
        errored = [check for check in checks.values() if check["status"] == "errored"]
        assert not errored, errored
        observe(script, checks)
        return document, checks

    return run
