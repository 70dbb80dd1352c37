"""Finish reasons, token counts and replay envelopes."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.finish import FinishReason, ReplayEnvelope, TokenUsage, failed_finish

FAILURE = LlmFailure("m", "SERVER")


def test_usage_makes_the_round_trip_and_drops_unknown_keys() -> None:
    full = TokenUsage(1, 2, 3, 4, 5)
    assert TokenUsage.from_dict({**full.to_dict(), "totalTokens": 9}) == full
    assert TokenUsage(1, 0).to_dict() == {"inputTokens": 1, "outputTokens": 0}


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({"outputTokens": 1}, "inputTokens"),
        ({"inputTokens": 1, "outputTokens": -1}, "outputTokens"),
        ({"inputTokens": 1, "outputTokens": True}, "outputTokens"),
        ({"inputTokens": 1, "outputTokens": 1, "cacheReadTokens": 1.5}, "cacheReadTokens"),
    ],
)
def test_wrong_counts_are_refused(data: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        TokenUsage.from_dict(data)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "stop"},
        {"kind": "stop", "note": 1},
        {"kind": "error", "failure": FAILURE.to_dict()},
        {"kind": "aborted", "failure": FAILURE.to_dict(), "by": "user"},
        {"kind": "paused", "until": "later", "nested": {"a": [1]}},
        {"kind": "paused", "failure": FAILURE.to_dict()},
        {"kind": "paused", "failure": {**FAILURE.to_dict(), "more": 1}},
        {"kind": "paused", "failure": {"message": 5}},
        {"kind": "paused", "failure": "text"},
        {"kind": "paused", "failure": None},
    ],
)
def test_a_reason_makes_the_round_trip_unchanged(data: dict[str, object]) -> None:
    reason = FinishReason.from_dict(data)
    assert reason.to_dict() == data
    assert FinishReason.from_dict(reason.to_dict()) == reason


def test_a_failed_reason_drops_unknown_facts_of_its_failure() -> None:
    data = {"kind": "error", "failure": {**FAILURE.to_dict(), "stack": "x"}}
    assert FinishReason.from_dict(data) == FinishReason("error", FAILURE)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ({}, "kind"),
        ({"kind": 5}, "kind"),
        ({"kind": "error"}, "failure"),
        ({"kind": "aborted", "failure": "text"}, "failure"),
        ({"kind": "error", "failure": {"code": "X"}}, "message"),
    ],
)
def test_wrong_reasons_are_refused(data: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        FinishReason.from_dict(data)


def test_reasons_without_extras_are_hashable_and_equal() -> None:
    assert len({FinishReason("stop"), FinishReason("stop"), FinishReason("error", FAILURE)}) == 2


@pytest.mark.parametrize(
    ("code", "was_cancelled", "kind"),
    [("SERVER", False, "error"), ("SERVER", True, "aborted"), ("ABORTED", False, "aborted")],
)
def test_what_an_exception_ends_in(code: str, was_cancelled: bool, kind: str) -> None:
    finish = failed_finish(LlmError.of("m", code), was_cancelled=was_cancelled)
    assert finish == FinishReason(kind, LlmFailure("m", code))


@pytest.mark.parametrize(
    "data",
    [
        {"response": None},
        {"response": {"id": 1}, "blocks": [1, None]},
        {"response": 1, "blocks": [], "extra": "x"},
    ],
)
def test_an_envelope_makes_the_round_trip(data: dict[str, object]) -> None:
    assert ReplayEnvelope.from_dict(data).to_dict() == data


def test_null_blocks_are_no_blocks() -> None:
    assert ReplayEnvelope.from_dict({"response": 1, "blocks": None}) == ReplayEnvelope(1)


@pytest.mark.parametrize(
    ("data", "names"), [({}, "response"), ({"response": 1, "blocks": "x"}, "blocks")]
)
def test_wrong_envelopes_are_refused(data: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        ReplayEnvelope.from_dict(data)


@pytest.mark.parametrize("kind", [None, 5, {}, [], {"kind": "stop"}, b"stop"])
@pytest.mark.parametrize("failure", [{}, {"failure": {}}, {"failure": {"message": "m"}}])
def test_a_kind_that_is_no_text_is_one_kind_of_error(kind: object, failure: Any) -> None:
    """A client reads reasons of workers, and catches nothing but this."""
    with pytest.raises(ValueError, match="kind: text is required"):
        FinishReason.from_dict({"kind": kind, **failure})
