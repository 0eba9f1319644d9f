"""The smoke scripts' harness and their pure parts: no torch, nothing installed, every way for a script to end."""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from seeded import fault, observe
from smoke_faults import make_nvml

from builder.results import ScriptReport
from builder.scripts import SENT as ALL_SCRIPTS

SMOKE_TESTS = Path(__file__).parents[2] / "smoke_tests"
sys.path.insert(0, str(SMOKE_TESTS))

WRITES_BYTECODE = sys.dont_write_bytecode
import _coverage  # noqa: E402
import _estimate  # noqa: E402
import _harness  # noqa: E402
import _installed  # noqa: E402
import _nvml  # noqa: E402
import _onnx_bytes  # noqa: E402
import _placement  # noqa: E402
import onnx_round_trip  # noqa: E402
import probe  # noqa: E402
import train_step  # noqa: E402
import vram_peak  # noqa: E402

sys.dont_write_bytecode = WRITES_BYTECODE  # the scripts switch it for their own process

SCRIPTS = ("probe", "train_step", "vram_peak", "onnx_round_trip")  # those that need torch


def interpreters():
    """Every Python on the path that starts; a version manager's shim may be there without a version behind it."""
    found = [path for path in (shutil.which(f"python3.{minor}") for minor in range(7, 15)) if path is not None]
    return [
        path for path in found if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ] or [sys.executable]


PYTHONS = interpreters()


def start(argv, *, folder=None, cwd=None, python=sys.executable, smoke_tests=SMOKE_TESTS):
    """-S: without the packages of the tests themselves, so that only what the test lays out is installed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = os.pathsep.join(str(part) for part in (folder, smoke_tests) if part)
    return subprocess.run(
        [python, "-S", *map(str, argv)], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def script(tmp_path):
    """Write a script with the given checks; returns what runs it."""

    def run(body, *argv, defaults="{}", request=None, **options):
        path = tmp_path / "sample.py"
        path.write_text(
            "import os, sys, time\n"
            "from _harness import *\n"
            "from _harness import Failed, NotApplicable, NotChecked, Passed, Script\n"
            f"script = Script('sample', {defaults})\n{body}\nscript.main()\n"
        )
        if request is not None:
            asked = tmp_path / "request.json"
            asked.write_text(request if isinstance(request, str) else json.dumps({"schema_version": 1, **request}))
            argv = ("--request", asked, *argv)
        return start([path, *argv], cwd=tmp_path, **options)

    return run


def checks_of(done):
    return {check["id"]: check for check in json.loads(done.stdout)["checks"]}


PASSES = """
@script.check("works", "L1")
def works(ctx):
    return Passed("fine", measured=1, expected=1)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_one_document_of_the_contract(script, python):
    done = script(PASSES, python=python)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"schema_version", "script", "seconds", "environment", "peak_rss_bytes", "checks"}
    assert document["script"] == "sample"
    assert document["peak_rss_bytes"] > 2**20
    check = document["checks"][0]
    assert (check["id"], check["level"], check["status"], check["code"]) == ("sample.works", "L1", "passed", None)
    assert {"message", "measured", "expected", "tolerance", "details"} <= set(check)


def test_the_host_reads_it(script):
    ScriptReport.model_validate_json(script(PASSES).stdout)


def test_prints_from_python_c_and_children_stay_out_of_the_document(script):
    done = script(
        """
import ctypes, subprocess
@script.check("noisy", "L1")
def noisy(ctx):
    print("from print")
    os.write(1, b"from a descriptor\\n")
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    libc.fflush(None)
    subprocess.call(["echo", "from a child"])
    return Passed("done")
"""
    )
    assert checks_of(done)["sample.noisy"]["status"] == "passed"
    for source in ("print", "a descriptor", "C", "a child"):
        assert f"from {source}" in done.stderr


def test_result_file_is_whole_and_stdout_empty(script, tmp_path):
    done = script(PASSES, "--result", tmp_path / "result.json")
    assert done.stdout == ""
    assert json.loads((tmp_path / "result.json").read_text())["script"] == "sample"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("ending", "status", "code", "exit_status"),
    [
        ("raise Failed('too-bad', 'it is bad')", "failed", "too-bad", 1),
        ("return Failed('too-bad', 'it is bad')", "failed", "too-bad", 1),
        ("raise NotChecked('no reason to')", "not-checked", None, 0),
        ("raise NotApplicable('not here')", "not-checked", "not-applicable", 0),
        ("raise ValueError('a slip')", "errored", "check-broke", 2),
        ("return None", "errored", "check-broke", 2),
        ("sys.exit(0)", "errored", "check-broke", 2),
        ("ctx.stack('not_there_at_all')", "failed", "import-failed", 1),
        ("ctx.stack('json', 'not_there')", "failed", "import-failed", 1),
    ],
)
def test_endings_of_a_check(script, ending, status, code, exit_status):
    done = script(f"@script.check('ends', 'L2')\ndef ends(ctx):\n    {ending}\n")
    check = checks_of(done)["sample.ends"]
    assert (check["status"], check["code"], done.returncode) == (status, code, exit_status)
    if "raise ValueError" in ending or code == "import-failed":
        assert "Traceback" in check["details"]["traceback"]


