"""The script `files` on environments laid out by hand: small ELF files, made-up packages, every way to be wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import packaging
import pytest
from seeded import fault, observe
from smoke_faults import make_elf

SMOKE_TESTS = Path(__file__).parents[2] / "smoke_tests"
sys.path.insert(0, str(SMOKE_TESTS))

WRITES_BYTECODE = sys.dont_write_bytecode
import _cuda_files  # noqa: E402
import _elf  # noqa: E402
import _libraries  # noqa: E402
import _metadata  # noqa: E402
import _symbols  # noqa: E402

sys.dont_write_bytecode = WRITES_BYTECODE  # the scripts switch it for their own process


class Site:
    """A folder that looks like site-packages, and what the script says of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "site"
        self.folder.mkdir()
        self.scratch = folder / "scratch"
        self.names: dict[str, str] = {}

    def package(self, name: str, version: str, libraries: dict[str, bytes] | None = None, *, requires=()) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {text}" for text in requires)]) + "\n\n")
        record = []
        for path, content in (libraries or {}).items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            record.append(f"{path},sha256=x,{len(content)}")
        (info / "RECORD").write_text("\n".join(record) + "\n")
        self.names[name] = version

    def checks(self, params=None, env=None, *, python_options=("-S",)) -> dict[str, dict]:
        request = {"schema_version": 1, "packages": self.names, "scratch": str(self.scratch), "params": params or {}}
        path = self.folder.parent / "request.json"
        path.write_text(json.dumps(request))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "LD_"))}
        # pip's vendored packaging would do, too; here the tests' own is lent
        lent = Path(packaging.__file__).parent
        link = self.folder.parent / "lent"
        if not link.exists():
            link.mkdir()
            (link / "packaging").symlink_to(lent)
        kept["PIP_CONFIG_FILE"] = os.devnull  # a machine may hold torch by a constraint of its own
        kept["PYTHONPATH"] = os.pathsep.join([str(self.folder), str(link)])
        done = subprocess.run(
            [sys.executable, *python_options, SMOKE_TESTS / "files.py", "--request", path],
            env={**kept, **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        found = {check["id"].partition(".")[2]: check for check in json.loads(done.stdout)["checks"]}
        assert "errored" not in {check["status"] for check in found.values()}, found
        observe("files", found)
        return found


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.package("torch", "2.6.0", {"torch/lib/libtorch_python.so": make_elf(needed=["libc.so.6", "libc10.so"])})
    site.package("c10", "1.0", {"torch/lib/libc10.so": make_elf(soname="libc10.so")})
    return site


def codes(checks):
    return {name: check["code"] for name, check in checks.items() if check["status"] == "failed"}


def test_passes_where_all_is_well(site):
    checks = site.checks()
    assert codes(checks) == {}
    assert checks["libraries"]["measured"] == 2
    for name in ("provider_libraries", "cuda_libraries_once", "cuda_versions", "guard", "leftovers"):
        assert checks[name]["code"] == "not-applicable"


@fault("files", {"records": "file-missing", "libraries": "library-unresolved"})
def test_a_file_that_is_gone(site):
    (site.folder / "torch/lib/libc10.so").unlink()
    checks = site.checks()
    assert codes(checks) == {"records": "file-missing", "libraries": "library-unresolved"}
    assert "libc10.so is not found" in checks["libraries"]["message"]


@fault("files", {"records": "file-changed"})
def test_a_stripped_or_swapped_library(site):
    (site.folder / "torch/lib/libc10.so").write_bytes(make_elf(soname="libc10.so") + b"more")
    assert codes(site.checks()) == {"records": "file-changed"}


@fault("files", {"libraries": "library-broken"})
def test_a_library_cut_off_in_the_middle(site):
    path = site.folder / "torch/lib/libc10.so"
    path.write_bytes(path.read_bytes()[:200])
    assert codes(site.checks())["libraries"] == "library-broken"


@fault("files", {"libraries": "symbol-version-missing"})
def test_a_symbol_version_that_the_system_does_not_have(site):
    site.package("ext", "1.0", {"ext/_C.so": make_elf(needed=["libc.so.6"], wants={"libc.so.6": ["GLIBC_9.99"]})})
    checks = site.checks()
    assert codes(checks) == {"libraries": "symbol-version-missing"}
    assert "has no GLIBC_9.99" in checks["libraries"]["message"]


def test_a_symbol_version_that_the_system_has(site):
    site.package("ext", "1.0", {"ext/_C.so": make_elf(needed=["libc.so.6"], wants={"libc.so.6": ["GLIBC_2.17"]})})
    assert codes(site.checks()) == {}


def test_plug_ins_and_the_driver_may_be_missing(site):
    needs = make_elf(needed=["libnvinfer.so.10"])
    site.package("ort", "1", {"onnxruntime/capi/libonnxruntime_providers_tensorrt.so": needs})
    site.package("user", "1", {"user/_C.so": make_elf(needed=["libcuda.so.1", "libnvidia-ml.so.1"])})
    checks = site.checks()
    assert codes(checks) == {}
    assert checks["libraries"]["details"]["left_to_their_hardware"] == ["TensorRT"]


@fault("files", {"libraries": "symbol-version-missing"})
def test_a_newer_libstdcxx_than_the_system_has(site):
    wants = {"libstdc++.so.6": ["GLIBCXX_3.4.999"]}
    site.package("flash-attn", "2.7", {"flash_attn.so": make_elf(needed=["libstdc++.so.6"], wants=wants)})
    checks = site.checks()
    assert codes(checks) == {"libraries": "symbol-version-missing"}
    assert "flash_attn.so: " in checks["libraries"]["message"]
    assert "has no GLIBCXX_3.4.999" in checks["libraries"]["message"]


@fault("files", {"libraries": "library-unresolved"})
def test_an_extension_whose_library_is_not_there(site):
    extension = make_elf(needed=["libc10.so", "libtorch_cuda_cpp.so"])
    site.package("flash-attn", "2.7", {"flash_attn_2_cuda.so": extension})
    checks = site.checks()
    assert codes(checks) == {"libraries": "library-unresolved"}
    assert "flash_attn_2_cuda.so: libtorch_cuda_cpp.so is not found" in checks["libraries"]["message"]


ERROR_OLD = "_ZN3c105ErrorC1ENS_14SourceLocationESs"
ERROR_NEW = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringE"
TORCH_FILES = {
    "torch/lib/libtorch_python.so": make_elf(needed=["libc10.so"]),
    "torch/lib/libc10.so": make_elf(soname="libc10.so", defines=[ERROR_NEW, "_ZNK3c106Symbol8toStringEv"]),
}


@pytest.fixture(params=["plain", "torch"])
def compiled(tmp_path, request):
    """Also below a folder that is called as the package is."""
    (tmp_path / request.param).mkdir()
    site = Site(tmp_path / request.param)
    site.package("torch", "2.6.0", TORCH_FILES)
    return site


def test_an_extension_for_this_torch(compiled):
    compiled.package("flash-attn", "2.7", {"flash_attn.so": make_elf(needed=["libc10.so"], undefined=[ERROR_NEW])})
    checks = compiled.checks()
    assert codes(checks) == {}
    assert checks["symbols"]["status"] == "passed"


@fault("files", {"symbols": "symbol-missing"})
def test_an_extension_that_was_built_for_another_torch(compiled):
    """As with the two forms of std::string: every library and every version is there, and it does not load."""
    extension = make_elf(needed=["libc10.so"], undefined=[ERROR_OLD, "_ZNK3c106Symbol8toStringEv", "PyInit_x"])
    compiled.package("flash-attn", "2.7", {"flash_attn/_C.so": extension})
    checks = compiled.checks()
    assert codes(checks) == {"symbols": "symbol-missing"}
    assert "flash_attn/_C.so needs c10::Error::Error" in checks["symbols"]["message"]
    assert list(checks["symbols"]["measured"].values()) == [[ERROR_OLD]]


def test_a_symbol_that_the_packages_own_library_defines(compiled):
    own = {
        "ext/_C.so": make_elf(undefined=["_ZN2at4mine1fEv"]),
        "ext.libs/libown.so": make_elf(defines=["_ZN2at4mine1fEv"]),
    }
    compiled.package("ext", "1", own)
    assert codes(compiled.checks()) == {}


def cuda_pair(folder, functions):
    nvjitlink = make_elf(soname="libnvJitLink.so.12", defines=functions)
    cusparse = make_elf(
        needed=["libnvJitLink.so.12"], undefined=["__nvJitLinkAddData_12_4"], runpath="$ORIGIN/../nvjitlink"
    )
    return {f"{folder}/nvjitlink/libnvJitLink.so.12": nvjitlink, f"{folder}/cusparse/libcusparse.so.12": cusparse}


@fault("files", {"symbols": "symbol-missing", "cuda_libraries_once": "cuda-library-twice"})
def test_a_cuda_library_that_is_older_than_the_one_that_needs_it(site):
    site.package("nvidia-cu12", "1", cuda_pair("nvidia", ["__nvJitLinkAddData_12_4"]))
    assert codes(site.checks()) == {}
    site.package("nvidia-old", "1", cuda_pair("other", ["__nvJitLinkAddData_12_1"]))
    checks = site.checks()
    assert codes(checks) == {"symbols": "symbol-missing", "cuda_libraries_once": "cuda-library-twice"}
    assert "cusparse/libcusparse.so.12 needs __nvJitLinkAddData_12_4" in checks["symbols"]["message"]


@fault("files", {"symbols": "symbol-missing"})
def test_an_older_cuda_library_on_the_loader_path(site, tmp_path):
    """LD_LIBRARY_PATH of a toolkit comes before the wheel's own RUNPATH."""
    site.package("nvidia-cu12", "1", cuda_pair("nvidia", ["__nvJitLinkAddData_12_4"]))
    (tmp_path / "toolkit").mkdir()
    old = make_elf(soname="libnvJitLink.so.12", defines=["__nvJitLinkAddData_12_1"])
    (tmp_path / "toolkit/libnvJitLink.so.12").write_bytes(old)
    assert codes(site.checks(env={"LD_LIBRARY_PATH": str(tmp_path / "toolkit")}))["symbols"] == "symbol-missing"


def test_symbols_are_found_as_a_real_library_has_them():
    """Every name of the C library's table is found through its hash table, and others are not."""
    libc = next(path for path in _elf.read_cache().get("libc.so.6", ["/lib/x86_64-linux-gnu/libc.so.6"]))
    symbols = _symbols.Symbols(libc)
    assert symbols.gnu is not None
    names = [symbols.name(row[0]) for row in symbols.rows() if row[3] != 0 and row[1] >> 4]
    assert len(names) > 1000
    assert all(symbols.defines(name) for name in names)
    assert not any(symbols.defines(name + b"_of_torchproof") for name in names)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (ERROR_OLD, "c10::Error::Error"),
        ("_ZNK3c106Symbol8toStringEv", "c10::Symbol::toString"),
        ("_ZTIN5torch8autograd4NodeE", "torch::autograd::Node"),
        ("_ZN2at6TensorD1Ev", "at::Tensor::~Tensor"),
        ("__nvJitLinkAddData_12_1", "__nvJitLinkAddData_12_1"),
    ],
)
def test_names_of_symbols_for_people(name, shown):
    assert _symbols.plain(name) == shown


