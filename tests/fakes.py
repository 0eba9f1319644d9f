"""Stand-ins for what cannot be had in a fast test: an engine, and locks that no index was asked for. Marked as such."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal

from builder import lockfile, render
from builder.engine import BuildPlan, BuiltImage, EngineInfo, ExecResult, Limits
from builder.errors import TorchproofError
from builder.lockfile import ImageLock, LockedPackage, group_of
from builder.resolution import Base, TargetGpu


def package(
    name: str, version: str, *, source: str = "index", kind: Literal["wheel", "sdist"] = "wheel"
) -> LockedPackage:
    """A locked file with a hash that is made from its name: nothing behind it can be installed."""
    stem = f"{name.replace('-', '_')}-{version}"
    filename = f"{stem}-py3-none-any.whl" if kind == "wheel" else f"{stem}.tar.gz"
    return LockedPackage(
        name=name,
        version=version,
        filename=filename,
        sha256=hashlib.sha256(filename.encode()).hexdigest(),
        size=1000,
        kind=kind,
        source=source,
        group=group_of(name),
    )


LOCK = ImageLock(
    image_id="torch2.6.0-cu124-py311",
    spec_name="sample",
    spec_digest="0" * 64,
    facts_generated="2026-11-30",
    python="3.11",
    arch="x86_64",
    glibc="2.36",
    torch="2.6.0",
    variant="cu124",
    flavor="base",
    user="root",
    driver_floor="525.60.13",
    exclude_newer="2025-12-06",
    exclude_newer_applied=True,
    apt=(),
    allow_source=(),
    base=Base(kind="debian", reference="debian:bookworm", python="3.11", glibc="2.36"),
    base_digest=None,
    gpus=(TargetGpu(name="RTX 3090", compute_capability="8.6"),),
    packages=(
        package("numpy", "1.26.4"),
        package("nvidia-cudnn-cu12", "9.1.0.70"),
        package("torch", "2.6.0"),
        package("transformers", "4.48.1"),
    ),
)


def check(
    name: str, *, level: str = "L1", status: str = "passed", code: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"id": name, "level": level, "status": status, "code": code, "message": f"{name} {status}", **more}


def result_document(script: str, *checks: dict[str, Any], **environment: Any) -> bytes:
    document = {
        "schema_version": 1,
        "script": script,
        "seconds": 0.1,
        "environment": environment,
        "checks": list(checks),
    }
    return json.dumps(document).encode()


GOOD = {
    "probe": result_document("probe", check("probe.versions")),
    "files": result_document("files", check("files.records")),
    "train_step": result_document("train_step", check("train_step.loss_falls", level="L2")),
    "vram_peak": result_document("vram_peak", check("vram_peak.loop", level="L3", status="not-checked")),
    "onnx_round_trip": result_document("onnx_round_trip", check("onnx_round_trip.outputs_agree", level="L2")),
    **{
        name: result_document(name, check(f"{name}.works", level="L2"))
        for name in ("data_loader", "distributed", "trainer", "loggers", "compile", "card")
    },
}


def tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def saved_image(
    *parts: Mapping[str, bytes] | bytes,
    steps: Sequence[str] = (),
    env: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> bytes:
    """An image as `docker save` writes it; a layer is its files, or bytes that stand for a tar."""
    blobs = [part if isinstance(part, bytes) else tar(part) for part in parts]
    digests = [hashlib.sha256(blob).hexdigest() for blob in blobs]
    history = [{"created_by": step} for step in steps or ["RUN make"] * len(parts)]
    config = json.dumps(
        {
            "config": {"Env": list(env), "Labels": dict(labels or {})},
            "history": [*history, {"created_by": "CMD bash", "empty_layer": True}],
            "rootfs": {"diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    names = [f"blobs/sha256/{digest}" for digest in digests]
    manifest = [{"Config": "blobs/sha256/" + "c" * 64, "RepoTags": None, "Layers": names}]
    files = {
        **dict(zip(names, blobs, strict=True)),
        "blobs/sha256/" + "c" * 64: config,
        "index.json": b"{}",
        "manifest.json": json.dumps(manifest).encode(),
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
    }
    return tar(files)


@dataclass
class FakeSession:
    """Answers each script with what it was given; bytes are standard output of a script that ended well."""

    answers: Mapping[str, bytes | ExecResult]
    requests: list[dict[str, Any]] = field(default_factory=list)
    scratch: str = "/scratch"
    smoke_folder: str = "/smoke"
    has_gpu: bool = False
    network_cut: bool = True

    def python(self) -> Sequence[str]:
        return ["python3"]

    def put(self, name: str, content: bytes) -> str:
        self.requests.append(json.loads(content))
        return f"{self.scratch}/{name}"

    def run(self, argv: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> ExecResult:
        script = argv[1].rsplit("/", 1)[-1].removesuffix(".py")
        answer = self.answers[script]
        if isinstance(answer, ExecResult):
            return answer
        failed = b'"failed"' in answer or b'"errored"' in answer
        return ExecResult(argv=tuple(argv), exit_status=1 if failed else 0, stdout=answer, stderr=b"", seconds=0.1)


@dataclass
class FakeEngine:
    """An engine that builds nothing and records what it is asked for. `broken` maps an image id to its error,
    `labels` to the labels of an earlier build; `left_behind` are files in a layer of every image.
    """

    kind: Literal["docker", "in-place"] = "docker"
    has_gpu: bool = False
    answers: Mapping[str, bytes | ExecResult] = field(default_factory=lambda: dict(GOOD))
    broken: Mapping[str, TorchproofError] = field(default_factory=dict)
    left_behind: Mapping[str, bytes] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    plans: list[BuildPlan] = field(default_factory=list)
    sessions: list[FakeSession] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def info(self) -> EngineInfo:
        return EngineInfo(kind=self.kind, version="fake", gpu_reason="this engine is a stand-in")

    def build(self, plan: BuildPlan, on_line: Callable[[str], None]) -> Mapping[str, BuiltImage]:
        self.plans.append(plan)
        for target in plan.targets:
            if target.image_id in self.broken:
                raise self.broken[target.image_id]
        return {target.image_id: replace(self.image(target.tag), image_id=target.image_id) for target in plan.targets}

    def image(self, reference: str) -> BuiltImage:
        return BuiltImage(
            image_id=reference,
            reference=reference,
            digest="sha256:" + "1" * 64,
            digest_kind="image-id",
            size_bytes=2**30,
            seconds=1.0,
            log_file=None,
        )

    @contextmanager
    def saved(self, image: BuiltImage) -> Iterator[IO[bytes]]:
        """One layer, under the labels of the lock in the context that was built last."""
        labels = dict(self.labels.get(image.image_id, {}))
        for plan in self.plans:
            lock = plan.folder / image.image_id / "torchproof.lock"
            if lock.is_file():
                labels = render.labels(lockfile.read(lock))
        yield io.BytesIO(saved_image({"etc/os-release": b"x", **self.left_behind}, labels=labels))

    @contextmanager
    def session(
        self, image: BuiltImage, smoke_files: Mapping[str, bytes], limits: Limits, *, gpus: bool
    ) -> Iterator[FakeSession]:
        session = FakeSession(self.answers, has_gpu=self.has_gpu)
        self.sessions.append(session)
        try:
            yield session
        finally:
            self.removed.append(image.image_id)

    def remove(self, image: BuiltImage) -> None:
        self.removed.append(image.reference)


class Told:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.lines: list[str] = []

    def stage(self, name: str, image_id: str | None = None) -> None:
        self.stages.append(name if image_id is None else f"{name} {image_id}")

    def line(self, text: str) -> None:
        self.lines.append(text)
