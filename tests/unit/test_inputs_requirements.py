"""Requirements files as people have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.environment import Environment, Origin, Request, Unparsed
from builder.errors import UsageError
from builder.inputs import Options, load, parse, read
from builder.inputs.indexes import classify, of_word
from builder.inputs.reading import MAX_INCLUDES, Reader, decode
from builder.inputs.requirement import parse as parse_requirement
from builder.versions import CudaVariant

HERE = Origin("requirements.txt", 1)


def env(text: str, files: dict[str, str] | None = None, **variables: str) -> Environment:
    reader = Reader(files=files or {}, is_offline=True)
    options = Options(env=tuple(f"{name}={value}" for name, value in variables.items()))
    return parse("requirements", text, "requirements.txt", reader=reader, options=options)


def one(text: str) -> Request:
    found = parse_requirement(text, HERE)
    assert isinstance(found, Request), found
    return found


def why(text: str) -> str:
    found = parse_requirement(text, HERE)
    assert isinstance(found, Unparsed)
    return found.why


@pytest.mark.parametrize(
    ("text", "name", "asks"),
    [
        ("torch", "torch", ""),
        ("torch==2.1.0+cu118", "torch", "==2.1.0+cu118"),
        ("Torch == 2.1", "torch", "==2.1"),
        ("PyTorch_Lightning>=2.0,<3", "pytorch-lightning", "<3,>=2.0"),
        ("torchvision >=0.16.0, <0.17", "torchvision", "<0.17,>=0.16.0"),
        ("torch~=2.1.0", "torch", "~=2.1.0"),
        ("torch==2.1.*", "torch", "==2.1.*"),
        ("torch (>=1.10)", "torch", ">=1.10"),
        ("torch===2.1.0", "torch", "==2.1.0"),
        ("numpy<2,", "numpy", "<2"),
        ("torch==2.7.0.dev20250310+cu124", "torch", "==2.7.0.dev20250310+cu124"),
    ],
)
def test_names_and_versions(text: str, name: str, asks: str) -> None:
    found = one(text)
    assert (found.name, found.asks) == (name, asks)


def test_extras_are_canonical_and_the_marker_is_kept() -> None:
    found = one("transformers[Torch, sentence_piece]>=4 ; python_version >= '3.8' and sys_platform == 'linux'")
    assert found.extras == ("torch", "sentence-piece")
    assert found.marker == "python_version >= '3.8' and sys_platform == 'linux'"


@pytest.mark.parametrize(
    ("text", "name", "version", "variant"),
    [
        (
            "torch @ https://x.example/whl/cu118/torch-2.1.2%2Bcu118-cp310-cp310-linux_x86_64.whl",
            "torch",
            "2.1.2+cu118",
            "cu118",
        ),
        (
            "https://x.example/torchvision-0.16.2+cu118-cp310-cp310-linux_x86_64.whl",
            "torchvision",
            "0.16.2+cu118",
            "cu118",
        ),
        ("./wheels/torch-1.13.1+cpu-cp39-cp39-linux_x86_64.whl", "torch", "1.13.1+cpu", "cpu"),
        ("torch-2.0.0-cp310-cp310-manylinux1_x86_64.whl", "torch", "2.0.0", "None"),
        ("https://x.example/causal_conv1d-1.4.0.tar.gz#sha256=00", "causal-conv1d", "1.4.0", "None"),
    ],
)
def test_files_named_by_address_or_path(text: str, name: str, version: str, variant: str) -> None:
    found = one(text)
    assert (found.name, str(found.version), str(found.variant)) == (name, version, variant)


def test_the_parts_of_an_extension_wheel() -> None:
    found = one("flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl")
    assert found.local == "cu12torch2.6cxx11abifalse"
    assert found.wheel is not None
    assert (found.wheel.pythons, found.wheel.platforms) == (("cp311",), ("linux_x86_64",))
    assert not found.is_source


@pytest.mark.parametrize(
    ("text", "name", "vcs"),
    [
        ("git+https://github.com/NVlabs/tiny-cuda-nn/#subdirectory=bindings/torch", "", "git"),
        ("git+https://github.com/openai/CLIP.git@main#egg=clip", "clip", "git"),
        ("clip @ git+https://github.com/openai/CLIP.git", "clip", "git"),
        ("git+ssh://git@host.example/a/b.git@v1#egg=Foo_Bar[extra]", "foo-bar", "git"),
        ("internal-pkg @ git+https://${TOKEN}@github.com/example/internal-pkg.git@v1.2", "internal-pkg", "git"),
        ("./libs/local_pkg", "", None),
        (".", "", None),
        ("../other[extra]", "", None),
        ("C:\\code\\pkg", "", None),
        ("libs/pkg", "", None),
        ("file:///opt/pkg", "", None),
    ],
)
def test_repositories_and_folders_are_source(text: str, name: str, vcs: str | None) -> None:
    found = one(text)
    assert (found.name, found.vcs, found.is_source) == (name, vcs, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("torch = 2.0", "a single `=` is conda's; pip wants `==`"),
        ("torch 2.0.1", "between name and version there is no operator such as `==`"),
        ("numpy>=1.20.*", "`>=1.20.*` is not a version specifier"),
        ("torch==${TORCH_VERSION}", "the variable `TORCH_VERSION` has no value here"),
        ("{{ package }}", "it is a template"),
        ("<<<<<<< HEAD", "it is not a requirement"),
        ("=======", "it is not a requirement"),
        ("; python_version < '3'", "it names no package"),
        ("a" * 5000, "it is longer than any requirement"),
    ],
)
def test_what_is_no_requirement_says_why(text: str, reason: str) -> None:
    assert why(text) == reason


def test_options_apply_to_the_whole_file_wherever_they_stand() -> None:
    found = env(
        "torch==2.2.0+cu121\n-i https://mirror.example/simple/\n--extra-index-url=https://download.pytorch.org/whl/cu121\n"
        "-fhttps://x.example/page.html\n--pre\n--trusted-host mirror.example\n--no-binary :all:\n--prefer-binary\n"
    )
    step = found.steps[0]
    assert [index.kind for index in step.indexes.all] == ["default", "torch", "other"]
    assert step.indexes.variants() == (CudaVariant("cu121", step.indexes.variants()[0].toolkit),)
    assert step.indexes.pre
    assert step.no_binary == (":all:",)
    assert found.unparsed == ()
    assert str(step.indexes.additive[0].origin) == "requirements.txt:3"


def test_no_index_leaves_the_pages() -> None:
    found = env("--no-index\n--find-links ./wheels\ntorch\n")
    assert [index.url for index in found.steps[0].indexes.all] == ["./wheels"]


def test_comments_continuations_and_hashes() -> None:
    found = env(
        "torch==\\\n2.4.1+cu118 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb  # via x\n"
        "# numpy==1.0 \\\nnumpy==1.26.4 # -r other.txt\n    # via\n    #   -c limits.txt\nscipy \\\n"
    )
    torch, numpy, scipy = found.requests
    assert (torch.asks, torch.hashes, torch.origin.line) == ("==2.4.1+cu118", ("sha256:aa", "sha256:bb"), 1)
    assert (numpy.asks, numpy.origin.line) == ("==1.26.4", 6)
    assert (scipy.name, scipy.origin.line) == ("scipy", 9)
    assert found.unparsed == ()


def test_options_of_a_single_requirement_are_not_part_of_it() -> None:
    found = env('some-ext==1.0 --config-settings "--build-option=--cpp_ext"\napex --global-option="--cuda_ext"\n')
    assert [request.asks for request in found.requests] == ["==1.0", ""]
    assert found.unparsed == ()


def test_an_option_behind_a_requirement_is_named_and_the_package_read() -> None:
    found = env("torch==2.1.0 --extra-index-url https://download.pytorch.org/whl/cu118\n")
    assert [request.asks for request in found.requests] == ["==2.1.0"]
    assert "line of its own" in found.unparsed[0].why


def test_variables_given_as_options_are_filled_in() -> None:
    found = env("torch==${TORCH}+cu118\n--extra-index-url https://${HOST}/whl/cu118\n", TORCH="2.1.0")
    assert found.requests[0].asks == "==2.1.0+cu118"
    assert found.steps[0].indexes.variants()[0].tag == "cu118"


def test_includes_are_relative_to_the_file_that_names_them() -> None:
    files = {
        "reqs/base.txt": "-r deep/more.txt\nnumpy<2\n",
        "reqs/deep/more.txt": "-c ../../c.txt\ntorch\n",
        "c.txt": "torch==2.1.0\n",
    }
    found = env("-r reqs/base.txt\n--requirement=reqs/base.txt\n", files)
    assert [str(request.origin) for request in found.requests] == ["reqs/deep/more.txt:2", "reqs/base.txt:2"]
    assert [str(bound.origin) for bound in found.constraints] == ["c.txt:1"]
    assert found.unparsed == ()
    assert [source.file for source in found.sources] == [
        "requirements.txt",
        "reqs/base.txt",
        "reqs/deep/more.txt",
        "c.txt",
    ]


def test_missing_and_circular_includes_are_named() -> None:
    found = env(
        "-r gone.txt\n-r a.txt\n-r https://x.example/r.txt\n-r\n", {"a.txt": "-r b.txt\ntorch\n", "b.txt": "-r a.txt\n"}
    )
    assert [(u.text, u.why) for u in found.unparsed] == [
        ("-r gone.txt", "there is no such file"),
        ("-r a.txt", "it includes itself"),
        ("-r https://x.example/r.txt", "it is on the network, which is never asked"),
        ("-r", "`-r` has no value"),
    ]
    assert [request.name for request in found.requests] == ["torch"]


def test_a_tree_of_includes_is_cut() -> None:
    files = {f"f{n}.txt": "\n".join(f"-r f{m}.txt" for m in range(n + 1, 40)) + f"\np{n}\n" for n in range(40)}
    found = env("-r f0.txt\n" * 200, files)
    assert len(found.requests) <= MAX_INCLUDES
    assert found.unparsed


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_bytes("torch==2.1.0  # größe\r\nnumpy<2\r\n".encode(encoding))
    found = read(file)
    assert [request.asks for request in found.requests] == ["==2.1.0", "<2"]
    assert [request.origin.line for request in found.requests] == [1, 2]


def test_decode_takes_any_byte() -> None:
    assert len(decode(bytes(range(256)))) > 200


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "requirements.txt"
    file.write_text("-r folder\n-r /dev/zero\n-r \n")
    assert {u.why for u in read(file).unparsed} == {"it is not a file", "`-r` has no value"}


def test_a_file_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load([tmp_path / "gone.txt"])
    with pytest.raises(UsageError, match="cannot be read"):
        load([tmp_path])


@pytest.mark.parametrize(
    ("url", "kind", "variant"),
    [
        ("https://download.pytorch.org/whl/cu118", "torch", "cu118"),
        ("https://download.pytorch.org/whl/cu118/", "torch", "cu118"),
        ("https://download.pytorch.org/whl/nightly/cu121", "torch", "cu121"),
        ("https://download.pytorch.org/whl/torch_stable.html", "torch", "None"),
        ("https://download.pytorch.org/whl/cu111/torch_stable.html", "torch", "cu111"),
        ("https://download.pytorch.org/whl/cpu", "torch", "cpu"),
        ("https://download.pytorch.org/whl/rocm6.2", "torch", "rocm6.2"),
        ("https://download.pytorch.org/whl", "torch", "None"),
        ("https://${HOST}/whl/cu121", "torch", "cu121"),
        ("https://mirror.example/pytorch-wheels/cu121/", "torch", "cu121"),
        ("https://mirror.example/pytorch/whl/cu118", "torch", "cu118"),
        ("https://mirror.example/simple", "default", "None"),
        ("https://user:secret@mirror.example/pypi/web/simple/", "default", "None"),
        ("https://mirror.example/repository/team-a/simple", "other", "None"),
        ("https://feed.example/onnxruntime-cuda-12/pypi/simple/", "other", "None"),
        ("https://data.example/whl/torch-2.10.0+cu130.html", "other", "None"),
        ("https://data.example/wheels/cu116/repo.html", "other", "None"),
        ("https://project.example/llama-cpp-python/whl/cu121", "other", "None"),
        ("https://wheels.example/whl/cu124/torch2.4/", "other", "None"),
        ("./wheels", "other", "None"),
        ("", "other", "None"),
    ],
)
def test_indexes_are_known_by_the_form_of_their_path(url: str, kind: str, variant: str) -> None:
    found = classify(url, HERE)
    assert (found.kind, str(found.variant)) == (kind, variant)


def test_words_of_the_index_option() -> None:
    assert of_word("default", HERE).kind == "default"
    assert str(of_word("cu124", HERE).variant) == "cu124"
    assert of_word("https://download.pytorch.org/whl/cu121", HERE).url is not None


def test_index_options_take_the_place_of_what_nobody_named() -> None:
    (loaded,) = load([], Options(pins=("torch",), indexes=("default", "cu118")))
    settings = loaded.environment.steps[0].indexes
    assert [index.kind for index in settings.all] == ["default", "torch"]
    (loaded,) = load([], Options(pins=("torch",), indexes=("https://download.pytorch.org/whl/torch_stable.html",)))
    settings = loaded.environment.steps[0].indexes
    assert (settings.primary.kind, [page.kind for page in settings.find_links]) == ("default", ["torch"])


def test_an_index_line_of_the_file_holds_against_the_option(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("--index-url https://download.pytorch.org/whl/cu118\ntorch\n")
    (loaded,) = load([file], Options(indexes=("default", "cu121")))
    assert [str(index.variant) for index in loaded.environment.steps[0].indexes.all] == ["cu118", "cu121"]


def test_index_variables_given_as_options_count() -> None:
    (loaded,) = load(
        [],
        Options(pins=("torch",), indexes=("cu130",), env=("PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu",)),
    )
    assert [str(index.variant) for index in loaded.environment.steps[0].indexes.all] == ["cu130", "cpu"]
