"""L1 of an image as a whole: its layers, its labels and tag, its size. Made on this machine, from its saved tar.

The scripts of smoke_tests/ see what is left in the image at the end; these checks see what everyone pulls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from builder import layers, render
from builder.engine import BuiltImage, Engine, Saving
from builder.errors import TorchproofError
from builder.layers import Kind, SavedImage
from builder.lockfile import ImageLock
from builder.report import largest, shortened
from builder.results import CheckResult, ImageLayer, Level
from builder.verdict import NOT_APPLICABLE

_GIB = 2.0**30
_MOST_SHOWN = 4
_MOST_KEPT = 200
# Which torchproof wrote the context says nothing about what is in the image.
_FREE_LABELS = frozenset({"io.torchproof.version"})


def run(
    lock: ImageLock, image: BuiltImage, engine: Engine, *, budget_bytes: int | None = None
) -> tuple[list[CheckResult], tuple[ImageLayer, ...]]:
    """Every check, and the layers with their sizes; an environment in place has no layers, and is only measured."""
    if engine.kind == "in-place":
        why = "an environment in place has no layers and no labels"
        none = [_result(name, "not-checked", why, code=NOT_APPLICABLE) for name in ("secrets", "leftovers", "labels")]
        return [*none, size(image, (), budget_bytes, what="environment")], ()
    if not isinstance(engine, Saving):
        return _not_read(image, "this engine hands out no layers", None, budget_bytes)
    started = time.monotonic()
    try:
        with engine.saved(image) as stream:
            saved = layers.read(stream)
    except TorchproofError as error:
        why = ": ".join(text for text in (error.what, error.detail) if text)
        return _not_read(image, why, "image-not-read", budget_bytes)
    except layers.UnreadableError as error:
        return _not_read(image, str(error), "image-not-read", budget_bytes)
    seconds = round(time.monotonic() - started, 3)
    told = described(lock, saved)
    first = secrets(saved).model_copy(update={"seconds": seconds})
    return [first, leftovers(saved), labels(saved, lock, image), size(image, told, budget_bytes)], told


def secrets(saved: SavedImage) -> CheckResult:
    """No layer holds a password, a token, a key or a certificate of the network it was built in, and no step, variable
    or label of the image names one.

    A certificate that the base brings is told and does not fail: whoever chose the base wanted it.
    """
    own = _own_layers(saved)
    brought = [one.where for layer in saved.layers[:own] for one in layer.findings if one.kind == "certificate"]
    judged = replace(
        saved,
        layers=tuple(
            replace(
                layer,
                findings=tuple(
                    replace(one, kind="secret") if one.kind == "certificate" and number >= own else one
                    for one in layer.findings
                ),
            )
            for number, layer in enumerate(saved.layers)
        ),
    )
    found = _judged("secrets", "secret-in-layer", "secret", judged)
    if not brought:
        return found
    told = f"{found.message}; the base brings {_count(brought, 'certificate')}: {_shorten(brought)}"
    return found.model_copy(update={"message": told, "details": {**found.details, "of_the_base": brought}})


def leftovers(saved: SavedImage) -> CheckResult:
    """No layer holds a cache, package list, wheel or setting of the build, not even one that a later layer removes."""
    return _judged("leftovers", "leftover-in-layer", "leftover", saved)


def labels(saved: SavedImage, lock: ImageLock, image: BuiltImage) -> CheckResult:
    """Labels and tag name the lock, and its versions: an old image under a new tag is found."""
    wanted = {key: value for key, value in render.labels(lock).items() if key not in _FREE_LABELS}
    wrong = {key: saved.labels.get(key) for key, value in wanted.items() if saved.labels.get(key) != value}
    if wrong:
        shown = [f"{key} is {value or 'missing'} (lock: {wanted[key]})" for key, value in sorted(wrong.items())]
        return _failed(
            "labels",
            "label-mismatch",
            f"{_count(shown, 'label')} not as in the lock: {_shorten(shown)}",
            measured=wrong,
            expected={key: wanted[key] for key in wrong},
        )
    tag = image.reference.rpartition("/")[2].rpartition(":")[2]
    torch = lock.package("torch")
    version = torch.version.partition("+")[0] if torch else lock.torch
    holds = f"torch{version}-{lock.variant}-py{lock.python.replace('.', '')}"
    if not f"{tag}-".startswith(f"{holds}-"):
        message = f"the tag is {tag}, the image holds {holds}"
        return _failed("labels", "tag-mismatch", message, measured=tag, expected=holds)
    return _result("labels", "passed", f"the tag and {len(wanted)} labels name what the lock has", measured=tag)


def size(
    image: BuiltImage, told: Sequence[ImageLayer], budget_bytes: int | None, *, what: str = "image"
) -> CheckResult:
    """The image, or the environment in place, is within the budget that the matrix states."""
    takes = f"the {what} takes {image.size_bytes / _GIB:.2f} GiB"
    values: dict[str, Any] = {
        "measured": image.size_bytes,
        "details": {"layers": [layer.model_dump() for layer in told]},
    }
    if budget_bytes is None:
        return _result("size", "not-checked", f"no budget is stated; {takes}", code=NOT_APPLICABLE, **values)
    values["expected"] = f"<= {budget_bytes}"
    message = f"{takes}, the budget is {budget_bytes / _GIB:.2f} GiB"
    if image.size_bytes > budget_bytes:
        parts = f"; largest: {largest(told)}" if told else ""
        return _failed("size", "image-over-budget", f"{message}{parts}", **values)
    return _result("size", "passed", message, **values)


def described(lock: ImageLock, saved: SavedImage) -> tuple[ImageLayer, ...]:
    """The layers from the base up, each with what made it and, for those of a lock, what it holds."""
    titles = [*(render.title(group) for group in render.groups(lock)), "the guard"]
    own = [place for place, layer in enumerate(saved.layers) if layer.step == "COPY /layer/ /"]
    holds = dict(zip(own, titles, strict=True)) if len(own) == len(titles) else {}
    return tuple(
        ImageLayer(
            digest=layer.digest,
            size_bytes=layer.size_bytes,
            step=layer.step,
            holds=holds.get(place, "the base" if place == 0 else None),
        )
        for place, layer in enumerate(saved.layers)
    )


# What the Dockerfile of a lock does first, of all that it does.
_FIRST_STEPS = ("COPY /layer/ /", "COPY /opt/", "RUN apt-get update && apt-get install -y --no-install-recommends ")


def _own_layers(saved: SavedImage) -> int:
    """The place of the first layer that is not the base's. A base that was made by the same commands is taken for
    ours from there on, which judges more and not less.
    """
    for number, layer in enumerate(saved.layers):
        if number and layer.step.startswith(_FIRST_STEPS):
            return number
    return 1


def _judged(name: str, code: str, kind: Kind, saved: SavedImage) -> CheckResult:
    """Whether no layer and no line of the configuration has a finding of `kind`."""
    found: list[dict[str, Any]] = [
        {"layer": None, "step": None, "where": one.where} for one in saved.findings if one.kind == kind
    ]
    for number, layer in enumerate(saved.layers):
        step = layer.step or ("the base" if number == 0 else "")
        found += [{"layer": number, "step": step, "where": one.where} for one in layer.findings if one.kind == kind]
    if found:
        shown = [
            str(row["where"])
            if row["layer"] is None
            else f"{row['where']} in layer {row['layer']} ({shortened(str(row['step']))})"
            for row in found
        ]
        return _failed(
            name,
            code,
            f"{_count(shown, kind)} in the image: {_shorten(shown)}",
            measured=[row["where"] for row in found[:_MOST_KEPT]],
            expected=[],
            details={"findings": found[:_MOST_KEPT]},
        )
    if saved.unread:
        reasons = [f"{digest[:19]}: {why}" for digest, why in saved.unread.items()]
        message = f"{_count(reasons, 'layer')} could not be read: {_shorten(reasons)}"
        return _result(name, "not-checked", message, details={"unread": dict(saved.unread)})
    return _result(name, "passed", f"{_count(saved.layers, 'layer')}, none with a {kind}", measured=[])


def _not_read(
    image: BuiltImage, why: str, code: str | None, budget_bytes: int | None
) -> tuple[list[CheckResult], tuple[ImageLayer, ...]]:
    """The image could not be looked into: with a code that is an error of the engine, without one it has no way."""
    message = f"the layers of {image.reference} could not be read: {why}"
    status: Any = "errored" if code else "not-checked"
    blame = {"blame": "tool"} if code else {}
    none = [_result(name, status, message, code=code, **blame) for name in ("secrets", "leftovers", "labels")]
    return [*none, size(image, (), budget_bytes)], ()


def _result(name: str, status: Any, message: str, *, code: str | None = None, **more: Any) -> CheckResult:
    return CheckResult(id=f"image.{name}", level=Level.L1, status=status, code=code, message=message, **more)


def _failed(name: str, code: str, message: str, **more: Any) -> CheckResult:
    return _result(name, "failed", message, code=code, blame="image", **more)


def _count(items: Sequence[object], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _shorten(texts: Sequence[str]) -> str:
    rest = len(texts) - _MOST_SHOWN
    return "; ".join(texts[:_MOST_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
