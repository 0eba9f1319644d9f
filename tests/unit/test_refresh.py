"""`facts refresh` against an index that is a function: what is new appears and `check` uses it."""

from __future__ import annotations

import io
import json
import os
import threading
import zipfile
from collections.abc import Mapping
from datetime import date
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from checking import CATALOG, codes, judged

from builder.catalog import Catalog
from builder.errors import PackageIndexError
from builder.package_index import PackageIndex, metadata_of
from builder.package_rows import rows, span
from builder.refresh import refresh

TODAY = date(2026, 12, 24)
URL = "https://index.example.org/simple"


class Index:
    """Answers as a JSON index with metadata beside the wheels; counts what it was asked."""

    def __init__(self, files: Mapping[str, list[dict[str, Any]]], metadata: Mapping[str, str] | None = None) -> None:
        self.files = files
        self.metadata = metadata or {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    def fetch(self, url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        self.asked.append((url, dict(headers)))
        if headers.get("If-None-Match") == '"1"':
            return 304, {}, b""
        if url.endswith(".metadata"):
            text = self.metadata.get(url.rpartition("/")[2].removesuffix(".metadata"))
            return (404, {}, b"") if text is None else (200, {}, text.encode())
        name = url.removeprefix(f"{URL}/").strip("/")
        if name not in self.files:
            return 404, {}, b""
        return 200, {"ETag": '"1"'}, json.dumps({"files": self.files[name]}).encode()

    def client(self, cache: Path | None = None) -> PackageIndex:
        return PackageIndex(URL, cache, fetch=self.fetch)


def wheel(name: str, day: str, **more: Any) -> dict[str, Any]:
    return {"filename": name, "url": f"files/{name}", "upload-time": f"{day}T00:00:00Z", "core-metadata": True, **more}


def shipped_files(name: str) -> list[dict[str, Any]]:
    """Every release of the facts as one pure wheel, so that nothing counts as deleted."""
    raw = CATALOG.raw("packages")["projects"][name]["releases"]
    stem = name.replace("-", "_")
    return [
        wheel(f"{stem}-{version}-py3-none-any.whl", row.get("released", "2020-01-01"), yanked=row.get("yanked", False))
        for version, row in raw.items()
    ]


def quiet(name: str) -> None:
    del name


def overlaid(overlay: Mapping[str, Any], tmp_path: Path) -> Catalog:
    file = tmp_path / "new.json"
    file.write_text(f"# generated\n{json.dumps(overlay)}")
    return CATALOG.with_overlay(file)


def test_a_new_release_is_usable_in_check(tmp_path: Path) -> None:
    pin = "onnxruntime==9.1.0"
    assert judged(pin).verdict == "unknown"
    name = "onnxruntime-9.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    index = Index(
        {"onnxruntime": [*shipped_files("onnxruntime"), wheel(name, "2026-12-20")]},
        {name: "Metadata-Version: 2.1\nName: onnxruntime\nRequires-Dist: numpy>=2.1\n"},
    )
    found = refresh(CATALOG, index.client(), ["onnxruntime"], TODAY, quiet)
    assert found.told["onnxruntime"] == ["9.1.0"]
    newer = overlaid(found.overlay, tmp_path)
    assert judged(pin, catalog=newer).verdict == "compatible"
    assert "no-wheel-for-python" in codes(pin, catalog=newer, python="3.13")
    assert "pin-conflict" in codes(pin, "numpy==1.26.4", catalog=newer)
    row = newer.raw("packages")["projects"]["onnxruntime"]
    assert "2026-12-24" in row["source"]


def test_withdrawn_and_deleted_releases_are_told(tmp_path: Path) -> None:
    files = shipped_files("peft")
    gone, withdrawn = files.pop(), files[-1]
    withdrawn["yanked"] = "broken"
    found = refresh(CATALOG, Index({"peft": files}).client(), ["peft"], TODAY, quiet)
    deleted = gone["filename"].split("-")[1]
    assert found.told["peft"] == [f"{withdrawn['filename'].split('-')[1]} withdrawn", f"{deleted} deleted"]
    newer = overlaid(found.overlay, tmp_path)
    assert "release-withdrawn" in codes(f"peft=={deleted}", catalog=newer)


def test_a_new_torch_is_known_and_its_cards_are_not(tmp_path: Path) -> None:
    name = "torch-9.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    requires = ["nvidia-cudnn-cu13==9.30.0", "cuda-toolkit[cudart]==13.6.0", "triton==4.0.0", "setuptools>=77"]
    index = Index(
        {"torch": [wheel(name, "2026-12-20", **{"requires-python": ">=3.12"})]},
        {name: "Metadata-Version: 2.1\n" + "".join(f"Requires-Dist: {text}\n" for text in requires)},
    )
    found = refresh(CATALOG, index.client(), ["torch"], TODAY, quiet)
    newer = overlaid(found.overlay, tmp_path)
    release = newer.torch_release("9.1.0")
    assert release is not None
    assert str(release.default_variant()) == "cu136"
    assert release.cudnn_major() == 9
    assert release.abi.confidence == "from-memory"
    assert "no-wheel-for-python" in codes("torch==9.1.0", catalog=newer, python="3.13")
    assert judged("torch==9.1.0", catalog=newer, gpus="RTX 5090", python="3.12").verdict == "unknown"


def test_new_patches_of_neighbours(tmp_path: Path) -> None:
    numpy = "numpy-9.0.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    runtime = "onnxruntime_gpu-9.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    transformers = "transformers-9.2.0-py3-none-any.whl"
    vision = "torchvision-9.3.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    index = Index(
        {
            "numpy": [wheel(numpy, "2026-12-20")],
            "onnxruntime-gpu": [*shipped_files("onnxruntime-gpu"), wheel(runtime, "2026-12-20")],
            "transformers": [*shipped_files("transformers"), wheel(transformers, "2026-12-20")],
            "torchvision": [wheel(vision, "2026-12-20")],
        },
        {
            runtime: "Name: x\nRequires-Dist: nvidia-cuda-runtime~=14.0; extra == 'cuda'\n",
            transformers: 'Name: x\nRequires-Dist: tokenizers>=0.30\nRequires-Dist: torch>=3; extra == "torch"\n',
            vision: "Name: x\nRequires-Dist: torch==2.15.0\n",
        },
    )
    names = ["numpy", "onnxruntime-gpu", "transformers", "torchvision"]
    found = refresh(CATALOG, index.client(), names, TODAY, quiet)
    newer = overlaid(found.overlay, tmp_path)
    assert newer.numpy_release("9.0.0") is not None
    gpu = newer.onnxruntime_gpu("9.1.0")
    assert gpu is not None
    assert gpu.cuda_major == 14
    minor = newer.transformers("9.2.0")
    assert minor is not None
    assert str(minor.torch_extra) == ">=3"
    assert newer.companion("torchvision", "9.3.0") is not None
    assert "onnxruntime-cuda" in codes("torch==2.13.0", "onnxruntime-gpu==9.1.0", catalog=newer, python="3.12")


