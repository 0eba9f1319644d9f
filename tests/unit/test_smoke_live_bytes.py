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

from builder.vram import smoke_estimate  # noqa: E402


class Context(SimpleNamespace):
    def stack(self, name: Any) -> Any:
        return SimpleNamespace(__version__=self.version)


def outcome(monkeypatch: Any, counts: Any, *, version: Any = "2.6.0+cpu", traced: Any = None) -> Any:
    """Where a run counts `counts["cpu"]`, a trace `counts["meta"]`, and the host `traced` bytes (0: none sent)."""

    def peak(torch: Any, build: Any, device: Any, batch: Any, seq: Any) -> Any:
        if isinstance(counts[device], Exception):
            raise counts[device]
        return counts[device]

    monkeypatch.setattr(_live_bytes, "peak_live_bytes", peak)
    monkeypatch.setattr(_bert, "config", lambda ctx, **_: None)
    monkeypatch.setattr(_bert, "seed_everything", lambda torch, seed: None)
    params = {"seed": 1, "traced_live_bytes": traced, "why_not_traced": "torch is not there"}
    context = Context(version=version, params=params, made={})
    try:
        ended = vram_peak.live_bytes(context)
        return ended if traced is None else vram_peak.host_trace(context)
    except Outcome as ended:
        return ended


def test_equal_counts_pass(monkeypatch: Any) -> None:
    assert outcome(monkeypatch, {"cpu": 1000, "meta": 1000}).status == "passed"
    assert outcome(monkeypatch, {"cpu": 1000, "meta": 1000}, traced=1004).status == "passed"


@fault("vram_peak", {"live_bytes": "trace-differs"})
def test_other_counts_fail(monkeypatch: Any) -> None:
    ended = outcome(monkeypatch, {"cpu": 1000, "meta": 1001})
    assert (ended.status, ended.code) == ("failed", "trace-differs")


@fault("vram_peak", {"host_trace": "host-trace-differs"})
@pytest.mark.parametrize("traced", [1006, 900])
def test_another_count_on_the_host_fails(monkeypatch: Any, traced: Any) -> None:
    ended = outcome(monkeypatch, {"cpu": 1000, "meta": 1000}, traced=traced)
    assert (ended.status, ended.code) == ("failed", "host-trace-differs")


def test_a_host_without_torch_says_so_and_holds_nothing_back(monkeypatch: Any) -> None:
    ended = outcome(monkeypatch, {"cpu": 1000, "meta": 1000}, traced=0)
    assert (ended.status, ended.code) == ("not-checked", "not-applicable")
    assert "torch is not there" in ended.message


def test_the_host_sends_its_trace_or_why_it_made_none(monkeypatch: Any) -> None:
    monkeypatch.setattr(smoke_estimate.traced, "why_not", lambda: "torch is not installed")
    assert smoke_estimate.live_bytes_params() == {"why_not_traced": "torch is not installed"}
    monkeypatch.setattr(smoke_estimate.traced, "why_not", lambda: None)
    monkeypatch.setattr(smoke_estimate, "live_bytes", lambda step: 1000)
    assert smoke_estimate.live_bytes_params() == {"traced_live_bytes": 1000}

    def fails(step: Any) -> int:
        raise RuntimeError("no meta kernel")

    monkeypatch.setattr(smoke_estimate, "live_bytes", fails)
    assert "no meta kernel" in smoke_estimate.live_bytes_params()["why_not_traced"]


def test_the_hosts_step_is_that_of_the_script() -> None:
    assert dict(smoke_estimate.LIVE_BYTES_STEP) == {**vram_peak.LIVE_BYTES_MODEL, "batch": 2, "seq": 32}


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
