"""Building a matrix of two images: grouped layers under one bake, beside one `RUN pip install` per image.

    python bench/build_layers.py [MATRIX] [--keep]

One run, one table. Both start without build cache (a cache mount of their own, `--no-cache`), install the same locks
from the configured index, and build again after one changed pin. Needs what `verify` needs. The default
matrix is the quickstart with two releases of transformers, which differ in one small layer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from builder import line, render
from builder.catalog import Catalog
from builder.engines import choose
from builder.lockfile import ImageLock
from builder.sources import Sources, read_pip_config

MATRIX = """
axes:
  torch: 2.13.0
  variant: cpu
  base: debian:bookworm
  transformers: [5.23.0, 5.24.0]
  onnxruntime: auto
"""
NAIVE = """FROM {base}
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv
COPY requirements.txt /tmp/requirements.txt
RUN --mount=type=bind,from=wheelhouse,target=/mnt/wheelhouse --mount=type=secret,id=ca --mount=type=secret,id=index \\
    if [ -s /run/secrets/index ]; then . /run/secrets/index; fi; export PIP_CERT=/run/secrets/ca \\
    PIP_INDEX_URL=${{UV_DEFAULT_INDEX:-}}; [ -n "$PIP_INDEX_URL" ] || unset PIP_INDEX_URL; \\
    [ -s "$PIP_CERT" ] || unset PIP_CERT; \\
    python3 -m venv /opt/venv && /opt/venv/bin/pip install --no-cache-dir --no-deps --require-hashes \\
    --find-links /mnt/wheelhouse -r /tmp/requirements.txt
"""


class Quiet:
    def stage(self, name: str, image_id: str | None = None) -> None:
        pass

    def line(self, text: str) -> None:
        pass


def timed(command: list[str], cwd: Path) -> float:
    started = time.monotonic()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return time.monotonic() - started


# The layer of a step that changed no file, such as WORKDIR: an empty tar.
EMPTY = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"


def stored(tags: list[str]) -> tuple[int, int]:
    """Bytes of all layers of the images, and of those that are different."""
    sizes: dict[str, int] = {}
    total = 0
    for tag in tags:
        shown = subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=True)
        layers = [layer for layer in json.loads(shown.stdout)[0]["RootFS"]["Layers"] if layer != EMPTY]
        listed = ["docker", "history", "--human=false", "--format", "{{.Size}}", tag]
        history = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
        filled = [int(size) for size in reversed(history) if int(size)]
        for digest, size in zip(layers, filled, strict=True):
            total += size
            sizes[digest] = size
    return total, sum(sizes.values())


def bumped(lock: ImageLock, other: ImageLock) -> ImageLock:
    """The lock with the transformers of the other one: one changed pin."""
    pin = other.package("transformers")
    packages = tuple(pin if package.name == "transformers" and pin else package for package in lock.packages)
    return replace(lock, packages=packages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", nargs="?", type=Path)
    parser.add_argument("--keep", action="store_true", help="leave the images")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="torchproof-bench-"))
    try:
        run(args.matrix, work, keep=args.keep)
    finally:
        shutil.rmtree(work)


def run(matrix: Path | None, work: Path, *, keep: bool) -> None:
    if matrix is None:
        matrix = work / "bench.yaml"
        matrix.write_text(MATRIX)
    plan = line.plan(matrix, Catalog.shipped())
    sources = Sources.from_environment(os.environ, read_pip_config(os.environ))
    chosen = choose("docker", work / "out", os.environ)
    folders = line.Folders(locks=matrix.parent / "locks", out=work / "out")
    locks = [line.locked(r, folders, sources, chosen.bases, Quiet()) for r in plan.resolutions]
    contexts = dict(chosen.bases.contexts(locks[0], print)) if chosen.bases is not None else {}
    secrets = sources.build_secrets(work / "secrets")
    wheelhouse = work / "wheelhouse"
    wheelhouse.mkdir()
    for number, lock in enumerate(locks):
        for file in sources.stage_wheelhouse(lock, work / f"part{number}"):
            if not (wheelhouse / file.name).exists():
                shutil.move(file, wheelhouse / file.name)
    contexts |= {"wheelhouse": str(wheelhouse), "uv": str(line.uv_folder(work / "out"))}
    shared = [f"--set=*.contexts.{name}={source}" for name, source in contexts.items()]
    secret_args = [f"--set=*.secrets=id={name},src={path}" for name, path in secrets.items()]
    # A cache mount that nobody has filled, or the first build would find the wheels of an earlier one.
    cache = f"bench-{uuid.uuid4().hex[:8]}"

    def bake(some: list[ImageLock], name: str, *, cold: bool) -> float:
        folder = line.rendered(some, name, work / "grouped", link=True)
        for file in folder.rglob("Dockerfile"):
            file.write_text(file.read_text().replace("id=torchproof-uv", f"id={cache}"))
        command = ["docker", "buildx", "bake", "--file", "docker-bake.json", *shared, *secret_args]
        return timed([*command, *(["--no-cache"] if cold else [])], folder)

    def naive(some: list[ImageLock], *, cold: bool) -> float:
        seconds = 0.0
        for number, lock in enumerate(some):
            folder = work / f"naive{number}"
            folder.mkdir(exist_ok=True)
            base = contexts[lock.base.reference].removeprefix("docker-image://")
            (folder / "Dockerfile").write_text(NAIVE.format(base=base))
            pins = [f"{p.name}=={p.version} --hash=sha256:{p.sha256}" for p in lock.packages]
            (folder / "requirements.txt").write_text("\n".join(pins) + "\n")
            command = ["docker", "buildx", "build", "--tag", f"bench/naive:{number}"]
            command += [f"--build-context=wheelhouse={wheelhouse}"]
            command += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
            seconds += timed([*command, *(["--no-cache"] if cold else []), "."], folder)
        return seconds

    grouped_tags = [render.tag("bench", lock.image_id) for lock in locks]
    naive_tags = [f"bench/naive:{number}" for number in range(len(locks))]
    try:
        rows = [("cold, all images", naive(locks, cold=True), bake(locks, "bench", cold=True))]
        naive_bytes, grouped_bytes = stored(naive_tags), stored(grouped_tags)
        changed = [bumped(locks[0], locks[1]), *locks[1:]]
        rows.append(("one changed pin", naive(changed, cold=False), bake(changed, "bench", cold=False)))
        print(f"{'':<22}{'RUN pip install':>18}{'grouped layers':>18}")
        for what, slow, fast in rows:
            print(f"{what:<22}{slow:>16.0f} s{fast:>16.0f} s")
        gib = 2**30
        print(f"{'bytes of all images':<22}{naive_bytes[0] / gib:>14.2f} GiB{grouped_bytes[0] / gib:>14.2f} GiB")
        print(f"{'bytes stored once':<22}{naive_bytes[1] / gib:>14.2f} GiB{grouped_bytes[1] / gib:>14.2f} GiB")
    finally:
        if not keep:
            subprocess.run(
                ["docker", "image", "rm", "--force", *grouped_tags, *naive_tags], capture_output=True, check=False
            )


if __name__ == "__main__":
    main()
