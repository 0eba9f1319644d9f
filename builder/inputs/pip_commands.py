"""`pip` and `uv` commands of a script -> steps and requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from builder.environment import IndexSettings, Installer, Origin, PythonAsk, Variable
from builder.inputs import pip_options, requirement, requirements
from builder.inputs.draft import default_index
from builder.inputs.pip_options import Word
from builder.versions import InvalidVersionError, PythonVersion

if TYPE_CHECKING:
    from builder.inputs.installs import Call


def python_version(text: str | None) -> PythonVersion | None:
    match = re.search(r"(\d+\.\d+(?:\.\d+)?)", text or "")
    try:
        return None if match is None else PythonVersion.parse(match[1])
    except InvalidVersionError:
        return None


def pip(call: Call, rest: tuple[Word, ...], python: str | None) -> None:
    position = next((n for n, (word, _) in enumerate(rest) if not word.startswith("-")), None)
    if position is None:
        return
    verb, behind = rest[position][0], (*rest[:position], *rest[position + 1 :])
    if verb == "install":
        install(call, behind, "pip", python)
    elif verb == "uninstall":
        _remove(call, behind, "pip")
    elif verb == "config":
        _pip_config(call, behind)
    elif verb == "wheel":
        options = pip_options.parse(behind)
        for word, origin in options.positional:
            call.add_build(requirement.name_of(word, origin), origin, call.text)


def uv(call: Call, rest: tuple[Word, ...]) -> None:
    words = [word for word, _ in rest]
    if words[:1] == ["pip"] and len(words) > 1:
        if words[1] == "install":
            install(call, rest[2:], "uv", None)
        elif words[1] == "sync":
            install(call, rest[2:], "uv", None, is_sync=True)
        elif words[1] == "uninstall":
            _remove(call, rest[2:], "uv")
    elif words[:1] == ["add"]:
        install(call, rest[1:], "uv", None)
    elif words[:1] == ["sync"]:
        locked(call, "uv.lock", "pyproject.toml")
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
    elif words[:1] == ["unset"] and len(words) >= 2:
        option = words[1].rpartition(".")[2]
        for options in call.stage.pip_settings:
            if option == "index-url":
                options.primary = None
            elif option == "extra-index-url":
                options.additive = []
            elif option == "find-links":
                options.find_links = []


def install(call: Call, rest: tuple[Word, ...], installer: str, python: str | None, *, is_sync: bool = False) -> None:
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
        locked(call, name)
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
    names = tuple(requirement.name_of(word, origin) or "" for word, origin in options.positional)
    call.stage.draft.change_step(
        number,
        stage=call.stage.name,
        removes=tuple(name for name in names if name),
        is_conditional=call.command.is_conditional,
        variables=call.step_variables,
    )


def locked(call: Call, *names: str) -> None:
    """`uv sync`, `poetry install`: the first of these files that lies beside the Dockerfile."""
    from builder.inputs import projects  # noqa: PLC0415 - few Dockerfiles install from a lock

    for name in names:
        found = call.stage.find(name, call.cwd)
        if found.text is not None and projects.read_into(found.text, found.file, call.stage.draft, call.origin):
            return
    call.stage.draft.left_out(call.origin, call.text, f"there is no {names[0]} beside the Dockerfile that can be read")
