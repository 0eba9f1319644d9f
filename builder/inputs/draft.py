"""What a parser fills while it reads; `environment()` freezes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from builder.environment import (
    AptPackage,
    BaseImage,
    Command,
    Environment,
    Index,
    IndexSettings,
    Installer,
    InstallStep,
    Origin,
    PythonAsk,
    Request,
    Source,
    SourceBuild,
    Unparsed,
    Variable,
)
from builder.versions import PythonVersion

# Enough for any real set; what lies beyond is named as left out.
MAX_REQUESTS = 20_000


@dataclass
class Draft:
    sources: list[Source] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    constraints: list[Request] = field(default_factory=list)
    steps: list[InstallStep] = field(default_factory=list)
    pythons: list[PythonAsk] = field(default_factory=list)
    bases: list[BaseImage] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    apt: list[AptPackage] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    builds: list[SourceBuild] = field(default_factory=list)
    unparsed: list[Unparsed] = field(default_factory=list)
    platforms: list[str] = field(default_factory=list)
    virtual_packages: list[tuple[str, str]] = field(default_factory=list)

    def left_out(self, origin: Origin, text: str, why: str) -> None:
        if len(self.unparsed) < MAX_REQUESTS:
            self.unparsed.append(Unparsed(origin, " ".join(text.split())[:200], why))

    def add(self, found: Request | Unparsed | None, *, as_constraint: bool = False) -> None:
        if isinstance(found, Unparsed):
            self.left_out(found.origin, found.text, found.why)
        elif found is not None and len(self.requests) + len(self.constraints) < MAX_REQUESTS:
            (self.constraints if as_constraint else self.requests).append(found)
            if found.is_source and not as_constraint:
                step = self.steps[found.step] if found.step < len(self.steps) else None
                build = SourceBuild(
                    name=found.name or None,
                    origin=found.origin,
                    text=found.text,
                    step=found.step,
                    variables=() if step is None else step.variables,
                )
                self.builds.append(build)

    def open_step(self, installer: Installer, origin: Origin, text: str, indexes: IndexSettings) -> int:
        """The number of a new step."""
        number = len(self.steps)
        self.steps.append(
            InstallStep(number=number, installer=installer, origin=origin, text=" ".join(text.split()), indexes=indexes)
        )
        return number

    def change_step(self, number: int, **changes: object) -> None:
        self.steps[number] = replace(self.steps[number], **changes)  # type: ignore[arg-type]

    def _wheel_pythons(self) -> list[PythonAsk]:
        """A wheel named by its file fits one Python: the last thing to go by where none is said."""
        found: dict[PythonVersion, PythonAsk] = {}
        for request in self.requests:
            tags = () if request.wheel is None else request.wheel.pythons
            match = re.fullmatch(r"cp(\d)(\d{1,2})", tags[0]) if len(tags) == 1 else None
            # The stable ABI runs on later Pythons too.
            if match is not None and request.wheel is not None and "abi3" not in request.wheel.abis:
                version = PythonVersion((int(match[1]), int(match[2])))
                found.setdefault(version, PythonAsk(origin=request.origin, means="wheel file", version=version))
        return list(found.values())

    def environment(self) -> Environment:
        return Environment(
            sources=tuple(self.sources),
            requests=tuple(self.requests),
            constraints=tuple(self.constraints),
            steps=tuple(self.steps),
            pythons=(*self.pythons, *self._wheel_pythons()),
            bases=tuple(self.bases),
            variables=tuple(self.variables),
            apt=tuple(self.apt),
            commands=tuple(self.commands),
            builds=tuple(self.builds),
            unparsed=tuple(self.unparsed),
            platforms=tuple(self.platforms),
            virtual_packages=tuple(self.virtual_packages),
        )


def default_index(origin: Origin) -> Index:
    """What a file without index lines uses."""
    return Index(kind="default", origin=origin)
