from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from test_lockfile import WHEEL

from builder import build_requirements
from builder.errors import TorchproofError

ARCHIVE = replace(WHEEL, name="promise", version="2.3", filename="promise-2.3.tar.gz", kind="sdist")
FLIT = '[build-system]\nrequires = ["flit_core >=3.2,<4"]\nbuild-backend = "flit_core.buildapi"\n'


def test_archive_that_says_nothing_is_built_by_setuptools(tmp_path: Path) -> None:
    assert build_requirements.of(ARCHIVE, folder=tmp_path, archive=None) == {"setuptools>=40.8.0", "wheel"}
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n")
    assert build_requirements.of(ARCHIVE, folder=tmp_path, archive=None) == {"setuptools>=40.8.0", "wheel"}


def test_archive_that_names_its_backend(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(FLIT)
    assert build_requirements.of(ARCHIVE, folder=tmp_path, archive=None) == {"flit_core<4,>=3.2"}


@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_local_archive_is_read_where_it_lies(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"promise-2.3{ending}"
    names = {
        "promise-2.3/pyproject.toml": FLIT,
        "promise-2.3/vendored/pyproject.toml": "[build-system]\nrequires=['x']",
    }
    if ending == ".zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name, text in names.items():
                zipped.writestr(name, text)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name, text in names.items():
                member = tarfile.TarInfo(name)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    assert build_requirements.of(ARCHIVE, folder=None, archive=path) == {"flit_core<4,>=3.2"}


def test_nothing_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(TorchproofError) as caught:
        build_requirements.of(ARCHIVE, folder=None, archive=None)
    assert caught.value.code == "uv-cache"
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["no version >"]\n')
    with pytest.raises(TorchproofError, match="cannot be read"):
        build_requirements.of(ARCHIVE, folder=tmp_path, archive=None)
