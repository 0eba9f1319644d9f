"""What a resolver would choose among the releases of the facts: newest first, everything that is required kept. Pure.

A search with backtracking over at most a few dozen packages. Packages that the facts do not know take no part. The
search is exhaustive below `LIMIT` steps, so a failure is a proof; above it the answer is "not decided".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.shelf import Offer, Shelf, marker_holds
from builder.versions import PythonVersion

LIMIT = 8000
_PATIENCE = 4  # failures after which a package is placed earlier
_ASKED_BY_MANY = frozenset(
    {
        "huggingface-hub", "llvmlite", "numpy", "packaging", "protobuf", "pyarrow", "safetensors", "sentencepiece",
        "setuptools", "tokenizers", "triton",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """Something that a version must meet. `by` is the package that asks, None for the user's own line (`says`)."""

    specifier: SpecifierSet
    says: str
    by: Offer | None = None
    is_firm: bool = True  # asked by the user, or by a release that the user pinned


@dataclass(frozen=True)
class Want:
    """A package that the user asks for."""

    name: str
    specifier: SpecifierSet
    says: str
    extras: tuple[str, ...] = ()
    version: Version | None = None  # an exact release: taken even where the facts do not list it
    is_bound_only: bool = False  # a constraint: installs nothing


@dataclass(frozen=True)
class Refused:
    """A release that could not be taken: it wants `requirement`, and `other` is chosen."""

    offer: Offer
    requirement: str
    other: Offer


@dataclass(frozen=True)
class Failure:
    """No release of `name` meets `bounds`; `refused` are those that do and cannot stand beside what is chosen."""

    name: str
    bounds: tuple[Bound, ...]
    refused: tuple[Refused, ...]

    @property
    def is_firm(self) -> bool:
        return all(bound.is_firm for bound in self.bounds)


@dataclass(frozen=True)
class Solution:
    chosen: Mapping[str, Offer]
    via: Mapping[str, str]  # package -> the package that brought it in
    failure: Failure | None = None
    is_decided: bool = True


class _LimitReachedError(Exception):
    pass


