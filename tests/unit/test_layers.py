from __future__ import annotations

import io
import json
import tarfile

import pytest

from builder import layers


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def image(*parts: dict[str, bytes], history: tuple[str, ...] = ("RUN make",), env: tuple[str, ...] = ()) -> bytes:
    """As `docker save` writes it."""
    config = {"config": {"Env": list(env)}, "history": [{"created_by": step} for step in history]}
    files = {f"blobs/sha256/{index:064x}": tar(part) for index, part in enumerate(parts)}
    files["blobs/sha256/" + "c" * 64] = json.dumps(config).encode()
    files["manifest.json"] = b'[{"Config": "x", "Layers": []}]'
    return tar(files)


def read(data: bytes) -> dict[str, tuple[str, ...]]:
    return {layer.name[-8:]: layer.leftovers for layer in layers.read(io.BytesIO(data)) if layer.leftovers}


def test_a_clean_image_has_nothing_and_its_layers_have_sizes() -> None:
    big = {"opt/venv/lib/x.so": b"x" * (3 * 2**20)}
    data = image({"etc/os-release": b"debian"}, big)
    assert read(data) == {}
    sizes = [layer.size for layer in layers.read(io.BytesIO(data)) if layer.name != "history"]
    assert sizes == [6, 3 * 2**20]


@pytest.mark.parametrize(
    "path",
    [
        "root/.cache/pip/x",
        "run/secrets/ca",
        "home/me/.netrc",
        "mnt/wheelhouse/a.whl",
        "usr/local/bin/uv",
        "var/lib/apt/lists/deb.example.org_x",
        "etc/pip.conf",
    ],
)
def test_a_file_that_a_later_layer_removed_is_still_found(path: str) -> None:
    folder, _, name = path.rpartition("/")
    data = image({path: b"x"}, {f"{folder}/.wh.{name}": b""})
    assert list(read(data).values()) == [(path,)]


def test_a_password_in_a_settings_file_in_the_history_and_in_a_variable() -> None:
    told = "https://me:secret@index.example.org/simple"
    data = image({"opt/venv/pip.conf": f"index-url = {told}".encode()}, history=(f"RUN pip install -i {told}",))
    found = read(data)
    assert found["history"] == ("RUN pip install -i https://...@index.example.org/simple",)
    assert ("opt/venv/pip.conf (names a password)",) in found.values()
    assert read(image(env=(f"UV_DEFAULT_INDEX={told}",)))["history"] == (
        "UV_DEFAULT_INDEX=https://...@index.example.org/simple",
    )
