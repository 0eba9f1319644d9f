"""Whatever is asked for, `check` gives a document: no traceback, no endless search, the same answer twice."""

from __future__ import annotations

import json
from typing import Any

from checking import CATALOG, judged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.check import check, verdict_of

NAMES = sorted({*CATALOG.packages, "torch", "torchvision", "torchaudio", "torchtext", "numpy", "apex", "unknown-thing"})
VERSIONS = {
    "torch": [str(release.version) for release in CATALOG.torch_releases()],
    **{
        name: [str(version) for version in package.releases]
        for name in NAMES
        if (package := CATALOG.packages.get(name)) is not None
    },
}
GPUS = [gpu.name for gpu in CATALOG.gpus()] + ["sm_86", "RTX 3999", "A100 80GB, 2 x MIG 3g.40gb"]


@st.composite
def pins(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(NAMES))
    version = draw(st.sampled_from(VERSIONS.get(name, ["1.0", "99.0"])))
    operator = draw(st.sampled_from(["==", ">=", "<=", "~=", "!=", "<", ""]))
    if operator == "~=" and "." not in version:
        operator = ">="
    label = draw(st.sampled_from(["", "", "", "+cu118", "+cu124", "+cpu"])) if operator == "==" else ""
    return f"{name}{operator}{version if operator else ''}{label}"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(pins(), min_size=1, max_size=7),
    st.sampled_from(["3.8", "3.10", "3.12", "3.14", None]),
    st.sampled_from([*GPUS, None]),
    st.sampled_from(["440.33", "470.57.02", "525", "550.54.15", "580.65.06", None]),
    st.sampled_from([(), ("default",), ("cu121",), ("default", "cpu"), ("cu130", "cu118")]),
)
def test_every_question_has_an_answer(
    wanted: list[str], python: str | None, gpu: str | None, driver: str | None, indexes: tuple[str, ...]
) -> None:
    said: dict[str, Any] = {"python": python, "gpus": (gpu,) if gpu else (), "driver": driver, "indexes": indexes}
    document = judged(*wanted, **said)
    assert document.verdict == verdict_of(document.findings)
    text = json.dumps(document.to_json())
    assert json.loads(text)["verdict"] == document.verdict
    again = check(document.outcome.env, CATALOG, hints=False)
    assert again.findings == document.findings
    for found in document.findings:
        assert found.because
        assert found.conclusion
        assert not found.conclusion.endswith(".")


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400), st.sampled_from(["requirements", "dockerfile", "conda"]))
def test_whatever_bytes_come_in(data: bytes, kind: str) -> None:
    said: dict[str, Any] = {kind: data.decode("utf-8", "replace")}
    document = judged(**said)
    assert document.verdict in {"compatible", "incompatible", "unknown"}
