"""The contract in pytest: one test per obligation, and a report of all adapters at the end.

pytest is imported when a test runs, so that `trunkline adapter check` needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from trunkline_workers.testing.checks import (
    BROKEN,
    CHECKS,
    HOLDS,
    NOT_SHOWN,
    Subject,
    Verdict,
    obligation,
    run_check,
)

_PROPERTY: Final = "adapter contract"
_reports: Final[dict[str, dict[int, str]]] = {}  # outcomes by obligation, by adapter
_MARKS: Final = {HOLDS: "+", BROKEN: "X", NOT_SHOWN: "-"}


class AdapterContract:
    """Twelve tests, one per obligation; a subclass named `Test…` says of which adapter."""

    def subject(self) -> AbstractAsyncContextManager[Subject]:
        """Return a context that holds the open adapter and its provider; called for each test."""
        raise TypeError(f"{type(self).__name__} needs a method subject()")


def _test_of(number: int) -> Callable[..., None]:
    def test(self: AdapterContract, record_property: Callable[[str, object], None]) -> None:
        import pytest

        verdict = asyncio.run(_verdict(self, number))
        # A property of the test reaches the process that reports, whichever ran the test.
        record_property(_PROPERTY, [type(self).__name__, number, verdict.outcome])
        if verdict.outcome == NOT_SHOWN:
            pytest.skip(f"obligation {number} is not shown: {verdict.detail}")
        if verdict.outcome == BROKEN:
            pytest.fail(f"obligation {number} is broken: {verdict.detail}", pytrace=False)

    test.__doc__ = obligation(number)
    return test


async def _verdict(contract: AdapterContract, number: int) -> Verdict:
    async with contract.subject() as subject:
        return await run_check(number, subject)


for _number in CHECKS:
    setattr(AdapterContract, f"test_obligation_{_number:02}", _test_of(_number))


def pytest_configure(config: Any) -> None:
    """Begin a new report (a hook of pytest)."""
    del config
    _reports.clear()


def pytest_runtest_logreport(report: Any) -> None:
    """Note the outcome of one obligation (a hook of pytest)."""
    for name, value in report.user_properties if report.when == "call" else ():
        if name == _PROPERTY:
            adapter, number, outcome = value
            _reports.setdefault(adapter, {})[number] = outcome


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the report (a hook of pytest): a row per adapter, a column per obligation."""
    if not _reports:
        return
    terminalreporter.section("adapter contract (+ holds, X broken, - not shown)")
    numbers = list(CHECKS)
    width = max(map(len, _reports))
    terminalreporter.line(" " * width + "".join(f"{number:>4}" for number in numbers))
    for name, outcomes in _reports.items():
        marks = [_MARKS[outcomes[n]] if n in outcomes else " " for n in numbers]
        terminalreporter.line(f"{name:<{width}}" + "".join(f"{mark:>4}" for mark in marks))