def test_only_named_projects_are_asked_and_conditionally(tmp_path: Path) -> None:
    index = Index({"peft": shipped_files("peft")})
    for _ in range(2):
        assert refresh(CATALOG, index.client(tmp_path), ["peft"], TODAY, quiet).told == {}
    assert [url for url, _ in index.asked] == [f"{URL}/peft/"] * 2
    assert index.asked[1][1]["If-None-Match"] == '"1"'


def test_an_index_that_breaks_is_an_error() -> None:
    client = PackageIndex(URL, fetch=lambda url, headers: (503, {}, b""))
    with pytest.raises(PackageIndexError, match="503"):
        client.files("peft")


def test_html_form_of_the_simple_api() -> None:
    page = b'<a href="../files/peft-9.0-py3-none-any.whl#sha256=0" data-requires-python="&gt;=3.9" data-yanked="">x</a>'
    client = PackageIndex(URL, fetch=lambda url, headers: (200, {}, page))
    (file,) = client.files("peft") or []
    assert (str(file.version), file.requires_python, file.is_yanked) == ("9.0", ">=3.9", True)
    assert file.url == "https://index.example.org/simple/files/peft-9.0-py3-none-any.whl"


def test_metadata_from_the_end_of_a_wheel() -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("big.bin", bytes(200_000))
        archive.writestr("x-1.0.dist-info/METADATA", "Name: x\nRequires-Dist: numpy\n")
    content = data.getvalue()
    asked: list[tuple[int | None, int]] = []

    def read(first: int | None, last: int) -> tuple[int, bytes]:
        asked.append((first, last))
        return len(content), content[-last:] if first is None else content[first : last + 1]

    assert metadata_of(read) == "Name: x\nRequires-Dist: numpy\n"
    assert len(asked) == 1


