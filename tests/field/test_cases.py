"""The shared field cases as tests, and the runner's own verdicts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.field.cases import Replay, Scenario, load
from tests.field.runner import main, run_adapter, run_replay, run_scenario

pytestmark = pytest.mark.integration


def _shared_cases() -> Path | None:
    """Find the file beside the repository, or where `TRUNKLINE_SHARED` says."""
    beside = Path(__file__).resolve().parents[3] / "shared"
    path = Path(os.environ.get("TRUNKLINE_SHARED", beside)) / "field" / "cases.json"
    return path if path.is_file() else None


def _cases() -> list[Any]:
    path = _shared_cases()
    if path is None:
        reason = "the shared field cases are not here (set TRUNKLINE_SHARED)"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(case, id=case.name) for case in load(path)]


@pytest.mark.parametrize("case", _cases())
async def test_field_case(case: Replay | Scenario) -> None:
    """What users needed comes out."""
    if isinstance(case, Replay):
        assert await run_replay(case, run_adapter) == []
    elif (found := await run_scenario(case)) is None:
        pytest.skip("staged by another part of the project")
    else:
        assert found == []


GOOD = {
    "id": "X1",
    "input": {
        "kind": "sse",
        "writes": ['data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n', "data: [DONE]\n\n"],
    },
    "expected": {
        "chunks": [
            {"t": "block-start", "block": 0, "kind": "text"},
            {"t": "text-delta", "block": 0, "text": "Hi"},
            {"t": "finish", "reason": "stop"},
        ],
        "failure": None,
    },
}


def _with(**changes: Any) -> dict[str, Any]:
    return {**GOOD, "expected": {**GOOD["expected"], **changes}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("case", "status", "said"),
    [
        (GOOD, 0, "X1       ok"),
        (_with(failure="TIMEOUT"), 1, "no failure, expected TIMEOUT"),
        (_with(chunks=[]), 1, "blocks "),
        (
            _with(chunks=[*GOOD["expected"]["chunks"][:2], {"t": "finish", "reason": "length"}]),
            1,
            "finish stop",
        ),  # type: ignore[index]
    ],
)
def test_the_runner_judges(
    case: dict[str, Any], status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line per case, and the status says whether one was missed."""
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([case]))
    assert main([str(path)]) == status
    assert said in capsys.readouterr().out
