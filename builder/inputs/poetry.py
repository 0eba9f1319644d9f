"""`[tool.poetry]`: dependencies in Poetry's own notation, its carets and tildes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.environment import Index, Origin, PythonAsk, Request
from builder.inputs import indexes, names, requirement
from builder.inputs.draft import Draft
from builder.inputs.toml_lines import TomlText, table, tables, text, texts


def read_into(document: TomlText, file: str, draft: Draft, number: int) -> None:
    poetry = table(table(document.data.get("tool")).get("poetry"))
    named: dict[str, Index] = {}
    settings = draft.steps[number].indexes
    for position, entry in enumerate(tables(poetry.get("source"))):
        address = text(entry.get("url"))
        if address is None:
            continue
        origin = Origin(file, document.table_line("tool.poetry.source", position))
        index = indexes.classify(address, origin)
        named[text(entry.get("name")) or ""] = index
        if entry.get("priority") in {"default", "primary"}:
            settings = replace(settings, primary=index)
        elif entry.get("priority") != "explicit":
            settings = replace(settings, additive=(*settings.additive, index))
    draft.change_step(number, indexes=settings)
    groups = [("[tool.poetry.dependencies]", poetry.get("dependencies"))]
    groups.append(("[tool.poetry.dev-dependencies]", poetry.get("dev-dependencies")))
    for group, content in table(poetry.get("group")).items():
        if table(content).get("optional") is not True:
            groups.append((f"[tool.poetry.group.{group}.dependencies]", table(content).get("dependencies")))
    for header, listed in groups:
        for name, value in table(listed).items():
            for wanted in value if isinstance(value, list) else [value]:
                _dependency(name, wanted, document, file, header, draft, number, named)


def _dependency(
    name: str,
    wanted: Any,
    document: TomlText,
    file: str,
    header: str,
    draft: Draft,
    number: int,
    named: dict[str, Index],
) -> None:
    details = {"version": wanted} if isinstance(wanted, str) else table(wanted)
    origin = Origin(file, document.key_line(name, header))
    version = text(details.get("version")) or "*"
    try:
        specifier, exact = read_range(version)
    except (InvalidSpecifier, InvalidVersion):
        draft.left_out(origin, f"{name} = {version}", "it is not a version range")
        return
    if name == "python":
        draft.pythons.append(PythonAsk(origin=origin, means="requires-python", specifier=specifier))
        return
    address = text(details.get("git")) or text(details.get("url"))
    path = text(details.get("path")) or text(details.get("file"))
    if address is not None or path is not None:
        prefix = "git+" if "git" in details else ""
        draft.add(requirement.parse(f"{name} @ {prefix}{address or path}", origin, step=number))
        return
    draft.add(
        Request(
            name=names.canonical(name),
            asked_as=name,
            origin=origin,
            installer=draft.steps[number].installer,
            step=number,
            text=f"{name} = {version}",
            specifier=specifier,
            version=exact,
            extras=tuple(names.canonical(extra) for extra in texts(details.get("extras"))),
            marker=text(details.get("markers")),
            index=named.get(text(details.get("source")) or ""),
        )
    )


def read_range(value: str) -> tuple[SpecifierSet, Version | None]:
    """`^2.1` -> >=2.1,<3; `~2.1` -> >=2.1,<2.2; `2.1.0` is exact; of alternatives the last, which is the newest."""
    value = value.rsplit("||", maxsplit=1)[-1].rsplit("|", maxsplit=1)[-1].strip()
    parts: list[str] = []
    for part in value.replace(" ,", ",").split(","):
        parts.append(_one(part.strip()))
    return requirement.read_specifier(",".join(part for part in parts if part))


def _one(part: str) -> str:
    if part in {"", "*"}:
        return ""
    if part.startswith("^"):
        version = Version(part[1:].strip())
        release = version.release
        fixed = next((place for place, each in enumerate(release) if each), len(release) - 1)
        upper = [*release[:fixed], release[fixed] + 1]
        return f">={version},<{'.'.join(map(str, upper))}"
    if part.startswith("~") and not part.startswith("~="):
        version = Version(part[1:].strip())
        upper = [version.release[0] + 1] if len(version.release) == 1 else [version.release[0], version.release[1] + 1]
        return f">={version},<{'.'.join(map(str, upper))}"
    if part[0].isdigit():
        return f"=={part}"
    if part.startswith("=") and not part.startswith("=="):
        return f"={part}"
    return part