def test_rows_keep_tracked_requirements_alone() -> None:
    name = "x-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    index = Index({"x": [wheel(name, "2025-01-01")]}, {name: "Requires-Dist: NumPy>1\nRequires-Dist: y\n"})
    found = rows(index.client(), "x", tracked=frozenset({"numpy"}))
    assert found is not None
    assert found["requirement_sets"] == [["numpy>1"]]
    assert found["releases"]["1.0"] == {
        "released": "2025-01-01", "python": "3.11", "aarch64": "", "glibc": "2.17", "requires": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("pythons", "text"), [("any", "any"), ([], ""), (["3.8"], "3.8"), (["3.8", "3.9", "3.10"], "3.8..3.10")]
)
def test_span(pythons: list[str] | str, text: str) -> None:
    assert span(pythons) == text


def test_rows_before_the_year_of_interest_keep_their_version_alone() -> None:
    files = [wheel("x-1.0-py3-none-any.whl", "2018-01-01"), wheel("x-2.0-py3-none-any.whl", "2025-01-01")]
    found = rows(Index({"x": files}, {}).client(), "x", tracked=frozenset(), since=date(2020, 1, 1))
    assert found is not None
    assert (list(found["releases"]), found["older"]) == (["2.0"], ["1.0"])


def test_a_requirement_that_pip_refuses_is_kept_as_it_was_meant() -> None:
    name = "x-1.0-py3-none-any.whl"
    index = Index({"x": [wheel(name, "2022-01-01")]}, {name: "Requires-Dist: torch (>=1.9.*)\n"})
    found = rows(index.client(), "x", tracked=frozenset({"torch"}))
    assert found is not None
    assert found["requirement_sets"] == [["torch>=1.9"]]
    assert found["releases"]["1.0"]["refused"] == "torch (>=1.9.*)"


class _Served(SimpleHTTPRequestHandler):
    """A folder over HTTP, with `Last-Modified` and 304, as the standard library gives them."""

    statuses: ClassVar[list[int]] = []

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the name of the base class)
        del format, args

    def send_response(self, code: int, message: str | None = None) -> None:
        self.statuses.append(code)
        super().send_response(code, message)


def test_a_second_look_over_http_is_answered_with_not_modified(tmp_path: Path) -> None:
    page = tmp_path / "root" / "peft" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="../files/peft-9.0-py3-none-any.whl">x</a>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Served, directory=str(tmp_path / "root")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for expected in ([200], [200, 304]):
            files = PackageIndex(url, tmp_path / "cache").files("peft") or []
            assert [str(file.version) for file in files] == ["9.0"]
            assert _Served.statuses == expected
        later = page.stat().st_mtime + 10
        page.write_text('<a href="../files/peft-9.1-py3-none-any.whl">x</a>')
        os.utime(page, (later, later))
        files = PackageIndex(url, tmp_path / "cache").files("peft") or []
        assert [str(file.version) for file in files] == ["9.1"]
        assert _Served.statuses == [200, 304, 200]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_renewed_row_keeps_the_old_versions() -> None:
    files = [*shipped_files("opencv-python"), wheel("opencv_python-4.1.2.30-py3-none-any.whl", "2018-11-21")]
    files.append(wheel("opencv_python-99.0-py3-none-any.whl", "2026-12-20"))
    found = refresh(CATALOG, Index({"opencv-python": files}).client(), ["opencv-python"], TODAY, quiet)
    assert found.overlay["packages"]["projects"]["opencv-python"]["older"] == ["4.1.2.30"]
