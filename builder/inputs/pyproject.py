"""`pyproject.toml`: PEP 621 and dependency groups, `tool.uv` with its sources and indexes, `tool.poetry`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from builder.environment import Environment, Index, IndexSettings, Installer, Origin, PythonAsk, Source, Unparsed
from builder.inputs import indexes, names, poetry, requirement
from builder.inputs.draft import Draft, default_index
from builder.inputs.toml_lines import NotTomlError, TomlText, read, table, tables, text, texts


def parse(content: str, file: str) -> Environment:
    draft = Draft()
    read_into(content, file, draft)
    return draft.environment()


def read_into(content: str, file: str, draft: Draft, *, included_by: Origin | None = None) -> None:
    """The project's dependencies and default groups as one step; its extras are left alone: nobody asked for one."""
    draft.sources.append(Source(file=file, kind="pyproject", included_by=included_by))
    start = Origin(file)
    try:
        document = read(content)
    except NotTomlError as error:
        draft.left_out(Origin(file, error.line), file, f"the file is not TOML: {error.why}")
        return
    project = table(document.data.get("project"))
    uv = table(table(document.data.get("tool")).get("uv"))
    is_poetry = "dependencies" in table(table(document.data.get("tool")).get("poetry"))
    installer: Installer = "uv" if uv or not is_poetry else "pip"
    number = draft.open_step(installer, start, f"install of {file}", _settings(document, uv, file))
    python = text(project.get("requires-python"))
    if python is not None:
        _python(python, Origin(file, document.line_of("requires-python")), draft)
    for dependency in texts(project.get("dependencies")):
        _add(dependency, document, file, draft, number, after="[project]")
    for group in texts(uv.get("default-groups")) or ["dev"]:
        for dependency in texts(table(document.data.get("dependency-groups")).get(group)):
            _add(dependency, document, file, draft, number, after="[dependency-groups]")
    for dependency in texts(uv.get("dev-dependencies")):
        _add(dependency, document, file, draft, number, after="[tool.uv]")
    for kind in ("constraint-dependencies", "override-dependencies"):
        for dependency in texts(uv.get(kind)):
            _add(dependency, document, file, draft, number, after="[tool.uv]", as_constraint=True)
    if is_poetry:
        poetry.read_into(document, file, draft, number)
    if not (project or is_poetry or uv):
        draft.left_out(start, file, "it has neither `[project]` nor `[tool.poetry]`")


def _python(value: str, origin: Origin, draft: Draft) -> None:
    try:
        draft.pythons.append(PythonAsk(origin=origin, means="requires-python", specifier=SpecifierSet(value)))
    except InvalidSpecifier:
        draft.left_out(origin, value, "it is not a version specifier")


def _add(
    dependency: str,
    document: TomlText,
    file: str,
    draft: Draft,
    number: int,
    *,
    after: str,
    as_constraint: bool = False,
) -> None:
    origin = Origin(file, document.line_of(dependency, after) or document.line_of(dependency))
    found = requirement.parse(dependency, origin, installer=draft.steps[number].installer, step=number)
    if not isinstance(found, Unparsed):
        bound = [index for name, index in draft.steps[number].indexes.for_package if name == found.name]
        found = replace(found, index=bound[0] if bound else None)
    draft.add(found, as_constraint=as_constraint)


def _settings(document: TomlText, uv: dict[str, Any], file: str) -> IndexSettings:
    start = Origin(file)
    primary, additive, named = default_index(start), [], {}
    pip = table(uv.get("pip"))
    for position, entry in enumerate(tables(uv.get("index"))):
        address = text(entry.get("url"))
        if address is None:
            continue
        origin = Origin(file, document.table_line("tool.uv.index", position) or document.line_of(address))
        index = indexes.classify(address, origin)
        named[text(entry.get("name")) or ""] = index
        if entry.get("default") is True:
            primary = index
        elif entry.get("explicit") is not True:
            additive.append(index)
    for key in ("index-url", "extra-index-url", "find-links"):
        value = uv.get(key, pip.get(key))
        addresses = [value] if isinstance(value, str) else texts(value)
        found = [indexes.classify(each, Origin(file, document.line_of(each))) for each in addresses]
        if key == "index-url" and found:
            primary = found[0]
        elif key == "extra-index-url":
            additive += found
    return IndexSettings(
        primary=primary,
        additive=tuple(additive),
        strategy="first-index",
        torch_backend=text(pip.get("torch-backend")),
        for_package=tuple(_bound(uv, named)),
    )


def _bound(uv: dict[str, Any], named: dict[str, Index]) -> list[tuple[str, Index]]:
    """`tool.uv.sources`: the first index of a package whose marker does not name another system."""
    found = []
    for package, value in table(uv.get("sources")).items():
        for source in tables(value) if isinstance(value, list) else [table(value)]:
            marker = text(source.get("marker")) or ""
            index = named.get(text(source.get("index")) or "")
            if index is not None and not any(
                word in marker for word in ("== 'win32'", '== "win32"', "darwin'", 'darwin"')
            ):
                found.append((names.canonical(package), index))
                break
    return found
