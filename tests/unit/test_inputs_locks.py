"""Locks and project files."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.environment import Environment
from builder.errors import SpecError
from builder.inputs import Options, load, parse
from builder.inputs.kinds import detect
from builder.inputs.poetry import read_range

UV_LOCK = """\
version = 1
requires-python = ">=3.10"
resolution-markers = ["sys_platform == 'linux'", "sys_platform != 'linux'"]

[[package]]
name = "demo"
version = "0.1.0"
source = { virtual = "." }
dependencies = [
    { name = "torch", version = "2.6.0", source = { registry = "https://mirror.example/simple" } },
    { name = "numpy" },
]

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://mirror.example/simple" }
sdist = { url = "https://x.example/numpy-1.26.4.tar.gz", hash = "sha256:aa" }
wheels = [
    { url = "https://x.example/numpy-1.26.4-cp310-cp310-manylinux_2_17_x86_64.whl", hash = "sha256:bb" },
]

[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://mirror.example/simple" }
resolution-markers = ["sys_platform != 'linux'"]

[[package]]
name = "torch"
version = "2.6.0+cu124"
source = { registry = "https://download.pytorch.org/whl/cu124" }
resolution-markers = ["sys_platform == 'linux'"]
dependencies = [{ name = "nvidia-cublas-cu12", marker = "sys_platform == 'linux'" }]
wheels = [
    { url = "https://download.pytorch.org/whl/cu124/torch-2.6.0%2Bcu124-cp310-cp310-linux_x86_64.whl" },
]

[[package]]
name = "nvidia-cublas-cu12"
version = "12.4.5.8"
source = { registry = "https://mirror.example/simple" }

[[package]]
name = "clip"
version = "1.0"
source = { git = "https://git.example/clip?rev=main#0123" }

[[package]]
name = "broken"
version = "not a version"

[[package]]
version = "1.0"
"""


def test_uv_lock() -> None:
    assert detect("uv.lock", UV_LOCK) == "uv-lock"
    assert detect("other.lock", UV_LOCK) == "uv-lock"
    env = parse("uv-lock", UV_LOCK, "uv.lock")
    found = env.in_force()
    torch = found["torch"].request
    assert set(found) == {"torch", "numpy", "nvidia-cublas-cu12", "clip"}
    assert (str(torch.version), str(torch.origin), str(env.stated_variant("torch"))) == (
        "2.6.0+cu124",
        "uv.lock:29",
        "cu124",
    )
    assert torch.files == ("torch-2.6.0+cu124-cp310-cp310-linux_x86_64.whl",)
    assert torch.requires == ("nvidia-cublas-cu12",)
    assert torch.index is not None
    assert torch.index.kind == "torch"
    assert [found[name].request.is_direct for name in ("torch", "numpy", "nvidia-cublas-cu12")] == [True, True, False]
    assert found["numpy"].request.hashes == ("sha256:bb", "sha256:aa")
    assert found["clip"].request.vcs == "git"
    assert env.is_lock
    assert str(env.python.specifier) == ">=3.10"  # type: ignore[union-attr]
    assert [(str(u.origin), u.why) for u in env.unparsed] == [
        ("uv.lock:49", "it is not a version"),
        ("uv.lock:53", "it has no name"),
    ]


PYLOCK = """\
lock-version = "1.0"
requires-python = ">=3.11"
[[packages]]
name = "torch"
version = "2.6.0"
marker = "sys_platform == 'linux'"
index = "https://mirror.example/simple"
[[packages.wheels]]
name = "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
url = "https://x.example/torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
hashes = { sha256 = "aa" }
[[packages]]
name = "win"
version = "1.0"
marker = "sys_platform == 'win32'"
[[packages]]
name = "repo"
[packages.vcs]
type = "git"
url = "https://git.example/repo"
"""


def test_pylock() -> None:
    assert detect("pylock.dev.toml", PYLOCK) == "pylock"
    assert detect("some.toml", PYLOCK) == "pylock"
    env = parse("pylock", PYLOCK, "pylock.toml")
    assert set(env.in_force()) == {"torch", "repo"}
    assert env.in_force()["torch"].request.hashes == ("sha256:aa",)
    assert env.in_force()["torch"].request.files == ("torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl",)


POETRY_LOCK = """\
[[package]]
name = "torch"
version = "2.1.0+cu118"
optional = false
python-versions = ">=3.8.0"
files = [{file = "torch-2.1.0+cu118-cp310-cp310-linux_x86_64.whl", hash = "sha256:aa"}]
[package.dependencies]
numpy = "*"
[package.source]
type = "legacy"
url = "https://download.pytorch.org/whl/cu118"
reference = "torch"
[metadata]
python-versions = ">=3.10,<3.12"
"""


def test_poetry_lock() -> None:
    assert detect("poetry.lock", POETRY_LOCK) == "poetry-lock"
    env = parse("poetry-lock", POETRY_LOCK, "poetry.lock")
    torch = env.in_force()["torch"].request
    assert (str(torch.version), torch.requires, torch.index.variant.tag) == ("2.1.0+cu118", ("numpy",), "cu118")  # type: ignore[union-attr]
    assert str(env.python.specifier) == "<3.12,>=3.10"  # type: ignore[union-attr]


PYPROJECT = """\
[project]
name = "demo"
requires-python = ">=3.10"
dependencies = [
  "torch>=2.1",
  "transformers[torch]==4.40.0",
  "not a requirement at all",
]
[project.optional-dependencies]
gpu = ["flash-attn"]

[dependency-groups]
dev = ["pytest", {include-group = "lint"}]
lint = ["ruff"]

[tool.uv]
constraint-dependencies = ["numpy<2"]

[tool.uv.sources]
torch = [
  { index = "pytorch-mac", marker = "sys_platform == 'darwin'" },
  { index = "pytorch-cu121", marker = "sys_platform == 'linux'" },
]

[[tool.uv.index]]
name = "pytorch-cu121"
url = "https://download.pytorch.org/whl/cu121"
explicit = true

[[tool.uv.index]]
name = "pytorch-mac"
url = "https://download.pytorch.org/whl/cpu"
explicit = true

[[tool.uv.index]]
url = "https://mirror.example/simple"
default = true
"""


def test_pyproject_with_uv_sources() -> None:
    assert detect("pyproject.toml", PYPROJECT) == "pyproject"
    env = parse("pyproject", PYPROJECT, "pyproject.toml")
    assert set(env.in_force()) == {"torch", "transformers", "pytest"}
    assert str(env.in_force()["torch"].request.origin) == "pyproject.toml:5"
    assert str(env.stated_variant("torch")) == "cu121"
    settings = env.steps[0].indexes
    assert (settings.primary.url, settings.additive, settings.strategy) == (
        "https://mirror.example/simple",
        (),
        "first-index",
    )
    assert [str(bound.specifier) for bound in env.constraints] == ["<2"]
    assert [str(u.origin) for u in env.unparsed] == ["pyproject.toml:7"]
    assert not env.is_lock


POETRY = """\
[tool.poetry.dependencies]
python = ">=3.10,<3.12"
torch = {version = "^2.1.0", source = "pytorch"}
transformers = "~4.40"
numpy = "1.26.4"
apex = {git = "https://git.example/apex"}
multi = [{version = "1.0", markers = "python_version < '3.9'"}, {version = "2.0", markers = "python_version >= '3.9'"}]
odd = "one two"
[tool.poetry.group.dev.dependencies]
pytest = "*"
[tool.poetry.group.docs]
optional = true
[tool.poetry.group.docs.dependencies]
sphinx = "*"
[[tool.poetry.source]]
name = "pytorch"
url = "https://download.pytorch.org/whl/cu118"
priority = "explicit"
"""


def test_pyproject_of_poetry() -> None:
    env = parse("pyproject", POETRY, "pyproject.toml")
    found = {name: str(state.version or state.specifier) for name, state in env.in_force().items()}
    assert found == {
        "torch": "<3,>=2.1.0",
        "transformers": "<4.41,>=4.40",
        "numpy": "1.26.4",
        "apex": "",
        "multi": "1.0",
        "pytest": "",
    }
    assert str(env.in_force()["torch"].request.origin) == "pyproject.toml:3"
    assert str(env.stated_variant("torch")) == "cu118"
    assert [u.text for u in env.unparsed] == ["odd = one two"]


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("^2.1", "<3,>=2.1"),
        ("^0.3.2", "<0.4,>=0.3.2"),
        ("^0.0.3", "<0.0.4,>=0.0.3"),
        ("^0", "<1,>=0"),
        ("~2.1.3", "<2.2,>=2.1.3"),
        ("~2", "<3,>=2"),
        ("2.1.*", "==2.1.*"),
        (">=2,<3", "<3,>=2"),
        ("^1.0 || ^2.0", "<3,>=2.0"),
        ("*", ""),
        ("=2.1.0", "==2.1.0"),
    ],
)
def test_ranges_of_poetry(text: str, asks: str) -> None:
    assert str(read_range(text)[0]) == asks


@pytest.mark.parametrize("kind", ["uv-lock", "pylock", "poetry-lock", "pyproject"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "[[package]]\nname = 1\n[[packages]]\nversion = []\n",
        "package = 1\npackages = {}\n",
        "[project]\ndependencies = 1\nrequires-python = 'x'\n[tool]\nuv = 1\npoetry = 2\n",
        "[project]\ndependencies = [1, [2]]\n[tool.uv]\nsources = 1\nindex = 3\n[dependency-groups]\ndev = 1\n",
        "a = " + "[" * 10_000,
        "not toml",
        "[[package]]\nname = 'a'\nversion = '1'\nwheels = [{url = 'http://[x'}]\n",
    ],
)
def test_odd_toml_is_survived(kind: str, text: str) -> None:
    env = parse(kind, text, "file.toml")  # type: ignore[arg-type]
    assert isinstance(env.to_json(), dict)


def test_a_matrix_gives_one_environment_a_cell(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(
        "axes:\n  torch: ['2.6.0', '2.5']\n  variant: cu124\n  python: '3.11'\n  transformers: none\n"
        "  packages: {numpy: '<2'}\ngpus: [RTX 3090]\ndriver: '550.54'\n"
    )
    assert detect(str(file), file.read_text()) == "spec"
    found = load([file], Options(gpus=("T4",)))
    assert [loaded.name for loaded in found] == ["torch2.6.0-cu124-py311", "torch2.5-cu124-py311"]
    first: Environment = found[0].environment
    assert (str(first.in_force()["torch"].version), str(first.stated_variant("torch"))) == ("2.6.0", "cu124")
    assert str(first.in_force()["torch"].request.origin).endswith("m.yaml:2")
    assert "transformers" not in first.in_force()
    assert [gpu.name for gpu in first.gpus] == ["T4"]
    assert str(found[1].environment.in_force()["torch"].specifier) == "==2.5.*"


@pytest.mark.parametrize(
    "text",
    [
        "axes: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "axes: " + "[" * 5000,
        "axes: [\n",
        "axes: {torch: [2.6.0]}\nunknown: 1\n",
    ],
)
def test_a_broken_or_hostile_matrix_is_an_error_at_once(text: str, tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(SpecError):
        load([file])


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("requirements.txt", "torch\n", "requirements"),
        ("requirements/dev.in", "-r base.in\n", "requirements"),
        ("environment.yml", "dependencies: []\n", "conda"),
        ("env.yaml", "name: x\n", "conda"),
        ("Dockerfile", "", "dockerfile"),
        ("Dockerfile.gpu", "", "dockerfile"),
        ("gpu.Dockerfile", "", "dockerfile"),
        ("Containerfile", "", "dockerfile"),
        ("docker/pip.txt", "FROM python\nRUN pip install torch\n", "dockerfile"),
        ("unknown", "FROM python\n", "dockerfile"),
        ("unknown", "channels: [a]\ndependencies: [b]\n", "conda"),
        ("unknown", "torch==2.0\n", "requirements"),
        ("matrix.yaml", "axes: {torch: auto}\n", "spec"),
        ("unknown", "[project]\nname = 'x'\n", "pyproject"),
        ("", "", "requirements"),
    ],
)
def test_kinds(name: str, text: str, kind: str) -> None:
    assert detect(name, text) == kind