@dataclass
class _Search:
    shelf: Shelf
    python: PythonVersion | None
    pythons: Sequence[PythonVersion]
    today: str
    installed: Mapping[str, Version]
    keeps: Callable[[str, Offer], bool]
    bounds: dict[str, list[Bound]] = field(default_factory=dict)
    extras: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pinned: dict[str, Offer] = field(default_factory=dict)
    chosen: dict[str, Offer] = field(default_factory=dict)
    via: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    capped: set[str] = field(default_factory=set)  # the user's own line keeps newer releases out
    trouble: dict[str, int] = field(default_factory=dict)  # how often nothing of a package could be taken
    steps: int = 0
    _takable: dict[str, tuple[list[Offer], Iterator[Offer]]] = field(default_factory=dict)
    _left: dict[tuple[str, frozenset[str]], bool] = field(default_factory=dict)

    def candidates(self, name: str) -> Iterator[Offer]:
        """Best first. What does not change during the search is looked at once."""
        if name not in self._takable:
            pinned = self.pinned.get(name)
            found = (offer for offer in self._in_order(name) if self._may_take(offer))
            self._takable[name] = ([], iter((pinned,)) if pinned is not None else found)
        seen, rest = self._takable[name]
        position = 0
        while True:
            if position == len(seen):
                offer = next(rest, None)
                if offer is None:
                    return
                seen.append(offer)
            yield seen[position]
            position += 1

    def _in_order(self, name: str) -> Iterator[Offer]:
        kept = self.installed.get(name)
        first = None if kept is None else self.shelf.offer(name, kept)
        if first is not None:
            yield first
        yield from (offer for offer in self.shelf.newest_first(name) if first is None or offer.version != kept)

    def _may_take(self, offer: Offer) -> bool:
        if offer.is_yanked or (offer.released and offer.released > self.today) or not self.keeps(offer.name, offer):
            return False
        return not self.pythons or any(offer.lets_in(python) for python in self.pythons)

    def meets(self, name: str, version: Version) -> bool:
        return all(bound.specifier.contains(version, prereleases=True) for bound in self.bounds.get(name, ()))

    def place(self, pending: Sequence[str]) -> frozenset[str] | None:
        """None when all are placed, else the packages to blame: what is not among them need not be tried again."""
        if not pending:
            return None
        name = min(pending, key=self._order)
        rest = [other for other in pending if other != name]
        refused: list[Refused] = []
        blamed = {bound.by.name for bound in self.bounds.get(name, ()) if bound.by is not None}
        for offer in self.candidates(name):
            if not self.meets(name, offer.version):
                continue
            self.steps += 1
            if self.steps > LIMIT:
                raise _LimitReachedError
            added, new, clash = self._add(offer)
            if clash is not None:
                if isinstance(clash, Refused):
                    refused.append(clash)
                    blamed.add(clash.other.name)
                else:
                    blamed |= {bound.by.name for bound in clash.bounds if bound.by is not None} - {name}
                self._undo(added)
                continue
            self.chosen[name] = offer
            fresh = [item for item in new if item not in self.chosen and item not in rest]
            for item in fresh:
                self.via.setdefault(item, name)
            found = self.place([*rest, *fresh])
            if found is None:
                return None
            del self.chosen[name]
            self._undo(added)
            if name not in found:
                return found
            blamed |= found - {name}
        self.failures.append(Failure(name, tuple(self.bounds.get(name, ())), tuple(refused)))
        self.trouble[name] = self.trouble.get(name, 0) + 1
        return frozenset(blamed)

    def _order(self, name: str) -> tuple[bool, bool, int, tuple[int, str]]:
        """What failed before comes early, so that the rest is chosen to suit it."""
        return (
            name not in self.pinned,
            name not in self.installed,
            -min(self.trouble.get(name, 0) // _PATIENCE, 4),
            self._rank(name),
        )

    def _rank(self, name: str) -> tuple[int, str]:
        """First torch, because everything hangs on it; then what the user limits, since that leaves the least choice.

        Of the rest, who asks comes before who is asked, so that bounds are known.
        """
        if name == "torch":
            return (0, name)
        return ((1 if name in self.capped else 3) + (name in _ASKED_BY_MANY), name)

    def _add(self, offer: Offer) -> tuple[list[str], list[str], Refused | Failure | None]:
        """Puts what the release requires on the books: the names touched, the names to place, what it clashes with.

        A package to come that nothing could be taken of any more is a clash as well: found when it is placed, all that
        was placed between would have been tried in every combination.
        """
        touched: list[str] = []
        new: list[str] = []
        is_firm = offer.name in self.pinned
        for wanted in offer.requires or ():
            if not self.shelf.knows(wanted.name):
                continue
            if not marker_holds(wanted, self.python, self.shelf.arch, self.extras.get(offer.name, ())):
                continue
            name = wanted.name
            bound = Bound(
                wanted.specifier, f"{offer.name} {offer.version} requires {name}{wanted.specifier}", offer, is_firm
            )
            there = self.chosen.get(name)
            if there is not None and not wanted.specifier.contains(there.version, prereleases=True):
                return touched, new, Refused(offer, f"{name}{wanted.specifier}", there)
            self.bounds.setdefault(name, []).append(bound)
            touched.append(name)
            if there is None:
                new.append(name)
                # Most sets hold together at once: looking ahead pays from the first failure on.
                if self.failures and len(self.bounds[name]) > 1 and not self._is_left(name):
                    failure = Failure(name, tuple(self.bounds[name]), ())
                    self.failures.append(failure)
                    return touched, new, failure
        return touched, new, None

    def _is_left(self, name: str) -> bool:
        key = (name, frozenset(str(bound.specifier) for bound in self.bounds[name]))
        if key not in self._left:
            self._left[key] = any(self.meets(name, offer.version) for offer in self.candidates(name))
        return self._left[key]

    def _undo(self, touched: Iterable[str]) -> None:
        for name in touched:
            self.bounds[name].pop()


def solve(
    wants: Sequence[Want],
    shelf: Shelf,
    *,
    python: PythonVersion | None,
    pythons: Sequence[PythonVersion] = (),
    today: str,
    installed: Mapping[str, Version] | None = None,
    keeps: Callable[[str, Offer], bool] = lambda name, offer: True,  # noqa: ARG005  (the default keeps everything)
) -> Solution:
    """`python` is what markers are judged by, `pythons` are those that it could be (none given: any).

    `installed` is left alone where it fits; `keeps` says what the indexes of a step have of a package.
    """
    search = _Search(shelf, python, pythons, today, installed or {}, keeps)
    names: list[str] = []
    for want in wants:
        if not shelf.knows(want.name):
            continue
        search.bounds.setdefault(want.name, []).append(Bound(want.specifier, want.says))
        search.extras[want.name] = (*search.extras.get(want.name, ()), *want.extras)
        if any(each.operator in {"<", "<=", "~=", "=="} for each in want.specifier):
            search.capped.add(want.name)
        if want.is_bound_only:
            continue
        if want.name not in names:
            names.append(want.name)
        if want.version is not None and want.name not in search.pinned:
            public = Version(want.version.public)
            search.pinned[want.name] = shelf.offer(want.name, public) or Offer(
                want.name, public, pythons=None, requires=None
            )
    try:
        is_solved = search.place(names) is None
    except _LimitReachedError:
        return Solution(_greedy(search, names), dict(search.via), is_decided=False)
    if is_solved:
        return Solution(dict(search.chosen), dict(search.via))
    firm = [failure for failure in search.failures if failure.is_firm]
    return Solution(_greedy(search, names), dict(search.via), (firm or search.failures[-1:])[0])


def _greedy(search: _Search, names: Sequence[str]) -> dict[str, Offer]:
    """Each package by its own bounds alone: what the rest is judged by when no whole answer exists."""
    chosen: dict[str, Offer] = {}
    for name in names:
        bounds = [bound for bound in search.bounds.get(name, ()) if bound.by is None]
        for offer in search.candidates(name):
            if all(bound.specifier.contains(offer.version, prereleases=True) for bound in bounds):
                chosen[name] = offer
                break
    return chosen
