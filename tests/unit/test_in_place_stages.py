"""An update in place that is cut off: killed at every step, out of disk, with the index gone in the middle of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "index"))

from small_index import SmallIndex, StandIn
from test_in_place import CHECKOUT, make_wheel

# Builds what `context` says at `prefix`, runs one check in it and switches, as `verify --in-place` does. With a number,
# the process kills itself at that step; a step is anything that changes the disk or starts a process.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from builder.engine import BuildPlan, BuildTarget, Limits
from builder.errors import TorchproofError
from builder.in_place import InPlaceEngine

root, kill_at = Path(sys.argv[1]), int(sys.argv[2])
steps = []
STEPS = {"os.rename", "os.mkdir", "os.symlink", "os.remove", "os.rmdir", "shutil.rmtree", "subprocess.Popen"}

def watch(event, args):
    if event in STEPS or (event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
        steps.append(event)
        if len(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

engine = InPlaceEngine(root / "envs", environ=os.environ, prefix=root / "env", proves_first=True)
plan = BuildPlan(
    folder=root / "context", bake_file="", targets=(BuildTarget(image_id="small", tag="small"),),
    contexts={"wheelhouse": str(root / "wheels")} if (root / "wheels").is_dir() else {},
    secrets={"index": root / "index.env"}, log_file=root / "build.log", python=sys.executable,
)
sys.addaudithook(watch)
try:
    image = engine.build(plan, lambda line: print(line, file=sys.stderr))["small"]
    with engine.session(image, {"check.py": b"import alpha; alpha.main()"}, Limits(), gpus=False) as session:
        result = session.run([*session.python(), f"{session.smoke_folder}/check.py"], timeout_s=60)
    engine.settle(image, is_proven=result.exit_status == 0)
except TorchproofError as error:
    print(error.code)
    sys.exit(error.exit_status)
print(json.dumps(steps))
"""


DECISIVE = {"os.rename", "os.symlink", "shutil.rmtree", "subprocess.Popen"}


