"""The adapter kit: the contract as numbered checks, a fake provider, and both as a pytest plugin.

For authors of adapters (docs/adapters.md):

    pytest_plugins = ["trunkline_workers.testing"]  # in conftest.py: the report at the end

    class TestContract(AdapterContract):
        def subject(self):
            return contract_subject()
"""

from __future__ import annotations

from trunkline_workers.testing.checks import (
    BROKEN,
    CHECKS,
    EMPTY,
    FAILURE,
    HOLDS,
    NOT_SHOWN,
    REPLAY,
    SCENARIOS,
    STALL,
    TEXT,
    TOOLS,
    UNSUPPORTED,
    ContractBrokenError,
    Subject,
    Verdict,
    obligation,
    run_check,
    run_contract,
)
from trunkline_workers.testing.plugin import (
    AdapterContract,
    pytest_configure,
    pytest_runtest_logreport,
    pytest_terminal_summary,
)
from trunkline_workers.testing.provider import FakeProvider, HttpSubject, Reply, scenario_requests

__all__ = [
    "BROKEN",
    "CHECKS",
    "EMPTY",
    "FAILURE",
    "HOLDS",
    "NOT_SHOWN",
    "REPLAY",
    "SCENARIOS",
    "STALL",
    "TEXT",
    "TOOLS",
    "UNSUPPORTED",
    "AdapterContract",
    "ContractBrokenError",
    "FakeProvider",
    "HttpSubject",
    "Reply",
    "Subject",
    "Verdict",
    "obligation",
    "pytest_configure",
    "pytest_runtest_logreport",
    "pytest_terminal_summary",
    "run_check",
    "run_contract",
    "scenario_requests",
]
