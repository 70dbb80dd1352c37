"""Exit codes are a promise to scripts: what the help and the pages say is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from trunkline_broker.cli.exits import EPILOG, ExitCode

ROOT = Path(__file__).resolve().parents[3]
CODES = {
    "OK": 0,
    "FAILED": 1,
    "USAGE": 2,
    "NO_BROKER": 3,
    "ALREADY_RUNNING": 4,
    "TIMED_OUT": 5,
    "INTERRUPTED": 130,
}


def test_no_code_ever_changes() -> None:
    assert {code.name: code.value for code in ExitCode} == CODES


@pytest.mark.parametrize(
    "text",
    [EPILOG, *((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/operating.md"))],
    ids=["help", "README", "guide"],
)
def test_every_code_is_told(text: str) -> None:
    said = re.search(r"Exit codes.*?0 done.*?130 interrupted", text, re.DOTALL)
    assert said is not None
    assert [int(number) for number in re.findall(r"\b\d+\b", said[0])] == list(CODES.values())
