"""The whole line for real: images built from the package index, proven, broken on purpose, interrupted."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from seeded import faults, observe
from smoke_faults import make_elf

from builder import lockfile, smoke
from builder.docker_engine import DockerEngine
from builder.engine import BuiltImage, Limits
from builder.lockfile import ImageLock
from builder.results import CheckResult
from builder.uv_tool import find_uv

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_bytes=6 * 2**30)


@dataclass(frozen=True)
class Verified:
    """What one run of the command left: its report, its folder, its lock, and the image."""

    report: dict[str, Any]
    out: Path
    lock: ImageLock
    image: BuiltImage

    def checks(self, level: str) -> dict[str, str]:
        (image,) = self.report["images"]
        return {check["id"]: check["status"] for check in image["checks"] if check["level"] == level}


def torchproof(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "builder", *arguments],
        env={**os.environ, **env},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def verified(engine: DockerEngine, spec: Path, out: Path) -> Verified:
    done = torchproof("verify", str(spec), "--engine", "docker", "--out", str(out), "--json", "-q")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    (image,) = report["images"]
    own = out / spec.stem / "locks" / f"{image['image_id']}.lock"
    kept = spec.parent / "locks" / own.name
    lock = lockfile.read(kept if kept.is_file() else own)
    return Verified(report=report, out=out / spec.stem, lock=lock, image=engine.image(image["reference"]))


@pytest.fixture(scope="module")
def quickstart(engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verified]:
    found = verified(engine, ROOT / "images/quickstart.yaml", tmp_path_factory.mktemp("quickstart"))
    yield found
    engine.remove(found.image)


def proven_levels(found: Verified) -> None:
    """L0 to L2 hold in every check that concerns the image, and L3 is told as not checked."""
    (image,) = found.report["images"]
    assert image["level"] == "L2"
    for level in ("L0", "L1", "L2"):
        assert "failed" not in found.checks(level).values()
        assert "passed" in found.checks(level).values()
    assert "passed" not in found.checks("L3").values() or found.report["host_gpus"]


def test_the_quickstart_is_proven_on_its_digest(engine: DockerEngine, quickstart: Verified) -> None:
    proven_levels(quickstart)
    (image,) = quickstart.report["images"]
    assert image["digest"] == quickstart.image.digest
    assert image["network_cut"] is True
    assert image["packages"]["torch"] == "2.13.0+cpu"
    for name in ("train_step.loss_falls", "onnx_round_trip.dynamo.outputs_agree"):
        assert quickstart.checks("L2")[name] == "passed"


def test_its_files_are_written_and_agree(quickstart: Verified) -> None:
    on_disk = json.loads((quickstart.out / "report.json").read_text())
    assert on_disk == quickstart.report
    assert "proven to L2 CPU run" in (quickstart.out / "summary.txt").read_text()
    assert "<testsuite " in (quickstart.out / "junit.xml").read_text()


def test_an_install_that_would_replace_torch_is_refused(quickstart: Verified) -> None:
    (image,) = quickstart.report["images"]
    guard = next(check for check in image["checks"] if check["id"] == "files.guard")
    assert guard["status"] == "passed"
    assert "(constraint) torch==2.13.0+cpu" in guard["message"]


def test_uv_refuses_it_too(quickstart: Verified) -> None:
    """By the variable UV_CONSTRAINT of the image, since uv reads no pip.conf."""
    command = ["docker", "run", "--rm", "--network", "none", "--volume", f"{find_uv()}:/uv:ro"]
    command += [quickstart.image.reference, "/uv", "pip", "install", "--no-index", "torch==2.5.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "you require torch==2.5.0 and torch==2.13.0+cpu" in done.stderr


def test_its_labels_say_which_lock_made_it(quickstart: Verified) -> None:
    shown = subprocess.run(
        ["docker", "image", "inspect", quickstart.image.reference, "--format", "{{json .Config.Labels}}"],
        capture_output=True,
        check=True,
    )
    labels = json.loads(shown.stdout)
    assert labels["io.torchproof.lock"] == f"sha256:{lockfile.digest(quickstart.lock)}"
    assert labels["org.opencontainers.image.version"] == "2.13.0+cpu"


FOLDERS = "/var/cache/uv /mnt /run/secrets /root/.cache /opt/torchproof-smoke"
LEFTOVERS = f"ls -A {FOLDERS} 2>/dev/null; cat /etc/pip.conf 2>/dev/null"


def test_nothing_of_the_build_is_in_its_layers_or_history(quickstart: Verified, tmp_path: Path) -> None:
    """No certificate of this network, no wheel cache, no index setting, no wheel folder."""
    history = subprocess.run(
        ["docker", "history", "--no-trunc", quickstart.image.reference], capture_output=True, text=True, check=True
    ).stdout
    assert "UV_DEFAULT_INDEX" not in history
    listed = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", quickstart.image.reference, "sh", "-c", LEFTOVERS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in listed.stdout.splitlines() if line and not line.endswith(":")] == []


def test_no_layer_holds_a_cache_a_secret_or_a_setting_of_the_build(quickstart: Verified) -> None:
    (image,) = quickstart.report["images"]
    for name in ("image.secrets", "image.leftovers", "image.labels"):
        assert quickstart.checks("L1")[name] == "passed"
    sizes = {layer["holds"]: layer["size_bytes"] for layer in image["image_layers"]}
    assert {"the base", "the torch family", "everything else", "the guard"} <= set(sizes)
    assert sizes["the torch family"] > 2**29
    assert "MiB the torch family; " in (quickstart.out / "summary.txt").read_text()


def test_a_second_build_without_cache_gives_the_same_layers(engine: DockerEngine, quickstart: Verified) -> None:
    """Equal files are equal layers: the groups of wheels, though not the distribution's own packages."""

    def digests(reference: str) -> list[str]:
        shown = subprocess.run(
            ["docker", "image", "inspect", reference, "--format", "{{json .RootFS.Layers}}"],
            capture_output=True,
            check=True,
        )
        found: list[str] = json.loads(shown.stdout)
        return found

    before = digests(quickstart.image.reference)
    context = quickstart.out / "context" / quickstart.lock.image_id
    file = context / "Dockerfile"
    text = file.read_text()
    # A comment in the step is a new step for the builder, so that it runs again.
    tag = f"torchproof-test/again:{uuid.uuid4().hex[:8]}"
    file.write_text(
        text.replace(
            "    sh /mnt/install.sh requirements/30-rest.txt", "    AGAIN=1 sh /mnt/install.sh requirements/30-rest.txt"
        )
    )
    try:
        assert file.read_text() != text
        command = ["docker", "buildx", "build", "--quiet", "--tag", tag, "--target", "image"]
        made = "docker-image://torchproof-base/debian:bookworm"
        command += ["--build-context", f"debian:bookworm={made}", "--build-context", f"uv={quickstart.out / '.uv'}"]
        command += ["--build-context", f"wheelhouse={quickstart.out / 'wheelhouse'}"]
        bundle = os.environ.get("SSL_CERT_FILE")
        command += ["--secret", f"id=ca,src={bundle}"] if bundle else []
        subprocess.run([*command, str(context)], check=True, capture_output=True)
        assert digests(tag) == before
    finally:
        file.write_text(text)
        subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=False)


