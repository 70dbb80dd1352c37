"""Small forms of the status command."""

from __future__ import annotations

import pytest
from trunkline_broker.cli.status import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (187, "3 m 07 s"), (3600, "1 h 00 m"), (90_061, "25 h 01 m")],
)
def test_duration(seconds: float, text: str) -> None:
    """As people say it."""
    assert duration(seconds) == text
