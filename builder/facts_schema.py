"""stub"""
from pathlib import Path
from typing import Any


def read_overlay(path: Path) -> dict[str, Any]:
    raise NotImplementedError


def validate(topic: str, content: Any, origin: str) -> None:
    raise NotImplementedError
