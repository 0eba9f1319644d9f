from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


COUNT: Any = None  # made with the first test that seeds a fault


def pytest_runtest_setup(item: pytest.Item) -> None:
    import seeded  # noqa: PLC0415 - the folder of the tests is on the path only now

    seeded.OBSERVED.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count the faults that a test seeds; a code that it promises and did not see fails it."""
    import seeded  # noqa: PLC0415

    global COUNT  # noqa: PLW0603 - one count for the whole run, told at its end
    report = yield
    said = seeded.said_by(item)
    if not said or not (report.when == "call" or (report.when == "setup" and not report.passed)):
        return report
    seen = {seeded.shared(text) for text in seeded.OBSERVED}
    unseen = [text for text in said if seeded.shared(text) not in seen] if seen else []
    if report.passed and unseen:
        report.outcome = "failed"
        report.longrepr = f"faults that were not seen: {unseen}; seen were {sorted(seen)}"
    COUNT = COUNT or seeded.Count()
    COUNT.add(said, report.outcome)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNT is not None:
        terminalreporter.section("seeded faults")
        for text in COUNT.lines():
            terminalreporter.line(text)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.getoption("--list-faults"):
        import seeded  # noqa: PLC0415

        for item in session.items:
            for text in seeded.said_by(item):
                session.config.get_terminal_writer().line(f"fault {text}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--list-faults", action="store_true", help="with --collect-only: the faults that tests seed")
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
