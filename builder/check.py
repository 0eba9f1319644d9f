"""Environment + Catalog -> CheckDocument, as product.md section 5 says. Pure: no network, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

from builder.catalog import Catalog
from builder.environment import Decided, Environment
from builder.installer import decided, outcome
from builder.outcome import Outcome
from builder.rules.base import Finding
from builder.rules.registry import findings

SCHEMA_VERSION = 1
# Torch comes out about every two months; with facts older than two of them a newer one is likely missed.
OLD_AFTER_DAYS = 120

Verdict = Literal["compatible", "incompatible", "unknown"]


@dataclass(frozen=True, kw_only=True)
class CheckDocument:
    name: str  # a cell's label, "" for files and pins
    verdict: Verdict
    findings: tuple[Finding, ...]
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        """One document; keys as product.md names them."""
        shown = {
            name: Decided(
                version=None if chosen.version is None else str(chosen.version),
                variant=None if chosen.variant is None else str(chosen.variant),
                origin=chosen.origin or chosen.via,
            )
            for name, chosen in decided(self.outcome).items()
        }
        environment = self.outcome.env.to_json(shown)
        environment["arch"] = self.outcome.arch
        environment["python"] = environment["python"] or _text(self.outcome.python)
        environment["glibc"] = environment["glibc"] or _text(self.outcome.glibc)
        return {
            "schema_version": SCHEMA_VERSION,
            **({"name": self.name} if self.name else {}),
            "verdict": self.verdict,
            "findings": [
                {
                    "code": each.code,
                    "severity": each.severity,
                    "subject": each.subject,
                    "because": list(each.because),
                    "conclusion": each.conclusion,
                    "hint": each.hint,
                    "facts": list(each.facts),
                }
                for each in self.findings
            ],
            "environment": environment,
        }


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def verdict_of(found: Sequence[Finding]) -> Verdict:
    if any(each.severity == "error" for each in found):
        return "incompatible"
    return "unknown" if any(each.is_unknown for each in found) else "compatible"


def judge(env: Environment, catalog: Catalog) -> tuple[Outcome, list[Finding]]:
    """What would be installed and what is wrong with it; hints that need a trial are not made yet."""
    result = outcome(env, catalog)
    return result, findings(result)


Hinter = Callable[[Environment, Catalog, Outcome, list[Finding]], list[Finding]]


def check(
    env: Environment, catalog: Catalog, *, name: str = "", today: date | None = None, hints: bool = True
) -> CheckDocument:
    """`today` is only for the age of the facts; the date that ranges are judged by is the environment's own."""
    result, found = judge(env, catalog)
    if hints and found:
        from builder.fixes import with_hints  # noqa: PLC0415  (a clean environment needs none)

        found = with_hints(env, catalog, found)
    if today is not None and (age := catalog.age(today)) > OLD_AFTER_DAYS:
        found.append(
            Finding(
                code="facts-old",
                severity="warning",
                subject="facts",
                because=(f"the facts were gathered on {catalog.generated}, {age} days ago",),
                conclusion="newer releases are not in them",
                hint="renew them with `torchproof facts refresh`",
            )
        )
    return CheckDocument(name=name, verdict=verdict_of(found), findings=tuple(found), outcome=result)
