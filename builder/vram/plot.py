"""Memory over one step as a picture: what is alive by component, the pool over it, the card's limit above."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.vram.events import CATEGORIES, Category, Sample, replay
from builder.vram.report import loop_line

if TYPE_CHECKING:
    from builder.vram.estimate import VramEstimate

GIB = 2**30
# Colours that stay apart for colour-blind readers (Okabe and Ito), calm ones for what stands still.
COLORS: dict[Category, str] = {
    "weights": "#4d4d4d",
    "optimizer state": "#9a8c7b",
    "gradients": "#d55e00",
    "half copies of weights": "#56b4e9",
    "workspaces": "#cc79a7",
    "inputs": "#f0e442",
    "activations": "#0072b2",
    "temporaries": "#e69f00",
}
# More points than a picture has columns only make a file large.
MOST_POINTS = 3000
# A component thinner than this everywhere is not worth a line of the legend.
LEAST_SHARE = 0.002


def draw(found: VramEstimate, path: Path, *, expandable: bool = False) -> None:
    """Write the picture; the ending of `path` says which kind. UsageError where it cannot be drawn."""
    if path.suffix.lower() not in (".png", ".svg"):
        raise UsageError("vram-bad-plot", f"`{path}` ends neither in .png nor in .svg", hint="say --plot memory.svg")
    if found.trace is None:
        raise UsageError(
            "vram-plot-needs-trace",
            "there is nothing to draw",
            because=["the closed form knows the peak and not the way there"],
            hint="take the traced estimate: install torch and transformers (`torchproof[stack]`)",
        )
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise UsageError(
            "vram-no-matplotlib",
            "the picture cannot be drawn",
            because=["matplotlib is not installed beside torchproof"],
            hint="install `torchproof[plot]`",
        ) from None
    mpl.use("Agg")
    samples = replay(found.trace, expandable=expandable, keeps_samples=True).samples
    figure = _figure(found, last_step(samples))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date in it the same estimate gives the same file.
    metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
    figure.savefig(path, dpi=160, metadata=metadata)


def last_step(samples: tuple[Sample, ...]) -> list[Sample]:
    """The samples of the last step: the first has no optimizer state yet."""
    step = max((part.split()[-1].split(".")[0] for part in {s.phase for s in samples} if part[-1:].isdigit()), key=int)
    return [s for s in samples if s.phase.split()[-1].split(".")[0] == step]


def thinned(samples: list[Sample]) -> list[Sample]:
    """At most MOST_POINTS of them, the highest of each stretch, so that no peak is lost."""
    if len(samples) <= MOST_POINTS:
        return samples
    width = -(-len(samples) // MOST_POINTS)
    return [max(samples[i : i + width], key=lambda s: sum(s.alive)) for i in range(0, len(samples), width)]


def phases(samples: list[Sample]) -> list[tuple[str, int, int]]:
    """(name, first, last event) of each phase; the moment in which the inputs come belongs to the forward pass."""
    found: list[tuple[str, int, int]] = []
    for sample in samples:
        name = sample.phase.split()[0].replace("inputs", "forward")
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], sample.event)
        else:
            found.append((name, sample.event, sample.event))
    return found


def _figure(found: VramEstimate, samples: list[Sample]) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = thinned(samples)
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes: Any = figure.add_subplot()
    steps = [s.event for s in shown]
    _components(axes, shown, steps)
    top = _pool_and_card(axes, found, shown, steps)
    _peak(axes, shown, top)
    _phases(axes, samples, top)
    axes.set_xlim(steps[0], steps[-1])
    axes.set_ylim(0, top)
    # The events have no length in time, so their numbers would say nothing.
    axes.set_xticks([])
    axes.set_xlabel("births and deaths of tensors, in order, over one training step")
    axes.set_ylabel("GPU memory (GiB)")
    axes.set_title(f"{found.model}: {loop_line(found)}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=9)
    return figure


def _components(axes: Any, samples: list[Sample], steps: list[int]) -> None:
    highest = max(sum(s.alive) for s in samples)
    columns = [(name, [s.alive[number] / GIB for s in samples]) for number, name in enumerate(CATEGORIES)]
    kept = [(name, column) for name, column in columns if max(column) * GIB >= LEAST_SHARE * highest]
    axes.stackplot(
        steps,
        [column for _, column in kept],
        labels=[name for name, _ in kept],
        colors=[COLORS[name] for name, _ in kept],
        linewidth=0,
    )


def _pool_and_card(axes: Any, found: VramEstimate, samples: list[Sample], steps: list[int]) -> float:
    """The two lines above the components; what comes back is the height of the picture."""
    reserved = [s.reserved / GIB for s in samples]
    axes.plot(steps, reserved, color="black", linewidth=1.2, drawstyle="steps-post", label="reserved by the pool")
    top = max(reserved) * 1.18
    card = found.card
    if not card.total:
        return top
    limit = card.for_pool / GIB
    label = f"{card.name}: {limit:.1f} GiB for the pool\n"
    label += f"(of {card.total / GIB:.1f}, less {card.offset / GIB:.2f} of context)"
    if limit > 3 * max(reserved):
        # A line far above would press the picture flat.
        axes.plot([], [], color="#b2182b", linewidth=1.4, linestyle="--", label=f"{label}\n(above the picture)")
        return top
    axes.axhline(limit, color="#b2182b", linewidth=1.4, linestyle="--", label=label)
    return max(top, limit * 1.12)


def _peak(axes: Any, samples: list[Sample], top: float) -> None:
    highest = max(samples, key=lambda s: sum(s.alive))
    value = sum(highest.alive) / GIB
    first, last = samples[0].event, samples[-1].event
    is_right = highest.event > first + 0.6 * (last - first)
    axes.annotate(
        f"peak allocated {value:.2f} GiB",
        (highest.event, value),
        xytext=(-14 if is_right else 14, 16 if value < 0.8 * top else -18),
        textcoords="offset points",
        ha="right" if is_right else "left",
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": "black", "linewidth": 0.8},
    )


def _phases(axes: Any, samples: list[Sample], top: float) -> None:
    whole = samples[-1].event - samples[0].event or 1
    for name, first, last in phases(samples):
        axes.axvline(first, color="#888888", linewidth=0.7, linestyle=":")
        if (last - first) / whole > 0.04:
            axes.text((first + last) / 2, top * 0.985, name, ha="center", va="top", fontsize=9, color="#444444")