@fault("files", {"cuda_libraries_once": "cuda-library-twice"})
def test_two_copies_of_a_cuda_library_are_told_with_their_sizes(site):
    cudnn = make_elf(soname="libcudnn.so.9") + b"\0" * 2**20
    site.package("nvidia-cudnn-cu12", "9.1.0.70", {"nvidia/cudnn/lib/libcudnn.so.9": cudnn})
    assert codes(site.checks()) == {}
    site.package("other", "1.0", {"other.libs/libcudnn-0123abcd.so.9.2.0": cudnn})
    checks = site.checks()
    assert codes(checks) == {"cuda_libraries_once": "cuda-library-twice"}
    assert "1 MiB too much" in checks["cuda_libraries_once"]["message"]


def test_a_renamed_copy_that_torch_was_published_with_is_told_and_not_judged(site):
    """torch 1.13.1 holds a libcudart of its own, beside the package that it asks for."""
    cudart = make_elf(soname="libcudart.so.11.0")
    site.package("nvidia-cuda-runtime-cu11", "11.7.99", {"nvidia/cuda_runtime/lib/libcudart.so.11.0": cudart})
    site.package("torch-part", "1.13.1", {"torch/lib/libcudart-e409450e.so.11.0": cudart})
    check = site.checks()["cuda_libraries_once"]
    assert check["status"] == "passed"
    assert check["message"].endswith("; torch was published with a copy of its own of libcudart")
    assert [list(paths) for paths in check["details"]["published"].values()] == [
        [str(site.folder / "torch/lib/libcudart-e409450e.so.11.0")]
    ]
    site.package("torch-part-2", "1.13.1", {"torch/lib/libcudart.so.11.0": cudart})
    assert codes(site.checks()) == {"cuda_libraries_once": "cuda-library-twice"}


