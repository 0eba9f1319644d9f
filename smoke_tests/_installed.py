"""What is installed beside this Python, read from the packages' own metadata, and how it differs from the lock."""

import os
import re
import sys
from email.parser import HeaderParser

RELEASE = re.compile(
    r"^v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)[-_.]?(?P<pre_n>\d*))?"
    r"(?:-(?P<post_short>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?$"
)
PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


def normal_name(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def version_key(text):
    """Equal for two spellings of one version: a lock says `2022.12.7` where the metadata says `2022.12.07`."""
    match = RELEASE.match(text.strip().lower())
    if match is None:
        return text.strip()
    release = [int(part) for part in match.group("release").split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre = match.group("pre")
    post = match.group("post_short")
    if post is None and match.group("post"):
        post = match.group("post_n") or 0
    local = match.group("local")
    return (
        int(match.group("epoch") or 0),
        tuple(release),
        (PRE.get(pre, pre), int(match.group("pre_n") or 0)) if pre else None,
        int(post) if post is not None else None,
        int(match.group("dev_n") or 0) if match.group("dev") else None,
        tuple(int(part) if part.isdigit() else part for part in re.split(r"[-_.]", local)) if local else None,
    )


def public_part(version):
    return version.partition("+")[0]


def local_part(version):
    return version.partition("+")[2] or None


def packages():
    """[(normalised name, version, folder)] of everything on the path, in the order in which Python finds it."""
    found, seen = [], set()
    for folder in sys.path:
        real = os.path.realpath(folder or ".")
        if real in seen or not os.path.isdir(real):
            continue
        seen.add(real)
        for entry in sorted(os.listdir(real)):
            described = read_metadata(os.path.join(real, entry))
            if described is not None:
                found.append((normal_name(described[0]), described[1], real))
    return found


def read_metadata(path):
    """(name, version) of one `.dist-info` or `.egg-info`, or None.

    By hand, since importlib.metadata is missing on Python 3.7 and, elsewhere, does not say where it found a package.
    """
    if path.endswith(".dist-info"):
        path = os.path.join(path, "METADATA")
    elif path.endswith(".egg-info"):
        path = os.path.join(path, "PKG-INFO") if os.path.isdir(path) else path
    else:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            header = HeaderParser().parse(stream, headersonly=True)
    except OSError:
        return None
    if not header["Name"] or not header["Version"]:
        return None
    return header["Name"], header["Version"]


def first_of_each(found):
    """name -> version of the copy that an import takes."""
    chosen = {}
    for name, version, _ in found:
        chosen.setdefault(name, version)
    return chosen


def duplicates(found):
    """name -> [(version, folder), ...] of packages that are described more than once."""
    copies = {}
    for name, version, folder in found:
        copies.setdefault(name, []).append((version, folder))
    return {name: places for name, places in copies.items() if len(places) > 1}
