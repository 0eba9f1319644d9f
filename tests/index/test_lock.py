"""`lock` against small indexes on loopback, with real uv."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from small_index import SmallIndex, StandIn, source_archive, wheel

from builder import lock as locking
from builder import lockfile
from builder.errors import ConflictError, PackageIndexError, SpecError, StaleLockError, UsageError
from builder.lockfile import ImageLock
from builder.resolution import Base, NamedIndex, Requirement, Resolution
from builder.sources import Sources

CP38 = "cp38-cp38-linux_x86_64"
EARLY, LATE = "2022-08-05T00:00:00Z", "2025-08-05T00:00:00Z"

Serve = Callable[..., SmallIndex]
MakeSources = Callable[..., Sources]
MakeResolution = Callable[..., Resolution]


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(files, form=..., ...)` starts an index that lives as long as the test."""
    with ExitStack() as stack:
        yield lambda files, **settings: stack.enter_context(SmallIndex(files, **settings))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment that knows this machine's tools and none of its indexes, folders or proxies."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "UV_HTTP_RETRIES": "0",
        "UV_NO_SYSTEM_CONFIG": "1",
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }


@pytest.fixture
def backend() -> list[StandIn]:
    """A stand-in for setuptools that gives the metadata uv asks for, and `wheel`, which it does not need."""
    code = (
        "import os\n"
        "def _write(folder):\n"
        "    name, version = os.path.basename(os.getcwd()), '0'\n"
        "    with open('PKG-INFO') as stream:\n"
        "        text = stream.read()\n"
        "    fields = dict(line.split(': ', 1) for line in text.splitlines() if ': ' in line)\n"
        "    info = f\"{fields['Name']}-{fields['Version']}.dist-info\"\n"
        "    os.makedirs(os.path.join(folder, info), exist_ok=True)\n"
        "    with open(os.path.join(folder, info, 'METADATA'), 'w') as stream:\n"
        "        stream.write(text)\n"
        "    return info\n"
        "def get_requires_for_build_wheel(config_settings=None):\n"
        "    return []\n"
        "def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):\n"
        "    return _write(metadata_directory)\n"
        "class __legacy__:\n"
        "    get_requires_for_build_wheel = staticmethod(get_requires_for_build_wheel)\n"
        "    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)\n"
    )
    uploaded = "2022-08-05T00:00:00Z"
    return [
        wheel("setuptools", "65.0.0", uploaded=uploaded, modules={"setuptools/build_meta.py": code}),
        wheel("wheel", "0.38.4", uploaded=uploaded),
    ]


@pytest.fixture
def sources(environment: dict[str, str]) -> Callable[..., Sources]:
    def make(index: str, **more: str) -> Sources:
        return Sources.from_environment({**environment, "UV_DEFAULT_INDEX": index, **more})

    return make


@pytest.fixture
def resolution() -> Callable[..., Resolution]:
    """A resolution for Python 3.8 and glibc 2.31; `requirements` as text, or `(text, index)`."""

    def make(*requirements: str | tuple[str, str] | Requirement, **changes: object) -> Resolution:
        made = tuple(
            item
            if isinstance(item, Requirement)
            else Requirement(text=item)
            if isinstance(item, str)
            else Requirement(text=item[0], index=item[1])
            for item in requirements
        )
        settings: dict[str, object] = {
            "image_id": "torch1.12.1-cu113-py38",
            "spec_name": "guide",
            "spec_digest": "d" * 64,
            "cell": "include[0]",
            "python": "3.8",
            "arch": "x86_64",
            "glibc": "2.31",
            "base": Base(kind="debian", reference="bullseye", python="3.8", glibc="2.31"),
            "flavor": "base",
            "torch": "1.12.1",
            "variant": "cu113",
            "variant_is_default": False,
            "requirements": made,
            "choices": (),
            "facts_generated": "2026-01-01",
        }
        return Resolution(**{**settings, **changes})  # type: ignore[arg-type]

    return make


def package_index() -> list[StandIn]:
    return [
        wheel("torch", "1.12.1", uploaded=EARLY),
        wheel("torch", "2.9.0", uploaded=EARLY),
        wheel("torchvision", "0.99.0", uploaded=EARLY),
        wheel("triton", "2.0.0", uploaded=EARLY),
        wheel("nvidia-cublas-cu11", "11.1", uploaded=EARLY),
        wheel("typing-extensions", "4.0", uploaded=EARLY),
        wheel("typing-extensions", "5.0", uploaded=LATE),
        wheel("transformers", "4.25.1", requires=["numpy"], uploaded=EARLY),
        wheel("numpy", "1.24.4", uploaded=EARLY),
    ]


