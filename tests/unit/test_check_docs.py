"""docs/errors.md against the rules: every code has a section, and the example in it gives its finding."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from builder.catalog import Catalog
from builder.check import check
from builder.inputs import Options, load

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "errors.md").read_text().split("\n## Check findings\n")[1].split("\n## ")[0]
SECTIONS = {
    match[1]: match[2]
    for match in re.finditer(r"^### `([a-z0-9-]+)`\n(.*?)(?=^### |\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
FILES = {"dockerfile": "Dockerfile", "yaml": "environment.yml", "text": "requirements.txt"}
EXAMPLES = {
    code: found[1]
    for code, body in SECTIONS.items()
    if (found := re.search(r"^    torchproof check (.*)$", body, re.MULTILINE))
}
CATALOG = Catalog.shipped()


def options(words: list[str]) -> Options:
    said: dict[str, list[str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        said.setdefault(flag.removeprefix("--"), []).append(value)
    return Options(
        pins=tuple(said.get("pin", ())),
        python=said.get("python", [None])[0],
        gpus=tuple(said.get("gpu", ())),
        driver=said.get("driver", [None])[0],
        os=said.get("os", [None])[0],
        indexes=tuple(said.get("index", ())),
        arch=said.get("arch", [None])[0],
        env=tuple(said.get("env", ())),
        precisions=tuple(said.get("precision", ())),
        opset=int(said["opset"][0]) if "opset" in said else None,
    )


@pytest.mark.parametrize("code", sorted(EXAMPLES))
def test_example_gives_its_finding(code: str, tmp_path: Path) -> None:
    words = shlex.split(EXAMPLES[code])
    block = re.search(r"```(\w+)\n(.*?)\n```", SECTIONS[code], re.DOTALL)
    files = []
    if block is not None:
        assert words.pop(0) == FILES[block[1]]
        files = [tmp_path / FILES[block[1]]]
        files[0].write_text(block[2] + "\n")
    environment = load(files, options(words))[0].environment
    found = check(environment, CATALOG, hints=False).findings
    assert code in [each.code for each in found]


def test_examples_cover_nearly_everything() -> None:
    assert set(SECTIONS) - set(EXAMPLES) == {"facts-old", "ptx-needs-newer-driver"}
