"""Replay state tampered with: every place of it, within a bound; an adapter that falls for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    FinishReason,
    ReplayEnvelope,
    StreamChunk,
    TextDelta,
)
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.testing import BROKEN, HOLDS, Subject, run_check, scenario_requests
from trunkline_workers.testing.spoilt import VARIANTS_MAX, spoilt_histories

STATE = ReplayEnvelope({"v": 1, "ids": {"a": "x", "b": [1, 2]}}, ({"signature": "s"},))
REQUEST = scenario_requests("p", "m", names=["replay"])["replay"]


def an_answer(state: ReplayEnvelope | None = STATE) -> list[StreamChunk]:
    return [
        BlockStart(0, "text"),
        TextDelta(0, "Hi."),
        BlockEnd(0, {"type": "text", "text": "Hi."}),
        Finish(FinishReason("stop"), state),
    ]


def histories(state: ReplayEnvelope | None) -> list[Any]:
    answer = BlockAssembler()
    for chunk in an_answer(state):
        answer.push(chunk)
    requests = [each.to_dict() for each in spoilt_histories(answer, REQUEST)]
    messages: list[Any] = [each["messages"] for each in requests]
    assert all(each[0] == each[2] for each in messages)
    return [each[1]["source"]["replayState"] for each in messages]


def test_every_place_is_replaced_once() -> None:
    whole, *spoilt = histories(STATE)
    assert whole == STATE.to_dict()
    texts = [json.dumps(each) for each in spoilt]
    for piece in ('"v": 1', '"a": "x"', '"b": [1, 2]', "[1, 2]", '"signature": "s"', '"ids": {"a"'):
        assert any(piece not in text for text in texts), piece
    assert len(spoilt) < VARIANTS_MAX


def test_a_large_state_makes_no_flood() -> None:
    large = ReplayEnvelope({str(n): n for n in range(500)}, (None,))
    assert len(histories(large)) <= 2 * VARIANTS_MAX


def test_an_answer_without_state_has_nothing_to_spoil() -> None:
    assert histories(None) == []


class Trusting(LlmAdapter):
    """Takes any state with its version for its own."""

    def __init__(self, *, checks: bool) -> None:
        self.checks = checks

    async def stream(self, options: GenerateOptions) -> AsyncIterator[list[StreamChunk]]:
        for message in options.messages:
            state: Any = getattr(message.source, "replay_state", None)
            if state is not None:
                self.use(state)
        yield an_answer()

    def use(self, state: Any) -> None:
        try:
            if state["response"]["v"] == 1:
                ",".join(block["signature"] for block in state["blocks"])
        except (TypeError, KeyError):
            if not self.checks:
                raise


@pytest.mark.parametrize(("checks", "outcome"), [(True, HOLDS), (False, BROKEN)])
async def test_an_adapter_that_trusts_a_state_is_found(checks: bool, outcome: str) -> None:
    requests = scenario_requests("p", "m", names=["text", "replay"])
    verdict = await run_check(11, Subject(Trusting(checks=checks), requests))
    assert verdict.outcome == outcome, verdict
