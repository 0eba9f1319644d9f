"""Whatever bytes come in: no parser raises, and what is said survives printing and reading."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version

from builder.environment import Kind, Origin, Request
from builder.inputs import Options, detect, matchspec, parse, parse_options
from builder.inputs.options import applied
from builder.inputs.reading import Reader, decode
from builder.inputs.requirement import parse as parse_requirement
from builder.inputs.shell_words import Expander, tokens

KINDS: list[Kind] = [kind for kind in get_args(Kind) if kind not in {"spec", "options"}]
WORDS = st.sampled_from(
    [
        "torch", "==", "2.1.0", "+cu118", "-r", "a.txt", "-c", "--index-url", "https://x.example/whl/cu118", ";", "#",
        "\\\n", "\n", " ", "  - ", ":", "dependencies", "pip", "[", "]", "{", "}", "FROM", "RUN", "ARG", "ENV", "COPY",
        "--from=0", "AS", "&&", "||", "$", "${", "}", "(", ")", "'", '"', "`", "<<EOF", "EOF", "if", "then", "fi",
        "for", "in", "do", "done", "case", "esac", "pip install", "conda install", "-U", "@", "git+", "=", "*", "|",
        "[[package]]", "name", "version", "&a", "*a", "\t", "\x00", "\ufeff", "é", "A=$A$A",
    ]
)  # fmt: skip
TEXTS = st.lists(WORDS, max_size=60).map(" ".join) | st.lists(WORDS, max_size=60).map("".join)
SOME = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(kind: Kind, text: str) -> None:
    reader = Reader(files={"a.txt": text, "b.txt": "-r a.txt"}, is_offline=True)
    env = parse(kind, text, "a.txt", reader=reader)
    options = Options(pins=(text[:80],), env=(text[:40],), indexes=(text[:40],))
    env = applied(env.merge(parse_options(options)), options)
    json.dumps(env.to_json())
    assert [step.number for step in env.steps] == list(range(len(env.steps)))
    assert all(0 <= request.step < len(env.steps) for request in (*env.requests, *env.constraints))
    lines = text.count("\n") + text.count("\r") + 1
    for request in env.requests:
        assert request.origin.line is None or 1 <= request.origin.line <= lines


@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(raw=st.binary(max_size=400))
def test_any_bytes(kind: Kind, raw: bytes) -> None:
    check(kind, decode(raw))


@pytest.mark.parametrize("kind", KINDS)
@SOME
@given(text=TEXTS)
def test_any_words(kind: Kind, text: str) -> None:
    check(kind, text)


@SOME
@given(raw=st.binary(max_size=300), name=st.text(max_size=20))
def test_every_file_has_a_kind(raw: bytes, name: str) -> None:
    assert detect(name, decode(raw)) in get_args(Kind)


@SOME
@given(st.text(max_size=200))
def test_any_text_is_split_into_words(text: str) -> None:
    for token in tokens(text):
        Expander({"A": "1"}).words(token.text)
        assert 0 <= token.offset <= len(text)


@SOME
@given(st.text(max_size=100))
def test_any_option(text: str) -> None:
    options = Options(
        pins=(text,), python=text, gpus=(text,), driver=text, os=text, glibc=text, indexes=(text,), arch=text,
        date=text, env=(text,), precisions=(text,),
    )  # fmt: skip
    json.dumps(applied(parse_options(options), options).to_json())


names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,5})?", fullmatch=True)
versions = st.builds(
    lambda parts, local: ".".join(map(str, parts)) + local,
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.sampled_from(["", "+cu118", "+cpu", "+cu12torch2.6cxx11abiFALSE"]),
)


@SOME
@given(name=names, version=versions)
def test_a_pin_is_read_back(name: str, version: str) -> None:
    found = parse_requirement(f"{name}=={version}", Origin("f", 1))
    assert isinstance(found, Request)
    assert (found.name, found.version) == (name, Version(version))
    again = parse_requirement(f"{found.name}{found.asks}", Origin("f", 1))
    assert isinstance(again, Request)
    assert (again.name, again.version, again.variant) == (found.name, found.version, found.variant)


@SOME
@given(name=names, parts=st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_a_conda_pin_takes_its_own_version(name: str, parts: list[int]) -> None:
    version = ".".join(map(str, parts))
    found = matchspec.parse(f"{name}={version}", Origin("f", 1))
    assert isinstance(found, Request)
    assert found.specifier.contains(version)
    assert not found.specifier.contains(f"{parts[0] + 1}.0")


@SOME
@given(st.lists(st.sampled_from(["a.txt", "b.txt", "c.txt", "d.txt"]), min_size=4, max_size=12))
def test_includes_in_any_shape_end(targets: list[str]) -> None:
    files = dict.fromkeys(("a.txt", "b.txt", "c.txt", "d.txt"), "")
    for number, target in enumerate(targets):
        owner = list(files)[number % 4]
        files[owner] += f"-{'rc'[number % 2]} {target}\np{number}\n"
    env = parse("requirements", files["a.txt"], "a.txt", reader=Reader(files=files, is_offline=True))
    assert len(env.requests) + len(env.constraints) <= 2 * len(targets)
