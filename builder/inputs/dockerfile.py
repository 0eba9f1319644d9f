"""Dockerfiles: stages, variables and what RUN installs, seen from the last stage.

The last stage holds what its own instructions and those of the stages below it install, and what it copies from other
stages where an environment lies (`COPY --from=build /venv /venv`). Files that RUN names are read when they lie beside
the Dockerfile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from builder.environment import (
    BaseImage,
    Command,
    Environment,
    IndexSettings,
    OperatingSystem,
    Origin,
    PythonAsk,
    Request,
    Source,
    Unparsed,
    Variable,
)
from builder.inputs import base_image, docker_lexer, installs, pip_options
from builder.inputs.build_context import BuildContext
from builder.inputs.conditions import settled
from builder.inputs.docker_lexer import Instruction
from builder.inputs.docker_lexer import Source as Text
from builder.inputs.draft import Draft, default_index
from builder.inputs.reading import Reader
from builder.inputs.shell import Shell, SimpleCommand
from builder.inputs.shell_words import Expander
from builder.inputs.substitutions import evaluate
from builder.versions import CudaVariant

# Set by the builder for every platform; x86_64 unless `--platform` says otherwise.
_PLATFORM = {
    "TARGETARCH": "amd64",
    "TARGETOS": "linux",
    "TARGETPLATFORM": "linux/amd64",
    "BUILDPLATFORM": "linux/amd64",
}
_ARM = {"TARGETARCH": "arm64", "TARGETOS": "linux", "TARGETPLATFORM": "linux/arm64", "BUILDPLATFORM": "linux/arm64"}
# Where an environment lies: copying one of these from a stage brings its packages along.
_ENVIRONMENT = re.compile(
    r"(site|dist)-packages|venv|virtualenv|conda|mamba|\.local|/env\b|/envs\b|/install\b|^/?$|^/opt(/|$)"
    r"|^/usr/local(/lib.*)?/?$|^/usr/?$|^/root/?$|^/home/[^/]+/?$|^/app/?$|^/python|\.pixi",
    re.IGNORECASE,
)
# Order in which ways to say a Python decide: what runs pip first, what the base brings last.
_PYTHON_ORDER = ("interpreter", "conda python", "uv venv", "uv python", "apt package", "base image", "wheel file")


@dataclass
class _Built:
    """One stage. `pieces` are finished parts and names of stages copied from, in order."""

    number: int
    base: BaseImage
    below: int | None
    stage: installs.Stage
    arguments: dict[str, str | None]
    pieces: list[Environment | int] = field(default_factory=list)


def parse(
    text: str,
    file: str,
    reader: Reader | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    arch: str = "x86_64",
) -> Environment:
    """`variables` are build arguments and the like that the person gave."""
    return _Dockerfile(file, reader or Reader(), dict(variables or {}), arch).read(text)


class _Dockerfile:
    def __init__(self, file: str, reader: Reader, given: dict[str, str], arch: str) -> None:
        self._file = file
        self._reader = reader
        self._given = given
        self._platform = _ARM if arch == "aarch64" else _PLATFORM
        self._global: dict[str, str | None] = {}
        self._stages: list[_Built] = []
        self._unparsed: list[Unparsed] = []
        self._copies: list[tuple[str, str]] = []  # COPY source -> destination, of all stages
        self._context = BuildContext(reader, file, self._copies)

    def read(self, text: str) -> Environment:
        for instruction in docker_lexer.instructions(text, self._file):
            self._instruction(instruction)
        source = Source(file=self._file, kind="dockerfile")
        if not self._stages:
            why = "there is no FROM, so nothing is known about the image"
            self._unparsed.append(Unparsed(Origin(self._file, 1), text.strip()[:80] or "(empty)", why))
            return Environment(sources=(source,), unparsed=tuple(self._unparsed))
        found = settled(self._flatten(self._stages[-1], set()))
        pythons = sorted(
            found.pythons, key=lambda ask: _PYTHON_ORDER.index(ask.means) if ask.means in _PYTHON_ORDER else 4
        )
        base = found.base
        system = None
        if base is not None and base.distribution is not None:
            system = OperatingSystem(text=base.reference, origin=base.origin, distribution=base.distribution)
        return replace(
            found,
            sources=(source, *found.sources),
            pythons=tuple(pythons),
            os=system,
            unparsed=(*self._unparsed, *found.unparsed),
        )

    def _flatten(self, built: _Built, seen: set[int]) -> Environment:
        """Each stage once, so that stages which copy from each other cannot multiply."""
        chain: list[_Built] = []
        below: int | None = built.number
        while below is not None and below not in seen:
            seen.add(below)
            chain.append(self._stages[below])
            below = self._stages[below].below
        found = Environment(bases=(chain[-1].base,)) if chain else Environment()
        for each in reversed(chain):
            for piece in (*each.pieces, each.stage.draft.environment()):
                if isinstance(piece, Environment):
                    found = found.merge(_standing_on(each.base, piece))
                elif piece not in seen:
                    copied = self._flatten(self._stages[piece], seen)
                    found = found.merge(replace(copied, variables=(), apt=(), commands=()))
        return found

    # ---- instructions

    def _instruction(self, instruction: Instruction) -> None:
        keyword = instruction.keyword
        if keyword == "FROM":
            self._from(instruction)
        elif keyword == "ARG":
            self._arg(instruction)
        elif not keyword:
            why = "it is not a Dockerfile instruction"
            self._unparsed.append(Unparsed(instruction.origin, instruction.value.text.strip()[:200], why))
        elif self._stages:
            built = self._stages[-1]
            if keyword == "ENV":
                self._env(instruction, built)
            elif keyword == "RUN":
                self._run(instruction, built)
            elif keyword == "WORKDIR":
                place = self._expand(instruction.value.text.strip(), built)
                built.stage.cwd = place if place.startswith("/") else f"{built.stage.cwd.rstrip('/')}/{place}"
            elif keyword in {"COPY", "ADD"}:
                self._copy(instruction, built)
            elif keyword in {"CMD", "ENTRYPOINT"}:
                self._start(instruction, built)

    def _from(self, instruction: Instruction) -> None:
        words = self._expand_with(instruction.value.text, {**self._platform, **self._global, **self._given})
        if not words:
            self._unparsed.append(Unparsed(instruction.origin, "FROM", "it names no image"))
            return
        name = words[2] if len(words) > 2 and words[1].lower() == "as" else None
        reference = words[0]
        below = next((s.number for s in reversed(self._stages) if s.stage.name == reference.lower()), None)
        number = len(self._stages)
        platform = instruction.flag("platform")
        if below is not None:
            lower = self._stages[below]
            base, inherited = lower.base, dict(lower.stage.image_variables)
        else:
            base, inherited = (
                base_image.parse(reference, instruction.origin, stage=name, platform=platform),
                {},
            )
            if "$" in reference:
                why = "the image hangs on a build argument without a default"
                self._unparsed.append(Unparsed(instruction.origin, reference, why))
        draft = Draft()
        stage = installs.Stage(draft, self._reader, self._context.find, inherited, name.lower() if name else None)
        if below is not None:
            lower_stage = self._stages[below].stage
            stage.cwd = lower_stage.cwd
            stage.pip_settings = list(lower_stage.pip_settings)
            stage.channels = list(lower_stage.channels)
            stage.channel_priority = lower_stage.channel_priority
            stage.edited, stage.written = set(lower_stage.edited), dict(lower_stage.written)
        else:
            _base_packages(base, draft)
        self._stages.append(_Built(number, base, below, stage, {}))

    def _arg(self, instruction: Instruction) -> None:
        built = self._stages[-1] if self._stages else None
        for name, raw in _pairs(instruction.value.text):
            if name in self._given:
                value: str | None = self._given[name]
            elif raw is not None:
                value = self._expand(raw, built) if built else self._text(raw, {**self._global, **self._given})
            else:
                value = self._global.get(name) if built else None
                value = self._platform.get(name) if value is None else value
            if built is not None:
                built.arguments[name] = value
            else:
                self._global[name] = value

    def _env(self, instruction: Instruction, built: _Built) -> None:
        text = instruction.value.text
        old_form = re.match(r"\s*([A-Za-z_]\w*)[ \t]+(?!=)(.*)", text, re.DOTALL)
        first = text.split()[0] if text.split() else ""
        pairs = (
            [(old_form[1], old_form[2].strip())] if old_form is not None and "=" not in first else list(_pairs(text))
        )
        before = dict(self._scope(built))
        offset = 0
        for name, raw in pairs:
            value = Expander(before).text(raw or "")
            offset = max(text.find(name, offset), 0)
            origin = instruction.value.origin(offset)
            variable = Variable(name=name, value=value, origin=origin, scope="image")
            built.stage.image_variables[name] = variable
            built.stage.draft.variables.append(variable)

    def _run(self, instruction: Instruction, built: _Built) -> None:
        words = instruction.words_of_json
        if words is not None:
            whole = [(word, instruction.origin) for word in words]
            self._command(SimpleCommand(tuple((word, 0) for word in words), 0), whole, built, {}, built.stage.cwd, 0)
            return
        if instruction.heredocs and instruction.script is None:
            return
        for flag, value in instruction.flags:
            if flag == "mount":
                options = dict(part.partition("=")[::2] for part in value.split(","))
                source, target = (
                    options.get("source") or options.get("src"),
                    options.get("target") or options.get("dst"),
                )
                if options.get("type", "bind") == "bind" and source and target and "from" not in options:
                    self._copies.append((source, target))
        self._script(instruction.script or instruction.value, built, 0)

    def _script(self, script: Text, built: _Built, depth: int, variables: dict[str, str | None] | None = None) -> None:
        if depth > installs.MAX_SHELL_DEPTH:
            return
        scope: dict[str, str | None] = dict(self._scope(built)) if variables is None else variables
        shell: Shell

        def run(command: SimpleCommand) -> None:
            words = [(word, script.origin(offset)) for word, offset in command.words]
            known = {name: value for name, value in scope.items() if value is not None}
            self._command(command, words, built, known, shell.cwd, depth)

        def substitute(inner: str) -> str | None:
            return evaluate(inner, scope, self._answers)

        shell = Shell(scope, run, cwd=built.stage.cwd, substitute=substitute)
        shell.walk(script.text)

    def _command(
        self,
        command: SimpleCommand,
        words: list[pip_options.Word],
        built: _Built,
        variables: dict[str, str],
        cwd: str,
        depth: int,
    ) -> None:
        if not words:
            return
        call = installs.Call(command, tuple(words), built.stage, {**variables, **command.assignments}, cwd)
        origin = words[0][1]

        def walk(script: str) -> None:
            inner: dict[str, str | None] = dict(call.variables)
            self._script(Text.of(origin.file, [(script, origin.line or 1)]), built, depth + 1, inner)

        installs.run(call, walk, depth)

    def _copy(self, instruction: Instruction, built: _Built) -> None:
        words = instruction.words_of_json or self._expand_with(instruction.value.text, self._scope(built))
        stage = instruction.flag("from")
        for heredoc in instruction.heredocs:
            if words:
                built.stage.written[words[-1].rstrip("/").rsplit("/", 1)[-1]] = heredoc.body.text[:100_000]
        if len(words) < 2:
            return
        if stage is None:
            self._copies.extend((source, words[-1]) for source in words[:-1][:100])
            return
        number = next((s.number for s in reversed(self._stages[:-1]) if s.stage.name == stage.lower()), None)
        if number is None and stage.isdecimal() and int(stage[:6]) < len(self._stages) - 1:
            number = int(stage[:6])
        if number is not None and any(_ENVIRONMENT.search(source) for source in words[:-1]):
            built.pieces += [built.stage.draft.environment(), number]
            built.stage.draft = Draft()

    def _start(self, instruction: Instruction, built: _Built) -> None:
        words = instruction.words_of_json or instruction.value.text.split()
        if words:
            built.stage.draft.commands.append(
                Command(
                    text=" ".join(words)[:2000],
                    words=tuple(words),
                    origin=instruction.origin,
                    step=len(built.stage.draft.steps),
                    instruction="CMD" if instruction.keyword == "CMD" else "ENTRYPOINT",
                )
            )

    # ---- variables and files

    def _scope(self, built: _Built) -> dict[str, str | None]:
        """ARG and ENV as RUN sees them; ENV wins."""
        image = {name: variable.value for name, variable in built.stage.image_variables.items()}
        return {**built.arguments, **image}

    def _expand(self, raw: str, built: _Built) -> str:
        return self._text(raw, self._scope(built))

    @staticmethod
    def _text(raw: str, variables: Mapping[str, str | None]) -> str:
        return Expander(variables).text(raw)

    @staticmethod
    def _expand_with(raw: str, variables: Mapping[str, str | None]) -> list[str]:
        expander = Expander(variables)
        return [word for part in raw.split() for word in expander.words(part)]

    @property
    def _answers(self) -> dict[str, str]:
        """What commands about the machine print while the image is built."""
        arch = self._platform["TARGETARCH"]
        machine = "aarch64" if arch == "arm64" else "x86_64"
        return {"uname -m": machine, "arch": machine, "uname -s": "Linux", "dpkg --print-architecture": arch}


def _pairs(text: str) -> list[tuple[str, str | None]]:
    """`A=1 B="x y" C` -> names and raw values."""
    from builder.inputs.shell_words import tokens  # noqa: PLC0415 - only ENV and ARG need it

    found: list[tuple[str, str | None]] = []
    for token in tokens(text):
        if token.kind != "word":
            continue
        match = re.fullmatch(r"([A-Za-z_][\w.-]*)(?:=(.*))?", token.text, re.DOTALL)
        if match is not None:
            found.append((match[1], match[2]))
    return found


def _standing_on(base: BaseImage, piece: Environment) -> Environment:
    steps = tuple(replace(step, base=base) for step in piece.steps)
    return replace(piece, steps=steps, builds=tuple(replace(build, base=base) for build in piece.builds))


def _base_packages(base: BaseImage, draft: Draft) -> None:
    """What the base's reference promises: its torch as an install step before all others, its Python."""
    if base.python is not None:
        draft.pythons.append(PythonAsk(origin=base.origin, means="base image", version=base.python))
    if base.torch is None:
        return
    settings = IndexSettings(primary=default_index(base.origin))
    number = draft.open_step("base-image", base.origin, f"FROM {base.reference}", settings)
    variant = None
    if base.toolkit is not None and base.toolkit.minor <= 9:
        variant = CudaVariant.parse(base.toolkit.series.variant)
    elif base.tag is not None and re.search(r"(^|-)cpu(-|$)", base.tag):
        variant = CudaVariant("cpu")
    draft.add(
        Request(
            name="torch",
            asked_as="torch",
            origin=base.origin,
            installer="base-image",
            step=number,
            text=base.reference,
            version=base.torch,
            build_variant=variant,
        )
    )
