"""One requirement as pip and uv read it -> Request, or Unparsed with the reason. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from builder.environment import Installer, Origin, Request, Unparsed, WheelFile
from builder.inputs.names import canonical, is_valid

_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[^\[\]]*)\])?\s*"
    r"(?:@\s*(?P<url>\S.*)|(?P<spec>\(.*\)|[<>=!~].*)?)",
    re.DOTALL,
)
_NAMED_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^\[\]]*\])?\s*@\s*\S")
_VCS = re.compile(r"(git|hg|svn|bzr)\+", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_ARCHIVE = re.compile(r"\.(tar\.(gz|bz2|xz)|tgz|zip|tbz2?|txz)$", re.IGNORECASE)
_SDIST = re.compile(r"(?P<name>.+?)-v?(?P<version>\d[\w.!+]*)$")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_CONDA_PIN = "a single `=` is conda's; pip wants `==`"
MAX_LENGTH = 4000


def parse(
    text: str,
    origin: Origin,
    *,
    installer: Installer = "pip",
    step: int = 0,
    hashes: tuple[str, ...] = (),
    is_editable: bool = False,
) -> Request | Unparsed:
    """`text` has no comment and no options behind it."""
    shown = " ".join(text.split())

    def left_out(why: str) -> Unparsed:
        return Unparsed(origin, shown[:200], why)

    if len(text) > MAX_LENGTH:
        return left_out("it is longer than any requirement")
    body, marker = _split_marker(text.strip())
    if not body:
        return left_out("it names no package")
    common: dict[str, Any] = {
        "origin": origin,
        "installer": installer,
        "step": step,
        "text": shown,
        "marker": marker,
        "hashes": hashes,
    }
    if is_editable or (_NAMED_PLACE.match(body) is None and _is_place(body)):
        return _direct(body, "", (), is_editable, common) or left_out("it is neither a package nor an address")
    match = _NAMED.fullmatch(body)
    if match is None:
        return left_out(_why_not_a_requirement(body))
    extras = tuple(canonical(part.strip()) for part in (match["extras"] or "").split(",") if part.strip())
    if match["url"] is not None:
        request = _direct(match["url"].strip(), match["name"], extras, is_editable, common)
        return request or left_out(f"what follows `@` is no address: {match['url'][:80]}")
    spec = (match["spec"] or "").strip()
    if spec.startswith("("):
        spec = spec[1:-1].strip()
    variable = _VARIABLE.search(spec)
    if variable is not None:
        return left_out(f"the variable `{variable[1]}` has no value here")
    try:
        specifier, version = read_specifier(spec)
    except InvalidSpecifier:
        if re.match(r"=[^=]", spec) is not None:
            return left_out(_CONDA_PIN)
        return left_out(f"`{spec[:80]}` is not a version specifier")
    return Request(
        name=canonical(match["name"]),
        asked_as=match["name"],
        extras=extras,
        specifier=specifier,
        version=version,
        **common,
    )


def name_of(text: str, origin: Origin) -> str | None:
    """The canonical name in a requirement; None where it has none."""
    found = parse(text, origin)
    return None if isinstance(found, Unparsed) else found.name or None


def read_specifier(spec: str) -> tuple[SpecifierSet, Version | None]:
    """InvalidSpecifier where it is none. The version is given where exactly one is asked for."""
    specifier = SpecifierSet(spec.rstrip(", \t"))
    exact = None
    for each in specifier:
        if each.operator == "==" and not each.version.endswith(".*"):
            exact = Version(each.version)
        elif each.operator == "===":
            try:
                exact = Version(each.version)
            except InvalidVersion:
                raise InvalidSpecifier(each.version) from None
    return specifier, exact


def _why_not_a_requirement(body: str) -> str:
    if re.match(r"[A-Za-z0-9._-]+\s+\d", body):
        return "between name and version there is no operator such as `==`"
    if "{{" in body or "{%" in body:
        return "it is a template"
    if _VARIABLE.search(body) or "$" in body:
        return "it holds a variable without a value"
    return "it is not a requirement"


def _split_marker(text: str) -> tuple[str, str | None]:
    """At the first `;`; in an address only where a blank stands before it, as the standard wants."""
    is_address = _SCHEME.match(text) is not None or re.match(r"[^;]*@\s*\S+:/", text) is not None
    place = re.search(r"\s;", text) if is_address else re.search(r";", text)
    if place is None:
        return text, None
    marker = text[place.end() :].strip()
    return text[: place.start()].strip(), marker or None


def _is_place(body: str) -> bool:
    """An address, a repository, a path or an archive by file name."""
    return (
        _VCS.match(body) is not None
        or _SCHEME.match(body) is not None
        or body.startswith((".", "/", "~", "\\", "file:"))
        or re.match(r"[A-Za-z]:[\\/]", body) is not None
        or re.match(r"[^\[@;<>=!~]*[/\\]", body) is not None
        or body.lower().split("#")[0].endswith(".whl")
        or (_ARCHIVE.search(body) is not None and " " not in body)
    )


def _direct(
    place: str, name: str, extras: tuple[str, ...], is_editable: bool, common: dict[str, Any]
) -> Request | None:
    vcs = _VCS.match(place)
    is_url = vcs is not None or (_SCHEME.match(place) is not None and re.match(r"[A-Za-z]:[\\/]", place) is None)
    address, _, fragment = place.partition("#")
    address = address.strip()
    local = re.fullmatch(r"(?P<path>.*?)\[(?P<extras>[\w\s,.-]+)\]", address)
    if local is not None and not is_url:
        address = local["path"]
        extras = extras or tuple(canonical(part.strip()) for part in local["extras"].split(","))
    if not address or any(blank in address for blank in ("\n", " @ ")):
        return None
    egg = re.search(r"(?:^|&)egg=([^&\[]+)(?:\[([^\]]*)\])?", fragment)
    if egg is not None and not name and is_valid(egg[1]):
        name = egg[1]
        extras = extras or tuple(canonical(part.strip()) for part in (egg[2] or "").split(",") if part.strip())
    filename = unquote(re.split(r"[/\\]", address.split("?")[0])[-1])
    wheel = wheel_file(filename)
    version: Version | None = None
    if wheel is not None:
        name, version = name or filename.split("-")[0], wheel.version
    elif vcs is None and _ARCHIVE.search(filename):
        sdist = _SDIST.fullmatch(_ARCHIVE.sub("", filename))
        if sdist is not None and is_valid(sdist["name"]):
            version = _version(sdist["version"])
            name = name or (sdist["name"] if version is not None else "")
    return Request(
        name=canonical(name),
        asked_as=name,
        extras=extras,
        version=version,
        url=address if is_url else None,
        path=None if is_url else address,
        vcs=vcs[1].lower() if vcs else None,
        is_editable=is_editable,
        wheel=wheel,
        **common,
    )


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def wheel_file(filename: str) -> WheelFile | None:
    """The parts of a wheel's file name; None when it is not one."""
    if not filename.lower().endswith(".whl"):
        return None
    parts = filename[:-4].split("-")
    if len(parts) not in {5, 6} or not is_valid(parts[0]):
        return None
    version = _version(parts[1].replace("_", "-"))
    if version is None:
        return None
    pythons, abis, platforms = (tuple(part.split(".")) for part in parts[-3:])
    return WheelFile(filename=filename, version=version, pythons=pythons, abis=abis, platforms=platforms)
