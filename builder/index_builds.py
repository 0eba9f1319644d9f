"""Which releases and CUDA variants of torch's family the indexes, channels and images of one step hold. Pure."""

from __future__ import annotations

from functools import cached_property

from packaging.version import Version

from builder.catalog import Catalog
from builder.catalog_rows.base import Arch
from builder.catalog_rows.torch import CPU
from builder.catalog_rows.torch_parts import COMPANIONS
from builder.environment import Environment, Index, InstallStep, Request
from builder.shelf import Offer
from builder.versions import CudaVariant, CudaVersion, InvalidVersionError


class IndexView:
    def __init__(
        self, env: Environment, catalog: Catalog, step: InstallStep, requests: list[Request], arch: Arch
    ) -> None:
        self._env = env
        self._catalog = catalog
        self._step = step
        self._requests = requests
        self._arch: Arch = arch
        self._built_for: dict[tuple[str, CudaVariant], frozenset[Version]] = {}

    def indexes(self, name: str) -> tuple[Index, ...]:
        """Where the package may come from, most important first for `first-index`."""
        settings = self._step.indexes
        found = settings.of(name)
        if settings.strategy == "first-index" and len(found) > 1 and found[0] is settings.primary:
            found = (*found[1:], found[0])
        return found

    # ---- conda

    def _conda_asked(self, *names: str) -> Request | None:
        return next((request for request in self._requests if request.name in names), None)

    @cached_property
    def conda_variant(self) -> CudaVariant | None:
        """What pytorch-cuda, cudatoolkit, cuda-version or cpuonly say; None: nothing does."""
        if self._conda_asked("cpuonly") is not None:
            return CPU
        request = self._conda_asked("pytorch-cuda") or self._conda_asked("cudatoolkit", "cuda-version")
        if request is None:
            return None
        text = str(request.version) if request.version is not None else str(request.specifier)
        parts = text.lstrip("=~>< ").split(",")[0].removesuffix(".*").split(".")
        try:
            return CudaVariant.parse(CudaVersion((int(parts[0]), int(parts[1]))).variant)
        except (InvalidVersionError, ValueError, IndexError):
            return None

    def channel(self, request: Request | None) -> str | None:
        """The channel that torch comes from: its own, else the first of the step that has it."""
        if request is not None and request.channel is not None:
            return request.channel.rpartition("/")[2]
        known = ("pytorch", "conda-forge", "defaults", "nvidia", "pytorch-nightly")
        channels = [channel.rpartition("/")[2] for channel in self._step.channels]
        return next((channel for channel in channels if channel in known and channel != "nvidia"), None)

    # ---- what is there

    def has(self, name: str, offer: Offer) -> bool:
        """Whether any index of the step has this release of torch or a companion, as far as the facts know."""
        if self._step.installer == "conda":
            return self._conda_has(name, offer)
        asked = self._asked(name)
        if self._step.indexes.pre and any(index.kind == "torch" and index.is_nightly for index in asked):
            return False  # a development build of tomorrow's release is newer than every release
        return any(self._index_has(index, name, offer) for index in asked)

    def _asked(self, name: str) -> tuple[Index, ...]:
        found = self.indexes(name)
        known = tuple(index for index in found if index.kind in {"torch", "default"})
        if known and any(index.variant is not None for index in known):
            found = known  # an index of unknown content beside torch's own is there for something else
        first = self._step.indexes.strategy == "first-index" and bool(found) and found[0].kind == "torch"
        return found[:1] if first else found

    def _index_has(self, index: Index, name: str, offer: Offer) -> bool:
        if index.kind == "torch" and index.is_nightly:
            return False  # it holds development builds alone, which no release is
        if index.kind != "torch" or index.variant is None:
            return True
        if name != "torch":
            return offer.version in self._companions_built_for(name, index.variant)
        release = self._catalog.torch_release(offer.version)
        return release is None or index.variant.is_other or release.build(index.variant, self._arch) is not None

    def _companions_built_for(self, name: str, variant: CudaVariant) -> frozenset[Version]:
        """Releases that go with a torch of this variant: an index of one variant holds no others."""
        if name not in COMPANIONS:
            return frozenset()
        key = (name, variant)
        if key not in self._built_for:
            self._built_for[key] = frozenset(
                row.version
                for release in self._catalog.torch_releases()
                if variant.is_other or release.build(variant, self._arch) is not None
                for row in release.companions(name)
            )
        return self._built_for[key]

    def _conda_has(self, name: str, offer: Offer) -> bool:
        request = self._conda_asked("torch")
        if name in COMPANIONS:
            # A channel's builds name the one torch that they were made with.
            bound = None if request is None else request.specifier
            return any(
                offer.version == row.version
                for release in self._catalog.torch_releases()
                if bound is None or bound.contains(release.version)
                for row in release.companions(name)
            )
        if name != "torch":
            return True
        release = self._catalog.torch_release(offer.version)
        if release is None:
            return True
        if self.channel(request) == "pytorch" and not release.has_official_conda_package:
            last = Version(self._catalog.raw("torch")["conda"]["last_official"])
            if offer.version > last:
                return False
        wanted = self.conda_variant
        if wanted is None or wanted.is_cpu or self.channel(request) == "conda-forge":
            return True
        return release.build(wanted, self._arch) is not None

    # ---- which build

    def variant(self, name: str, version: Version | None, request: Request | None) -> CudaVariant | None:
        """None: not known (conda-forge, an index of unknown content, a nightly)."""
        own = None if request is None else request.variant
        if own is None and version is not None:
            own = CudaVariant.of_local(version.local)
        if own is not None:
            return own
        if request is not None and request.installer == "base-image":
            return None
        if self._step.installer == "conda":
            return self._conda_variant_of(request)
        if name != "torch" and version is not None:
            return self._companion_variant(name, version)
        return self._pip_variant(version)

    def _conda_variant_of(self, request: Request | None) -> CudaVariant | None:
        if self.channel(request) == "conda-forge" and self.conda_variant is not None and not self.conda_variant.is_cpu:
            # conda-forge builds for a CUDA version of its own choice; the wish narrows it to the major version.
            return self.conda_variant
        return self.conda_variant

    def _companion_variant(self, name: str, version: Version) -> CudaVariant | None:
        variants = [index.variant for index in self._asked(name) if index.kind == "torch" and index.variant]
        return next((one for one in variants if version in self._companions_built_for(name, one)), None)

    def _pip_variant(self, version: Version | None) -> CudaVariant | None:
        backend = self._step.indexes.torch_backend
        if backend is not None and backend != "auto":
            return CudaVariant.of_local(backend)
        release = None if version is None else self._catalog.torch_release(version)
        labelled: list[CudaVariant] = []
        plain: CudaVariant | None = None
        for index in self._asked("torch"):
            if index.is_nightly and not self._step.indexes.pre:
                continue
            if index.kind == "torch" and index.variant is not None:
                if release is None or index.variant.is_other or release.build(index.variant, self._arch) is not None:
                    labelled.append(index.variant)
            elif index.kind == "torch":
                continue  # the page of all variants: plain versions come from it as well
            elif release is not None:
                plain = self._default_variant(version)
        if labelled:
            # A local label makes a version higher than the same one without; labels compare as text.
            return labelled[0] if self._is_first_index else max(labelled, key=lambda variant: variant.tag)
        if plain is None and release is not None:
            plain = self._default_variant(version)
        return plain

    @property
    def _is_first_index(self) -> bool:
        return self._step.indexes.strategy == "first-index"

    def _default_variant(self, version: Version | None) -> CudaVariant | None:
        release = None if version is None else self._catalog.torch_release(version)
        if self._env.os is not None and self._env.os.family in {"windows", "macos"}:
            return CPU
        return None if release is None else release.default_variant(self._arch)
