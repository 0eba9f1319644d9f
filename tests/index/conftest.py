"""Stand-in indexes and the sources that point at them. Real uv, no internet."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small_index import SmallIndex, StandIn, wheel

from builder.resolution import Base, Requirement, Resolution
from builder.sources import Sources

Serve = Callable[..., SmallIndex]


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