class Updates:
    """An environment at `env` with alpha 1.0, and a context that asks for alpha 2.0."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = root / "env"
        (root / "context/requirements").mkdir(parents=True)
        (root / "no-index").mkdir()
        (root / "tmp").mkdir()
        self.index(f"file://{root}/no-index")
        (root / "driver.py").write_text(DRIVER, encoding="utf-8")

    def index(self, url: str) -> None:
        text = f"export UV_DEFAULT_INDEX='{url}'\nexport UV_HTTP_RETRIES='0'\n"
        (self.root / "index.env").write_text(text, encoding="utf-8")

    def ask(self, *files: tuple[str, str, str]) -> None:
        """Each file of requirements as (its name, requirement, sha256)."""
        folder = self.root / "context/requirements"
        shutil.rmtree(folder)
        folder.mkdir()
        for name, requirement, sha256 in files:
            with (folder / name).open("a", encoding="utf-8") as stream:
                stream.write(f"{requirement} --hash=sha256:{sha256}\n")

    def ask_wheels(self, *wheels: Path) -> None:
        self.ask(
            *(
                (f"{number}0-part.txt", "==".join(w.name.split("-")[:2]), hashlib.sha256(w.read_bytes()).hexdigest())
                for number, w in enumerate(wheels, 1)
            )
        )

    def run(self, kill_at: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, self.root / "driver.py", self.root, str(kill_at)],
            env={
                **os.environ,
                "PYTHONPATH": str(CHECKOUT),
                "UV_CACHE_DIR": str(self.root / "cache"),
                "TMPDIR": str(self.root / "tmp"),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def works_with(self) -> str:
        """What the environment prints: its version, by way of a module and of a script."""
        module = subprocess.run(
            [self.env / "bin/python", "-c", "import alpha; alpha.main()"], capture_output=True, text=True, check=True
        )
        script = subprocess.run([self.env / "bin/alpha"], capture_output=True, text=True, check=True)
        assert module.stdout == script.stdout
        return module.stdout.strip()


def alpha(folder: Path, version: str, *, works: bool = True) -> Path:
    body = f"def main():\n    print('{version}')\n" if works else "raise SystemExit(3)\n"
    return make_wheel(folder, "alpha", version, body, script=True)


@pytest.fixture
def updates(tmp_path: Path) -> Updates:
    """Its first environment is in place."""
    updates = Updates(tmp_path)
    wheels = tmp_path / "wheels"
    updates.ask_wheels(alpha(wheels, "1.0"), make_wheel(wheels, "beta", "1.0"))
    done = updates.run()
    assert done.returncode == 0, done.stderr
    assert updates.works_with() == "1.0"
    return updates


def test_killed_at_every_step_the_old_environment_works_and_the_next_run_ends_well(updates: Updates) -> None:
    wheels = updates.root / "wheels"
    updates.ask_wheels(make_wheel(wheels, "beta", "2.0"), alpha(wheels, "2.0"))
    kept = updates.root / "kept"
    kept.mkdir()
    for name in ("env", ".env.torchproof"):
        _copy(updates.root / name, kept / name)
    done = updates.run()
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)
    assert updates.works_with() == "2.0"
    seen: set[str] = set()
    # Every step that moves something or starts a program, and a sixth of the files written between them.
    chosen = [n for n, step in enumerate(steps, 1) if step in DECISIVE or n % 6 == 0 or n == len(steps)]
    for step in chosen:
        for name in ("env", ".env.torchproof"):
            _remove(updates.root / name)
            _copy(kept / name, updates.root / name)
        killed = updates.run(kill_at=step)
        assert killed.returncode == -signal.SIGKILL, f"step {step}: {killed.stdout}{killed.stderr}"
        version = updates.works_with()
        seen.add(version)
        if step % 8 == 0 or step == len(steps):
            again = _until_free(updates)
            assert again.returncode == 0, f"step {step}: {again.stdout}{again.stderr}"
            assert updates.works_with() == "2.0"
            assert len([path for path in (updates.root / ".env.torchproof").iterdir() if path.is_dir()]) == 1
    assert seen == {"1.0", "2.0"}


def _until_free(updates: Updates) -> subprocess.CompletedProcess[str]:
    """An installer that outlived its parent still holds the place; torchproof says so and touches nothing."""
    end = time.monotonic() + 60
    while True:
        done = updates.run()
        if "prefix-busy" not in done.stdout or time.monotonic() > end:
            return done
        time.sleep(0.1)


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    else:
        shutil.copytree(source, target, symlinks=True)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def test_killed_between_two_groups_the_next_run_goes_on_there(updates: Updates) -> None:
    wheels = updates.root / "wheels"
    updates.ask_wheels(make_wheel(wheels, "beta", "2.0"), alpha(wheels, "2.0"))
    steps = json.loads(updates.run().stdout)
    # Programs in their order: uv for the environment, for the first group, for the second.
    second_group = [n for n, step in enumerate(steps, 1) if step == "subprocess.Popen"][2]
    updates.ask_wheels(make_wheel(wheels, "beta", "2.1"), alpha(wheels, "2.1"))
    assert updates.run(kill_at=second_group).returncode == -signal.SIGKILL
    again = updates.run()
    assert again.returncode == 0, again.stderr
    assert "continuing after 10-part.txt" in again.stderr
    assert "small: 10-part.txt" not in again.stderr
    assert updates.works_with() == "2.1"


def test_update_that_fails_its_check_stays_beside(updates: Updates) -> None:
    updates.ask_wheels(alpha(updates.root / "wheels", "2.0", works=False))
    assert updates.run().returncode == 0
    assert updates.works_with() == "1.0"
    assert len([path for path in (updates.root / ".env.torchproof").iterdir() if path.is_dir()]) == 2
    updates.ask_wheels(alpha(updates.root / "wheels", "3.0"))
    assert updates.run().returncode == 0
    assert updates.works_with() == "3.0"
    assert len([path for path in (updates.root / ".env.torchproof").iterdir() if path.is_dir()]) == 1


def test_two_runs_at_once_do_not_meet(updates: Updates) -> None:
    import fcntl  # noqa: PLC0415

    updates.ask_wheels(alpha(updates.root / "wheels", "2.0"))
    with (updates.root / ".env.torchproof/lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        done = updates.run()
    assert done.returncode == 2
    assert done.stdout.strip() == "prefix-busy"
    assert updates.works_with() == "1.0"


class BrokenIndex(SmallIndex):
    """Has an error for one file."""

    broken = ""

    def answer(self, path: str, authorization: str | None) -> tuple[int, str, bytes]:
        status, kind, body = super().answer(path, authorization)
        if self.broken and path == f"/files/{self.broken}":
            return 500, "text/plain", b""
        return status, kind, body


@pytest.mark.parametrize("fault", ["broken", "cut_off"])
def test_index_that_goes_away_in_the_middle_leaves_the_old_environment(updates: Updates, fault: str) -> None:
    """`cut_off`: the connection ends in the middle of a file."""
    folder = updates.root / "made"
    files = []
    for path in (make_wheel(folder, "beta", "2.0"), alpha(folder, "2.0")):
        files.append(StandIn(name=path.name.split("-")[0], filename=path.name, data=path.read_bytes(), metadata=None))
    shutil.rmtree(updates.root / "wheels")
    updates.ask(*((f"{n}0-part.txt", "==".join(f.filename.split("-")[:2]), f.sha256) for n, f in enumerate(files, 1)))
    with BrokenIndex(files) as index:
        updates.index(index.url)
        setattr(index, fault, files[1].filename)
        cut = updates.run()
        assert cut.stdout.strip() == "index-unreachable-in-build"
        assert cut.returncode == 6
        assert updates.works_with() == "1.0"
        setattr(index, fault, "")
        asked = len([path for path in index.asked if path == f"/files/{files[0].filename}"])
        again = updates.run()
        assert again.returncode == 0, again.stderr
        assert "continuing after 10-part.txt" in again.stderr
        assert len([path for path in index.asked if path == f"/files/{files[0].filename}"]) == asked
    assert updates.works_with() == "2.0"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB in a file."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    image, mount = tmp_path / "disk.img", tmp_path / "disk"
    mount.mkdir()
    with image.open("wb") as stream:
        stream.truncate(24 * 2**20)
    try:
        subprocess.run(["mkfs.ext4", "-q", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be loop-mounted here: {error}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", mount], check=True, capture_output=True)


def test_disk_that_fills_up_leaves_the_old_environment(small_disk: Path) -> None:
    updates = Updates(small_disk / "work")
    wheels = updates.root / "wheels"
    updates.ask_wheels(alpha(wheels, "1.0"))
    assert updates.run().returncode == 0
    body = "".join(f"x{n} = '{hashlib.sha256(str(n).encode()).hexdigest()}'\n" for n in range(200_000))
    big = make_wheel(small_disk.parent / "big", "beta", "1.0", body)
    (wheels / big.name).symlink_to(big)
    updates.ask_wheels(alpha(wheels, "2.0"), wheels / big.name)
    # Twice its size: once in the cache, once in the environment.
    full = updates.run(UV_LINK_MODE="copy")
    assert full.stdout.strip() == "disk-full", full.stderr
    assert full.returncode == 7
    assert updates.works_with() == "1.0"
    updates.ask_wheels(alpha(wheels, "2.0"))
    after = updates.run()
    assert after.returncode == 0, after.stdout + after.stderr
    assert updates.works_with() == "2.0"


def test_edit_in_one_environment_does_not_reach_the_next(updates: Updates) -> None:
    """uv links files from its cache: the edit is in the cache, too, and would be installed as the wheel's own."""
    module = next(updates.env.glob("lib/python3*/site-packages/beta.py"))
    if module.stat().st_nlink == 1:
        pytest.skip("uv copies here, so nothing is shared")
    with module.open("a", encoding="utf-8") as stream:
        stream.write("# edited in place\n")
    wheels = updates.root / "wheels"
    updates.ask_wheels(alpha(wheels, "2.0"), wheels / "beta-1.0-py3-none-any.whl")
    done = updates.run()
    assert done.returncode == 0, done.stderr
    assert "changed in uv's cache, so fetched again: beta" in done.stderr
    fresh = next(updates.env.glob("lib/python3*/site-packages/beta.py"))
    assert "edited" not in fresh.read_text(encoding="utf-8")
    assert json.loads((updates.env / ".torchproof.json").read_text(encoding="utf-8"))["image_id"] == "small"