def test_dependants_name_the_first_cause(script):
    done = script(
        """
@script.check("first", "L1")
def first(ctx):
    raise Failed("broken", "the first is broken")
@script.check("second", "L1", needs=["first"])
def second(ctx):
    return Passed("never")
@script.check("third", "L1", needs=["second"])
def third(ctx):
    return Passed("never")
@script.check("apart", "L1")
def apart(ctx):
    raise NotApplicable("not in this image")
@script.check("of_apart", "L1", needs=["apart"])
def of_apart(ctx):
    return Passed("never")
"""
    )
    checks = checks_of(done)
    for name in ("second", "third"):
        assert checks[f"sample.{name}"]["status"] == "not-checked"
        assert checks[f"sample.{name}"]["message"] == "needs `sample.first`, which failed: the first is broken"
        assert checks[f"sample.{name}"]["code"] is None
    assert checks["sample.of_apart"]["code"] == "not-applicable"
    assert done.returncode == 1


def test_a_hanging_check_is_ended_and_named(script):
    done = script(
        PASSES
        + """
@script.check("hangs", "L1")
def hangs(ctx):
    time.sleep(60)
@script.check("later", "L1")
def later(ctx):
    return Passed("never")
""",
        request={"time_limit_s": 0.5},
    )
    checks = checks_of(done)
    assert checks["sample.works"]["status"] == "passed"
    assert (checks["sample.hangs"]["status"], checks["sample.hangs"]["code"]) == ("failed", "time-limit")
    assert "in hangs" in checks["sample.hangs"]["details"]["stack"]
    assert checks["sample.later"]["status"] == "not-checked"
    assert done.returncode == 1


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("death", "code", "blame"),
    [
        ("ctypes.string_at(0)", "crashed", "image"),
        ("os.abort()", "crashed", "image"),
        ("os._exit(0)", "process-left", "image"),
        ("os.kill(os.getpid(), 9)", "killed", "host"),
    ],
)
def test_a_process_that_dies_costs_one_check(script, death, code, blame, python):
    body = f"""
import ctypes
@script.check("dies", "L1")
def dies(ctx):
    {death}
@script.check("later", "L1")
def later(ctx):
    return Passed("never")
"""
    done = script(PASSES + body, python=python)
    checks = checks_of(done)
    assert checks["sample.works"]["status"] == "passed"
    assert (checks["sample.dies"]["status"], checks["sample.dies"]["code"]) == ("failed", code)
    assert checks["sample.dies"]["blame"] == blame
    assert checks["sample.later"]["status"] == "not-checked"
    assert done.returncode == 1
    if code == "crashed":
        assert "in dies" in checks["sample.dies"]["details"]["stack"]


def test_a_crash_while_the_process_ends_is_told(script):
    body = "import atexit\n@script.check('ok', 'L1')\ndef ok(ctx):\n    atexit.register(os.abort)\n"
    body += "    return Passed('ok')\n"
    checks = checks_of(script(body))
    assert checks["sample.ok"]["status"] == "passed"
    assert checks["sample.exit"]["code"] == "crashed-at-exit"


def test_a_hang_that_holds_the_interpreter_is_ended_too(script):
    body = "import ctypes\n@script.check('hangs', 'L1')\ndef hangs(ctx):\n    ctypes.PyDLL(None).sleep(60)\n"
    check = checks_of(script(body, request={"time_limit_s": 0.5}))["sample.hangs"]
    assert check["code"] == "time-limit"
    assert "in hangs" in check["details"]["stack"]