def torch_index() -> list[StandIn]:
    return [
        wheel(
            "torch",
            "1.12.1+cu113",
            tag=CP38,
            requires=["typing-extensions", "triton==2.0.0; platform_system == 'Linux'", "nvidia-cublas-cu11==11.1"],
        ),
        wheel("torch", "1.12.1+cu113", tag="cp39-cp39-linux_x86_64"),
        wheel("torch", "2.0.0+cu113", tag=CP38),
        wheel("torchvision", "0.13.1+cu113", tag=CP38, requires=["torch==1.12.1", "numpy"]),
        wheel("triton", "2.0.0", tag=CP38),
        wheel("numpy", "99.0"),
        wheel("typing-extensions", "99.0"),
        wheel("transformers", "99.0"),
    ]


def mirror(index: SmallIndex) -> str:
    """The value of TORCHPROOF_TORCH_INDEX for an index that was served with prefix `whl/cu113`."""
    return index.url.replace("cu113", "{variant}")


def versions(lock: ImageLock) -> dict[str, str]:
    return {package.name: package.version for package in lock.packages}


def origins(lock: ImageLock) -> dict[str, str]:
    return {package.name: package.source for package in lock.packages}


# --- exclusive indexes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["html", "json"])
def test_torch_family_comes_from_its_own_index_and_nothing_else_does(
    serve: Serve, sources: MakeSources, resolution: MakeResolution, form: str
) -> None:
    default, torch = serve(package_index()), serve(torch_index(), form=form, prefix="whl/cu113")
    asked = resolution(("torch==1.12.1+cu113", "torch"), ("torchvision", "torch"), "transformers")
    lock = locking.lock(asked, sources(default.url, TORCHPROOF_TORCH_INDEX=mirror(torch)))
    assert versions(lock) == {
        "numpy": "1.24.4",
        "nvidia-cublas-cu11": "11.1",
        "torch": "1.12.1+cu113",
        "torchvision": "0.13.1+cu113",
        "transformers": "4.25.1",
        "triton": "2.0.0",
        "typing-extensions": "5.0",
    }
    assert {name for name, source in origins(lock).items() if source == "torch-index"} == {
        "torch",
        "torchvision",
        "triton",
    }
    found = lock.package("triton")
    assert found is not None
    assert found.filename == f"triton-2.0.0-{CP38}.whl"
    assert torch.projects_asked() == {"torch", "torchvision", "triton"}
    assert not {"torch", "torchvision"} & default.projects_asked()


def test_variant_is_added_to_a_bare_pin(serve: Serve, sources: MakeSources, resolution: MakeResolution) -> None:
    default, torch = serve(package_index()), serve(torch_index(), prefix="whl/cu113")
    lock = locking.lock(
        resolution(("torch==1.12.1", "torch")), sources(default.url, TORCHPROOF_TORCH_INDEX=mirror(torch))
    )
    assert versions(lock)["torch"] == "1.12.1+cu113"