def test_two_names_of_one_file_are_one_copy(site):
    folder = "nvidia/cudnn/lib/libcudnn.so.9"
    site.package("nvidia-cudnn-cu12", "9.1.0.70", {folder: make_elf(soname="libcudnn.so.9")})
    (site.folder / "nvidia/cudnn/lib/libcudnn.so").symlink_to("libcudnn.so.9")
    assert codes(site.checks()) == {}


@fault("files", {"cuda_libraries_once": "cuda-library-twice"})
def test_a_second_copy_on_the_loader_path(site, tmp_path):
    site.package("nvidia-cublas", "12.4", {"nvidia/cublas/lib/libcublas.so.12": make_elf()})
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcublas.so.12").write_bytes(make_elf())
    found = site.checks(env={"LD_LIBRARY_PATH": str(tmp_path / "lib")})
    assert codes(found) == {"cuda_libraries_once": "cuda-library-twice"}


@fault("files", {"cuda_versions": "cuda-library-version", "requirements": "requirement-unmet"})
def test_a_cuda_wheel_of_another_version_than_torch_pins(site):
    site.package("nvidia-cudnn-cu12", "8.9.2.26", {"nvidia/cudnn/lib/libcudnn_ops.so.8": make_elf()})
    site.package("torchlike", "1", requires=['nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == "Linux"'])
    checks = site.checks()
    assert codes(checks) == {"cuda_versions": "cuda-library-version", "requirements": "requirement-unmet"}


PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
SHARED = {"onnxruntime/capi/libonnxruntime_providers_shared.so": make_elf()}


@fault("files", {"provider_libraries": "provider-unresolved"})
@pytest.mark.parametrize(
    ("libraries", "words"),
    [
        ({}, "without its libonnxruntime_providers_cuda.so"),
        ({PROVIDER: make_elf()}, "libonnxruntime_providers_shared.so is gone"),
        ({PROVIDER: make_elf(needed=["libcudnn.so.8"]), **SHARED}, "so it would run on the CPU: libcudnn.so.8"),
    ],
    ids=["stripped", "no-bridge", "wrong-cudnn"],
)
def test_a_cuda_provider_that_cannot_load(site, libraries, words):
    cudnn = {"nvidia/cudnn/lib/libcudnn.so.9": make_elf(soname="libcudnn.so.9")}
    site.package("nvidia-cudnn-cu12", "9.1.0.70", cudnn)
    site.package("onnxruntime-gpu", "1.20", libraries)
    checks = site.checks()
    assert codes(checks) == {"provider_libraries": "provider-unresolved"}
    assert words in checks["provider_libraries"]["message"]


def test_a_cuda_provider_beside_a_torch_that_loads_its_libraries(site):
    (site.folder / "torch/lib/libtorch_python.so").write_bytes(make_elf(needed=["libcudnn.so.9", "libc10.so"]))
    (next(site.folder.glob("torch-*.dist-info")) / "RECORD").unlink()
    cudnn = {"nvidia/cudnn/lib/libcudnn.so.9": make_elf(soname="libcudnn.so.9")}
    site.package("nvidia-cudnn-cu12", "9.1.0.70", cudnn)
    site.package("onnxruntime-gpu", "1.20", {PROVIDER: make_elf(needed=["libcudnn.so.9"]), **SHARED})
    checks = site.checks()
    assert codes(checks) == {}
    assert checks["provider_libraries"]["details"]["needs_torch"] is True