# --- broken on purpose -----------------------------------------------------------------------------------------------


def patched(body: str) -> str:
    """A layer with a module that Python runs at its start: by a .pth file, for Debian has its own sitecustomize."""
    code = textwrap.dedent(body).replace("\\", "\\\\").replace("'", "'\\''").replace("\n", "\\n")
    site = "/opt/venv/lib/python3.11/site-packages"
    return f"RUN printf '{code}' > {site}/fault.py && echo 'import fault' > {site}/fault.pth"


# A finder that patches a module right after its import: the scripts know nothing of it.
AFTER_IMPORT = """
import importlib.abc, importlib.machinery, sys
def after(name, patch):
    class Loader(importlib.abc.Loader):
        def __init__(self, inner): self.inner = inner
        def create_module(self, spec): return self.inner.create_module(spec)
        def exec_module(self, module):
            self.inner.exec_module(module)
            patch(module)
        def __getattr__(self, key): return getattr(self.inner, key)
    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path, target=None):
            if fullname != name: return None
            spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
            spec.loader = Loader(spec.loader)
            return spec
    sys.meta_path.insert(0, Finder())
"""

FROZEN = patched(
    AFTER_IMPORT
    + """
def patch(module):
    module.AdamW.step = lambda self, closure=None: None
after("torch.optim.adamw", patch)
"""
)
WRONG_OUTPUTS = patched(
    AFTER_IMPORT
    + """
def patch(module):
    run = module.InferenceSession.run
    module.InferenceSession.run = lambda self, *a, **k: [value + 0.5 for value in run(self, *a, **k)]
after("onnxruntime.capi.onnxruntime_inference_collection", patch)
"""
)
SITE = "/opt/venv/lib/python3.11/site-packages"
SWAPPED = f"RUN sed -i 's/^Version: 2.13.0+cpu/Version: 2.12.0/' {SITE}/torch-2.13.0+cpu.dist-info/METADATA"
SECOND_CUDNN = (
    f"RUN mkdir -p {SITE}/nvidia/cudnn/lib {SITE}/other.libs"
    f" && cp {SITE}/torch/lib/libshm.so {SITE}/nvidia/cudnn/lib/libcudnn.so.9"
    f" && cp {SITE}/torch/lib/libshm.so {SITE}/other.libs/libcudnn-0123abcd.so.9.2.0"
)
STRIPPED = f"RUN truncate -s 4096 {SITE}/torch/lib/libshm.so"
LOST = f"RUN rm {SITE}/torch/lib/libshm.so"
OLD_NUMPY_WANTED = (
    f"RUN sed -i '0,/^Version:/s//Requires-Dist: numpy<2\\nVersion:/' {SITE}/onnxruntime-*.dist-info/METADATA"
)
FOREIGN = base64.b64encode(make_elf(needed=["libc10.so"], undefined=["_ZN3c105ErrorC1EOf1998"])).decode()
FOREIGN_EXTENSION = f"RUN echo {FOREIGN} | base64 -d > {SITE}/flash_attn_2_cuda.so"
NO_GUARD = "RUN rm /opt/venv/pip.conf"
PIP_CACHE = "RUN mkdir -p /root/.cache/pip && touch /root/.cache/pip/selfcheck.json"
LEFT_CA = "RUN mkdir -p /run/secrets && echo certificate > /run/secrets/ca"
NO_MODEL = f"RUN rm -r {SITE}/transformers/models/bert"


