from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is rendered now")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


def is_required(what: str) -> bool:
    """Whether TORCHPROOF_REQUIRE names `what`: then a test may not be skipped for the lack of it."""
    return what in os.environ.get("TORCHPROOF_REQUIRE", "").replace(",", " ").split()


@pytest.fixture
def missing(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """`missing("docker", why)`: skip with the reason, or fail where TORCHPROOF_REQUIRE names it."""

    def tell(what: str, why: str) -> None:
        if is_required(what):
            pytest.fail(f"TORCHPROOF_REQUIRE names {what}, but {why}")
        pytest.skip(why)

    return tell