def test_a_cuda_provider_whose_libraries_onnxruntime_has_to_be_asked_for(site):
    """Real libraries stand for those of CUDA, since a process has to load them."""
    site.package("onnxruntime-gpu", "1.31", {PROVIDER: make_elf(needed=["libcurand.so.10"]), **SHARED})
    assert codes(site.checks()) == {"provider_libraries": "provider-unresolved"}
    site.package("nvidia-curand", "10.4", {"nvidia/cu13/lib/libcurand.so.10": real_library()})
    assert codes(site.checks()) == {"provider_libraries": "provider-unresolved"}
    code = """
        import ctypes, os
        def preload_dlls():
            ctypes.CDLL(os.path.join(os.path.dirname(__file__), "../nvidia/cu13/lib/libcurand.so.10"))
    """
    (site.folder / "onnxruntime/__init__.py").write_text(textwrap.dedent(code))
    check = site.checks()["provider_libraries"]
    assert check["status"] == "passed"
    assert "once onnxruntime.preload_dlls() was called" in check["message"]
    assert "libcurand.so.10 is not found" in check["message"]


def real_library():
    return Path(_elf.Loader({}).cache["libm.so.6"][0]).read_bytes()


@fault("files", {"requirements": "requirement-unmet"})
def test_requirements_that_are_not_met(site):
    site.package("old", "1.0", requires=["torch<2.0", "absent", 'only-there; extra == "x"', "torch>=2"])
    checks = site.checks()
    assert codes(checks) == {"requirements": "requirement-unmet"}
    assert len(checks["requirements"]["measured"]) == 2


@fault("files", {"size": "over-budget"})
def test_a_budget(site):
    assert codes(site.checks({"budget_bytes": 100})) == {"size": "over-budget"}
    assert codes(site.checks({"budget_bytes": 2**30})) == {}


@fault("files", {"leftovers": "build-leftover"})
@pytest.mark.parametrize(
    "leftover", ["root/.cache/pip/x", "run/secrets/ca", "etc/pip.conf", "usr/local/bin/uv", "mnt/wheelhouse/a.whl"]
)
def test_what_a_build_may_leave(site, tmp_path, leftover):
    (tmp_path / "root" / leftover).parent.mkdir(parents=True)
    (tmp_path / "root" / leftover).write_text("x")
    checks = site.checks({"image": "yes", "roots": [str(tmp_path / "root")]})
    assert codes(checks)["leftovers"] == "build-leftover"


