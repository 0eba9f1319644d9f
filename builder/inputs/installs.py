"""Commands of a shell script that install -> steps, requests and the rest, in the order in which they run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from builder.environment import (
    AptPackage,
    Command,
    IndexSettings,
    Installer,
    Origin,
    PythonAsk,
    SourceBuild,
    Variable,
)
from builder.inputs import conda_commands, pip_options, requirement, requirements
from builder.inputs.draft import Draft, default_index
from builder.inputs.pip_options import PipOptions, Word
from builder.inputs.reading import Included, Reader
from builder.inputs.shell import SimpleCommand
from builder.versions import InvalidVersionError, PythonVersion

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
        _pip(call, *pip)
    elif program in {"uv", "uvx"}:
        _uv(call, rest)
    elif program in _CONDA:
        conda_commands.run(call, rest)
    elif program in _APT:
        _apt(call, program, rest)
    elif program in {"poetry", "pdm", "pipenv"} and rest and rest[0][0] in {"install", "sync"}:
        _locked(call, {"poetry": "poetry.lock", "pdm": "pdm.lock", "pipenv": "Pipfile.lock"}[program])
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


def python_version(text: str | None) -> PythonVersion | None:
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", text or "")
    try:
        return None if match is None else PythonVersion.parse(match[1])
    except InvalidVersionError:
        return None


# ---- pip and uv


def _pip(call: Call, rest: tuple[Word, ...], python: str | None) -> None:
    position = next((n for n, (word, _) in enumerate(rest) if not word.startswith("-")), None)
    if position is None:
        return
    verb, behind = rest[position][0], (*rest[:position], *rest[position + 1 :])
    if verb == "install":
        _install(call, behind, "pip", python)
    elif verb == "uninstall":
        _remove(call, behind, "pip")
    elif verb == "config":
        _pip_config(call, behind)
    elif verb == "wheel":
        options = pip_options.parse(behind)
        for word, origin in options.positional:
            _add_build(call, _name_of(word, origin), origin, call.text)


def _uv(call: Call, rest: tuple[Word, ...]) -> None:
    words = [word for word, _ in rest]
    if words[:1] == ["pip"] and len(words) > 1:
        if words[1] == "install":
            _install(call, rest[2:], "uv", None)
        elif words[1] == "sync":
            _install(call, rest[2:], "uv", None, is_sync=True)
        elif words[1] == "uninstall":
            _remove(call, rest[2:], "uv")
    elif words[:1] == ["add"]:
        _install(call, rest[1:], "uv", None)
    elif words[:1] == ["sync"]:
        _locked(call, "uv.lock", "pyproject.toml")
    elif words[:1] == ["venv"] or words[:2] == ["python", "install"]:
        options = pip_options.parse(rest[1:])
        named = options.python or (words[2] if words[0] == "python" and len(words) > 2 else None)
        version = python_version(named)
        if version is not None:
            call.stage.draft.pythons.append(PythonAsk(origin=call.origin, means=f"uv {words[0]}", version=version))


def _settings(call: Call, installer: str) -> IndexSettings:
    """What holds before the command's own options: configuration, then variables."""
    settings = IndexSettings(
        primary=default_index(call.origin), strategy="first-index" if installer == "uv" else "best-match"
    )
    for options in call.stage.pip_settings if installer == "pip" else ():
        settings = options.settings(settings)
    return from_variables(call.variables, settings, call.step_variables, installer)


# Variable -> the option that it stands for.
_VARIABLES = {
    "pip": {"PIP_INDEX_URL": "index-url", "PIP_EXTRA_INDEX_URL": "extra-index-url", "PIP_FIND_LINKS": "find-links"},
    "uv": {
        "UV_INDEX_URL": "index-url",
        "UV_DEFAULT_INDEX": "index-url",
        "UV_EXTRA_INDEX_URL": "extra-index-url",
        "UV_INDEX": "index",
        "UV_FIND_LINKS": "find-links",
        "UV_INDEX_STRATEGY": "index-strategy",
        "UV_TORCH_BACKEND": "torch-backend",
        "UV_PRERELEASE": "prerelease",
    },
}


def from_variables(
    variables: dict[str, str], before: IndexSettings, origins: Sequence[Variable], installer: str
) -> IndexSettings:
    """The index settings that environment variables make."""
    where = {variable.name: variable.origin for variable in origins}
    words: list[Word] = []
    for name, option in _VARIABLES["uv" if installer == "uv" else "pip"].items():
        origin = where.get(name, before.primary.origin)
        values = (
            [variables.get(name, "")] if option in {"index-url", "extra-index-url"} else variables.get(name, "").split()
        )
        words += [(f"--{option}={value}", origin) for value in values if value.strip()]
    for name in ("PIP_NO_INDEX", "PIP_PRE", "UV_NO_INDEX"):
        if variables.get(name, "").lower() in {"1", "true", "yes", "on"}:
            words.append((f"--{name.partition('_')[2].lower().replace('_', '-')}", before.primary.origin))
    return pip_options.parse(words).settings(before)


def _pip_config(call: Call, rest: tuple[Word, ...]) -> None:
    words = [word for word, _ in rest if not word.startswith("-")]
    if words[:1] == ["set"] and len(words) >= 3:
        option = words[1].rpartition(".")[2]
        value = f"--{option}={words[2]}" if option not in {"no-index", "pre"} else f"--{option}"
        call.stage.pip_settings.append(pip_options.parse([(value, call.origin)]))


