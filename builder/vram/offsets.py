"""What lies outside the pool on a card, and what the card offers: context, kernels, workspaces, capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.catalog_rows.gpus import Gpu
from builder.errors import UsageError
from builder.versions import ComputeCapability, CudaVersion

if TYPE_CHECKING:
    from builder.catalog import Catalog

TOPIC = "vram_offsets"
MIB = 1 << 20
# The CUDA line of the wheels that most people install today, where nothing else is said.
DEFAULT_CUDA = CudaVersion.parse("12.6")


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A GPU as an estimate needs it. Bytes. `is_calibrated`: its own offset was measured with this CUDA line.

    `other_sizes`: GiB that the same name is sold with beside the smallest, which is the one taken.
    """

    name: str
    capability: tuple[int, int]
    total: int
    offset: int
    spread: int
    workspace: int
    handles: int
    is_calibrated: bool
    source: str
    other_sizes: tuple[int, ...] = ()

    @property
    def for_pool(self) -> int:
        """What is left for the pool once context and kernels have their part."""
        return self.total - self.offset


# Without a GPU: nothing is known of the card, so there is no capacity and no verdict.
def unknown_card(catalog: Catalog) -> Card:
    topic = catalog.raw(TOPIC)
    default, space = topic["default"], _workspace(topic, None)
    return Card(
        name="any card",
        capability=(8, 0),
        total=0,
        offset=default["offset_mib"] * MIB,
        spread=default["spread_mib"] * MIB,
        workspace=space["cublas_bytes"],
        handles=space["handles"],
        is_calibrated=False,
        source=str(default["source"]),
    )


def card(name: str, catalog: Catalog, *, cuda: CudaVersion | None = None) -> Card:
    """The card of that name; UsageError when the facts have none or its size is not known."""
    gpu = find_gpu(name, catalog)
    topic = catalog.raw(TOPIC)
    offset, spread, is_calibrated, source = _offset(topic, gpu, cuda or DEFAULT_CUDA)
    space = _workspace(topic, gpu.compute_capability)
    return Card(
        name=gpu.name,
        capability=(gpu.compute_capability.major, gpu.compute_capability.minor),
        total=_total(topic, gpu),
        offset=offset * MIB,
        spread=spread * MIB,
        workspace=space["cublas_bytes"],
        handles=space["handles"],
        is_calibrated=is_calibrated,
        source=source,
        other_sizes=tuple(sorted(gpu.vram_gib)[1:]),
    )


def find_gpu(name: str, catalog: Catalog) -> Gpu:
    gpu = catalog.gpu(name)
    if gpu is None:
        near = catalog.nearest_gpus(name, 3)
        raise UsageError(
            "unknown-gpu",
            f"`{name}` is not a GPU of the facts",
            hint=f"did you mean {' or '.join(f'`{one}`' for one in near)}" if near else None,
        )
    if not gpu.vram_gib:
        raise UsageError(
            "gpu-without-memory",
            f"the memory of `{gpu.name}` is not in the facts",
            hint="name a product, such as `RTX 3090`",
        )
    return gpu


def _total(topic: Any, gpu: Gpu) -> int:
    """Of several sizes the smallest: what fits there fits on the others."""
    nominal = min(gpu.vram_gib)
    for row in topic["totals"]:
        if row["name"] in {gpu.name, *gpu.aliases} and row["gib"] == nominal:
            return int(row["total_mib"]) * MIB
    return nominal * 1024 * int(topic["default_total"]["percent_of_nominal"]) // 100 * MIB


def _offset(topic: Any, gpu: Gpu, cuda: CudaVersion) -> tuple[int, int, bool, str]:
    """(MiB, spread, whether it is this card's own, source). A row counts on its side of lazy loading only."""
    lazy = CudaVersion.parse(topic["lazy_loading"]["cuda"])
    rows = [row for row in topic["offsets"] if (CudaVersion.parse(row["cuda"]) >= lazy) is (cuda >= lazy)]
    names = {gpu.name, *gpu.aliases}
    own = [row for row in rows if row["gpu"] in names]
    if own:
        row = min(own, key=lambda row: abs(_order(row["cuda"]) - _order(str(cuda))))
        return row["offset_mib"], row["spread_mib"], True, f"{row['id']}: {row['source']}"
    alike = [row for row in rows if ComputeCapability.parse(row["compute_capability"]) == gpu.compute_capability]
    if alike:
        row = alike[0]
        spread = topic["borrowed"]["spread_mib"]
        return row["offset_mib"], spread, False, f"{row['id']}, borrowed from {row['gpu']}"
    default = topic["default"]
    return default["offset_mib"], default["spread_mib"], False, str(default["source"])


def _order(cuda: str) -> int:
    major, minor = CudaVersion.parse(cuda).parts[:2]
    return major * 100 + minor


def _workspace(topic: Any, capability: ComputeCapability | None) -> Any:
    default = None
    # Rows of an overlay come last and win.
    for row in reversed(topic["workspaces"]):
        if row["compute_capability"] is None:
            default = default or row
        elif capability is not None and ComputeCapability.parse(row["compute_capability"]) == capability:
            return row
    return default