@fault("files", {"leftovers": "build-leftover"})
def test_a_password_in_a_variable_of_the_image(site, tmp_path):
    params = {"image": "yes", "roots": [str(tmp_path / "empty")]}
    assert "leftovers" not in codes(site.checks(params))
    found = site.checks(params, env={"SOME_INDEX": "https://me:secret@example.org/simple"})
    assert codes(found)["leftovers"] == "build-leftover"
    assert "secret" not in json.dumps(found["leftovers"])


@fault("files", {"guard": "guard-missing"})
def test_the_guard(site, tmp_path):
    """With a constraint pip refuses another torch; without one nothing holds it."""
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("this Python has no pip")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("torch==2.6.0\n")
    params = {"image": "yes", "roots": []}
    guarded = site.checks(params, env={"PIP_CONSTRAINT": str(constraints)}, python_options=())
    assert guarded["guard"]["status"] == "passed", guarded["guard"]
    assert "(constraint) torch==2.6.0" in guarded["guard"]["message"]
    bare = site.checks(params, python_options=())["guard"]
    assert bare["code"] == "guard-missing", bare


def test_the_loaders_own_cache_is_read_as_ldconfig_shows_it():
    shown = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip("no ldconfig here")
    told = {line.split()[0] for line in shown.stdout.splitlines()[1:] if "=>" in line}
    assert set(_elf.read_cache()) == told


def test_the_search_order_is_the_loaders(tmp_path):
    """RUNPATH comes after LD_LIBRARY_PATH, RPATH before it."""
    for name in ("asked", "own"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libx.so").write_bytes(make_elf())
    for tag, wanted in (("runpath", "asked"), ("rpath", "own")):
        path = tmp_path / f"{tag}.so"
        path.write_bytes(make_elf(needed=["libx.so"], **{tag: "$ORIGIN/own"}))
        loader = _elf.Loader({}, {}, {"LD_LIBRARY_PATH": str(tmp_path / "asked")})
        assert loader.find(loader.elf(path), "libx.so") == str(tmp_path / wanted / "libx.so")


def test_a_library_of_another_machine_is_passed_over(tmp_path):
    (tmp_path / "libx.so").write_bytes(make_elf(machine=183))
    path = tmp_path / "a.so"
    path.write_bytes(make_elf(needed=["libx.so"], runpath="$ORIGIN"))
    loader = _elf.Loader({}, {}, {})
    assert loader.find(loader.elf(path), "libx.so") is None


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("libcudnn.so.9", "libcudnn"),
        ("libcudnn_ops_infer.so.8", "libcudnn_ops_infer"),
        ("libcudart-1b5a3c9d.so.11.0", "libcudart"),
        ("libnvrtc-builtins.so.12.4", "libnvrtc-builtins"),
        ("libcupti.so.12", None),
        ("libtorch_cuda.so", None),
    ],
)
def test_names_of_cuda_libraries(name, stem):
    assert _libraries.cuda_stem("/x/" + name) == stem


def test_versions_that_libraries_tell_as_one_number():
    assert [_cuda_files.cudnn_version(value) for value in (8902, 90100)] == ["8.9.2", "9.1.0"]
    assert [_cuda_files.nccl_version(value) for value in (2708, 21805)] == ["2.7.8", "2.18.5"]


def test_old_metadata_pins_too():
    wants = ['nvidia-cublas-cu11 (==11.10.3.66) ; platform_system == "Linux"', "nvidia-nccl-cu12==2.1; extra == 'x'"]
    assert _metadata.pinned_libraries([("torch", "1.13.1", "", wants)]) == {
        "nvidia-cublas-cu11": ("11.10.3.66", "torch")
    }


def test_a_hundred_libraries_are_read_in_no_time(tmp_path):
    for number in range(100):
        (tmp_path / f"lib{number}.so").write_bytes(make_elf(needed=["libc.so.6"]))
    started = time.monotonic()
    loader = _elf.Loader({})
    assert _libraries.unresolved(loader, _libraries.elf_files([str(tmp_path)])) == []
    assert time.monotonic() - started < 5
