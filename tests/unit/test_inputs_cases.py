"""Every collected case is understood: the files it gives are read as a person would read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from builder.environment import Environment
from builder.inputs import Options, parse, parse_options
from builder.inputs.options import applied
from builder.inputs.reading import Reader

DATA = Path(__file__).parent.parent / "data" / "cases"
KINDS = {"requirements": "requirements.txt", "conda": "environment.yml", "dockerfile": "Dockerfile"}

# Python, or the torch behind a package that brings it, is not in the file: the distribution or the index decides.
NOT_IN_THE_FILE = {("G085", "torch"), ("G085", "build")}


def cases() -> list[Any]:
    found = []
    for name in ("known.yaml", "good.yaml"):
        for case in yaml.safe_load((DATA / name).read_text(encoding="utf-8"))["cases"]:
            found.append(pytest.param(case, id=case["id"]))
    return found


def environment(case: dict[str, Any]) -> Environment:
    given = case["input"]
    reader = Reader(files=given.get("includes") or {}, is_offline=True)
    options = Options(
        pins=tuple(given.get("pins") or ()),
        python=given.get("python"),
        gpus=(given["gpu"]["name"],) if isinstance(given.get("gpu"), dict) and "name" in given["gpu"] else (),
        driver=given.get("driver"),
        os=given.get("os"),
        glibc=given.get("glibc"),
    )
    env = Environment()
    for kind, file in KINDS.items():
        if kind in given:
            body = given[kind]
            text = body if isinstance(body, str) else yaml.safe_dump(body, sort_keys=False)
            env = env.merge(parse(kind, text, file, reader=reader, options=options))  # type: ignore[arg-type]
    return applied(env.merge(parse_options(options)), options)


@pytest.mark.parametrize("case", cases())
def test_what_the_case_resolves_to_is_within_what_was_understood(case: dict[str, Any]) -> None:
    env = environment(case)
    resolves = case["truth"].get("resolves") or {}
    for name, value in resolves.items():
        if name in {"build", "python"} or (case["id"], name) in NOT_IN_THE_FILE:
            continue
        state = env.in_force()[name]
        if state.version is not None:
            assert Version(state.version.public) == Version(value), name
        else:
            assert state.specifier.contains(value), name
    stated = env.stated_variant("torch")
    if "build" in resolves and stated is not None:
        assert str(stated) == resolves["build"]
    python = env.python
    if "python" in resolves and python is not None:
        said = python.version
        assert said is None or str(said.series) == resolves["python"]


@pytest.mark.parametrize("case", cases())
def test_nothing_of_a_case_is_left_out_without_a_reason(case: dict[str, Any]) -> None:
    left_out = environment(case).unparsed
    expected = {"K19": 1, "G084": 2, "K49": 0}.get(case["id"], 0)
    assert len(left_out) == expected, left_out


@pytest.mark.parametrize("case", cases())
def test_every_request_stands_in_a_step_and_in_a_line(case: dict[str, Any]) -> None:
    env = environment(case)
    for request in (*env.requests, *env.constraints):
        assert env.steps[request.step].number == request.step
        if request.origin.file != "--pin":
            assert request.origin.line is not None