def test_triton_may_come_from_the_package_index_where_a_mirror_lacks_it(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    default = serve(package_index())
    torch = serve([file for file in torch_index() if file.name != "triton"], prefix="whl/cu113")
    lock = locking.lock(
        resolution(("torch==1.12.1", "torch")), sources(default.url, TORCHPROOF_TORCH_INDEX=mirror(torch))
    )
    assert origins(lock)["torch"] == "torch-index"
    found = lock.package("triton")
    assert found is not None
    assert found.filename == "triton-2.0.0-py3-none-any.whl"


def test_what_only_the_torch_index_has_is_found_there(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    default = serve([file for file in package_index() if file.name not in {"triton", "nvidia-cublas-cu11"}])
    torch = serve([*torch_index(), wheel("nvidia-cublas-cu11", "11.1")], prefix="whl/cu113")
    lock = locking.lock(
        resolution(("torch==1.12.1", "torch")), sources(default.url, TORCHPROOF_TORCH_INDEX=mirror(torch))
    )
    assert origins(lock) == {
        "nvidia-cublas-cu11": "torch-index",
        "torch": "torch-index",
        "triton": "torch-index",
        "typing-extensions": "index",
    }


def test_named_index_serves_its_packages_only_and_wherever_they_stand_in_the_tree(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    default = serve([*package_index(), wheel("own-core", "99.0", uploaded=EARLY)])
    private = serve(
        [wheel("own-app", "1.0", requires=["own-core", "numpy"]), wheel("own-core", "1.0"), wheel("numpy", "99")]
    )
    index = NamedIndex(name="corp", url=private.url, packages=("own_app", "own-core"))
    lock = locking.lock(
        resolution("torch==1.12.1", "own-app", variant="cu102", variant_is_default=True, indexes=(index,)),
        sources(default.url),
    )
    assert versions(lock) == {"numpy": "1.24.4", "own-app": "1.0", "own-core": "1.0", "torch": "1.12.1"}
    assert origins(lock) == {"numpy": "index", "own-app": "corp", "own-core": "corp", "torch": "index"}


def test_credentials_of_a_named_index_come_from_the_environment(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    word = "geheim"
    default, private = serve(package_index()), serve([wheel("own-app", "1.0")], credentials=("user", word))
    asked = resolution(
        "torch==1.12.1",
        ("own-app", "corp"),
        variant="cu102",
        variant_is_default=True,
        indexes=(NamedIndex(name="corp", url=private.url, packages=("own-app",)),),
    )
    with pytest.raises(PackageIndexError, match="the index `corp` of the spec refuses access"):
        locking.lock(asked, sources(default.url))
    lock = locking.lock(asked, sources(default.url, UV_INDEX_CORP_USERNAME="user", UV_INDEX_CORP_PASSWORD=word))
    assert origins(lock)["own-app"] == "corp"


def test_index_that_no_spec_names(sources: MakeSources, resolution: MakeResolution) -> None:
    with pytest.raises(SpecError, match="which is no index of the spec"):
        locking.lock(resolution(("own-app", "corp")), sources("http://127.0.0.1:1/simple"))


def test_another_build_of_torch_on_the_package_index_is_an_error(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    merged = serve([*package_index(), wheel("torch", "1.12.1+cu999", uploaded=EARLY)])
    with pytest.raises(ConflictError) as caught:
        locking.lock(resolution("torch==1.12.1", variant="cu102", variant_is_default=True), sources(merged.url))
    assert caught.value.code == "wrong-variant"
    assert "torch 1.12.1+cu999 was found" in str(caught.value)


def test_cuda_runtime_tells_another_build(serve: Serve, sources: MakeSources, resolution: MakeResolution) -> None:
    index = serve(
        [wheel("torch", "2.6.0", requires=["nvidia-cuda-runtime-cu12"]), wheel("nvidia-cuda-runtime-cu12", "12.6.77")]
    )
    asked = resolution("torch==2.6.0", torch="2.6.0", variant="cu124", variant_is_default=True)
    with pytest.raises(ConflictError, match=r"nvidia-cuda-runtime-cu12 12\.6\.77 came with it"):
        locking.lock(asked, sources(index.url))
    lock = locking.lock(
        resolution("torch==2.6.0", torch="2.6.0", variant="cu126", variant_is_default=True), sources(index.url)
    )
    assert {package.name: package.group for package in lock.packages} == {
        "nvidia-cuda-runtime-cu12": "cuda",
        "torch": "torch",
    }


# --- dates -----------------------------------------------------------------------------------------------------------


def test_date_limits_transitive_packages_and_neither_pins_nor_the_torch_index(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    default = serve([*package_index(), wheel("late-tool", "3.0", uploaded=LATE)])
    torch = serve(torch_index(), form="html", prefix="whl/cu113")
    asked = resolution(("torch==1.12.1+cu113", "torch"), "late-tool==3.0", exclude_newer="2023-01-16")
    lock = locking.lock(asked, sources(default.url, TORCHPROOF_TORCH_INDEX=mirror(torch)))
    assert versions(lock)["typing-extensions"] == "4.0"
    assert versions(lock)["late-tool"] == "3.0"
    assert lock.exclude_newer_applied


def test_without_upload_times_the_bounds_hold_and_the_lock_says_so(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    index = serve([wheel("torch", "1.12.1", requires=["typing-extensions"]), *package_index()[5:7]], form="html")
    lines: list[str] = []
    asked = resolution(
        "torch==1.12.1",
        Requirement(text="typing-extensions<5", bound_only=True),
        Requirement(text="numpy<2", bound_only=True),
        variant="cu102",
        variant_is_default=True,
        exclude_newer="2023-01-16",
    )
    lock = locking.lock(asked, sources(index.url), on_line=lines.append)
    assert versions(lock) == {"torch": "1.12.1", "typing-extensions": "4.0"}
    assert not lock.exclude_newer_applied
    assert "no date limit could be applied" in lockfile.dumps(lock)
    assert any("no upload times" in line for line in lines)


# --- wheel folders ---------------------------------------------------------------------------------------------------


def test_wheel_folder_with_the_variant_makes_the_torch_index_needless(
    serve: Serve, sources: MakeSources, resolution: MakeResolution, tmp_path: Path
) -> None:
    folder = tmp_path / "wheels"
    wheel("torch", "1.12.1+cpu", tag=CP38, requires=["typing-extensions"]).save(folder)
    wheel("torch", "1.12.1+cu113", tag=CP38).save(folder)
    wheel("torch", "1.12.1+cpu", tag="cp39-cp39-linux_x86_64").save(folder)
    asked = resolution(("torch==1.12.1+cpu", "torch"), variant="cpu", exclude_newer="2023-01-16")
    used = sources(serve(package_index()).url, PIP_FIND_LINKS=str(folder))
    lock = locking.lock(asked, used)
    assert origins(lock) == {"torch": "wheelhouse", "typing-extensions": "index"}
    assert str(tmp_path) not in lockfile.dumps(lock)
    staged = used.stage_wheelhouse(lock, tmp_path / "staged")
    assert [path.name for path in staged] == [f"torch-1.12.1+cpu-{CP38}.whl"]
    (folder / staged[0].name).unlink()
    wheel("torch", "1.12.1+cpu", tag=CP38).save(folder)
    with pytest.raises(StaleLockError) as caught:
        used.stage_wheelhouse(lock, tmp_path / "staged-again")
    assert caught.value.code == "hash-mismatch"


def test_other_build_in_a_wheel_folder_does_not_replace_the_default_one(
    serve: Serve, sources: MakeSources, resolution: MakeResolution, tmp_path: Path
) -> None:
    wheel("torch", "1.12.1+cpu", tag=CP38).save(tmp_path / "wheels")
    asked = resolution("torch==1.12.1", variant="cu102", variant_is_default=True)
    lock = locking.lock(asked, sources(serve(package_index()).url, PIP_FIND_LINKS=str(tmp_path / "wheels")))
    assert versions(lock) == {"torch": "1.12.1"}
    assert origins(lock) == {"torch": "index"}


def test_wheelhouse_of_a_spec_must_exist(resolution: MakeResolution, sources: MakeSources, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        locking.lock(resolution("torch", wheelhouses=(str(tmp_path / "gone"),)), sources("http://127.0.0.1:1/simple"))


# --- source archives -------------------------------------------------------------------------------------------------


def source_index() -> list[StandIn]:
    return [
        *package_index(),
        wheel("tool", "1.0", requires=["promise", "pathtools"], uploaded=EARLY),
        source_archive("promise", "2.3", uploaded=EARLY),
        source_archive("pathtools", "0.1.2", uploaded=EARLY),
    ]


def test_source_only_packages_are_all_named_and_the_hint_was_tried_without_running_them(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    index = serve(source_index())
    with pytest.raises(ConflictError) as caught:
        locking.lock(
            resolution("torch==1.12.1", "tool==1.0", variant="cu102", variant_is_default=True), sources(index.url)
        )
    assert caught.value.code == "source-only"
    assert "pathtools and promise have source distributions only" in str(caught.value)
    assert "hint: allow_source: [pathtools, promise]" in str(caught.value)
    assert not any(path.endswith(".tar.gz") for path in index.asked)


def test_what_builds_an_allowed_archive_is_locked_too(
    serve: Serve, sources: MakeSources, resolution: MakeResolution, backend: list[StandIn]
) -> None:
    index = serve([*source_index(), *backend])
    asked = resolution(
        "torch==1.12.1", "tool==1.0", variant="cu102", variant_is_default=True, allow_source=("Promise", "pathtools")
    )
    lock = locking.lock(asked, sources(index.url))
    assert {package.name: package.kind for package in lock.packages if package.kind == "sdist"} == {
        "pathtools": "sdist",
        "promise": "sdist",
    }
    assert versions(lock)["promise"] == "2.3"
    assert {package.name for package in lock.build_packages} == {"setuptools", "wheel"}
    assert lock.allow_source == ("pathtools", "promise")


# --- failures --------------------------------------------------------------------------------------------------------


def test_unreachable_torch_index_says_which_and_exits_6(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    with pytest.raises(PackageIndexError) as caught:
        locking.lock(
            resolution(("torch==1.12.1+cu113", "torch"), "transformers"),
            sources(serve(package_index()).url, TORCHPROOF_TORCH_INDEX="http://user:geheim@127.0.0.1:1/{variant}"),
        )
    text = str(caught.value)
    assert (caught.value.code, caught.value.exit_status) == ("index-unreachable", 6)
    assert "`torch1.12.1-cu113-py38` resolves and renders, but cannot be locked" in text
    assert "locking needs the PyTorch wheel index for cu113" in text
    assert "the connection was refused" in text
    assert "geheim" not in text
    assert "127.0.0.1" not in text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://user:geheim@127.0.0.1:1/simple", "the connection was refused"),
        ("http://user:geheim@nowhere.invalid/simple", "its host name cannot be resolved"),
    ],
)
def test_unreachable_package_index(sources: MakeSources, resolution: MakeResolution, url: str, reason: str) -> None:
    with pytest.raises(PackageIndexError, match="the configured package index") as caught:
        locking.lock(resolution("torch", variant_is_default=True), sources(url))
    assert reason in str(caught.value)
    assert "geheim" not in repr(vars(caught.value))


def test_index_that_never_answers(sources: MakeSources, resolution: MakeResolution) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        with pytest.raises(PackageIndexError, match="did not answer in time"):
            locking.lock(resolution("torch", variant_is_default=True), sources(url, UV_HTTP_TIMEOUT="1"))


def test_index_without_a_trusted_certificate(serve: Serve, sources: MakeSources, resolution: MakeResolution) -> None:
    url = serve(package_index()).url.replace("http:", "https:")
    with pytest.raises(PackageIndexError, match="no trusted TLS connection"):
        locking.lock(resolution("torch", variant_is_default=True), sources(url))


@pytest.mark.parametrize(("status", "word"), [(401, "401"), (403, "403")])
def test_denied(serve: Serve, sources: MakeSources, resolution: MakeResolution, status: int, word: str) -> None:
    index = serve(package_index(), status=status)
    with pytest.raises(PackageIndexError, match="the configured package index refuses access") as caught:
        locking.lock(resolution("torch", variant_is_default=True), sources(f"http://user:geheim@{index.host}/simple"))
    assert caught.value.code == "index-denied"
    assert word in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("status", [500, 503])
def test_server_error(serve: Serve, sources: MakeSources, resolution: MakeResolution, status: int) -> None:
    with pytest.raises(PackageIndexError, match="answers with a server error"):
        locking.lock(resolution("torch", variant_is_default=True), sources(serve([], status=status).url))


def test_offline_without_a_cache(sources: MakeSources, resolution: MakeResolution) -> None:
    with pytest.raises(PackageIndexError, match="the network is off"):
        locking.lock(resolution("torch", variant_is_default=True), sources("http://127.0.0.1:1/simple", UV_OFFLINE="1"))


def test_credentials_open_an_index_and_stay_out_of_the_lock(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    index = serve(package_index(), credentials=("user", "ge/heim"))
    asked = resolution("torch==1.12.1", variant="cu102", variant_is_default=True)
    lines: list[str] = []
    lock = locking.lock(asked, sources(f"http://user:ge%2Fheim@{index.host}/simple"), on_line=lines.append)
    text = lockfile.dumps(lock)
    assert "heim" not in text + "".join(lines)
    assert "127.0.0.1" not in text


def test_absent_version_names_the_nearest_ones_that_resolve(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    index = serve(
        [
            *package_index(),
            *(wheel("onnxruntime-gpu", text, uploaded=EARLY) for text in ("1.9.0", "1.12.1", "1.20.0")),
            wheel("onnxruntime-gpu", "1.14.0", requires=["numpy>2"], uploaded=EARLY),
        ]
    )
    asked = resolution("torch==1.12.1", "onnxruntime-gpu==1.13.1", variant="cu102", variant_is_default=True)
    with pytest.raises(ConflictError) as caught:
        locking.lock(asked, sources(index.url))
    text = str(caught.value)
    assert caught.value.code == "not-on-index"
    assert "the configured package index has no onnxruntime-gpu 1.13.1" in text
    assert "are 1.12.1 and 1.14.0" in text
    assert "hint: ask for onnxruntime-gpu 1.12.1: the image then resolves" in text


def test_absent_package(serve: Serve, sources: MakeSources, resolution: MakeResolution) -> None:
    with pytest.raises(ConflictError, match="has no missspelled") as caught:
        locking.lock(resolution("missspelled", variant_is_default=True), sources(serve(package_index()).url))
    assert caught.value.code == "not-on-index"


def test_no_solution_shows_the_proof_without_flags_of_uv(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    index = serve([*package_index(), wheel("old", "1.0", requires=["numpy<1.20"], uploaded=EARLY)])
    asked = resolution("transformers==4.25.1", "old==1.0", variant_is_default=True, exclude_newer="2023-01-16")
    with pytest.raises(ConflictError) as caught:
        locking.lock(asked, sources(index.url))
    text = str(caught.value)
    assert (caught.value.code, caught.value.exit_status) == ("no-solution", 4)
    assert "all versions of old depend on numpy<1.20" in text
    assert "torchproof-image" not in text
    assert "--" not in text


def test_wheels_for_another_python_only(serve: Serve, sources: MakeSources, resolution: MakeResolution) -> None:
    index = serve([wheel("torch", "2.9.0", tag="cp312-cp312-manylinux_2_28_x86_64")])
    with pytest.raises(ConflictError, match="cp312") as caught:
        locking.lock(resolution("torch==2.9.0", torch="2.9.0", variant_is_default=True), sources(index.url))
    assert caught.value.code == "no-solution"


# --- the whole -------------------------------------------------------------------------------------------------------


def test_two_runs_give_equal_bytes_and_nothing_is_left(
    serve: Serve, sources: MakeSources, resolution: MakeResolution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    asked = resolution("torch==1.12.1", "transformers", variant="cu102", variant_is_default=True)
    texts = [
        lockfile.dumps(locking.lock(asked, sources(serve(package_index()).url), tmp_path / f"cache{number}"))
        for number in range(2)
    ]
    assert texts[0] == texts[1]
    assert list(scratch.iterdir()) == []
    lock = lockfile.parse(texts[0], origin="x")
    assert locking.staleness(lock, asked) == []


def test_settings_of_uv_do_not_change_what_is_chosen(
    serve: Serve, sources: MakeSources, resolution: MakeResolution
) -> None:
    index, other = serve(package_index()), serve([wheel("typing-extensions", "77.0")])
    asked = resolution("torch==1.12.1", "typing-extensions", variant="cu102", variant_is_default=True)
    used = sources(
        index.url,
        UV_EXCLUDE_NEWER="2020-01-01",
        UV_EXTRA_INDEX_URL=other.url,
        UV_RESOLUTION="lowest",
        PIP_EXTRA_INDEX_URL=other.url,
    )
    assert versions(locking.lock(asked, used))["typing-extensions"] == "5.0"
    assert used.ignored == ("UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL")


def test_interrupt_stops_uv_and_leaves_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    program = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[2])
        from builder import lock, resolution, sources
        base = resolution.Base(kind="debian", reference="bookworm", python=None, glibc=None)
        asked = resolution.Resolution(
            image_id="i", spec_name="s", spec_digest="d", cell="c", python="3.11", arch="x86_64", glibc="2.36",
            base=base, flavor="base", torch="2.6.0", variant="cu124", variant_is_default=True,
            requirements=(resolution.Requirement(text="torch==2.6.0"),), choices=(),
        )
        import os
        lock.lock(asked, sources.Sources.from_environment({**os.environ, "UV_DEFAULT_INDEX": sys.argv[1]}))
        """
    )
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(20)
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                program,
                f"http://127.0.0.1:{silent.getsockname()[1]}/simple",
                str(Path(locking.__file__).parents[1]),
            ],
            env={**environment, "TMPDIR": str(scratch)},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        connection, _ = silent.accept()  # uv is at work now
        uv_folder = next(scratch.iterdir())
        started = time.monotonic()
        os.kill(process.pid, signal.SIGINT)  # to torchproof alone: it has to stop uv itself
        _, errors = process.communicate(timeout=20)
        connection.close()
    assert b"KeyboardInterrupt" in errors
    assert time.monotonic() - started < 5
    assert not uv_folder.exists()
    assert list(scratch.iterdir()) == []
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(uv_folder) not in running