BROKEN = {
    "swapped-torch": ("probe", SWAPPED, {"probe.versions_match": "version-mismatch"}),
    "second-cudnn": ("files", SECOND_CUDNN, {"files.cuda_libraries_once": "cuda-library-twice"}),
    "stripped-library": ("files", STRIPPED, {"files.records": "file-changed", "files.libraries": "library-broken"}),
    "lost-library": ("files", LOST, {"files.records": "file-missing", "files.libraries": "library-unresolved"}),
    "numpy-2": ("files", OLD_NUMPY_WANTED, {"files.requirements": "requirement-unmet"}),
    "foreign-extension": ("files", FOREIGN_EXTENSION, {"files.symbols": "symbol-missing"}),
    "no-guard": ("files", NO_GUARD, {"files.guard": "guard-missing"}),
    "pip-cache": ("files", PIP_CACHE, {"files.leftovers": "build-leftover"}),
    "left-ca": ("files", LEFT_CA, {"files.leftovers": "build-leftover"}),
    "frozen-weights": ("train_step", FROZEN, {"train_step.weights_change": "weights-unchanged"}),
    "no-model": ("train_step", NO_MODEL, {"train_step.run": "import-failed"}),
    "no-model-for-vram": ("vram_peak", NO_MODEL, {"vram_peak.loop": "import-failed"}),
    "wrong-outputs": (
        "onnx_round_trip",
        WRONG_OUTPUTS,
        {"onnx_round_trip.torchscript.outputs_agree": "outputs-differ"},
    ),
}


