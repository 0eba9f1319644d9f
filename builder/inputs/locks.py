"""Locks: `uv.lock`, `pylock.toml`, `poetry.lock` -> every package with version, files, hashes and edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.environment import Environment, Index, IndexSettings, Installer, Kind, Origin, PythonAsk, Request, Source
from builder.inputs import indexes, names, requirement
from builder.inputs.draft import Draft, default_index
from builder.inputs.toml_lines import NotTomlError, TomlText, read, table, tables, text, texts

_TABLES: dict[Kind, str] = {"uv-lock": "package", "pylock": "packages", "poetry-lock": "package"}


def parse(content: str, file: str, kind: Kind) -> Environment:
    draft = Draft()
    read_into(content, file, kind, draft)
    return draft.environment()


def read_into(content: str, file: str, kind: Kind, draft: Draft, *, included_by: Origin | None = None) -> None:
    """One step that leaves exactly what the lock holds; which fork applies is told by the markers."""
    draft.sources.append(Source(file=file, kind=kind, is_lock=True, included_by=included_by))
    start = Origin(file)
    try:
        document = read(content)
    except NotTomlError as error:
        draft.left_out(Origin(file, error.line), file, f"the file is not TOML: {error.why}")
        return
    installer: Installer = "pip" if kind == "poetry-lock" else "uv"
    settings = IndexSettings(primary=default_index(start), strategy="first-index")
    number = draft.open_step(installer, start, f"install of {file}", settings)
    draft.change_step(number, is_sync=True)
    _python(document, file, kind, draft)
    listed = tables(document.data.get(_TABLES[kind]))
    roots = _roots(listed) if kind == "uv-lock" else None
    for position, entry in enumerate(listed):
        origin = Origin(file, document.table_line(_TABLES[kind], position))
        _package(entry, origin, kind, draft, number, roots)
    # Every entry names where it came from: the default index speaks for those that do not.
    bound = tuple((r.name, r.index) for r in draft.requests if r.step == number and r.index is not None)
    draft.change_step(number, indexes=replace(settings, for_package=tuple(dict.fromkeys(bound))))


def _python(document: TomlText, file: str, kind: Kind, draft: Draft) -> None:
    key = "python-versions" if kind == "poetry-lock" else "requires-python"
    place = table(document.data.get("metadata")) if kind == "poetry-lock" else document.data
    value = text(place.get(key))
    if value is None:
        return
    try:
        specifier = SpecifierSet(value)
    except InvalidSpecifier:
        return  # Poetry's carets
    origin = Origin(file, document.line_of(key))
    draft.pythons.append(PythonAsk(origin=origin, means=key, specifier=specifier))


def _roots(listed: list[dict[str, Any]]) -> frozenset[str]:
    """What the project itself asks for: the edges of its own entries."""
    found = set()
    for entry in listed:
        if {"virtual", "editable", "directory"} & set(table(entry.get("source"))):
            groups = [entry.get("dependencies"), *table(entry.get("optional-dependencies")).values()]
            groups += table(entry.get("dev-dependencies")).values()
            found |= {str(edge.get("name")) for group in groups for edge in tables(group)}
    return frozenset(found)


def _package(
    entry: dict[str, Any], origin: Origin, kind: Kind, draft: Draft, number: int, roots: frozenset[str] | None
) -> None:
    name = text(entry.get("name"))
    if name is None:
        draft.left_out(origin, "a package", "it has no name")
        return
    source = table(entry.get("source"))
    if kind == "uv-lock" and ({"virtual", "editable", "directory"} & set(source)):
        return  # the project itself
    version = text(entry.get("version"))
    try:
        exact = None if version is None else Version(version)
    except InvalidVersion:
        draft.left_out(origin, f"{name} {version}", "it is not a version")
        return
    files = _files(entry)
    index = _index(entry, source, origin, kind)
    repository = text(source.get("git")) or text(table(entry.get("vcs")).get("url"))
    if kind == "poetry-lock" and source.get("type") == "git":
        repository = text(source.get("url"))
    request = Request(
        name=names.canonical(name),
        asked_as=name,
        origin=origin,
        installer=draft.steps[number].installer,
        step=number,
        text=f"{name} {version or ''}".strip(),
        version=exact,
        specifier=SpecifierSet() if exact is None else SpecifierSet(f"=={exact}"),
        marker=_marker(entry),
        is_direct=roots is None or name in roots,
        hashes=tuple(digest for _, digest in files if digest),
        files=tuple(filename for filename, _ in files),
        requires=tuple(names.canonical(edge) for edge in _edges(entry)),
        index=index,
        vcs=None if repository is None else "git",
        url=repository,
        wheel=_only_wheel(files) if repository is None and index is None else None,
    )
    draft.add(request)


def _only_wheel(files: list[tuple[str, str | None]]) -> Any:
    return requirement.wheel_file(files[0][0]) if len(files) == 1 else None


def _marker(entry: dict[str, Any]) -> str | None:
    """uv: one of several; the others: one text. Poetry's older table form says nothing about machines."""
    forks = texts(entry.get("resolution-markers"))
    if forks:
        return " or ".join(f"({fork})" for fork in forks)
    markers = entry.get("marker", entry.get("markers"))
    return text(markers)


def _index(entry: dict[str, Any], source: dict[str, Any], origin: Origin, kind: Kind) -> Index | None:
    address = text(source.get("registry")) or text(entry.get("index"))
    if kind == "poetry-lock" and source.get("type") in {"legacy", "url"}:
        address = text(source.get("url"))
    return None if address is None else indexes.classify(address, origin)


def _edges(entry: dict[str, Any]) -> list[str]:
    edges = entry.get("dependencies")
    if isinstance(edges, dict):
        return [edge for edge in edges if isinstance(edge, str)]
    return [str(edge["name"]) for edge in tables(edges) if isinstance(edge.get("name"), str)]


def _files(entry: dict[str, Any]) -> list[tuple[str, str | None]]:
    """File names with hashes: wheels, the source archive, Poetry's `files`."""
    listed = [
        *tables(entry.get("wheels")),
        *tables(entry.get("files")),
        table(entry.get("sdist")),
        table(entry.get("archive")),
    ]
    found = []
    for file in listed[:2000]:
        place = text(file.get("url")) or text(file.get("path")) or text(file.get("filename")) or text(file.get("file"))
        name = text(file.get("name")) or place
        if name is None:
            continue
        digest = text(file.get("hash"))
        if digest is None and file.get("hashes"):
            pairs = [(key, value) for key, value in table(file.get("hashes")).items() if isinstance(value, str)]
            digest = f"{pairs[0][0]}:{pairs[0][1]}" if pairs else None
        try:
            path = urlsplit(name).path
        except ValueError:
            path = name
        found.append((unquote(path).rsplit("/", 1)[-1], digest))
    return found
