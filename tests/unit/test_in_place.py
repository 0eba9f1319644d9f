"""The in-place engine with real uv and wheels made here: no index is asked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from builder import installed, process_tree
from builder.engine import BuildPlan, BuildTarget, BuiltImage, ExecResult, Limits
from builder.errors import BuildError, EngineError, PackageIndexError, StaleLockError, TorchproofError, UsageError
from builder.in_place import InPlaceEngine
from builder.in_place_install import install_arguments, read_exports
from builder.lockfile import LockedPackage

SMALL = Limits(memory_bytes=2**30)
CHECKOUT = Path(__file__).resolve().parents[2]


def make_wheel(folder: Path, name: str, version: str, body: str = "VALUE = 1\n", *, script: bool = False) -> Path:
    """A wheel with one module, and a console script when asked for."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
    record = "".join(f"{path},sha256={_urlsafe(content)},{len(content)}\n" for path, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return wheel


def wheel_of(wheel: Path) -> LockedPackage:
    """As a lock names it."""
    name, version = wheel.name.split("-")[:2]
    data = wheel.read_bytes()
    return LockedPackage(
        name=name,
        version=version,
        filename=wheel.name,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        kind="wheel",
        source="wheelhouse",
        group="rest",
    )


def _urlsafe(content: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()


class World:
    """A rendered context, a wheel folder and an engine, all below one temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wheels = root / "wheels"
        self.context = root / "context"
        self.lines: list[str] = []
        (self.context / "requirements").mkdir(parents=True)
        self.environ = {**os.environ, "UV_CACHE_DIR": str(root / "cache"), "TMPDIR": str(root / "tmp")}
        (root / "tmp").mkdir()
        self.engine = InPlaceEngine(root / "envs", environ=self.environ)

    def require(self, file: str, *wheels: Path, wrong_hash: bool = False) -> None:
        lines = []
        for wheel in wheels:
            name, version = wheel.name.split("-")[:2]
            digest = "0" * 64 if wrong_hash else hashlib.sha256(wheel.read_bytes()).hexdigest()
            lines.append(f"{name}=={version} --hash=sha256:{digest}\n")
        (self.context / "requirements" / file).write_text("".join(lines), encoding="utf-8")

    def plan(self, **values: object) -> BuildPlan:
        fields: dict[str, object] = {
            "folder": self.context,
            "bake_file": "docker-bake.json",
            "targets": (BuildTarget(image_id="small", tag="small"),),
            "contexts": {"wheelhouse": str(self.wheels)},
            "log_file": self.root / "build.log",
            "python": sys.executable,
        }
        # Without an index, uv would ask the default one for what the folder does not have.
        index = self.root / "index.env"
        index.write_text(f"export UV_DEFAULT_INDEX='{(self.root / 'no-index').as_uri()}'\n", encoding="utf-8")
        fields["secrets"] = {"index": index}
        return BuildPlan(**(fields | values))  # type: ignore[arg-type]

    def build(self, **values: object) -> BuiltImage:
        return self.engine.build(self.plan(**values), self.lines.append)["small"]

    def environments(self) -> int:
        """How many lie on the disk, in use or beside."""
        return len([path for path in (self.root / "envs/.small.torchproof").iterdir() if path.is_dir()])

    def run(self, image: BuiltImage, script: str, *, timeout_s: float = 30, limits: Limits = SMALL) -> ExecResult:
        files = {"script.py": textwrap.dedent(script).encode()}
        with self.engine.session(image, files, limits, gpus=False) as session:
            return session.run([*session.python(), f"{session.smoke_folder}/script.py"], timeout_s=timeout_s)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    (tmp_path / "no-index").mkdir()
    world.require(
        "10-one.txt", make_wheel(world.wheels, "alpha", "1.0", "def main():\n    print('ran')\n", script=True)
    )
    world.require("20-two.txt", make_wheel(world.wheels, "beta", "2.0"))
    return world


def test_builds_all_groups_in_order_and_scripts_survive_the_switch(world: World) -> None:
    image = world.build()
    assert image.digest_kind == "installed-files"
    assert image.size_bytes > 0
    assert world.lines.index("small: 10-one.txt") < world.lines.index("small: 20-two.txt")
    result = subprocess.run([f"{image.reference}/bin/alpha"], capture_output=True, text=True, check=True)
    assert result.stdout == "ran\n"
    assert world.environments() == 1


def test_same_wheels_give_the_same_digest_elsewhere(world: World) -> None:
    first = world.build()
    second = world.build(venv=world.root / "elsewhere" / "env")
    assert second.reference != first.reference
    assert second.digest == first.digest


def test_one_changed_module_changes_the_digest(world: World) -> None:
    first = world.build()
    world.require("20-two.txt", make_wheel(world.wheels, "beta", "2.0", "VALUE = 2\n"))
    assert world.build().digest != first.digest


def test_second_build_of_the_same_lock_installs_nothing(world: World) -> None:
    first = world.build()
    world.lines.clear()
    assert world.build().digest == first.digest
    assert len(world.lines) == 1
    assert "already installed" in world.lines[0]


def test_failed_install_leaves_the_old_environment(world: World) -> None:
    first = world.build()
    world.require("30-three.txt", make_wheel(world.wheels, "gamma", "1.0"), wrong_hash=True)
    with pytest.raises(StaleLockError) as caught:
        world.build()
    assert caught.value.code == "hash-mismatch"
    assert str(world.root / "build.log") in str(caught.value)
    assert installed.digest(Path(first.reference)) == first.digest
    assert world.environments() == 1


def test_missing_package_is_a_failed_step(world: World) -> None:
    wheel = make_wheel(world.wheels, "gamma", "1.0")
    world.require("30-three.txt", wheel)
    wheel.unlink()
    with pytest.raises(BuildError) as caught:
        world.build()
    assert caught.value.code == "build-step-failed"
    assert "gamma" in (caught.value.detail or "")
    assert not (world.root / "envs" / "small").exists()


def test_index_that_does_not_answer_is_told_apart(world: World) -> None:
    wheel = make_wheel(world.wheels, "gamma", "1.0")
    world.require("30-three.txt", wheel)
    wheel.unlink()
    index = world.root / "dead.env"
    index.write_text("export UV_DEFAULT_INDEX='http://joe:hunter22@127.0.0.1:9/simple'\nexport UV_HTTP_RETRIES='0'\n")
    with pytest.raises(PackageIndexError) as caught:
        world.build(secrets={"index": index})
    assert caught.value.code == "index-unreachable-in-build"
    log = (world.root / "build.log").read_text(encoding="utf-8")
    assert "hunter22" not in log + str(caught.value) + "".join(world.lines)


def test_python_that_is_not_here_is_named(world: World) -> None:
    with pytest.raises(EngineError) as caught:
        world.build(python="3.5")
    assert caught.value.code == "python-missing"
    assert "3.5" in str(caught.value)


def test_refuses_what_cannot_fit(world: World) -> None:
    with pytest.raises(BuildError) as caught:
        world.build(installed_bytes=2**60)
    assert caught.value.code == "disk-full"


def test_never_replaces_a_folder_that_it_did_not_make(world: World) -> None:
    (world.root / "mine").mkdir()
    (world.root / "mine" / "file").write_text("precious", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        world.build(venv=world.root / "mine")
    assert caught.value.code == "prefix-not-ours"
    assert (world.root / "mine" / "file").read_text(encoding="utf-8") == "precious"


def test_environment_that_was_a_folder_becomes_a_link(world: World) -> None:
    first = world.build()
    place = Path(first.reference)
    real = place.resolve()
    place.unlink()
    real.rename(place)
    assert world.build().digest == first.digest
    world.require("20-two.txt", make_wheel(world.wheels, "beta", "2.1"))
    second = world.build()
    assert place.is_symlink()
    assert installed.records(Path(second.reference))["beta"][0] == "2.1"
    assert world.environments() == 1


def test_image_finds_what_was_built_and_nothing_else(world: World) -> None:
    built = world.build()
    assert world.engine.image("small").digest == built.digest
    assert world.engine.image(built.reference).digest == built.digest
    with pytest.raises(EngineError) as caught:
        world.engine.image("never")
    assert caught.value.code == "environment-not-found"
    world.engine.remove(built)
    assert not Path(built.reference).exists()


def test_package_added_after_the_build_is_noticed(world: World) -> None:
    image = world.build()
    site = installed.site_packages(Path(image.reference))
    assert site is not None
    (site / "beta-2.0.dist-info").rename(site / "beta-2.1.dist-info")
    with (
        pytest.raises(TorchproofError) as caught,
        world.engine.session(image, {}, SMALL, gpus=False),
    ):
        pass
    assert caught.value.code == "environment-changed"


def test_environment_of_a_check_is_scrubbed(world: World) -> None:
    world.engine = InPlaceEngine(
        world.root / "envs",
        environ={**world.environ, "PYTHONPATH": "/x", "LD_LIBRARY_PATH": "/x", "WANDB_API_KEY": "x", "LC_ALL": "C"},
    )
    result = world.run(world.build(), "import json, os, beta; print(json.dumps(dict(os.environ)))")
    env = json.loads(result.stdout)
    assert not {"PYTHONPATH", "LD_LIBRARY_PATH", "WANDB_API_KEY", "VIRTUAL_ENV"} & set(env)
    assert env["HOME"] == env["TMPDIR"]
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["LC_ALL"] == "C"
    assert not Path(env["HOME"]).exists()


def test_session_says_that_the_network_is_open(world: World) -> None:
    with world.engine.session(world.build(), {}, SMALL, gpus=False) as session:
        assert session.network_cut is False
        path = session.put("in/request.json", b"{}")
        assert Path(path).read_bytes() == b"{}"
        with pytest.raises(ValueError, match="not a name"):
            session.put("../outside", b"")


def test_gpu_that_is_not_there_is_refused(world: World) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA device")
    with (
        pytest.raises(EngineError) as caught,
        world.engine.session(world.build(), {}, SMALL, gpus=True),
    ):
        pass
    assert caught.value.code == "gpu-not-passed"


def test_hang_is_killed_with_children_that_ignore_sigterm_and_leave_the_session(world: World) -> None:
    result = world.run(
        world.build(),
        """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print(os.getpid(), flush=True)
                time.sleep(600)
            os._exit(0)
        os.wait()
        time.sleep(600)
        """,
        timeout_s=2,
    )
    assert result.timed_out
    assert result.exit_status is None
    assert 2 <= result.seconds < 10
    assert not process_tree.descendants(int(result.stdout))


def test_process_left_behind_ends_with_its_parent(world: World) -> None:
    result = world.run(
        world.build(),
        """
        import subprocess, sys
        print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
        """,
    )
    assert result.exit_status == 0
    assert result.seconds < 10
    assert not process_tree.descendants(int(result.stdout))


def test_memory_above_the_limit_is_told(world: World) -> None:
    script = """
        import time
        kept = []
        for _ in range(100):
            kept.append(bytearray(b"x") * (8 << 20))
            time.sleep(0.02)
        time.sleep(600)
        """
    result = world.run(world.build(), script, limits=Limits(memory_bytes=100 * 2**20))
    assert result.out_of_memory
    assert not result.timed_out
    assert result.exit_status == 128 + signal.SIGKILL


def test_pages_shared_by_forked_workers_count_once(world: World) -> None:
    script = """
        import os, time
        kept = bytearray(b"x") * (60 << 20)
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(0.5)
                os._exit(0)
        time.sleep(0.7)
        """
    result = world.run(world.build(), script, limits=Limits(memory_bytes=150 * 2**20))
    assert result.exit_status == 0
    assert not result.out_of_memory


def test_rubbish_passes_through_and_status_is_kept(world: World) -> None:
    result = world.run(
        world.build(), "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.write('e'); sys.exit(7)"
    )
    assert result.stdout == bytes(range(256))
    assert result.stderr == b"e"
    assert result.exit_status == 7


def test_interrupt_during_a_session_leaves_no_process_and_no_folder(world: World) -> None:
    world.build()
    driver = world.root / "driver.py"
    driver.write_text(
        textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may have it ignored
        from builder.engine import Limits
        from builder.in_place import InPlaceEngine
        engine = InPlaceEngine(Path({str(world.root / "envs")!r}), environ=os.environ)
        with engine.session(engine.image("small"), {{}}, Limits(), gpus=False) as session:
            print(session.scratch, flush=True)
            session.run(["sh", "-c", "echo $$ > pid; trap '' INT TERM; sleep 600; sleep 600"], timeout_s=500)
        """),
        encoding="utf-8",
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        with (
            subprocess.Popen(
                [sys.executable, driver],
                env={**world.environ, "PYTHONPATH": str(CHECKOUT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as process,
            ExitStack() as stack,
        ):
            stack.callback(process.kill)
            assert process.stdout is not None
            scratch = Path(process.stdout.readline().strip())
            pid_file = scratch / "pid"
            end = time.monotonic() + 20
            while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < end:
                time.sleep(0.02)
            child = int(pid_file.read_text())
            process.send_signal(number)
            assert process.wait(20) != 0
        assert not scratch.parent.exists()
        assert not process_tree.descendants(child)
    assert list((world.root / "tmp").iterdir()) == []


def test_arguments_of_an_exclusive_index(world: World) -> None:
    folder = world.context / "requirements"
    plan = world.plan(contexts={}, variant="cu113")
    base = ["--no-deps", "--require-hashes", "-r"]
    torch = folder / "20-torch@torch.txt"
    assert install_arguments(torch, plan, {}) == [*base, str(torch), "--torch-backend", "cu113"]
    mirror = {"TORCHPROOF_TORCH_INDEX": "https://mirror/{variant}"}
    assert install_arguments(torch, plan, mirror)[-2:] == ["--default-index", "https://mirror/cu113"]
    named = folder / "30-rest@team-a.txt"
    assert (
        install_arguments(named, plan, {"TORCHPROOF_INDEX_TEAM_A": "https://a/simple"})[-1] == "team-a=https://a/simple"
    )
    with pytest.raises(PackageIndexError, match="team-a"):
        install_arguments(named, plan, {})


def test_only_export_lines_are_read() -> None:
    text = "# a note\nexport A='one two'\nexport B=\"x\"\nC='no'\nexport D='it'\\''s'\nexport 'broken\n"
    assert read_exports(text) == {"A": "one two", "B": "x", "D": "it's"}