def _install(call: Call, rest: tuple[Word, ...], installer: str, python: str | None, *, is_sync: bool = False) -> None:
    draft = call.stage.draft
    options = pip_options.parse(rest)
    tool: Installer = "uv" if installer == "uv" else "pip"
    number = draft.open_step(tool, call.origin, call.text, options.settings(_settings(call, installer)))
    version = python_version(python) or python_version(options.python)
    is_edited = False
    draft.change_step(
        number,
        stage=call.stage.name,
        python=version,
        is_upgrade=options.is_upgrade,
        no_deps="no-deps" in options.flags,
        no_build_isolation="no-build-isolation" in options.flags,
        requires_hashes="require-hashes" in options.flags,
        no_binary=tuple(options.no_binary),
        only_binary=tuple(options.only_binary),
        is_sync=is_sync,
        is_conditional=call.command.is_conditional,
        variables=call.step_variables,
    )
    if version is not None:
        draft.pythons.append(PythonAsk(origin=call.origin, means="interpreter", version=version))
    context = requirements.Context(draft, call.stage.reader, number, tool, call.variables)
    for word, origin in options.broken:
        draft.left_out(origin, call.text, f"`{word}` has no value")
    constraints = list(options.constraints)
    for name in ("PIP_CONSTRAINT", "UV_CONSTRAINT"):
        if name.startswith(installer.upper()):
            constraints += [(file, call.origin) for file in call.variables.get(name, "").split()]
    files = [(file, origin, False) for word, origin in options.requirements for file in _substituted(word)]
    files += [(file, origin, True) for word, origin in constraints for file in _substituted(word)]
    for word, origin in options.positional:
        inner = re.fullmatch(r"\$\(\s*(?:cat|<)\s+([^|;&]+)\)", word)
        if inner is not None:
            files += [(file, origin, False) for file in inner[1].split()]
            continue
        draft.add(requirement.parse(word, origin, installer=tool, step=number))
    for word, origin in options.editable:
        draft.add(requirement.parse(word, origin, installer=tool, step=number, is_editable=True))
    for file, origin, as_constraint in files:
        is_edited = is_edited or file.rsplit("/", 1)[-1] in call.stage.edited
        _include(call, file, origin, context, as_constraint=as_constraint)
    if is_edited:
        draft.change_step(number, is_conditional=True)
        draft.left_out(call.origin, call.text, "the file is edited by an earlier command; read as it stands")


def _substituted(word: str) -> list[str]:
    """`<(cat a b)` names the files a and b."""
    inner = re.fullmatch(r"<\(\s*cat\s+([^|;&]+)\)", word)
    return inner[1].split() if inner is not None else [word]


def _include(call: Call, name: str, origin: Origin, context: requirements.Context, *, as_constraint: bool) -> None:
    if name.rsplit("/", 1)[-1] == "pyproject.toml":
        _locked(call, name)
        return
    written = call.stage.written.get(name.rsplit("/", 1)[-1])
    if written is not None:
        requirements.read_text(written, origin.file, context, as_constraint=as_constraint)
        return
    found = call.stage.find(name, call.cwd)
    if found.text is None:
        draft_text = f"{'-c' if as_constraint else '-r'} {name}"
        call.stage.draft.left_out(origin, draft_text, found.why)
        return
    requirements.read_included(found, origin, context, as_constraint=as_constraint)


def _remove(call: Call, rest: tuple[Word, ...], installer: str) -> None:
    options = pip_options.parse(rest)
    tool: Installer = "uv" if installer == "uv" else "pip"
    number = call.stage.draft.open_step(tool, call.origin, call.text, _settings(call, installer))
    names = tuple(_name_of(word, origin) or "" for word, origin in options.positional)
    call.stage.draft.change_step(
        number,
        stage=call.stage.name,
        removes=tuple(name for name in names if name),
        is_conditional=call.command.is_conditional,
        variables=call.step_variables,
    )


def _name_of(word: str, origin: Origin) -> str | None:
    return getattr(requirement.parse(word, origin), "name", None) or None


def _locked(call: Call, *names: str) -> None:
    """`uv sync`, `poetry install`: the first of these files that lies beside the Dockerfile."""
    from builder.inputs import projects  # noqa: PLC0415 - few Dockerfiles install from a lock

    for name in names:
        found = call.stage.find(name, call.cwd)
        if found.text is not None and projects.read_into(found.text, found.file, call.stage.draft, call.origin):
            return
    call.stage.draft.left_out(call.origin, call.text, f"there is no {names[0]} beside the Dockerfile that can be read")


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
    _install(call, (*words[2:], *files), "pip", None)


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


def _add_build(call: Call, name: str | None, origin: Origin, text: str) -> None:
    draft = call.stage.draft
    draft.builds.append(
        SourceBuild(name=name, origin=origin, text=text, step=len(draft.steps), variables=call.step_variables)
    )


def _other(call: Call, program: str, rest: tuple[Word, ...]) -> None:
    draft = call.stage.draft
    texts = [word for word, _ in rest]
    if _PYTHON.fullmatch(program) and "setup.py" in [word.rsplit("/", 1)[-1] for word in texts[:3]]:
        folder = call.cwd.rstrip("/").rsplit("/", 1)[-1]
        _add_build(call, folder.lower() or None, call.origin, call.text)
    elif program == "build" and texts:
        _add_build(call, _name_of(texts[0], call.origin), call.origin, call.text)
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