def test_no_child_outlives_a_killed_script(tmp_path):
    path = tmp_path / "sample.py"
    path.write_text(
        "import os, time\nfrom _harness import Script\nscript = Script('sample', {})\n"
        "@script.check('hangs', 'L1')\ndef hangs(ctx):\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n    time.sleep(60)\nscript.main()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(SMOKE_TESTS), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, path], env=env, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    child = Path("/proc") / (tmp_path / "pid").read_text()
    while child.exists() and "Z" not in (child / "stat").read_text().split() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "Z" in (child / "stat").read_text().split()


def test_numbers_that_json_does_not_have(script):
    done = script(
        "@script.check('odd', 'L1')\ndef odd(ctx):\n"
        "    return Passed('odd', measured=float('nan'), values=[float('inf'), {1: (2, {3})}, object])\n"
    )
    check = checks_of(done)["sample.odd"]
    assert check["measured"] == "nan"
    assert check["details"]["values"][:2] == ["inf", {"1": [2, [3]]}]


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        ("{", "request.json"),
        ("[]", "a JSON object is expected"),
        ('{"schema_version": 2}', "schema_version is 2"),
        ('{"schema_version": 1, "packges": {}}', "unknown key `packges`"),
        ('{"schema_version": 1, "packages": []}', "`packages` has the wrong type"),
        ('{"schema_version": 1, "time_limit_s": 0}', "must be above 0"),
        ('{"schema_version": 1, "params": {"stepz": 1}}', "unknown parameter `stepz`"),
        ('{"schema_version": 1, "params": {"steps": "3"}}', "parameter `steps` is '3'"),
        ('{"schema_version": 1, "params": {"steps": true}}', "parameter `steps` is True"),
    ],
)
def test_a_request_that_cannot_be_read(script, request_text, words):
    done = script(PASSES, request=request_text, defaults="{'steps': 3, 'rate': 0.5}")
    assert (done.returncode, done.stdout) == (3, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_request_file(script, tmp_path):
    assert script(PASSES, "--request", tmp_path / "nowhere.json").returncode == 3


def test_parameters_keep_their_defaults(script):
    body = "@script.check('p', 'L1')\ndef p(ctx):\n    return Passed('p', measured=ctx.params)\n"
    done = script(body, request={"params": {"rate": 1}}, defaults="{'steps': 3, 'rate': 0.5}")
    assert checks_of(done)["sample.p"]["measured"] == {"steps": 3, "rate": 1}


def test_own_scratch_is_removed_and_a_given_one_is_used(script, tmp_path):
    body = """
import tempfile
@script.check('where', 'L1')
def where(ctx):
    with tempfile.NamedTemporaryFile() as file:
        place = os.path.dirname(file.name)
    return Passed('here', measured=[ctx.scratch, place, os.environ["HF_HOME"], os.environ["HF_HUB_OFFLINE"]])
"""
    own = checks_of(script(body))["sample.where"]["measured"]
    assert own[0] == own[1] == own[2]
    assert own[3] == "1"
    assert not Path(own[0]).exists()
    given = tmp_path / "scratch"
    assert checks_of(script(body, request={"scratch": str(given)}))["sample.where"]["measured"][0] == str(given)
    assert given.is_dir()


@pytest.mark.parametrize("path", sorted(SMOKE_TESTS.glob("*.py")), ids=lambda path: path.name)
def test_files_parse_on_the_oldest_python_and_never_import_the_tool(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 7))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.split(".")[0] in ("builder", "pydantic", "packaging")]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_without_a_stack_a_script_says_so(name, python, tmp_path):
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"schema_version": 1, "packages": {"torch": "2.0", "onnxruntime": "1.0"}}))
    folder = tmp_path / "smoke_tests"
    shutil.copytree(SMOKE_TESTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = sorted(folder.iterdir())
    done = start([folder / f"{name}.py", "--request", request], python=python, smoke_tests=folder)
    assert done.returncode == 1, done.stderr
    codes = {check["code"] for check in json.loads(done.stdout)["checks"] if check["status"] == "failed"}
    assert "import-failed" in codes
    assert sorted(folder.iterdir()) == before, "a script writes beside itself"


@pytest.mark.parametrize(
    ("flags", "capability", "covered_by"),
    [
        ("sm_37 sm_50 sm_60 sm_70", "8.6", None),
        ("sm_37 sm_50 sm_60 sm_70", "7.5", "sm_70"),
        ("sm_70 sm_80 sm_86", "8.6", "sm_86"),
        ("sm_70 sm_80", "8.9", "sm_80"),
        ("sm_86", "8.0", None),
        ("sm_90a", "9.0", "sm_90a"),
        ("sm_100a", "10.3", None),
        ("sm_100f", "10.3", "sm_100f"),
        ("sm_100f", "12.0", None),
        ("sm_120", "12.1", "sm_120"),
        ("sm_80 compute_80", "9.0", "compute_80"),
        ("sm_80 compute_80", "7.5", None),
        ("compute_90a", "10.0", None),
        ("compute_90", "12.0", "compute_90"),
        ("compute_100f", "12.0", None),
        ("sm_80 sm_90 compute_90", "9.0", "sm_90"),
    ],
)
def test_coverage(flags, capability, covered_by):
    parsed, unknown = _coverage.parse_flags(flags)
    assert not unknown
    assert _coverage.covering_flag(parsed, _coverage.parse_capability(capability)) == covered_by


def test_unknown_flags_are_told():
    assert _coverage.parse_flags("sm_80 gfx90a")[1] == ["gfx90a"]


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("2022.12.7", "2022.12.07", True),
        ("1.0", "1.0.0", True),
        ("1.0rc1", "1.0.RC-1", True),
        ("1.0-1", "1.0.post1", True),
        ("1.0.post", "1.0.post0", True),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("1.12.1+cu113", "1.12.1+cu116", False),
        ("13.9", "13.10", False),
        ("1.0", "1.0.dev1", False),
        ("not a version", "not a version ", True),
    ],
)
def test_versions_are_compared_as_versions(left, right, equal):
    assert (_installed.version_key(left) == _installed.version_key(right)) is equal


