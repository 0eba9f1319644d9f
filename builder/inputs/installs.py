"""Commands of a shell script that install -> steps, requests and the rest, in the order in which they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from builder.environment import (
    AptPackage,
    Command,
    Origin,
    PythonAsk,
    SourceBuild,
    Variable,
)
from builder.inputs import conda_commands, pip_commands, requirement
from builder.inputs.draft import Draft
from builder.inputs.pip_options import PipOptions, Word
from builder.inputs.reading import Included, Reader
from builder.inputs.shell import SimpleCommand
from builder.versions import PythonVersion

_PIP = re.compile(r"pip(\d(?:\.\d+)?)?")
_PYTHON = re.compile(r"(?:python|pypy)(\d(?:\.\d+)?)?")
_CONDA = frozenset({"conda", "mamba", "micromamba", "conda.exe"})
_APT = {"apt-get": "apt", "apt": "apt", "aptitude": "apt", "apk": "apk", "yum": "yum", "dnf": "yum", "microdnf": "yum"}
_APT_VALUED = frozenset({"-t", "--target-release", "-o", "--option", "-c", "--config-file", "--repository", "-X"})
# Words that stand before the command that is really run.
_PREFIX = frozenset({"sudo", "env", "time", "exec", "nohup", "command", "nice", "retry", "ionice", "stdbuf", "eval"})
_RUNNERS = {("conda", "run"), ("mamba", "run"), ("micromamba", "run"), ("uv", "run"), ("poetry", "run"), ("pdm", "run")}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash"})
_SILENT = frozenset({"[", "[[", "test", "set", "true", "false", ":", "cd", "pushd", "popd", "export", "unset", "exit"})
MAX_SHELL_DEPTH = 4


@dataclass
class Stage:
    """What one stage of a Dockerfile has gathered so far; also serves a script without a Dockerfile."""

    draft: Draft
    reader: Reader
    find: Callable[[str, str], Included]  # a file as named in the image, and the working directory
    image_variables: dict[str, Variable] = field(default_factory=dict)
    name: str | None = None
    cwd: str = "/"
    pip_settings: list[PipOptions] = field(default_factory=list)  # `pip config set`
    channels: list[str] = field(default_factory=list)  # `conda config --add channels`
    channel_priority: str | None = None
    edited: set[str] = field(default_factory=set)  # files that `sed -i` changed
    written: dict[str, str] = field(default_factory=dict)  # files that the script itself writes


@dataclass(frozen=True)
class Call:
    """One simple command in its surroundings."""

    command: SimpleCommand
    words: tuple[Word, ...]
    stage: Stage
    variables: dict[str, str]
    cwd: str
    instruction: str = "RUN"

    @property
    def origin(self) -> Origin:
        return self.words[0][1]

    @property
    def text(self) -> str:
        return " ".join(word for word, _ in self.words)

    @property
    def step_variables(self) -> tuple[Variable, ...]:
        known = self.stage.image_variables
        found = []
        for name, value in self.variables.items():
            image = known.get(name)
            is_same = image is not None and image.value == value
            scope = "image" if is_same else "step" if name in self.command.assignments else "build"
            origin = image.origin if image is not None and is_same else self.origin
            found.append(Variable(name=name, value=value, origin=origin, scope=scope))  # type: ignore[arg-type]
        return tuple(found)

    def add_build(self, name: str | None, origin: Origin, text: str) -> None:
        """Code that this command compiles."""
        draft = self.stage.draft
        draft.builds.append(
            SourceBuild(name=name, origin=origin, text=text, step=len(draft.steps), variables=self.step_variables)
        )


def run(call: Call, walk_script: Callable[[str], None], depth: int = 0) -> None:
    """Everything that one command adds to the stage. `walk_script` runs the text behind `bash -c`."""
    words = _without_prefix(call.words)
    if not words or depth > MAX_SHELL_DEPTH:
        return
    call = replace(call, words=words)
    program = words[0][0].rsplit("/", 1)[-1]
    rest = words[1:]
    if program in _SHELLS and len(rest) > 1:
        position = next((n for n, (word, _) in enumerate(rest) if re.fullmatch(r"-[a-z]*c", word)), None)
        if position is not None and position + 1 < len(rest):
            walk_script(rest[position + 1][0])
            return
    _files(call, program)
    if program == "xargs":
        _xargs(call)
        return
    pip = _pip_call(program, words)
    if pip is not None:
        pip_commands.pip(call, *pip)
    elif program in {"uv", "uvx"}:
        pip_commands.uv(call, rest)
    elif program in _CONDA:
        conda_commands.run(call, rest)
    elif program in _APT:
        _apt(call, program, rest)
    elif program in {"poetry", "pdm", "pipenv"} and rest and rest[0][0] in {"install", "sync"}:
        pip_commands.locked(call, {"poetry": "poetry.lock", "pdm": "pdm.lock", "pipenv": "Pipfile.lock"}[program])
    else:
        _other(call, program, rest)


def _without_prefix(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The command that is really run: `sudo -E env A=b pip ...` -> `pip ...`."""
    for _ in range(8):
        if not words:
            return words
        name = words[0][0].rsplit("/", 1)[-1]
        second = words[1][0] if len(words) > 1 else ""
        if name in _PREFIX:
            words = words[1:]
            while words and (
                words[0][0].startswith("-") or re.fullmatch(r"[A-Za-z_]\w*=.*|\d+", words[0][0], re.DOTALL)
            ):
                words = words[1:]
        elif (name, second) in _RUNNERS:
            words = words[2:]
            while words and words[0][0].startswith("-"):
                takes = words[0][0] in {"-n", "-p", "--name", "--prefix", "--cwd", "--with", "--python"}
                words = words[2 if takes else 1 :]
        else:
            return words
    return words


