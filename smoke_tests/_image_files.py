"""Checks of `files` about an image as a whole: the guard, what the build left behind, its size."""

import glob
import os
import re
import subprocess
import sys
import zipfile

import _metadata
from _outcome import Failed, NotApplicable, NotChecked, Passed, one_line
from _wording import MIB, number, shorten

IMAGE_PREFIX = "/opt/venv"
MARKER = ".torchproof.json"  # at the root of an environment that torchproof made in place
# What an image may not hold, relative to its root: caches, lists, and what is mounted for one build step only.
LEFTOVERS = (
    "root/.cache/*",
    "home/*/.cache/*",
    "root/.config/pip/*",
    "root/.pip/*",
    "root/.netrc",
    "home/*/.netrc",
    "root/.docker/*",
    "run/secrets/*",
    "mnt/*",
    "layer",
    "var/cache/uv/*",
    "var/cache/apt/archives/*.deb",
    "var/lib/apt/lists/*_*",
    "etc/pip.conf",
    "usr/local/bin/uv",
    "tmp/*.whl",
    "tmp/pip-*",
    "root/*.whl",
    "opt/*.whl",
)
CREDENTIALS = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def is_image(ctx):
    asked = ctx.params["image"]
    return os.path.realpath(sys.prefix) == IMAGE_PREFIX if asked == "auto" else asked == "yes"


def guard(ctx):
    """A later install that would replace torch is refused: tried with a made-up torch, by the environment's own pip."""
    if not is_image(ctx) and not os.path.isfile(os.path.join(sys.prefix, MARKER)):
        raise NotApplicable("torchproof did not make this environment, so it has no guard")
    if subprocess.call(
        [sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ):
        raise NotApplicable("the image has no pip")
    wheel = fake_wheel(ctx.scratch, "torch", "99.9.9")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-index", "--no-cache-dir"]
    command += ["--find-links", os.path.dirname(wheel), "--dest", os.path.join(ctx.scratch, "got"), "torch==99.9.9"]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    said = done.stdout.decode("utf-8", "replace").strip()
    last = [line for line in said.splitlines() if "(constraint)" in line]
    if done.returncode == 0 or (last and "(constraint) torch==" not in said):
        raise Failed(
            "guard-missing",
            "pip would replace torch without a word: no constraint holds it in its version",
            measured=said.splitlines()[-3:],
            expected="pip refuses",
        )
    if not last:
        raise NotChecked("pip failed for another reason: {}".format(one_line(Exception(said[-300:]))))
    return Passed("an install of another torch is refused: {}".format(last[0].strip()), measured=last)


def fake_wheel(folder, name, version):
    """A wheel of nothing but its metadata."""
    place = os.path.join(folder, "wheels")
    os.makedirs(place, exist_ok=True)
    path = os.path.join(place, "{}-{}-py3-none-any.whl".format(name, version))
    info = "{}-{}.dist-info".format(name, version)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(name, version))
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "/RECORD", "")
    return path


def leftovers(ctx):
    """No cache, package list, wheel, secret or setting of the build is in what the image shows."""
    if not is_image(ctx):
        raise NotApplicable("this is no image of torchproof's")
    found = []
    for root in ctx.params["roots"]:
        for pattern in LEFTOVERS:
            for path in glob.glob(os.path.join(root, pattern)):
                if not os.path.realpath(path).startswith(os.path.realpath(ctx.scratch)):
                    found.append(path)
    named = [name for name, value in sorted(os.environ.items()) if CREDENTIALS.search(value)]
    for path in (os.path.join(sys.prefix, "pip.conf"), "/etc/uv/uv.toml"):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            if CREDENTIALS.search(text) or "index-url" in text:
                found.append(path + " (names an index)")
    if found or named:
        shown = sorted(found) + ["variable " + name for name in named]
        raise Failed(
            "build-leftover",
            "{} of the build in the image: {}".format(number(shown, "leftover"), shorten(shown)),
            measured=shown,
            expected=[],
        )
    return Passed("nothing of the build is left", measured=0)


def size(ctx):
    """What the environment takes, by package; held against a budget where one is given."""
    sizes = {}
    for name, _, info, _ in ctx.made["packages"]:
        recorded = [entry[1] for entry in _metadata.recorded_files(info) if entry[1] is not None]
        sizes[name] = sum(recorded)
    total = sum(sizes.values())
    largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:12])
    shown = ", ".join("{} {:.0f} MiB".format(name, size / MIB) for name, size in list(largest.items())[:4])
    budget = ctx.params["budget_bytes"]
    values = {"measured": total, "expected": "<= {}".format(budget) if budget else None, "largest": largest}
    if budget and total > budget:
        raise Failed(
            "over-budget",
            "the packages take {:.0f} MiB, the budget is {:.0f} MiB; largest: {}".format(
                total / MIB, budget / MIB, shown
            ),
            **values,
        )
    return Passed("the packages take {:.0f} MiB: {}".format(total / MIB, shown), **values)
