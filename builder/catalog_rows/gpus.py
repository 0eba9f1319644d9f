"""Topic gpus: products, and how a name that a person or a tool writes is matched to one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from builder.catalog_rows.base import Arch, Raw, Row
from builder.errors import UsageError
from builder.versions import ComputeCapability, InvalidVersionError

# Words that name the vendor or a brand line and never tell two products apart.
_BRANDS = frozenset({"nvidia", "geforce", "tesla", "gpu", "graphics"})
# Words a person leaves out; a row may have them when the name does not.
_SERIES = frozenset({"rtx", "gtx", "quadro", "pro", "ada", "blackwell", "generation"})
# How the board plugs in: tells rows apart when a row says it, is ignored when none does.
_FORM = re.compile(r"sxm[0-9]?|pcie|nvl|hbm[0-9]e?|dgxs")
_WORD = re.compile(r"sxm[0-9]?|hbm[0-9]e?|[a-z]+|[0-9]+")
_MEMORY = re.compile(r"(?<![0-9a-z.])([0-9]{1,3}) ?gi?b?(?![a-z0-9])", re.IGNORECASE)


class AmbiguousGpuError(UsageError):
    """A name that fits products of different compute capability."""

    def __init__(self, name: str, candidates: Sequence[Gpu]) -> None:
        super().__init__(
            "gpu-ambiguous",
            f"`{name}` is the name of several GPUs",
            because=[f"{gpu.name} has compute capability {gpu.compute_capability}" for gpu in candidates],
            conclusion="a wheel that runs on one may have no code for another",
            hint=f"write the full name, such as `{candidates[0].name}`, or a capability, such as `sm_86`",
        )
        self.candidates = tuple(candidates)


class Gpu(Row):
    """A product, several that share a name and a capability (`H100`), or a bare capability (`sm_86`)."""

    @property
    def name(self) -> str:
        return str(self._raw["name"])

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(self._raw["aliases"])

    @cached_property
    def compute_capability(self) -> ComputeCapability:
        return ComputeCapability.parse(self._raw["compute_capability"])

    @property
    def vram_gib(self) -> tuple[int, ...]:
        """Nominal sizes the product is sold with; empty: not known."""
        return tuple(self._raw["vram_gib"])

    @property
    def generation(self) -> str | None:
        return self._raw["generation"]  # type: ignore[no-any-return]

    @property
    def kind(self) -> str | None:
        """`datacenter`, `consumer`, `workstation`, `embedded` or `desktop`; None for a bare capability."""
        return self._raw["class"]  # type: ignore[no-any-return]

    @property
    def host(self) -> Arch:
        """What runs it: x86_64 unless it is sold with an ARM processor."""
        return "aarch64" if self._raw.get("host") == "aarch64" else "x86_64"

    @property
    def is_capability_only(self) -> bool:
        return self.generation is None

    @property
    def note(self) -> str | None:
        return self._raw.get("note")

    @property
    def vram_confidence(self) -> str | None:
        return self._raw.get("vram_confidence")

    @property
    def fact(self) -> str:
        return self.cite(f"{self.name} has compute capability {self.compute_capability}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gpu) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self.name)


class MatmulSpeed(Row):
    """How fast a product of two fp16 matrices can be on boards that the driver names so, without the leading NVIDIA."""

    @property
    def names(self) -> tuple[str, ...]:
        return (str(self._raw["name"]), *self._raw["aliases"])

    @property
    def tflops(self) -> float:
        """Dense, with sums in fp32: the peak."""
        return int(self._raw["fp16_gflops"]) / 1000

    @property
    def least_tflops(self) -> float:
        """What a host in order reaches."""
        return self.tflops * int(self._raw["least_percent"]) / 100

    @property
    def fact(self) -> str:
        return self.cite(f"{self.names[0]} multiplies fp16 matrices at up to {self.tflops:g} TFLOP/s")


def of_capability(capability: ComputeCapability) -> Gpu:
    return Gpu(
        {
            "name": str(capability.sm),
            "aliases": (),
            "compute_capability": str(capability),
            "vram_gib": (),
            "generation": None,
            "class": None,
            "confidence": "verified-from-metadata",
            "source": "the capability was given itself",
        }
    )


class GpuNames:
    """Finds products by name, whatever its case, spacing and punctuation."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._exact: dict[str, list[Gpu]] = {}
        self._words: list[tuple[frozenset[str], Gpu]] = []
        self._spelled: dict[str, str] = {}
        for gpu in gpus:
            for name in (gpu.name, *gpu.aliases):
                key, words = _key(name), frozenset(_words(_MEMORY.sub(" ", name)))
                rows = self._exact.setdefault(key, [])
                if gpu not in rows:
                    rows.append(gpu)
                self._words.append((words, gpu))
                self._spelled.setdefault(key, gpu.name)

    def matches(self, name: str) -> tuple[Gpu, ...]:
        """Every product the name may mean, in the order of the table; empty: none."""
        name = re.sub(r"\bMIG\b.*", "", name, flags=re.IGNORECASE).strip()
        memory = _MEMORY.search(name)
        found = self._exact.get(_key(name)) or self._exact.get(_key(_MEMORY.sub(" ", name))) or self._by_words(name)
        if memory is None:
            return tuple(found)
        size = int(memory[1])
        if _key(name) in self._exact:
            # The full name may carry a figure that is no size of ours (GH200 480GB counts the host's memory).
            return tuple(_narrowed(gpu, size) if size in gpu.vram_gib else gpu for gpu in found)
        return tuple(_narrowed(gpu, size) for gpu in found if size in gpu.vram_gib)

    def _by_words(self, name: str) -> list[Gpu]:
        wanted = frozenset(_words(_MEMORY.sub(" ", name)))
        forms = frozenset(word for word in wanted if _FORM.fullmatch(word))
        for words in (wanted, wanted - forms):
            if not any(word.isdigit() for word in words):
                return []
            found: list[Gpu] = []
            for row, gpu in self._words:
                left = row - words
                if words <= row and all(word in _SERIES or _FORM.fullmatch(word) for word in left) and gpu not in found:
                    found.append(gpu)
            if found:
                return found
        return []

    def find(self, name: str) -> Gpu | None:
        """The product; several of one capability are joined into one; None: unknown name."""
        try:
            return of_capability(ComputeCapability.parse(name))
        except InvalidVersionError:
            pass
        found = self.matches(name)
        if not found:
            return None
        if len(found) == 1:
            return found[0]
        if len({gpu.compute_capability for gpu in found}) > 1:
            raise AmbiguousGpuError(name, found)
        return _joined(name.strip(), found)

    def nearest(self, name: str, count: int) -> tuple[str, ...]:
        """Names of the table that look like the given one, best first."""
        import difflib  # noqa: PLC0415  (2 ms, and only a misspelled name gets here)

        name = _MEMORY.sub(" ", name)
        numbers = {word for word in _words(name) if word.isdigit()}
        close = difflib.get_close_matches(_key(name), self._spelled, n=len(self._spelled), cutoff=0.4)
        # The number is what people get right: 4090 Laptop is nearer to RTX 4090 than to any other long name.
        close.sort(key=lambda key: not numbers & set(_words(key)))
        return tuple(dict.fromkeys(self._spelled[key] for key in close))[:count]


def _words(name: str) -> list[str]:
    return [word for word in _WORD.findall(name.lower()) if word not in _BRANDS]


def _key(name: str) -> str:
    return "".join(_words(name))


def _narrowed(gpu: Gpu, size: int) -> Gpu:
    return gpu if gpu.vram_gib == (size,) else Gpu({**gpu._raw, "vram_gib": (size,)})  # noqa: SLF001  (own class)


def _joined(name: str, gpus: Iterable[Gpu]) -> Gpu:
    rows: list[Raw] = [gpu._raw for gpu in gpus]  # noqa: SLF001  (own class)
    joined: dict[str, Any] = {**rows[0], "name": name, "aliases": tuple(row["name"] for row in rows)}
    joined["vram_gib"] = tuple(sorted({size for row in rows for size in row["vram_gib"]}))
    joined["note"] = f"one of {', '.join(row['name'] for row in rows)}"
    return Gpu(joined)