def _pip_call(program: str, words: tuple[Word, ...]) -> tuple[tuple[Word, ...], str | None] | None:
    """The words behind `pip`, and the Python named by the interpreter."""
    match = _PIP.fullmatch(program)
    if match is not None:
        return words[1:], match[1]
    is_python = _PYTHON.fullmatch(program)
    texts = [word for word, _ in words[:8]]
    if "-m" in texts and texts.index("-m") + 1 < len(texts) and texts[texts.index("-m") + 1] in {"pip", "pip3"}:
        return words[texts.index("-m") + 2 :], is_python[1] if is_python else None
    return None


# ---- the rest


def _apt(call: Call, program: str, rest: tuple[Word, ...]) -> None:
    texts = [word for word, _ in rest]
    verb = next((word for word in texts if not word.startswith("-")), "")
    if verb not in {"install", "add", "groupinstall", "reinstall"}:
        return
    draft = call.stage.draft
    is_value = False
    for word, origin in rest[texts.index(verb) + 1 :]:
        if is_value or word.startswith("-"):
            is_value = not is_value and word in _APT_VALUED
            continue
        name, _, version = word.partition("=")
        name = re.sub(r":(amd64|arm64|all)$|[~<>@].*$", "", name)
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
            draft.left_out(origin, word, "it is not the name of a system package")
            continue
        manager = _APT[program]
        draft.apt.append(
            AptPackage(name=name, origin=origin, version=version or None, step=len(draft.steps), manager=manager)  # type: ignore[arg-type]
        )
        python = re.fullmatch(r"python(3\.\d+)(-(dev|venv|minimal|full))?", name)
        if python is not None:
            draft.pythons.append(PythonAsk(origin=origin, means="apt package", version=PythonVersion.parse(python[1])))


def _xargs(call: Call) -> None:
    """`cat requirements.txt | xargs -n1 pip install`."""
    words = list(call.words[1:])
    while words and not _PIP.fullmatch(words[0][0].rsplit("/", 1)[-1]):
        words.pop(0)
    piped = call.command.piped_from
    if not words or len(words) < 2 or words[1][0] != "install":
        return
    files = (
        [(f"-r{name}", call.origin) for name in piped[1:] if not name.startswith("-")] if piped[:1] == ("cat",) else []
    )
    if not files:
        call.stage.draft.left_out(call.origin, call.text, "what is piped into it is not known")
    pip_commands.install(call, (*words[2:], *files), "pip", None)


def _files(call: Call, program: str) -> None:
    """Keeps track of requirement files that the script writes or edits."""
    target = next((target for kind, target in call.command.redirects if kind in {">", ">>"}), None)
    if program == "sed" and any(word.startswith(("-i", "--in-place")) for word, _ in call.words):
        call.stage.edited.update(word.rsplit("/", 1)[-1] for word, _ in call.words[2:])
    elif target is not None and program in {"cat", "echo", "printf", "tee"}:
        name = target.rsplit("/", 1)[-1]
        body = call.command.heredoc
        if body is None and program in {"echo", "printf"}:
            body = " ".join(word for word, _ in call.words[1:] if not word.startswith("-")).replace("\\n", "\n")
        if body is not None and len(call.stage.written) < 50:
            before = call.stage.written.get(name, "") if (">>", target) in call.command.redirects else ""
            call.stage.written[name] = f"{before}{body}\n"[:100_000]


def _other(call: Call, program: str, rest: tuple[Word, ...]) -> None:
    draft = call.stage.draft
    texts = [word for word, _ in rest]
    if _PYTHON.fullmatch(program) and "setup.py" in [word.rsplit("/", 1)[-1] for word in texts[:3]]:
        folder = call.cwd.rstrip("/").rsplit("/", 1)[-1]
        call.add_build(folder.lower() or None, call.origin, call.text)
    elif program == "build" and texts:
        call.add_build(requirement.name_of(texts[0], call.origin), call.origin, call.text)
    if program in _SILENT:
        return
    redirects = "".join(f" {kind} {target}" for kind, target in call.command.redirects)
    if len(draft.commands) < 5000:
        draft.commands.append(
            Command(
                text=f"{call.text}{redirects}"[:2000],
                words=tuple(word for word, _ in call.words),
                origin=call.origin,
                step=len(draft.steps),
                variables=call.step_variables,
            )
        )
