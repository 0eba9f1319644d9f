"""What uv printed when it failed -> errors of this tool, in words that name no host and no flag of uv."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder import pylock
from builder.bake import Fault, fault_of
from builder.errors import BuildError, ConflictError, PackageIndexError, TorchproofError
from builder.explain import joined
from builder.resolution import Resolution
from builder.uv_tool import PROJECT, Outcome, Question

Ask = Callable[[Question], Outcome]

# Every round finds the packages that uv names next; a tree with more layers of source archives has other troubles.
_MOST_SOURCE_ROUNDS = 12

_REASONS = (
    (r"dns error|failed to lookup address", "its host name cannot be resolved"),
    (r"Connection refused", "the connection was refused"),
    (r"certificate|UnknownIssuer|InvalidContentType|tls|ssl", "no trusted TLS connection could be made"),
    (r"timed out|timeout", "it did not answer in time"),
    (r"HTTP status server error \((\d{3})", "it answers with a server error"),
    (r"client error \(Connect\)|error sending request|Connection reset|connection closed", "the connection failed"),
)
_NO_VERSION = re.compile(r"there is no version of ([\w.-]+)==([\w.!+-]+)")
_NOT_FOUND = re.compile(r"([\w.-]+) was not found in the (?:package registry|provided package locations)")
_SOURCE_ONLY = re.compile(
    r"Wheels are required for `([^`]+)`|(?<!\S)([A-Za-z][\w.-]*)(?:[<>=!~]\S*)? has no usable wheels"
)


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """Which index uv asked for which package, to name it in words: an address may hold a host nobody should read."""

    variant: str
    torch_url: str | None
    on_torch: frozenset[str]
    named: Mapping[str, tuple[str, frozenset[str]]]

    def words(self, url: str) -> str:
        project = canonicalize_name(url.rstrip("/").rsplit("/", 1)[-1])
        for name, (address, packages) in self.named.items():
            if url.startswith(address.rstrip("/")) or project in packages:
                return f"the index `{name}` of the spec"
        if project in self.on_torch or (self.torch_url and url.startswith(self.torch_url.rstrip("/"))):
            return f"the PyTorch wheel index for {self.variant}"
        return "the configured package index"


def index_failure(outcome: Outcome, indexes: Indexes, image_id: str) -> PackageIndexError | None:
    """The error when an index, and not what is on it, made uv fail; None otherwise."""
    text = outcome.text
    denied = re.search(r"\((\S+?)\) could not be queried due to a lack of valid authentication", text)
    forbidden = re.search(r"An index \((\S+?)\) returned a (403)", text) or re.search(
        r"HTTP status client error \((?:401|403)[^)]*\) for url \((\S+?)\)", text
    )
    if denied or forbidden:
        url = (denied or forbidden or [""])[1]
        missing = _NOT_FOUND.search(text)
        where = indexes.words(f"{url}/{missing[1]}" if missing else url)
        return PackageIndexError(
            "index-denied",
            f"`{image_id}` cannot be locked: {where} refuses access",
            because=[
                "it asks for a user and a password, and got none or wrong ones (401)"
                if denied
                else "it does not let this user in (403)"
            ],
            hint="set the credentials in the index URL, in a netrc file, or as UV_INDEX_<NAME>_USERNAME and _PASSWORD",
        )
    if "the network was disabled" in text:
        missing = _NOT_FOUND.search(text) or re.search(r"([\w.-]+) was not found in the cache", text)
        where = indexes.words(missing[1] if missing else "")
        return PackageIndexError(
            "index-unreachable",
            f"`{image_id}` resolves and renders, but cannot be locked: {where} is needed, and the network is off",
            because=["UV_OFFLINE is set", f"{f'`{missing[1]}`' if missing else 'a package'} is not in uv's cache"],
        )
    failed = re.search(r"(?:Failed to (?:fetch|download)[^\n]*?|for url \()[ `(]*(https?://[^\s`)]+)", text)
    if not failed:
        return None
    reason = next((words for pattern, words in _REASONS if re.search(pattern, text, re.IGNORECASE)), None)
    if reason is None:
        return None
    where = indexes.words(failed[1])
    return PackageIndexError(
        "index-unreachable",
        f"`{image_id}` resolves and renders, but cannot be locked",
        because=[f"locking needs {where}", reason],
        conclusion=f"{where} cannot be reached from here",
        hint=(
            "set TORCHPROOF_TORCH_INDEX to a mirror's address with `{variant}` in it, "
            "or put the wheels into a folder that PIP_FIND_LINKS names"
            if "PyTorch" in where
            else "check the index URL, the proxy and the CA bundle"
        ),
    )


def explanation(outcome: Outcome) -> str:
    """The proof in uv's own words, without its flags and with the image in place of the temporary project."""
    kept: list[str] = []
    for line in outcome.lines:
        text = re.sub(r"^(error|\s+cause): ?", "", line).strip()
        is_advice = line.startswith("hint:") and re.search(r"`?--|exclude-newer-package|--no-build", line)
        if not text or line.startswith("warning:") or is_advice or text.startswith("No solution found"):
            continue
        kept.append(text)
    words = _without_markers(" ".join(kept))
    words = words.replace(f"{PROJECT} depends on", "the image asks for").replace("you require", "the image asks for")
    words = words.replace("your requirements are unsatisfiable", "no set of packages fits")
    return re.sub(r"\s+(And because|hint:)", r"\n\1", words)


