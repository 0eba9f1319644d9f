"""vram_peak.live_bytes: what it says when a trace and a run count alike, apart, or not at all. No torch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from seeded import fault

SMOKE_TESTS = Path(__file__).resolve().parents[2] / "smoke_tests"
sys.path.insert(0, str(SMOKE_TESTS))

import _bert  # noqa: E402
import _live_bytes  # noqa: E402
import vram_peak  # noqa: E402
from _harness import Outcome  # noqa: E402


class Context(SimpleNamespace):
    def stack(self, name: Any) -> Any:
        return SimpleNamespace(__version__=self.version)


def outcome(monkeypatch: Any, counts: Any, *, version: Any = "2.6.0+cpu", traced: Any = 0) -> Any:
    """The outcome where a run counts `counts["cpu"]` and a trace `counts["meta"]` bytes."""

    def peak(torch: Any, build: Any, device: Any, batch: Any, seq: Any) -> Any:
        if isinstance(counts[device], Exception):
            raise counts[device]
        return counts[device]

    monkeypatch.setattr(_live_bytes, "peak_live_bytes", peak)
    monkeypatch.setattr(_bert, "config", lambda ctx, **_: None)
    monkeypatch.setattr(_bert, "seed_everything", lambda torch, seed: None)
    context = Context(version=version, params={"seed": 1, "traced_live_bytes": traced})
    try:
        return vram_peak.live_bytes(context)
    except Outcome as ended:
        return ended


def test_equal_counts_pass(monkeypatch: Any) -> None:
    assert outcome(monkeypatch, {"cpu": 1000, "meta": 1000}).status == "passed"
    assert outcome(monkeypatch, {"cpu": 1000, "meta": 1000}, traced=1004).status == "passed"


@fault("vram_peak", {"live_bytes": "trace-differs"})
@pytest.mark.parametrize(("meta", "traced"), [(1001, 0), (1000, 1006), (1000, 900)])
def test_other_counts_fail(monkeypatch: Any, meta: Any, traced: Any) -> None:
    ended = outcome(monkeypatch, {"cpu": 1000, "meta": meta}, traced=traced)
    assert (ended.status, ended.code) == ("failed", "trace-differs")


@fault("vram_peak", {"live_bytes": "trace-failed"})
def test_a_step_that_does_not_trace(monkeypatch: Any) -> None:
    ended = outcome(monkeypatch, {"cpu": 1000, "meta": RuntimeError("no meta kernel")})
    assert (ended.status, ended.code) == ("failed", "trace-failed")
    assert "no meta kernel" in ended.message


@pytest.mark.parametrize("version", ["1.13.1+cu117", "2.1.2+cu121", "2.5.1"])
def test_older_torch_cannot_trace_which_holds_nothing_back(monkeypatch: Any, version: Any) -> None:
    ended = outcome(monkeypatch, {}, version=version)
    assert (ended.status, ended.code) == ("not-checked", "not-applicable")
    assert "needs 2.6" in ended.message
    assert version in ended.message


def test_an_estimate_for_another_loop_is_not_used() -> None:
    described = {**{name: vram_peak.script.defaults[name] for name in vram_peak.script.defaults}, "attention": "eager"}
    params: dict[str, Any] = {
        "estimate_bytes": 5,
        "estimate_reserved_bytes": 6,
        "estimate_terms": {},
        "estimate_of": {"batch": described["batch"], "attention": "eager"},
    }
    assert vram_peak.estimate_for(params, described)["source"] == "the request"
    params["estimate_of"]["attention"] = "sdpa"
    found = vram_peak.estimate_for(params, described)
    assert found["allocated"] > 5
    assert "the host's estimate is for attention 'sdpa'" in found["source"]