@pytest.mark.parametrize("name", faults("", BROKEN, lambda row: row[2]))
def test_a_broken_image_fails_with_the_code_of_its_fault(
    engine: DockerEngine, quickstart: Verified, project_on: Any, name: str
) -> None:
    script, layer, expected = BROKEN[name]
    image = project_on(quickstart.image.reference).build(layer)
    run = smoke.run(quickstart.lock, image, engine, limits=LIMITS, time_limit_s=120, gpus=False, scripts=[script])
    failed = {check.id: check.code for check in run.checks if check.status == "failed"}
    observe(script, {check.id.partition(".")[2]: check.model_dump() for check in run.checks})
    assert expected.items() <= failed.items(), failed
    assert "errored" not in {check.status for check in run.checks}


HANGING = b"import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
GREEDY = b"held = []\nwhile True: held.append(bytearray(b'x' * (64 << 20)))\n"
RUBBISH = b"print('Epoch 1/10: loss = nan')\n"


@pytest.mark.parametrize(
    ("content", "code"),
    [(HANGING, "smoke-timeout"), (GREEDY, "smoke-out-of-memory"), (RUBBISH, "smoke-bad-output")],
    ids=["hangs", "eats-memory", "prints-rubbish"],
)
def test_a_script_that_does_not_report_is_errored(
    engine: DockerEngine, quickstart: Verified, monkeypatch: pytest.MonkeyPatch, content: bytes, code: str
) -> None:
    monkeypatch.setattr(smoke, "GRACE_S", 0.0)
    started = time.monotonic()
    run = smoke.run(
        quickstart.lock,
        quickstart.image,
        engine,
        limits=replace(LIMITS, memory_bytes=2**29),
        time_limit_s=8,
        gpus=False,
        scripts=["probe"],
        files={"probe.py": content},
    )
    found: CheckResult
    (found,) = run.checks
    assert (found.status, found.code) == ("errored", code)
    assert time.monotonic() - started < 60


def containers() -> set[str]:
    shown = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", "label=io.torchproof.run"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


def interrupted(spec: Path, out: Path, *, at: str) -> tuple[int, str]:
    """Run `verify` and send SIGINT to it once `at` stands in its progress."""
    command = [
        sys.executable,
        "-u",
        "-m",
        "builder",
        "verify",
        str(spec),
        "--engine",
        "docker",
        "--out",
        str(out),
        "-v",
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    assert process.stderr is not None
    for text in process.stderr:
        said.append(text)
        if at in text:
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=90)[1]
    return process.returncode, "".join(said) + rest


def test_an_interrupt_during_smoke_leaves_no_container(quickstart: Verified, tmp_path: Path) -> None:
    before = containers()
    status, said = interrupted(ROOT / "images/quickstart.yaml", tmp_path, at="running train_step")
    assert status == 130, said[-2000:]
    assert "Traceback" not in said
    assert containers() <= before
    assert not (tmp_path / "quickstart/report.json").exists()