def failure_codes():
    """Every code that a script can fail with, as its source says it."""
    found = set()
    for path in SMOKE_TESTS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "id", None)
            position = {"Failed": 0, "Errored": 0, "blame_stack": 1, "compare_peak": 1}.get(name)
            if position is not None and isinstance(node.args[position], ast.Constant):
                found.add(node.args[position].value)
    return found


def test_docs_list_every_check_and_every_code():
    page = (SMOKE_TESTS.parent / "docs" / "smoke-tests.md").read_text()
    for name in ALL_SCRIPTS:
        for check in importlib.import_module(name).script.checks:
            assert f"`{name}.{check.name.replace('dynamo', 'torchscript')}`" in page
    assert [code for code in sorted(failure_codes()) if f"`{code}`" not in page] == []


def test_the_tables_are_what_would_be_written():
    done = subprocess.run(
        [sys.executable, SMOKE_TESTS.parent / "bin" / "smoke_table.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_code_has_a_test_in_which_it_is_seen():
    tests = SMOKE_TESTS.parent / "tests"
    text = "".join(path.read_text() for path in sorted(tests.glob("*/test_smoke*.py")))
    codes = failure_codes()
    assert len(codes) > 40
    assert [code for code in sorted(codes) if f'"{code}"' not in text] == []


# --- probe: a fake stack on the path ---------------------------------------------------------------------------------

TORCH = """
class version:
    cuda = {cuda!r}
    hip = None
class _C:
    @staticmethod
    def _cuda_getArchFlags():
        return {flags!r}
__version__ = {version!r}
__file__ = "torch/__init__.py"
"""
REQUEST = {
    "schema_version": 1,
    "python": "{}.{}".format(*sys.version_info),
    "packages": {"torch": "1.12.1"},
    "variant": "cu102",
    "gpus": [{"name": "V100", "compute_capability": "7.0"}],
}


class Stack:
    """A folder that looks like site-packages."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.package(
            "torch", "1.12.1", TORCH.format(cuda="10.2", flags="sm_37 sm_50 sm_60 sm_70", version="1.12.1+cu102")
        )

    def package(self, name, version, code="", *, suffix=""):
        info = self.folder / f"{name.replace('-', '_')}-{version}{suffix}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: not this\n")
        if code:
            (self.folder / f"{name.replace('-', '_')}.py").write_text(code)

    def probe(self, **changes):
        request = self.folder.parent / "request.json"
        request.write_text(json.dumps({**REQUEST, **changes}))
        done = start([SMOKE_TESTS / "probe.py", "--request", request], folder=self.folder)
        found = {check["id"].partition(".")[2]: check for check in json.loads(done.stdout)["checks"]}
        observe("probe", found)
        return found


@pytest.fixture
def stack(tmp_path):
    return Stack(tmp_path / "site")


def test_probe_passes_where_all_is_as_locked(stack):
    checks = stack.probe()
    for name in (
        "python_version", "packages_installed", "versions_match", "no_extra_packages", "one_copy_each", "torch_imports",
        "torch_variant", "arch_list",
    ):  # fmt: skip
        assert checks[name]["status"] == "passed", checks[name]
    assert checks["torchvision"]["code"] == "not-applicable"


OTHER_REQUESTS = [
    ({"python": "3.6"}, "python_version", "python-mismatch"),
    ({"packages": {"torch": "1.12.1", "numpy": "1.24.1"}}, "packages_installed", "package-missing"),
    ({"packages": {"torch": "1.13.1"}}, "versions_match", "version-mismatch"),
    ({"packages": {"numpy": "1.24.1"}}, "no_extra_packages", "package-extra"),
    ({"variant": "cu113"}, "torch_variant", "variant-mismatch"),
    ({"gpus": [{"name": "RTX 3090", "compute_capability": "8.6"}]}, "arch_list", "arch-not-covered"),
    ({"packages": {"torch": "1.12.1", "numpy": "1.24.1"}}, "numpy_conversion", "import-failed"),
    ({"packages": {"torch": "1.12.1", "transformers": "4.25.1"}}, "transformers_sees_torch", "import-failed"),
    ({"packages": {"torch": "1.12.1", "torchaudio": "1"}}, "torchaudio", "import-failed"),
    ({"packages": {"torch": "1.12.1", "torchtext": "1"}}, "torchtext", "import-failed"),
    ({"packages": {"torch": "1.12.1", "torchvision": "1"}}, "torchvision", "import-failed"),
]


@pytest.mark.parametrize(
    ("changes", "name", "code"),
    [pytest.param(*row, marks=fault("probe", {row[1]: row[2]})) for row in OTHER_REQUESTS]
    + [({"packages": {"torch": "1.12.1", "onnxruntime": "1"}}, "onnxruntime_providers", None)],
)
def test_probe_fails_against_another_request(stack, changes, name, code):
    check = stack.probe(**changes)[name]
    assert (check["status"], check["code"]) == (("failed", code) if code else ("not-checked", "not-applicable"))


def test_probe_unknown_is_not_passed(stack):
    assert stack.probe(gpus=[{"name": "A100"}])["arch_list"]["status"] == "not-checked"
    assert stack.probe(gpus=[])["arch_list"]["code"] == "not-applicable"
    assert stack.probe(variant=None)["torch_variant"]["status"] == "not-checked"
    assert stack.probe(packages={})["versions_match"]["status"] == "not-checked"


@fault("probe", {"no_extra_packages": "package-extra"})
def test_probe_tolerates_pip_only(stack):
    stack.package("pip", "24.0")
    assert stack.probe()["no_extra_packages"]["status"] == "passed"
    assert stack.probe(params={"tolerated_packages": []})["no_extra_packages"]["code"] == "package-extra"


@fault("probe", {"one_copy_each": "package-duplicated"})
def test_probe_finds_two_descriptions_of_one_package(stack):
    stack.package("Torch", "1.12.1", suffix="-old")
    assert stack.probe()["one_copy_each"]["code"] == "package-duplicated"


@fault("probe", {"torch_imports": "torch-swapped"})
def test_probe_finds_a_swapped_torch(stack):
    (stack.folder / "torch.py").write_text(TORCH.format(cuda="11.7", flags="sm_70", version="1.13.1+cu117"))
    checks = stack.probe()
    assert checks["torch_imports"]["code"] == "torch-swapped"
    assert checks["torch_variant"]["status"] == "not-checked"


@fault("probe", {"torch_imports": "torch-swapped"})
def test_probe_finds_torch_without_metadata(stack):
    shutil.rmtree(stack.folder / "torch-1.12.1.dist-info")
    assert stack.probe(packages={})["torch_imports"]["code"] == "torch-swapped"


@fault("probe", {"torch_imports": "import-failed"})
def test_probe_reports_a_torch_that_does_not_import(stack):
    (stack.folder / "torch.py").write_text("raise OSError('libcudart.so.10.2: cannot open shared object file')")
    check = stack.probe()["torch_imports"]
    assert check["code"] == "import-failed"
    assert "libcudart.so.10.2" in check["message"]


@fault("probe", {"arch_list": "cpu-build-for-gpu-target", "torch_variant": "variant-mismatch"})
def test_probe_finds_a_cpu_build_for_a_gpu(stack):
    (stack.folder / "torch.py").write_text(TORCH.format(cuda=None, flags=None, version="1.12.1+cpu"))
    checks = stack.probe()
    assert checks["arch_list"]["code"] == "cpu-build-for-gpu-target"
    assert checks["torch_variant"]["code"] == "variant-mismatch"


@fault("probe", {"onnxruntime_providers": "provider-missing", "onnxruntime_single": "onnxruntime-both"})
def test_probe_onnxruntime(stack):
    stack.package("onnxruntime", "1.13.1", "def get_available_providers(): return ['CPUExecutionProvider']")
    locked = {"torch": "1.12.1", "onnxruntime": "1.13.1"}
    assert stack.probe(packages=locked)["onnxruntime_providers"]["status"] == "passed"
    gpu = {"torch": "1.12.1", "onnxruntime-gpu": "1.13.1"}
    assert stack.probe(packages=gpu)["onnxruntime_providers"]["code"] == "provider-missing"
    stack.package("onnxruntime-gpu", "1.13.1")
    checks = stack.probe(packages={**locked, **gpu})
    assert checks["onnxruntime_single"]["code"] == "onnxruntime-both"
    assert checks["onnxruntime_providers"]["status"] == "not-checked"


@fault("probe", {"onnxruntime_providers": "import-failed"})
def test_probe_an_onnxruntime_that_does_not_import(stack):
    stack.package("onnxruntime", "1.13.1", "raise ImportError('libcublas.so.11: cannot open shared object file')")
    check = stack.probe(packages={"torch": "1.12.1", "onnxruntime": "1.13.1"})["onnxruntime_providers"]
    assert check["code"] == "import-failed"
    assert "libcublas.so.11" in check["message"]


@fault("probe", {"transformers_sees_torch": "transformers-without-torch"})
def test_probe_transformers_that_do_not_see_torch(stack):
    stack.package("transformers", "5.0")
    package = stack.folder / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '5.0'\nBertModel = 1\n")
    (package / "utils.py").write_text("def is_torch_available(): return False")
    locked = {"torch": "1.12.1", "transformers": "5.0"}
    assert stack.probe(packages=locked)["transformers_sees_torch"]["code"] == "transformers-without-torch"


@fault("probe", {"numpy_conversion": "numpy-abi"})
def test_probe_numpy_of_another_abi(stack):
    stack.package("numpy", "2.0.0", "class A:\n def reshape(s, *a): return s\n astype = reshape\n"
                  "def arange(n): return A()\n"
                  "__version__ = '2.0.0'")  # fmt: skip
    with (stack.folder / "torch.py").open("a") as torch:
        torch.write("\ndef from_numpy(array): raise RuntimeError('Numpy is not available')\n")
    check = stack.probe(packages={"torch": "1.12.1", "numpy": "2.0.0"})["numpy_conversion"]
    assert check["code"] == "numpy-abi"
    assert "Numpy is not available" in check["message"]


@fault("probe", {"torchvision": "torchvision-ops"})
def test_probe_torchvision_without_operators(stack):
    stack.package("torchvision", "0.13.1")
    package = stack.folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '0.13.1'")
    (package / "ops.py").write_text("def nms(*a): raise RuntimeError('operator torchvision::nms does not exist')")
    with (stack.folder / "torch.py").open("a") as torch:
        torch.write("\ndef tensor(values): return values\n")
    locked = {"torch": "1.12.1", "torchvision": "0.13.1"}
    assert stack.probe(packages=locked)["torchvision"]["code"] == "torchvision-ops"


# --- the GPU parts, with a driver and a torch made of plain objects ---------------------------------------------------


class FakeNvml:
    found = ({"name": "V100", "compute_capability": "7.0"},)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def driver_version(self):
        return "470.57"

    def driver_runtime(self):
        return "11.4"

    def devices(self):
        return list(self.found)


def gpu_context(**cuda):
    card = {
        "init": lambda: None,
        "device_count": lambda: 1,
        "get_device_name": lambda _index: "V100",
        "get_device_capability": lambda _index: (7, 0),
        **cuda,
    }
    torch = SimpleNamespace(
        __version__="1.12.1",
        version=SimpleNamespace(cuda="11.3"),
        cuda=SimpleNamespace(**card),
        _C=SimpleNamespace(_cuda_getArchFlags=lambda: "sm_70 sm_80"),
        float32="float32",
    )
    return SimpleNamespace(made={"torch": torch}, environment={}, params={})


def ended(check, context):
    try:
        return check(context)
    except _harness.Outcome as outcome:
        return outcome


def raises(error):
    def call(*_args, **_options):
        raise error

    return call


@fault("probe", {"gpu_usable": "cuda-init-failed"})
def test_probe_gpu_usable(monkeypatch):
    monkeypatch.setattr(probe, "Nvml", FakeNvml)
    context = gpu_context()
    assert ended(probe.gpu_usable, context).status == "passed"
    assert context.environment["gpu"] == {"name": "V100", "compute_capability": "7.0"}
    outcome = ended(probe.gpu_usable, gpu_context(init=raises(RuntimeError("driver too old"))))
    assert (outcome.code, outcome.blame) == ("cuda-init-failed", "host")
    monkeypatch.setattr(FakeNvml, "found", ())
    assert ended(probe.gpu_usable, gpu_context()).status == "not-checked"


@fault("probe", {"gpu_usable": "driver-library-missing"})
def test_probe_gpu_without_a_driver_library(monkeypatch):
    monkeypatch.setattr(probe, "Nvml", raises(_nvml.NvmlError("not there")))
    monkeypatch.setattr(probe.glob, "glob", lambda _pattern: [])
    assert ended(probe.gpu_usable, gpu_context()).status == "not-checked"
    monkeypatch.setattr(probe.glob, "glob", lambda _pattern: ["/dev/nvidia0"])
    outcome = ended(probe.gpu_usable, gpu_context())
    assert (outcome.code, outcome.blame) == ("driver-library-missing", "host")


@fault("probe", {"gpu_covered": "gpu-not-covered"})
def test_probe_gpu_covered():
    assert ended(probe.gpu_covered, gpu_context()).status == "passed"
    assert ended(probe.gpu_covered, gpu_context(get_device_capability=lambda _i: (9, 0))).code == "gpu-not-covered"


@fault("probe", {"gpu_kernel": "kernel-failed"})
@fault("probe", {"gpu_kernel": "kernel-wrong"})
def test_probe_gpu_kernel():
    context = gpu_context()
    context.made["torch"].arange = raises(RuntimeError("no kernel image is available"))
    assert ended(probe.gpu_kernel, context).code == "kernel-failed"

    class Wrong(float):
        device = "cuda:0"

        def sum(self):
            return self

        def item(self):
            return 0.0

        __mul__ = __add__ = __matmul__ = lambda self, _other: self

    context.made["torch"].arange = context.made["torch"].ones = lambda *_args, **_options: Wrong(0)
    assert ended(probe.gpu_kernel, context).code == "kernel-wrong"


def test_nvml_that_cannot_be_loaded():
    with pytest.raises(_nvml.NvmlError, match="cannot be loaded"):
        _nvml.Nvml("libnot-there.so.1")


@pytest.fixture
def nvml_library(tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to make a stand-in for the driver's library")

    def make(init=0):
        return str(make_nvml(tmp_path / f"libnvml-{init}.so", init=init))

    return make


def test_nvml_by_ctypes(nvml_library):
    with _nvml.Nvml(nvml_library()) as nvml:
        assert (nvml.driver_version(), nvml.driver_runtime()) == ("535.104.05", "12.2")
        first, second = nvml.devices()
    assert first == {
        "name": "Card 0x700000000000",
        "uuid": "GPU-0x700000000000",
        "compute_capability": "8.6",
        "used_bytes": 5 * 2**30,
    }
    assert second["name"] == "Card 0x700000000001"
    assert second["used_bytes"] is None


def test_nvml_tells_load_and_processes(nvml_library):
    with _nvml.Nvml(nvml_library()) as nvml:
        assert nvml.load(0) == (97, 5 * 2**30)
        assert nvml.processes(0) == [{"pid": 4242, "used_bytes": 64 * 2**20}, {"pid": 4243, "used_bytes": None}]


def test_nvml_without_a_driver(nvml_library):
    with (
        pytest.raises(_nvml.NvmlError, match="`nvmlInit_v2` returned 9: Driver Not Loaded"),
        _nvml.Nvml(nvml_library(9)),
    ):
        pass


@fault("train_step", {"on_gpu": "not-on-gpu"})
def test_train_step_not_on_the_gpu():
    tensors = [SimpleNamespace(device=SimpleNamespace(type="cpu"))]
    loop = SimpleNamespace(
        device="cuda",
        loss_place="cuda",
        model=SimpleNamespace(parameters=lambda: tensors),
        torch=SimpleNamespace(cuda=SimpleNamespace(max_memory_allocated=lambda: 1)),
    )
    context = SimpleNamespace(made={"loop": loop}, environment={"device": "cuda", "gpu": {"name": "V100"}})
    assert train_step.run_level(context) == "L3"
    assert ended(train_step.on_gpu, context).code == "not-on-gpu"
    tensors[0].device.type = "cuda"
    assert ended(train_step.on_gpu, context).status == "passed"


# --- VRAM: the closed form and its judgement -------------------------------------------------------------------------

BERT_BASE = {
    "layers": 12, "hidden": 768, "heads": 12, "intermediate": 3072, "vocab": 30522, "positions": 512, "batch": 32,
    "seq": 128, "precision": "fp16", "attention": "sdpa", "optimizer": "adamw", "zero_grad": "none",
}  # fmt: skip
MIB = 2**20


def test_parameters_of_bert_base():
    assert _estimate.parameter_count(BERT_BASE) == 109_483_778


def test_estimate_against_a_traced_step():
    """BERT-base classifier, batch 32, sequence 128, fp16, fused attention: 3050 MiB allocated from step 2 on."""
    assert _estimate.first_estimate(BERT_BASE)["allocated"] / MIB == pytest.approx(3050, rel=0.06)


def test_small_batches_peak_in_the_optimizer():
    terms = _estimate.first_estimate({**BERT_BASE, "batch": 1})["terms"]
    assert "temporaries of the optimizer" in terms
    assert "activations" in _estimate.first_estimate({**BERT_BASE, "batch": 256})["terms"]


@pytest.mark.parametrize(
    "change", [{"attention": "eager"}, {"zero_grad": "zero"}, {"batch": 64}, {"precision": "fp32"}]
)
def test_estimate_grows(change):
    base = {**BERT_BASE, "seq": 512}
    assert _estimate.first_estimate({**base, **change})["allocated"] > _estimate.first_estimate(base)["allocated"]


@pytest.mark.parametrize(
    ("measured", "status"), [(1000, "passed"), (1099, "passed"), (800, "failed"), (1200, "failed")]
)
def test_compare_peak(measured, status):
    terms = {"weights": 400 * MIB, "activations": 600 * MIB}
    outcome = vram_peak.compare_peak("peak", "vram-estimate-off", measured * MIB, 1000 * MIB, 0.1, terms)
    assert outcome.status == status
    if status == "failed":
        assert outcome.code == "vram-estimate-off"
        assert outcome.message.startswith(
            f"peak: {measured} MiB measured, 1000 MiB estimated, ratio {measured / 1000:.3f}"
        )
        assert "activations 600 MiB, weights 400 MiB" in outcome.message


def measured_context(**changes):
    measured = {
        "peak_allocated_bytes": 1000 * MIB, "peak_reserved_bytes": 1100 * MIB, "reserved_before_bytes": 0,
        "reserved_after_bytes": 1100 * MIB, "free_before_bytes": 9000 * MIB, "free_after_bytes": 7800 * MIB,
    }  # fmt: skip
    estimate = {"allocated": 1000 * MIB, "reserved": 1060 * MIB, "terms": {"weights": MIB}}
    return SimpleNamespace(
        made={"measured": {**measured, **changes}, "estimate": estimate},
        params={"tolerance": 0.1, "reserved_tolerance": 0.15},
    )


@fault(
    "vram_peak", {"allocated": "vram-estimate-off", "reserved": "vram-reserved-off", "driver_view": "driver-view-off"}
)
def test_vram_checks_fail_with_their_own_codes():
    for check in (vram_peak.allocated, vram_peak.reserved, vram_peak.driver_view):
        assert ended(check, measured_context()).status == "passed"
    assert ended(vram_peak.allocated, measured_context(peak_allocated_bytes=1200 * MIB)).code == "vram-estimate-off"
    assert ended(vram_peak.reserved, measured_context(peak_reserved_bytes=2000 * MIB)).code == "vram-reserved-off"
    outcome = ended(vram_peak.driver_view, measured_context(free_after_bytes=1000 * MIB))
    assert (outcome.code, outcome.blame) == ("driver-view-off", "host")


# --- ONNX: the file format and the placement of nodes -----------------------------------------------------------------


def test_onnx_versions_of_a_file():
    assert _onnx_bytes.versions(_onnx_bytes.identity_model(300, 8)) == (300, 8)


@pytest.mark.parametrize("data", [b"", b"\x08\x07", b"not an onnx file", _onnx_bytes.identity_model(13, 7)[:-3]])
def test_onnx_file_that_is_none(data):
    with pytest.raises((ValueError, IndexError)):
        _onnx_bytes.versions(data)


def exported_file(tmp_path, opset, ir_version):
    path = tmp_path / "model.onnx"
    path.write_bytes(_onnx_bytes.identity_model(opset, ir_version))
    made = {"torchscript": {"path": str(path)}, "reads": {"opset": 17, "ir_version": 8}}
    return ended(onnx_round_trip.EXPORTERS[0].opset, SimpleNamespace(made=made))


@fault("onnx_round_trip", {"torchscript.opset": "ir-too-high"})
@fault("onnx_round_trip", {"torchscript.opset": "opset-too-high"})
def test_onnx_file_newer_than_the_runtime(tmp_path):
    assert exported_file(tmp_path, 17, 8).status == "passed"
    assert exported_file(tmp_path, 18, 8).code == "opset-too-high"
    assert exported_file(tmp_path, 17, 9).code == "ir-too-high"


def test_highest_stops_at_the_first_failure_after_a_success():
    assert onnx_round_trip.highest(lambda number: 5 <= number <= 17, range(3, 64)) == 17
    assert onnx_round_trip.highest(lambda number: False, range(3, 64)) is None


FELL_BACK = fault(
    "onnx_round_trip", {"torchscript.provider": "provider-fell-back", "cuda_provider": "provider-fell-back"}
)


@pytest.mark.parametrize(
    ("registered", "placed", "status"),
    [
        (["CUDA", "CPU"], {"CUDA": {"MatMul": 12, "Add": 3}, "CPU": {"Shape": 4}}, "passed"),
        pytest.param(["CPU"], {"CPU": {"MatMul": 12}}, "failed", marks=FELL_BACK),
        pytest.param(["CUDA", "CPU"], {"CPU": {"MatMul": 12}}, "failed", marks=FELL_BACK),
        pytest.param(["CUDA", "CPU"], {"CUDA": {"MatMul": 11}, "CPU": {"MatMul": 1}}, "failed", marks=FELL_BACK),
        pytest.param(["CUDA", "CPU"], {"CUDA": {"Add": 3}, "CPU": {"Shape": 4}}, "failed", marks=FELL_BACK),
        pytest.param(["CUDA", "CPU"], {}, "failed", marks=FELL_BACK),
    ],
)
def test_provider_that_really_ran(registered, placed, status):
    outcome = _placement.judge_placement("CUDA", registered, placed)
    assert (outcome.status, outcome.code) == (status, None if status == "passed" else "provider-fell-back")


def test_nodes_are_counted_once_however_often_they_run():
    def node(index, operator, provider):
        return {
            "cat": "Node",
            "name": f"{operator}_{index}_kernel_time",
            "args": {"node_index": str(index), "op_name": operator, "provider": provider},
        }

    events = [node(1, "MatMul", "CPU"), node(1, "MatMul", "CPU"), node(2, "MatMul", "CPU"), {"cat": "Session"}]
    assert _placement.count_placement(events) == {"CPU": {"MatMul": 2}}


def compiled_files(folder):
    return sorted(path.name.partition(".")[0] for path in folder.rglob("*.pyc"))


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("prefix", [True, False])
def test_compiled_files_go_to_the_named_folder_or_nowhere(tmp_path, python, prefix):
    """With them the scripts of one session import the stack in a third of the time."""
    smoke_tests = tmp_path / "smoke_tests"
    shutil.copytree(SMOKE_TESTS, smoke_tests, ignore=shutil.ignore_patterns("__pycache__"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if prefix:
        env |= {"PYTHONPYCACHEPREFIX": str(tmp_path / "pyc"), "PYTHONDONTWRITEBYTECODE": ""}
    command = [python, "-S", smoke_tests / "loggers.py"]
    subprocess.run(command, env=env, capture_output=True, timeout=60, check=True)
    knows_prefix = subprocess.run([python, "-c", "import sys; sys.pycache_prefix"], capture_output=True, check=False)
    wanted = prefix and knows_prefix.returncode == 0  # Python 3.7 does not
    assert ("_harness" in compiled_files(tmp_path / "pyc")) is wanted
    assert compiled_files(smoke_tests) == []
