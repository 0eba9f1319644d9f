"""What conda writes about a finished environment: `@EXPLICIT` lists, `conda list --export`, `conda-lock.yml`."""

from __future__ import annotations

import re
from urllib.parse import unquote

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.environment import Environment, IndexSettings, Origin, PythonAsk, Request, Source
from builder.inputs import matchspec, names, yaml_nodes
from builder.inputs.draft import Draft, default_index
from builder.inputs.yaml_nodes import Mapping
from builder.versions import InvalidVersionError, PythonVersion

_ARCHIVE = re.compile(
    r"(?P<channel>\S*?)/?(?P<subdir>noarch|linux-64|linux-aarch64|linux-ppc64le|osx-64|osx-arm64|win-64)/"
    r"(?P<name>[^/\s]+?)-(?P<version>[^-/\s]+)-(?P<build>[^-/\s]+?)(?:\.conda|\.tar\.bz2)(?:#(?P<hash>\S+))?"
)
_EXPORT = re.compile(r"(?P<name>[A-Za-z0-9_][\w.-]*)==?(?P<version>[^=\s]+)(?:=(?P<build>[^=\s]+))?")
_PLATFORM_NOTE = re.compile(r"#\s*platform:\s*(\S+)")
_ARCH = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


def parse(text: str, file: str) -> Environment:
    """An explicit list or an export, as one step."""
    draft = Draft()
    start = Origin(file)
    number = draft.open_step("conda", start, f"conda create --file {file}", IndexSettings(primary=default_index(start)))
    read_into(text, file, draft, number)
    return draft.environment()


def read_into(text: str, file: str, draft: Draft, number: int, *, included_by: Origin | None = None) -> None:
    is_explicit = re.search(r"(?m)^@EXPLICIT\s*$", text) is not None
    draft.sources.append(Source(file=file, kind="conda-explicit", is_lock=is_explicit, included_by=included_by))
    for line_number, line in enumerate(text.split("\n"), start=1):
        origin, stripped = Origin(file, line_number), line.strip()
        note = _PLATFORM_NOTE.match(stripped)
        if note is not None:
            draft.platforms.append(note[1])
        if not stripped or stripped.startswith("#") or stripped == "@EXPLICIT":
            continue
        if is_explicit or "://" in stripped:
            _explicit(stripped, origin, draft, number)
        else:
            _export(stripped, origin, draft, number)


def _explicit(line: str, origin: Origin, draft: Draft, number: int) -> None:
    match = _ARCHIVE.fullmatch(unquote(line))
    if match is None:
        draft.left_out(origin, line, "it is not the address of a conda package")
        return
    digest = match["hash"]
    hashes = () if digest is None else (digest if ":" in digest else f"{_kind(digest)}:{digest}",)
    channel = match["channel"].rsplit("/", 1)[-1] or None
    if match["subdir"] not in {"noarch", *draft.platforms}:
        draft.platforms.append(match["subdir"])
    add_locked(
        draft, number, origin, line, name=match["name"], version=match["version"], build=match["build"],
        channel=channel, hashes=hashes, url=line,
    )  # fmt: skip


def _kind(digest: str) -> str:
    return "md5" if len(digest) == 32 else "sha256"


def _export(line: str, origin: Origin, draft: Draft, number: int) -> None:
    match = _EXPORT.fullmatch(line)
    if match is None:
        from builder.inputs import conda  # noqa: PLC0415 - a hand-written list of specs

        conda.add_spec(line, origin, draft, number, means="conda python")
        return
    if match["build"] in {"pypi", "pypi_0"}:
        return  # put there by pip: conda cannot install it, and says so itself
    add_locked(
        draft, number, origin, line, name=match["name"], version=match["version"], build=match["build"]
    )  # fmt: skip


def add_locked(
    draft: Draft,
    number: int,
    origin: Origin,
    text: str,
    *,
    name: str,
    version: str,
    build: str | None = None,
    channel: str | None = None,
    hashes: tuple[str, ...] = (),
    url: str | None = None,
    requires: tuple[str, ...] = (),
) -> None:
    """One package of a conda lock; `python` is the interpreter."""
    if name == "python":
        try:
            python = PythonVersion.parse(".".join(version.split(".")[:3]))
        except InvalidVersionError:
            return
        draft.pythons.append(PythonAsk(origin=origin, means="conda python", version=python))
        return
    try:
        found: Version | None = Version(version)
    except InvalidVersion:
        found = None
    draft.add(
        Request(
            name=names.of_conda(name),
            asked_as=name,
            origin=origin,
            installer="conda",
            step=number,
            text=text[:500],
            version=found,
            specifier=SpecifierSet() if found is None else SpecifierSet(f"=={found}"),
            channel=channel,
            build=build,
            build_variant=matchspec.build_variant(build),
            asks_for_cuda=build is not None and "cuda" in build.lower(),
            hashes=hashes,
            files=() if url is None else (url.split("#")[0].rsplit("/", 1)[-1],),
            requires=requires,
        )
    )


def parse_conda_lock(text: str, file: str, *, arch: str = "x86_64") -> Environment:
    """`conda-lock.yml`, the packages of one platform."""
    draft = Draft()
    start = Origin(file)
    draft.sources.append(Source(file=file, kind="conda-lock", is_lock=True))
    settings = IndexSettings(primary=default_index(start))
    steps = {
        "conda": draft.open_step("conda", start, f"conda-lock install {file}", settings),
        "pip": draft.open_step("pip", start, f"conda-lock install {file} (pip part)", settings),
    }
    try:
        document = yaml_nodes.read(text)
    except yaml_nodes.NotYamlError as error:
        draft.left_out(Origin(file, error.line), file, f"the file is not YAML: {error.why}")
        return draft.environment()
    if not isinstance(document, Mapping):
        draft.left_out(start, file, "the file has no keys such as `package:`")
        return draft.environment()
    wanted = next(platform for platform, name in _ARCH.items() if name == arch)
    for entry in document.items("package"):
        if isinstance(entry, Mapping) and entry.text("platform") in {wanted, None}:
            _conda_lock_entry(entry, file, draft, steps)
    return draft.environment()


def _conda_lock_entry(entry: Mapping, file: str, draft: Draft, steps: dict[str, int]) -> None:
    name, version, manager = entry.text("name"), entry.text("version"), entry.text("manager") or "conda"
    origin = Origin(file, entry.line)
    if not name or not version or manager not in steps:
        draft.left_out(origin, name or "a package", "it has no name, no version or an unknown manager")
        return
    url = entry.text("url") or ""
    archive = _ARCHIVE.fullmatch(url)
    digests = entry.values.get("hash")
    hashes: tuple[str, ...] = ()
    if isinstance(digests, Mapping):
        hashes = tuple(f"{kind}:{digests.text(kind)}" for kind in digests.values if digests.text(kind))
    if manager == "conda":
        add_locked(
            draft, steps["conda"], origin, f"{name} {version}", name=name, version=version,
            build=archive["build"] if archive else None,
            channel=archive["channel"].rsplit("/", 1)[-1] if archive else None, hashes=hashes, url=url or None,
        )  # fmt: skip
        return
    try:
        found = Version(version)
    except InvalidVersion:
        draft.left_out(origin, f"{name} {version}", "it is not a version")
        return
    draft.add(
        Request(
            name=names.canonical(name),
            asked_as=name,
            origin=origin,
            installer="pip",
            step=steps["pip"],
            text=f"{name} {version}",
            version=found,
            specifier=SpecifierSet(f"=={found}"),
            hashes=hashes,
            files=(url.split("#")[0].rsplit("/", 1)[-1],) if url else (),
        )
    )