def test_an_interrupt_during_the_build_leaves_nothing_and_the_next_run_goes_on(
    engine: DockerEngine, quickstart: Verified, tmp_path: Path
) -> None:
    """Another apt package makes a step that no cache has."""
    spec = tmp_path / "cut.yaml"
    spec.write_text((ROOT / "images/quickstart.yaml").read_text() + "apt: [cowsay]\n")
    status, said = interrupted(spec, tmp_path, at="cowsay")
    assert status == 130, said[-2000:]
    assert not (tmp_path / "cut/.secrets").exists()
    assert not list((tmp_path / "cut").rglob("*.tmp"))
    lock = next((tmp_path / "cut/locks").glob("*.lock"))
    kept = lock.read_bytes()
    done = torchproof("build", str(spec), "--engine", "docker", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "lock of an earlier run is current" in done.stderr
    assert lock.read_bytes() == kept
    engine.remove(engine.image(done.stdout.split()[0]))


def test_a_wheel_that_is_not_the_locked_one_is_exit_5(tmp_path: Path, quickstart: Verified) -> None:
    spec = tmp_path / "quickstart.yaml"
    spec.write_text((ROOT / "images/quickstart.yaml").read_text())
    lock = quickstart.lock
    changed = tuple(replace(p, sha256="0" * 64) if p.name == "tqdm" else p for p in lock.packages)
    lockfile.write(replace(lock, packages=changed), tmp_path / "locks" / f"{lock.image_id}.lock")
    done = torchproof("build", str(spec), "--engine", "docker", "--out", str(tmp_path / "out"), "-q")
    assert done.returncode == 5, done.stderr[-2000:]
    assert "error[hash-mismatch]" in done.stderr


def test_an_index_that_does_not_answer_is_exit_6(tmp_path: Path, engine: DockerEngine) -> None:
    spec = tmp_path / "m.yaml"
    spec.write_text("axes: {torch: 2.6.0, python: 3.11, base: 'debian:bookworm'}\n")
    done = torchproof(
        "verify",
        str(spec),
        "--engine",
        "docker",
        "--out",
        str(tmp_path),
        "-q",
        UV_DEFAULT_INDEX="http://127.0.0.1:9/x/",
    )
    assert done.returncode == 6, done.stdout[-2000:]
    assert "error[index-unreachable]" in done.stdout


def test_a_base_of_a_registry_is_pinned_by_digest_when_locked_and_pulled_by_it(
    engine: DockerEngine, debian: str, quickstart: Verified, registry: str, tmp_path: Path
) -> None:
    reference = f"{registry}/torchproof/debian:bookworm"
    spec = tmp_path / "pinned.yaml"
    spec.write_text((ROOT / "images/quickstart.yaml").read_text().replace("debian:bookworm", reference))
    try:
        for command in (["tag", debian, reference], ["push", "--quiet", reference], ["rmi", reference]):
            subprocess.run(["docker", *command], check=True, capture_output=True)
        locked = torchproof("lock", str(spec), "-q")
        assert locked.returncode == 0, locked.stderr[-2000:]
        lock = lockfile.read(next((tmp_path / "locks").glob("*.lock")))
        assert lock.base_digest is not None
        built = torchproof("build", str(spec), "--engine", "docker", "--out", str(tmp_path / "out"), "-q")
        assert built.returncode == 0, built.stderr[-2000:]
        rendered = (tmp_path / "out/pinned/context" / lock.image_id / "Dockerfile").read_text()
        assert f"FROM {reference}@{lock.base_digest} AS base" in rendered
        engine.remove(engine.image(built.stdout.split()[0]))
    finally:
        subprocess.run(["docker", "image", "rm", "--force", reference], capture_output=True, check=False)


# --- the stack of 2022 -----------------------------------------------------------------------------------------------


def test_the_2022_stack_is_proven_from_the_real_index(engine: DockerEngine, tmp_path: Path) -> None:
    found = verified(engine, ROOT / "images/stack-2022.yaml", tmp_path)
    try:
        proven_levels(found)
        (image,) = found.report["images"]
        assert image["packages"]["torch"] == "1.12.1"
        assert image["packages"]["protobuf"].startswith("3.20.")
        assert image["source_built"] == ["pathtools", "promise"]
        assert found.checks("L1")["probe.arch_list"] == "passed"
    finally:
        engine.remove(found.image)
