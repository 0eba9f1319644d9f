from __future__ import annotations

import gzip
import io
import json
import tarfile

import pytest
from fakes import saved_image, tar

from builder import layers
from builder.layers import SavedImage, UnreadableError


def read(data: bytes) -> SavedImage:
    return layers.read(io.BytesIO(data))


def found(data: bytes) -> list[tuple[str, str]]:
    image = read(data)
    return [(one.kind, one.where) for layer in image.layers for one in layer.findings] + [
        (one.kind, one.where) for one in image.findings
    ]


def test_a_clean_image_has_nothing_and_its_layers_have_sizes_and_steps() -> None:
    big = {"opt/venv/lib/x.so": b"x" * (3 * 2**20)}
    image = read(saved_image({"etc/os-release": b"debian"}, big, steps=("", "COPY /layer/ / # buildkit")))
    assert [(layer.size_bytes, layer.step, layer.findings) for layer in image.layers] == [
        (6, "", ()),
        (3 * 2**20, "COPY /layer/ /", ()),
    ]
    assert not image.unread
    assert not image.findings


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("root/.cache/pip/x", "leftover"),
        ("mnt/wheelhouse/a.whl", "leftover"),
        ("usr/local/bin/uv", "leftover"),
        ("var/lib/apt/lists/deb.example.org_x", "leftover"),
        ("etc/pip.conf", "leftover"),
        ("tmp/pip-install-x/setup.py", "leftover"),
        ("run/secrets/ca", "secret"),
        ("home/me/.netrc", "secret"),
        ("root/.docker/config.json", "secret"),
        ("root/.ssh/id_ed25519", "secret"),
        ("usr/local/share/ca-certificates/proxy.crt", "certificate"),
        ("root/ca.pem", "certificate"),
        ("root/mine.key", "secret"),
        ("root/.cache/huggingface/token", "secret"),
    ],
)
def test_a_file_that_a_later_layer_removed_is_still_found(path: str, kind: str) -> None:
    folder, _, name = path.rpartition("/")
    assert found(saved_image({path: b"x"}, {f"{folder}/.wh.{name}": b""})) == [(kind, path)]


@pytest.mark.parametrize(
    "path",
    [
        "opt/venv/lib/python3.11/site-packages/certifi/cacert.pem",
        "etc/ssl/certs/ca-certificates.crt",
        "usr/share/ca-certificates/mozilla/x.crt",
        "root/.ssh/id_ed25519.pub",
        "root/.bashrc",
        "var/lib/apt/lists/lock",
        "opt/venv/lib/python3.11/site-packages/x/mnt/y",
    ],
)
def test_what_belongs_there_is_no_finding(path: str) -> None:
    assert found(saved_image({path: b"x"})) == []


TOLD = "https://me:secret@index.example.org/simple"


def test_a_password_in_a_settings_file() -> None:
    data = saved_image({"opt/venv/pip.conf": f"index-url = {TOLD}".encode()})
    assert found(data) == [("secret", "opt/venv/pip.conf (names a password)")]


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"steps": (f"RUN pip install -i {TOLD}",)}, "step RUN pip install -i https://...@index.example.org/simple"),
        ({"env": (f"UV_DEFAULT_INDEX={TOLD}",)}, "variable UV_DEFAULT_INDEX=https://...@index.example.org/simple"),
        ({"env": ("WANDB_API_KEY=abc123",)}, "variable WANDB_API_KEY=..."),
        ({"steps": ("RUN |1 HF_TOKEN=abc123 /bin/sh -c make",)}, "step RUN |1 HF_TOKEN=... /bin/sh -c make"),
        ({"labels": {"source": TOLD}}, "label source=https://...@index.example.org/simple"),
    ],
)
def test_a_secret_in_the_configuration_is_found_and_not_repeated(more: dict[str, object], where: str) -> None:
    data = saved_image({"a": b""}, **more)  # type: ignore[arg-type]
    assert found(data) == [("secret", where)]
    told = str((read(data).layers, read(data).findings))
    assert "me:secret" not in told
    assert "abc123" not in told


@pytest.mark.parametrize(
    "text",
    ["TOKENIZERS_PARALLELISM=false", "GPG_KEY=A035C8C19219BA821ECEA86B64E628F8D684696D", "HF_TOKEN=", "A_TOKEN=$B"],
)
def test_variables_that_hold_no_secret(text: str) -> None:
    assert found(saved_image({"a": b""}, env=(text,))) == []


def test_a_packed_layer_is_read() -> None:
    image = read(saved_image(gzip.compress(tar({"root/.cache/x": b"x"}))))
    assert [one.where for one in image.layers[0].findings] == ["root/.cache/x"]


def test_a_layer_that_cannot_be_read_is_told_and_never_clean() -> None:
    """Zstandard, as some stores write it, and a tar whose second header is broken: tarfile calls that its end."""
    whole = tar({"a": b"x" * 600, "root/.cache/pip/x": b"x" * 9000, "b": b"x" * 20000})
    broken = whole[:1536] + b"?" * 512 + whole[2048:]
    image = read(saved_image(b"\x28\xb5\x2f\xfd" + b"x" * 2000, broken, {"c": b""}))
    assert len(image.layers) == 3
    first, second = image.unread.values()
    assert "no tar that can be read here" in first
    assert "cannot be read behind byte 1536" in second


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.97])
def test_a_stream_that_breaks_off_is_no_image(cut: float) -> None:
    data = saved_image({"a": b"x" * 50000}, {"b": b"y"})
    end = data.index(b"oci-layout")
    with pytest.raises(UnreadableError):
        read(data[: int(end * cut)])


def test_the_old_format_names_layers_by_links() -> None:
    layer, config = tar({"root/.cache/x": b"x"}), {"history": [], "rootfs": {"diff_ids": ["sha256:1", "sha256:2"]}}
    data = tar({"one/layer.tar": layer, "c.json": json.dumps(config).encode()})
    manifest = [{"Config": "c.json", "Layers": ["one/layer.tar", "two/layer.tar"]}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive, tarfile.open(fileobj=io.BytesIO(data)) as before:
        for member in before:
            archive.addfile(member, before.extractfile(member))
        link = tarfile.TarInfo("two/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../one/layer.tar"
        archive.addfile(link)
        info = tarfile.TarInfo("manifest.json")
        info.size = len(json.dumps(manifest))
        archive.addfile(info, io.BytesIO(json.dumps(manifest).encode()))
    image = read(buffer.getvalue())
    assert [len(layer.findings) for layer in image.layers] == [1, 1]
    assert not image.unread
