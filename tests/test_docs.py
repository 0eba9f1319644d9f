"""Docs against code: what one side names, the other has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.main import get_command

from builder.cli import app
from builder.spec_models import Axes, Matrix

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


def raised_codes() -> dict[str, str]:
    """code -> file, of every error of ours: the first text given to one of the classes of errors.py or their kind."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "builder").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_CODES":
                for code in ast.literal_eval(node.value).values():
                    found.setdefault(code, str(path.relative_to(ROOT)))
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if not (name.endswith("Error") or name.lower() in ("conflict", "finding")):
                continue
            values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            values += node.args[:1]
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and CODE.fullmatch(value.value):
                    found.setdefault(value.value, str(path.relative_to(ROOT)))
    return found


def documented_codes() -> list[str]:
    text = (ROOT / "docs" / "errors.md").read_text()
    return re.findall(r"^### `([a-z0-9-]+)`$", text, flags=re.MULTILINE)


def test_every_error_code_has_a_section_and_every_section_a_code() -> None:
    codes, sections = raised_codes(), documented_codes()
    assert len(sections) == len(set(sections))
    assert {code: place for code, place in codes.items() if code not in sections} == {}
    assert set(sections) - set(codes) == set()


def commands() -> list[str]:
    return sorted(get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_has_help_and_is_in_the_docs() -> None:
    shown = "\n".join(path.read_text() for path in DOCS)
    for name in commands():
        assert get_command(app).commands[name].help, name  # type: ignore[attr-defined]
        assert f"torchproof {name}" in shown, name


def keys(model: type[BaseModel]) -> list[str]:
    return [info.alias or name for name, info in model.model_fields.items()]


@pytest.mark.parametrize("key", [*keys(Matrix), *keys(Axes)])
def test_every_key_of_a_matrix_is_in_its_reference(key: str) -> None:
    assert f"`{key}`" in (ROOT / "docs" / "matrix.md").read_text()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_readme_shows_a_real_verdict() -> None:
    """As the tool prints it: the line of each level, a digest, and what was not checked."""
    block = (ROOT / "README.md").read_text().split("<!-- verdict: quickstart -->")[1].split("<!-- end")[0]
    for part in ("proven to L2 CPU run", "✓ L0 pins", "✓ L1 files", "✓ L2 CPU run", "– L3 GPU run   not checked"):
        assert part in block
    assert re.search(r"sha256:[0-9a-f]{64} \(image ID\)", block)
