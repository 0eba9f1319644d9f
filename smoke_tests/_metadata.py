"""What the installed packages say of themselves: requirements, files with their sizes. No import of any of them."""

import contextlib
import csv
import importlib
import os
import platform
import sys
from email.parser import HeaderParser

import _installed


def folders():
    """The folders of sys.path that hold installed packages."""
    found = []
    for folder in sys.path:
        real = os.path.realpath(folder or ".")
        if real in found or not os.path.isdir(real):
            continue
        if any(entry.endswith(".dist-info") for entry in os.listdir(real)):
            found.append(real)
    return found


def distributions():
    """[(normalised name, version, path of the .dist-info, requirement texts)], the copy that an import takes."""
    found, seen = [], set()
    for folder in folders():
        for entry in sorted(os.listdir(folder)):
            path = os.path.join(folder, entry)
            described = _installed.read_metadata(path) if entry.endswith(".dist-info") else None
            if described is None or _installed.normal_name(described[0]) in seen:
                continue
            seen.add(_installed.normal_name(described[0]))
            with open(os.path.join(path, "METADATA"), encoding="utf-8", errors="replace") as stream:
                wants = HeaderParser().parse(stream, headersonly=True).get_all("Requires-Dist") or []
            found.append((_installed.normal_name(described[0]), described[1], path, wants))
    return found


def recorded_files(info):
    """[(path, bytes or None)] of what a package's RECORD lists; [] where it has none, as a distribution's own has."""
    site = os.path.dirname(info)
    try:
        with open(os.path.join(info, "RECORD"), encoding="utf-8", newline="") as stream:
            rows = [row for row in csv.reader(stream) if len(row) >= 3]
    except OSError:
        return []
    return [(os.path.normpath(os.path.join(site, row[0])), int(row[2]) if row[2].isdigit() else None) for row in rows]


def packaging_module():
    """`packaging`, which transformers needs anyway, or pip's own copy; None where neither is there."""
    for name in ("packaging", "pip._vendor.packaging"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name + ".requirements")
    return None


def unmet(found, requirements):
    """[text] of what an installed package asks for and does not get, as `pip check` tells it."""
    versions = {name: version for name, version, _, _ in found}
    problems = []
    for name, version, _, wants in found:
        for text in wants:
            wanted = parsed(requirements, text)
            if wanted is None:
                continue
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            have = versions.get(_installed.normal_name(wanted.name))
            if have is None:
                problems.append("{} {} needs {}, which is not installed".format(name, version, text))
            elif not wanted.specifier.contains(have, prereleases=True):
                problems.append("{} {} needs {}, installed is {}".format(name, version, text, have))
    return problems


def parsed(requirements, text):
    """None for old metadata, such as of 2014, that no installer of today reads either."""
    try:
        return requirements.Requirement(text)
    except Exception:
        return None


def pinned_libraries(found):
    """{package: (version pinned, who pins it)} of the CUDA wheels that an installed package pins exactly."""
    pins = {}
    machine = platform.machine()
    for name, _, _, wants in found:
        for text in wants:
            head, _, marker = text.partition(";")
            head = head.replace(" ", "").replace("(", "").replace(")", "")
            package, _, version = head.partition("==")
            other = "aarch64" if machine == "x86_64" else "x86_64"
            if version and package.lower().startswith("nvidia-") and other not in marker and "extra" not in marker:
                pins[_installed.normal_name(package)] = (version.split(",")[0], name)
    return pins
