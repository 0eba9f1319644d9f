"""Installs that may not run: of alternatives, the first is taken. Pure."""

from __future__ import annotations

from dataclasses import replace

from builder.environment import Environment, Origin, Request, Unparsed


def settled(env: Environment) -> Environment:
    """Without what conditional steps ask of packages that an earlier step brings already.

    Both branches of an `if` that cannot be decided, or the fall-back behind `||`, would otherwise look like an install
    that replaces the one before. Each request that is dropped is named in `unparsed`.
    """
    if not any(step.is_conditional for step in env.steps):
        return env
    first: dict[str, Origin] = {}
    kept: list[Request] = []
    left_out: list[Unparsed] = []
    by_step: dict[int, list[Request]] = {}
    for request in env.requests:
        by_step.setdefault(request.step, []).append(request)
    for step in env.steps:
        asked = by_step.get(step.number, [])
        before = dict(first)
        for request in asked:
            if step.is_conditional and request.name in before:
                why = f"it hangs on a condition that is not known here; {before[request.name]} is taken"
                left_out.append(Unparsed(request.origin, request.text[:200], why))
                continue
            kept.append(request)
            if request.name:
                first.setdefault(request.name, request.origin)
    steps = tuple(
        replace(step, removes=(), is_upgrade=False, is_sync=False) if step.is_conditional else step
        for step in env.steps
    )
    return replace(env, requests=tuple(kept), steps=steps, unparsed=(*env.unparsed, *left_out))
