"""Conda `environment.yml`: channels, specs, and the pip list inside, which runs after conda is done."""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder.environment import Environment, IndexSettings, Origin, PythonAsk, Request, Source, Variable
from builder.inputs import matchspec, requirements, yaml_nodes
from builder.inputs.draft import Draft, default_index
from builder.inputs.reading import Reader
from builder.inputs.yaml_nodes import Items, Text, Value

_PRIORITY = {
    "strict": "strict",
    "flexible": "flexible",
    "true": "flexible",
    "disabled": "disabled",
    "false": "disabled",
}


def parse(
    text: str, file: str, reader: Reader | None = None, *, variables: Mapping[str, str] | None = None
) -> Environment:
    draft = Draft()
    read_text(text, file, draft, reader or Reader(), variables=variables or {})
    return draft.environment()


def read_text(
    text: str,
    file: str,
    draft: Draft,
    reader: Reader,
    *,
    variables: Mapping[str, str],
    included_by: Origin | None = None,
) -> None:
    """Into steps of their own, after those of the draft."""
    draft.sources.append(Source(file=file, kind="conda", included_by=included_by))
    try:
        document = yaml_nodes.read(_without_templates(text))
    except yaml_nodes.NotYamlError as error:
        origin = Origin(file, error.line)
        draft.left_out(origin, _line(text, error.line), f"the file is not YAML from here on: {error.why}")
        _salvage(text, file, draft)
        return
    if not isinstance(document, yaml_nodes.Mapping):
        draft.left_out(Origin(file, 1), _line(text, 1), "the file has no keys such as `dependencies:`")
        _salvage(text, file, draft)
        return
    _read_document(document, file, draft, reader, variables)


def _read_document(
    document: yaml_nodes.Mapping, file: str, draft: Draft, reader: Reader, variables: Mapping[str, str]
) -> None:
    start = Origin(file, document.key_lines.get("dependencies", 1))
    step = _conda_step(draft, start, file)
    channels = tuple(each.value.strip() for each in document.items("channels") if isinstance(each, Text))
    priority = _PRIORITY.get((document.text("channel_priority") or "").lower())
    draft.change_step(step, channels=channels or ("defaults",), channel_priority=priority)
    draft.platforms.extend(each.value for each in document.items("platforms") if isinstance(each, Text))
    settings = document.values.get("variables")
    if isinstance(settings, yaml_nodes.Mapping):
        for name, value in settings.values.items():
            if isinstance(value, Text):
                draft.variables.append(
                    Variable(name=name, value=value.value, origin=Origin(file, value.line), scope="image")
                )
    pip: list[Value] = []
    if "dependencies" not in document.values:
        draft.left_out(Origin(file, 1), "dependencies", "the file has no `dependencies:`")
    for entry in document.items("dependencies"):
        if isinstance(entry, Text):
            add_spec(entry.value, Origin(file, entry.line), draft, step, means="conda python")
        elif isinstance(entry, yaml_nodes.Mapping):
            pip += _pip_list(entry, file, draft)
        else:
            draft.left_out(Origin(file, entry.line), "a list in the list", "it is neither a spec nor a pip list")
    # A frequent slip: `pip:` on the level of `dependencies`.
    if "pip" in document.values:
        why = "`pip:` belongs inside `dependencies:`; read as if it stood there"
        draft.left_out(Origin(file, document.key_lines["pip"]), "pip:", why)
        pip += document.items("pip")
    if pip:
        _read_pip(pip, file, draft, reader, variables)


def _conda_step(draft: Draft, origin: Origin, file: str) -> int:
    settings = IndexSettings(primary=default_index(origin))
    return draft.open_step("conda", origin, f"conda env create -f {file}", settings)


def _pip_list(entry: yaml_nodes.Mapping, file: str, draft: Draft) -> list[Value]:
    found: list[Value] = []
    for key, value in entry.values.items():
        if key == "pip":
            found += entry.items("pip")
        elif isinstance(value, Text):
            # `numpy: 1.26` instead of `numpy=1.26`
            draft.left_out(Origin(file, value.line), f"{key}: {value.value}", "conda wants `name=version`, no colon")
        else:
            draft.left_out(Origin(file, value.line), f"{key}:", "only `pip:` may hold a list here")
    return found


def _read_pip(entries: list[Value], file: str, draft: Draft, reader: Reader, variables: Mapping[str, str]) -> None:
    start = Origin(file, entries[0].line)
    step = draft.open_step("pip", start, "pip install (by conda)", IndexSettings(primary=default_index(start)))
    context = requirements.Context(draft, reader, step, variables=variables, open_files=(file,))
    for entry in _flat(entries):
        if not isinstance(entry, Text):
            draft.left_out(Origin(file, entry.line), "a mapping in the pip list", "it is not a requirement")
            continue
        for line, number in requirements.joined_lines(entry.value):
            requirements.read_line(line, Origin(file, entry.line + number - 1), context)


def _flat(entries: list[Value]) -> list[Value]:
    return [inner for entry in entries for inner in (entry.values if isinstance(entry, Items) else [entry])]


def add_spec(text: str, origin: Origin, draft: Draft, step: int, *, means: str) -> None:
    """One conda spec; a spec of `python` asks for the interpreter instead."""
    found = matchspec.parse(text, origin, step=step)
    if isinstance(found, Request) and found.name == "python":
        ask = matchspec.python_ask(found)
        if ask:
            draft.pythons.append(PythonAsk(origin=origin, means=means, **ask))
        return
    draft.add(found)


def _without_templates(text: str) -> str:
    """Lines of a template language would break the YAML around them."""
    return re.sub(r"(?m)^\s*\{%.*%\}\s*$", "", text)


def _line(text: str, number: int) -> str:
    lines = text.split("\n", number)
    return lines[min(number, len(lines)) - 1].strip() or "(empty)"


# Words that name a package without a version, in a file that is no YAML mapping.
_KNOWN = frozenset({"pytorch", "torchvision", "torchaudio", "pytorch-cuda", "cudatoolkit", "cpuonly", "cuda-version"})
_PINNED = re.compile(r"[A-Za-z][\w.-]*(::[\w.-]+)?[=<>]=?[\w.*]+(=[\w.*]+)?")


def _salvage(text: str, file: str, draft: Draft) -> None:
    """What can be nothing but a spec, in text that is not an environment file."""
    step: int | None = None
    for number, line in enumerate(text.split("\n")[:5000], start=1):
        for word in re.split(r"[\s,;\[\]\"']+", line.split("#")[0])[:200]:
            if word not in _KNOWN and _PINNED.fullmatch(word) is None:
                continue
            if step is None:
                step = _conda_step(draft, Origin(file, number), file)
            add_spec(word, Origin(file, number), draft, step, means="conda python")
