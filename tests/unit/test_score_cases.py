"""The cases as data: all right in decision and in the cause named, no false rejection, every hint true."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import yaml
from checking import CASES, CATALOG, ROOT

from builder.fixes import fixes
from builder.installer import outcome
from builder.rules.registry import findings

_SPEC = importlib.util.spec_from_file_location("score_cases", ROOT / "bin" / "score_cases.py")
assert _SPEC is not None
assert _SPEC.loader is not None
score_cases = importlib.util.module_from_spec(_SPEC)
sys.modules["score_cases"] = score_cases
_SPEC.loader.exec_module(score_cases)

# The cause that a case of known.yaml is about, by the code that names it.
CAUSES = {
    "K01": "gpu-not-covered", "K02": "gpu-not-covered", "K03": "gpu-not-covered", "K05": "driver-too-old",
    "K06": "compat-libs", "K07": "compat-libs-forced", "K08": "onnxruntime-cuda", "K09": "onnxruntime-cudnn",
    "K10": "onnxruntime-both", "K12": "numpy-abi", "K14": "conda-mkl", "K15": "torch-family-pair",
    "K16": "torch-family-pair", "K17": "transformers-torch-floor", "K18": "torch-load-gate", "K19": "glibc-too-old",
    "K20": "label-without-index", "K21": "index-not-used", "K22": "pin-conflict", "K23": "conda-cpu-solve",
    "K26": "cuda-library-pin", "K27": "system-library-missing", "K28": "pkg-resources", "K29": "protobuf-major",
    "K30": "source-build", "K31": "no-wheel-for-python", "K32": "extension-abi", "K33": "extension-torch-pin",
    "K34": "toolkit-differs", "K35": "nvcc-missing", "K36": "native-library-missing", "K39": "precision-unsupported",
    "K40": "opset-too-low", "K43": "onnxscript-missing", "K44": "onnx-ir-too-new", "K48": "base-image-gone",
    "K50": "mig-slices", "K53": "dependency-undeclared", "K55": "toolkit-differs", "K57": "arch-list-missing",
}  # fmt: skip


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.load((CASES / f"{name}.yaml").read_text(), score_cases.LOADER)["cases"]
    return found


ALL = {name: cases(name) for name in ("known", "good", "own", "reports")}
SCORED = [case for found in ALL.values() for case in found if score_cases.is_scored(case)]


@pytest.mark.parametrize("case", SCORED, ids=lambda case: case["id"])
def test_case_is_right(case: dict[str, Any]) -> None:
    scored = score_cases.score(case, CATALOG)
    assert scored.is_right, f"want {scored.want}, got {scored.got}: {[f.code for f in scored.document.findings]}"


@pytest.mark.parametrize("case_id", sorted(CAUSES))
def test_cause_is_named(case_id: str) -> None:
    (case,) = (case for case in ALL["known"] if case["id"] == case_id)
    found = score_cases.score(case, CATALOG).document.findings
    assert CAUSES[case_id] in [each.code for each in found]


@pytest.mark.parametrize(
    "case", [case for case in SCORED if case["verdict"]["decision"] != "accept"], ids=lambda c: c["id"]
)
def test_every_hint_resolves(case: dict[str, Any]) -> None:
    """With the change of a hint its finding is gone, and no error stands there that was not there before."""
    document = score_cases.score(case, CATALOG).document
    env = document.outcome.env
    for fix in fixes(env, CATALOG, document.findings):
        after = [each.code for each in findings(outcome(fix.environment, CATALOG))]
        before = [each.code for each in document.findings]
        assert after.count(fix.finding.code) < before.count(fix.finding.code)
        errors = [each.code for each in findings(outcome(fix.environment, CATALOG)) if each.severity == "error"]
        assert set(errors) <= {each.code for each in document.findings if each.severity == "error"}


def test_the_table_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert score_cases.main([str(CASES / "known.yaml"), "--only", "K01,K04"]) == 0
    out = capsys.readouterr().out
    assert "gpu-arch" in out
    assert "2/2 right (100%), 0 false rejections" in out


def test_a_miss_is_told_with_its_reason(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    case = {**ALL["known"][0], "verdict": {"decision": "accept", "says": "the truth"}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump({"cases": [case]}))
    assert score_cases.main([str(tmp_path / "wrong.yaml")]) == 1
    out = capsys.readouterr().out
    assert "MISS K01 want accept, got reject" in out
    assert "gpu-not-covered" in out
    assert "1 false rejections" in out
