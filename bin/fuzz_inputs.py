"""Feeds broken files to every input parser: none may raise, none may take long.

usage: fuzz_inputs.py [--seconds N] [--kind KIND]... [--slow S] [--seed N] [--engine auto|atheris|mutate] [--keep DIR]

`atheris` follows code coverage (pip install atheris; optional); `mutate` needs nothing and edits the cases of
tests/data/cases by chance. What fails is written to --keep and named at the end; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from pathlib import Path
from typing import get_args

import yaml

from builder.environment import Kind
from builder.inputs import Options, detect, parse, parse_options
from builder.inputs.options import applied
from builder.inputs.reading import Reader, decode

DATA = Path(__file__).parent.parent / "tests" / "data" / "cases"
KINDS: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind not in {"spec", "options"})
FRAGMENTS = (
    b"\\\n",
    b"<<EOF\n",
    b"EOF\n",
    b"${X:-",
    b"$(",
    b"`",
    b"'",
    b'"',
    b"((",
    b"))",
    b" ; ",
    b"&& ",
    b"|| ",
    b"--index-url ",
    b"-r other.txt\n",
    b"-c self.txt\n",
    b"FROM a AS b\n",
    b"COPY --from=b / /\n",
    b"RUN ",
    b"ENV A=$A$A\n",
    b"if ",
    b"; then ",
    b"; fi\n",
    b"for x in ",
    b"; do ",
    b"; done\n",
    b"case x in ",
    b"esac\n",
    b"*a ",
    b"&a ",
    b"[",
    b"{",
    b"- ",
    b"? ",
    b": ",
    b"torch==",
    b"==1.0.*",
    b"=*=*cuda*",
    b"|",
    b"[[package]]\n",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"9999999999999999999999999",
    b"@ git+",
    b"\n",
)


class TooSlowError(Exception):
    """An input took longer than it may."""


def seeds() -> list[bytes]:
    found: list[bytes] = []
    for name in ("known.yaml", "good.yaml"):
        for case in yaml.safe_load((DATA / name).read_text(encoding="utf-8"))["cases"]:
            given = case["input"]
            texts = [given.get(kind) for kind in ("requirements", "conda", "dockerfile")]
            found += [text.encode() for text in texts if isinstance(text, str)]
    found.append(
        b'version = 1\nrequires-python = ">=3.10"\n[[package]]\nname = "torch"\nversion = "2.6.0+cu124"\n'
        b'source = { registry = "https://download.pytorch.org/whl/cu124" }\n'
        b"resolution-markers = [\"sys_platform == 'linux'\"]\n"
        b'wheels = [{ url = "https://x.example/torch-2.6.0%2Bcu124-cp311-cp311-linux_x86_64.whl" }]\n'
    )
    found.append(
        b"@EXPLICIT\nhttps://c.example/pytorch/linux-64/pytorch-1.9.0-py3.8_cuda11.1_cudnn8.0.5_0.tar.bz2#0123456789abcdef\n"
    )
    found.append(
        b'[project]\ndependencies = ["torch>=2"]\n[tool.uv.sources]\ntorch = { index = "p" }\n[[tool.uv.index]]\n'
        b'name = "p"\nurl = "https://download.pytorch.org/whl/cu121"\n[tool.poetry.dependencies]\ntorch = "^2.1"\n'
    )
    return found


def one(raw: bytes, kinds: tuple[Kind, ...], slow_s: float) -> None:
    """Raises what a parser raises, or TooSlowError."""
    text = decode(raw)
    files = {"other.txt": text, "self.txt": "-r self.txt\n-c other.txt\n"}
    options = Options(pins=(text[:200],), python=text[:5], gpus=(text[:40],), driver=text[:10], os=text[:30],
                      indexes=(text[:60],), env=(text[:60],), date=text[:12], glibc=text[:6])  # fmt: skip
    for kind in {*kinds, detect("file", text)} - {"spec"}:
        start = time.perf_counter()
        env = parse(kind, text, "self.txt", reader=Reader(files=files, is_offline=True), options=options)
        env = applied(env.merge(parse_options(options)), options)
        env.to_json()
        took = time.perf_counter() - start
        if took > slow_s:
            raise TooSlowError(f"{kind} took {took:.1f} s for {len(raw)} bytes")


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    raw = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 12)):
        place, size = rng.randint(0, len(raw)), rng.randint(0, 30)
        choice = rng.randint(0, 6)
        if choice == 0:
            raw[place:place] = rng.choice(FRAGMENTS) * rng.choice((1, 1, 1, 2, 50))
        elif choice == 1:
            del raw[place : place + size]
        elif choice == 2:
            raw[place : place + 1] = bytes([rng.randint(0, 255)])
        elif choice == 3:
            other = rng.choice(corpus)
            begin = rng.randint(0, len(other))
            raw[place:place] = other[begin : begin + rng.randint(0, 200)]
        elif choice == 4:
            raw[place:place] = raw[place : place + size] * rng.choice((1, 2, 100))
        elif choice == 5:
            raw[place:place] = rng.choice(FRAGMENTS)
        else:
            lines = bytes(raw).split(b"\n")
            rng.shuffle(lines)
            raw = bytearray(b"\n".join(lines))
    return bytes(raw[:60_000])


def mutate(args: argparse.Namespace, kinds: tuple[Kind, ...]) -> int:
    rng, corpus = random.Random(args.seed), seeds()  # noqa: S311 - chance, not secrecy
    end = time.monotonic() + args.seconds
    runs, failed, longest = 0, {}, 0.0
    while time.monotonic() < end:
        raw = mutated(rng, corpus)
        runs += 1
        start = time.perf_counter()
        try:
            one(raw, kinds, args.slow)
        except Exception as error:  # noqa: BLE001 - every exception is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{type(error).__name__} {Path(where.filename).name}:{where.lineno} {str(error)[:80]}"
            if key not in failed:
                failed[key] = _keep(args.keep, raw)
                print(f"FAIL {key} -> {failed[key]}", flush=True)
        longest = max(longest, time.perf_counter() - start)
        if runs % 20 == 0 and len(corpus) < 2000 and len(raw) < 4000:
            corpus.append(raw)
    print(f"{runs} inputs, {len(failed)} kinds of failure, longest {longest:.2f} s, seed {args.seed}")
    return 1 if failed else 0


def _keep(folder: str, raw: bytes) -> str:
    path = Path(folder) / f"crash-{hashlib.sha256(raw).hexdigest()[:12]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return str(path)


def with_atheris(args: argparse.Namespace, kinds: tuple[Kind, ...]) -> int:
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]  # noqa: PLC0415 - optional

    corpus = Path(args.keep) / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for raw in seeds():
        (corpus / hashlib.sha256(raw).hexdigest()[:12]).write_bytes(raw)
    atheris.instrument_all()

    def test(raw: bytes) -> None:
        one(raw, kinds, args.slow)

    limits = [
        f"-max_total_time={args.seconds}",
        "-max_len=8000",
        f"-artifact_prefix={args.keep}/",
        "-rss_limit_mb=4096",
    ]
    atheris.Setup([sys.argv[0], str(corpus), *limits], test)
    atheris.Fuzz()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--slow", type=float, default=5.0, help="seconds that one parser may take for one input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["auto", "atheris", "mutate"], default="auto")
    parser.add_argument("--keep", default="build/fuzz")
    args = parser.parse_args()
    kinds: tuple[Kind, ...] = tuple(args.kind) if args.kind else KINDS
    if args.engine == "auto":
        try:
            import atheris  # noqa: F401, PLC0415 - optional
        except ImportError:
            args.engine = "mutate"
        else:
            args.engine = "atheris"
    return with_atheris(args, kinds) if args.engine == "atheris" else mutate(args, kinds)


if __name__ == "__main__":
    sys.exit(main())
