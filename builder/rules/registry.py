"""The rules, in the order in which a person would want to hear of them."""

from __future__ import annotations

from builder.outcome import Outcome
from builder.rules import (
    base_image,
    conda,
    cuda_libraries,
    driver,
    extensions,
    gpu,
    host,
    indexes,
    numpy_abi,
    onnxruntime,
    pins,
    platform,
    precision,
    python_wheel,
    torch_family,
    transformers,
)
from builder.rules.base import Finding, Rule

RULES: tuple[Rule, ...] = (
    *gpu.RULES,
    *driver.RULES,
    *precision.RULES,
    *base_image.RULES,
    *platform.RULES,
    *indexes.RULES,
    *conda.RULES,
    *python_wheel.RULES,
    *torch_family.RULES,
    *extensions.RULES,
    *pins.RULES,
    *cuda_libraries.RULES,
    *numpy_abi.RULES,
    *onnxruntime.RULES,
    *transformers.RULES,
    *host.RULES,
)

_ORDER = {"error": 0, "warning": 1, "info": 2}


def findings(outcome: Outcome) -> list[Finding]:
    """Errors first; a rule that says the same twice is heard once."""
    found = [each for rule in RULES for each in rule(outcome)]
    unique = {(each.code, each.subject, each.conclusion): each for each in reversed(found)}
    kept = [each for each in found if unique[each.code, each.subject, each.conclusion] is each]
    return sorted(kept, key=lambda each: _ORDER[each.severity])
