"""The strict grammar: every rule once kept and once broken."""

from __future__ import annotations

import pytest
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.grammar import GrammarChecker, Violation

STOP = Finish(FinishReason("stop"))
ERROR = Finish(FinishReason("error", LlmFailure("m", "X")))
USAGE = Usage(TokenUsage(1, 1))
OPEN = BlockStart(0, "text")
CLOSE = BlockEnd(0, {"type": "text", "text": ""})


def checked(*chunks: object) -> Violation | None:
    checker = GrammarChecker()
    for chunk in chunks:
        checker.push(chunk)
    return checker.end()


@pytest.mark.parametrize(
    "chunks",
    [
        [STOP],
        [OPEN, TextDelta(0, "x"), CLOSE, USAGE, STOP],
        [OPEN, BlockEnd(0, None), OPEN, CLOSE, STOP],
        [BlockStart(0, "reasoning"), ReasoningDelta(0, "x"), ERROR],
        [
            BlockStart(9, "tool-call"),
            ToolCallDelta(9, "c", ""),
            BlockEnd(9, {"type": "tool-call"}),
            STOP,
        ],
        ["rogue", STOP],
    ],
)
def test_well_formed_streams(chunks: list[object]) -> None:
    assert checked(*chunks) is None


@pytest.mark.parametrize(
    ("chunks", "count"),
    [
        ([], 0),
        ([OPEN, CLOSE], 2),
        ([STOP, STOP], 1),
        ([STOP, "rogue"], 1),
        ([OPEN, OPEN], 1),
        ([BlockStart(-1, "text")], 0),
        ([BlockStart(True, "text")], 0),
        ([TextDelta(2**53, "x")], 0),
        ([TextDelta(0, "x")], 0),
        ([OPEN, ReasoningDelta(0, "x")], 1),
        ([CLOSE], 0),
        ([BlockEnd(-1, None)], 0),
        ([OPEN, BlockEnd(0, {"type": "reasoning"})], 1),
        ([USAGE, USAGE], 1),
        ([OPEN, STOP], 1),
    ],
)
def test_broken_streams_say_after_how_many_chunks(chunks: list[object], count: int) -> None:
    violation = checked(*chunks)
    assert violation is not None
    assert violation.chunk_count == count
    assert violation.rule


def test_the_first_violation_is_final() -> None:
    checker = GrammarChecker()
    first = checker.push(CLOSE)
    assert first is not None
    assert checker.push(OPEN) is first
    assert checker.push(STOP) is first
    assert checker.end() is first
