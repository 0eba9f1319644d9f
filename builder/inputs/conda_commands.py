"""`conda`, `mamba` and `micromamba` commands of a script -> steps and requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.environment import IndexSettings, Origin
from builder.inputs.draft import default_index

if TYPE_CHECKING:
    from builder.inputs.installs import Call
    from builder.inputs.pip_options import Word

_VALUED = frozenset(
    {
        "-n", "--name", "-p", "--prefix", "-c", "--channel", "-f", "--file", "--solver", "--experimental-solver",
        "--subdir", "--platform", "--repodata-fn", "--log-level", "-r", "--root-prefix",
    }
)  # fmt: skip
_UPGRADES = frozenset({"update", "upgrade"})


def run(call: Call, rest: tuple[Word, ...]) -> None:
    words = [word for word, _ in rest]
    verbs = [word for word in words[:6] if not word.startswith("-")]
    if not verbs:
        return
    verb = verbs[0]
    is_env = verb == "env" and len(verbs) > 1
    if is_env:
        verb = verbs[1]
    behind = rest[words.index(verb) + 1 :]
    if verb in {"install", "create"} or verb in _UPGRADES:
        _install(call, (*rest[: words.index(verb)], *behind), verb, is_env=is_env)
    elif verb in {"remove", "uninstall"}:
        _remove(call, behind)
    elif verb == "config":
        _config(call, behind)


def _install(call: Call, rest: tuple[Word, ...], verb: str, *, is_env: bool) -> None:
    from builder.inputs import conda  # noqa: PLC0415 - imports YAML's module names

    draft, stage = call.stage.draft, call.stage
    number = draft.open_step("conda", call.origin, call.text, IndexSettings(primary=default_index(call.origin)))
    channels: list[str] = []
    files: list[Word] = []
    priority = stage.channel_priority
    is_override = no_deps = False
    position = 0
    while position < len(rest):
        word, origin = rest[position]
        position += 1
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if word.startswith("-c") and not word.startswith("--") and len(word) > 2:
            name, equals, value = "-c", "=", word[2:].lstrip("=")
        if name in _VALUED and not equals:
            value, origin = rest[position] if position < len(rest) else ("", origin)
            position += 1
        if name in {"-c", "--channel"}:
            channels.extend(part for part in value.split(",") if part)
        elif name in {"-f", "--file"} and value:
            files.append((value, origin))
        elif name == "--override-channels":
            is_override = True
        elif name == "--strict-channel-priority":
            priority = "strict"
        elif name == "--no-channel-priority":
            priority = "disabled"
        elif name == "--no-deps":
            no_deps = True
        elif not name.startswith("-") and not is_env:
            conda.add_spec(word, origin, draft, number, means="conda python")
        elif not name.startswith("-") and name.endswith((".yml", ".yaml")):
            files.append((word, origin))
    configured = [] if is_override else stage.channels
    draft.change_step(
        number,
        stage=stage.name,
        channels=tuple(dict.fromkeys([*channels, *configured])) or ("defaults",),
        channel_priority=priority,
        is_upgrade=verb in _UPGRADES,
        no_deps=no_deps,
        is_conditional=call.command.is_conditional,
        variables=call.step_variables,
    )
    for file, origin in files:
        _file(call, file, origin, number)


def _file(call: Call, file: str, origin: Origin, number: int) -> None:
    from builder.inputs import conda  # noqa: PLC0415

    draft, stage = call.stage.draft, call.stage
    found = stage.find(file, call.cwd)
    if found.text is None:
        draft.left_out(origin, f"-f {file}", found.why)
    elif file.endswith((".yml", ".yaml")):
        conda.read_text(found.text, found.file, draft, stage.reader, variables=call.variables, included_by=origin)
    else:
        from builder.inputs import conda_lists  # noqa: PLC0415

        conda_lists.read_into(found.text, found.file, draft, number, included_by=origin)


def _remove(call: Call, rest: tuple[Word, ...]) -> None:
    from builder.inputs import names  # noqa: PLC0415

    draft = call.stage.draft
    number = draft.open_step("conda", call.origin, call.text, IndexSettings(primary=default_index(call.origin)))
    found, is_value = [], False
    for word, _ in rest:
        if not is_value and not word.startswith("-"):
            found.append(names.of_conda(word.partition("=")[0]))
        is_value = word in _VALUED
    draft.change_step(
        number,
        stage=call.stage.name,
        removes=tuple(found),
        is_conditional=call.command.is_conditional,
        variables=call.step_variables,
    )


def _config(call: Call, rest: tuple[Word, ...]) -> None:
    words = [word for word, _ in rest]
    for position, word in enumerate(words):
        key, value = words[position + 1 : position + 2], words[position + 2 : position + 3]
        if not key or not value:
            continue
        if word in {"--add", "--prepend", "prepend"} and key == ["channels"]:
            call.stage.channels.insert(0, value[0])
        elif word in {"--append", "append"} and key == ["channels"]:
            call.stage.channels.append(value[0])
        elif word in {"--set", "set"} and key == ["channel_priority"]:
            call.stage.channel_priority = {"true": "flexible", "false": "disabled"}.get(value[0], value[0])
        elif word == "--remove" and key == ["channels"] and value[0] in call.stage.channels:
            call.stage.channels.remove(value[0])