def _without_markers(text: str) -> str:
    """`triton{sys_platform == 'linux'}==2.0` as `triton==2.0`: one target has no other case."""
    return re.sub(r"(?<=\w)\{[^}]*\}", "", text)


def source_only(outcome: Outcome) -> frozenset[str]:
    """Packages without a wheel for the target in any version that fits."""
    return frozenset(canonicalize_name(one or two) for one, two in _SOURCE_ONLY.findall(outcome.text))


def absent(outcome: Outcome) -> dict[str, str | None]:
    """Package -> the exact version that was looked for and not found, None when there is no such package at all."""
    text = _without_markers(outcome.text)
    found: dict[str, str | None] = {canonicalize_name(name): None for name in _NOT_FOUND.findall(text)}
    found |= {canonicalize_name(name): version for name, version in _NO_VERSION.findall(text)}
    return found


def conflict(code: str, what: str, *, because: Sequence[str] = (), **parts: str | None) -> ConflictError:
    """A ConflictError (exit 4) whose text has the form of every other error."""
    return ConflictError(str(TorchproofError(code, what, because=because, **parts)), code=code)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A question that uv could not answer. `error` asks again with one thing changed, so that its hints are true."""

    outcome: Outcome
    question: Question
    indexes: Indexes
    resolution: Resolution

    @property
    def _image(self) -> str:
        return f"`{self.resolution.image_id}`"

    @property
    def _target(self) -> str:
        return f"Python {self.resolution.python} on {self.resolution.arch} with glibc {self.resolution.glibc}"

    def error(self, ask: Ask) -> TorchproofError:
        unreachable = index_failure(self.outcome, self.indexes, self.resolution.image_id)
        if unreachable is not None:
            return unreachable
        if fault_of(self.outcome.text) is Fault.DISK_FULL:
            return BuildError(
                "disk-full",
                f"{self._image} cannot be locked",
                because=[
                    "uv unpacks wheels of local folders into its cache to read what they ask for",
                    "the disk is full",
                ],
                hint="free some space, or move uv's cache with UV_CACHE_DIR",
            )
        if re.search(r"Failed to (download and )?build|Failed to resolve requirements from", self.outcome.text):
            return conflict(
                "source-build",
                f"{self._image} cannot be locked",
                because=["a source archive has to be built to learn what it depends on", "that build failed"],
                detail=explanation(self.outcome),
            )
        if not any("No solution found" in line for line in self.outcome.lines):
            return TorchproofError(
                "uv-failed",
                f"uv cannot lock {self._image} (exit status {self.outcome.status})",
                detail="\n".join(self.outcome.lines[-20:]),
            )
        if source_only(self.outcome):
            return self._source_only(ask)
        pins: dict[str, Requirement] = {
            canonicalize_name(requirement.name): requirement
            for requirement in map(Requirement, self.question.requirements)
        }
        for name, version in absent(self.outcome).items():
            if name in pins:
                return self._not_on_index(pins[name], version, ask)
        return conflict(
            "no-solution",
            f"{self._image} cannot be locked: no set of packages fits {self._target}",
            because=self._date_premise(),
            detail=explanation(self.outcome),
        )

    def _date_premise(self) -> list[str]:
        if "was filtered by `exclude-newer`" in self.outcome.text:
            return [f"files uploaded after {self.question.exclude_newer} are not considered"]
        return []

    def _source_only(self, ask: Ask) -> TorchproofError:
        """Allow what has no wheel, one answer after the other, without building any of it: nobody allowed that yet."""
        question, outcome = self.question, self.outcome
        for _ in range(_MOST_SOURCE_ROUNDS):
            more = source_only(outcome) - question.pretended
            if not more:
                break
            pretended = question.pretended | more
            question = replace(question, pretended=pretended, from_source=question.from_source | pretended)
            outcome = ask(question)
        found = sorted(question.pretended)
        listed = joined(found)
        allow = sorted({*self.resolution.allow_source, *found})
        return conflict(
            "source-only",
            f"{self._image} cannot be locked",
            because=[
                f"{listed} {'has' if len(found) == 1 else 'have'} source distributions only, for {self._target}",
                "building from source is off unless a spec allows it by name",
            ],
            conclusion=f"there is no file to install for {listed}",
            hint=f"allow_source: [{', '.join(allow)}] (the rest then resolves)" if outcome.is_solved else None,
            detail=None if outcome.is_solved else explanation(self.outcome),
        )

    def _not_on_index(
        self,
        requirement: Requirement,
        version: str | None,
        ask: Ask,
    ) -> TorchproofError:
        name = canonicalize_name(requirement.name)
        where = self.indexes.words(name)
        below = above = None
        if version is not None:
            below = self._nearest(name, f"{name}<{version}", ask, lowest=False)
            above = self._nearest(name, f"{name}>{version}", ask, lowest=True)
        there = [near for near in (below, above) if near]
        offers = [near for near in there if self._fits(requirement, near, ask)]
        return conflict(
            "not-on-index",
            f"{self._image} cannot be locked: {where} has no {name} {version or ''}".rstrip(),
            because=[
                f"the image asks for `{requirement}`",
                *self._date_premise(),
                f"the nearest that {where} has for {self._target} {'is' if len(there) == 1 else 'are'} {joined(there)}"
                if there
                else f"{where} has nothing by that name for {self._target}",
            ],
            hint=f"ask for {name} {' or '.join(offers)}: the image then resolves" if offers else None,
        )

    def _nearest(
        self,
        name: str,
        text: str,
        ask: Ask,
        *,
        lowest: bool,
    ) -> str | None:
        routes = {name: self.question.routes[name]} if name in self.question.routes else {}
        question = replace(
            self.question, requirements=(text,), constraints=(), routes=routes, with_dependencies=False, lowest=lowest
        )
        outcome = ask(question)
        return pylock.versions(outcome.pylock).get(name) if outcome.is_solved else None

    def _fits(
        self,
        requirement: Requirement,
        version: str,
        ask: Ask,
    ) -> bool:
        texts = tuple(
            f"{requirement.name}=={version}" if Requirement(text).name == requirement.name else text
            for text in self.question.requirements
        )
        return ask(replace(self.question, requirements=texts)).is_solved
