"""The shared field cases as tests, and the runner's own verdicts."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.field.cases import Replay, load
from tests.field.runner import AT_A_TIME, main, run_replay
from tests.field.ways import AdapterWay

pytestmark = pytest.mark.integration


OWN = Path(__file__).parent / "data"


def _shared_cases() -> Path | None:
    """Find the file beside the repository, or where `TRUNKLINE_SHARED` says."""
    beside = Path(__file__).resolve().parents[3] / "shared"
    path = Path(os.environ.get("TRUNKLINE_SHARED", beside)) / "field" / "cases.json"
    return path if path.is_file() else None


def _files() -> list[Any]:
    path = _shared_cases()
    reason = "the shared field cases are not here (set TRUNKLINE_SHARED)"
    skipped = pytest.param(None, marks=pytest.mark.skip(reason=reason), id="shared")
    shared = skipped if path is None else pytest.param(path, id="shared")
    return [shared, *(pytest.param(own, id=own.stem) for own in sorted(OWN.glob("*.json")))]


@pytest.mark.parametrize("path", _files())
def test_field_cases(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What users needed comes out of the adapter, and of client, broker and worker process."""
    status = main([str(path)])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", _files())
async def test_field_cases_on_the_other_transport(path: Path) -> None:
    """httpx's own transport gives the same; cases that wait for a limit are left out."""
    cases = [case for case in load(path) if isinstance(case, Replay) and case.answer.end != "open"]
    way = AdapterWay(changes={"transport": "httpx"})
    slots = asyncio.Semaphore(AT_A_TIME)
    found: dict[str, list[str]] = {}

    async def run(case: Replay) -> None:
        async with slots:
            found[case.name] = await run_replay(case, way)

    async with asyncio.TaskGroup() as tasks:
        for case in cases:
            tasks.create_task(run(case))
    assert {name: texts for name, texts in found.items() if texts} == {}


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
    assert main([str(path), "--way", "adapter"]) == status
    assert said in capsys.readouterr().out


ODD = [
    {"id": "A", "input": {"kind": "grpc"}, "expected": {}},
    {"id": "B", "input": {"kind": "sse", "writes": [], "end": "explodes"}},
    {"input": {"kind": "http-table", "rows": 7}},
    {"id": "D"},
    "text",
    {"id": "F", "input": {"kind": "scenario"}, "expected": {"rules": []}, "mood": "new"},
]


def test_entries_that_are_not_known_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What can't be replayed is no miss, and its reason stands in its line."""
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"cases": [*ODD, GOOD]}))
    assert main([str(path), "--way", "adapter"]) == 0
    said = capsys.readouterr().out
    for text in (
        "unknown kind of input 'grpc'",
        "unknown end",
        "#3       not run",
        "1 ok, 0 missed",
    ):
        assert text in said


def test_a_file_that_is_no_list_of_cases(tmp_path: Path) -> None:
    """A file of another kind is refused with a status of its own."""
    path = tmp_path / "cases.json"
    path.write_text("7")
    assert main([str(path)]) == 2
