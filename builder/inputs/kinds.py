"""Name and content of a file -> what kind of input it is."""

from __future__ import annotations

import re

from builder.environment import Kind

_DOCKERFILE_NAME = re.compile(r"(docker|container)file([._-].*)?|.*\.(docker|container)file", re.IGNORECASE)
_NAMES: dict[str, Kind] = {"uv.lock": "uv-lock", "poetry.lock": "poetry-lock", "pyproject.toml": "pyproject"}
_PYLOCK = re.compile(r"pylock(\.[\w-]+)?\.toml")
_FROM = re.compile(r"(?im)^\s*FROM\s+\S+")
_INSTRUCTION = re.compile(r"(?m)^\s*(RUN|COPY|ENV|ARG|WORKDIR|ENTRYPOINT|CMD)\s+\S")
_YAML_KEY = re.compile(r"(?m)^([A-Za-z_][\w-]*)[ \t]*:")
_TOML_HEADER = re.compile(r"(?m)^\[\[?[\w.\"-]+\]\]?[ \t]*$")
_SPEC_KEYS = frozenset({"axes", "include", "exclude", "smoke", "require"})
# How far a look at the content goes.
_HEAD = 200_000


def detect(path: str, text: str) -> Kind:
    """By name where the name says it, else by content; what looks like nothing else is a requirements file."""
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    lowered = name.lower()
    head = text[:_HEAD]
    if lowered in _NAMES:
        return _NAMES[lowered]
    if _PYLOCK.fullmatch(lowered):
        return "pylock"
    if _DOCKERFILE_NAME.fullmatch(lowered):
        return "dockerfile"
    if re.search(r"(?m)^@EXPLICIT[ \t]*$", head) or re.search(r"(?m)^#.*\$ conda create .*--file", head):
        return "conda-explicit"
    if lowered.endswith((".yml", ".yaml")):
        return _yaml(head)
    if lowered.endswith(".toml") or (_TOML_HEADER.search(head) and not lowered.endswith((".txt", ".in"))):
        return _toml(head)
    if lowered.endswith((".txt", ".in", ".pip")):
        return "dockerfile" if _FROM.search(head) and _INSTRUCTION.search(head) else "requirements"
    if _FROM.search(head):
        return "dockerfile"
    keys = set(_YAML_KEY.findall(head))
    return _yaml(head) if keys & {"dependencies", "channels", *_SPEC_KEYS} else "requirements"


def _yaml(head: str) -> Kind:
    keys = set(_YAML_KEY.findall(head))
    if "package" in keys and ("metadata" in keys or "version" in keys):
        return "conda-lock"
    if keys & _SPEC_KEYS and "dependencies" not in keys:
        return "spec"
    return "conda"


def _toml(head: str) -> Kind:
    if re.search(r"(?m)^\[\[packages\]\]", head):
        return "pylock"
    if re.search(r"(?m)^\[\[package\]\]", head):
        return "poetry-lock" if re.search(r"(?m)^(optional|python-versions) *=", head) else "uv-lock"
    return "pyproject"
