"""Failures as data, errors as exceptions, and the way from one to the other."""

from __future__ import annotations

import copy

import pytest
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import (
    LlmError,
    LlmFailure,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    TrunklineError,
    normalize_failure,
)

FULL = {
    "message": "busy",
    "code": "RATE_LIMIT",
    "status": 429,
    "providerRetryAfterMs": 1500,
    "requestId": "r",
}


class ForeignError(Exception):
    def __init__(self, message: str = "foreign", **own: object) -> None:
        super().__init__(message)
        self.__dict__.update(own)


class UntextableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_full_failure_makes_the_round_trip() -> None:
    failure = LlmFailure.from_dict(FULL)
    assert failure == LlmFailure("busy", "RATE_LIMIT", 429, 1500, "r")
    assert failure.to_dict() == FULL


def test_absent_facts_have_no_key() -> None:
    assert LlmFailure("m", "C").to_dict() == {"message": "m", "code": "C"}


def test_unknown_keys_and_unusable_facts_are_left_out() -> None:
    data = {**FULL, "status": 42, "providerRetryAfterMs": 0, "requestId": "", "stack": "x"}
    assert LlmFailure.from_dict(data) == LlmFailure("busy", "RATE_LIMIT")


@pytest.mark.parametrize("data", [{}, {"message": "m"}, {"message": 1, "code": "C"}, {"code": "C"}])
def test_a_failure_without_message_or_code_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="message and a code"):
        LlmFailure.from_dict(data)


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({"message": None}, "message"),
        ({"code": 5}, "code"),
        ({"status": 99}, "status"),
        ({"status": 600}, "status"),
        ({"status": True}, "status"),
        ({"status": 429.0}, "status"),
        ({"provider_retry_after_ms": 0}, "providerRetryAfterMs"),
        ({"provider_retry_after_ms": float("nan")}, "providerRetryAfterMs"),
        ({"provider_retry_after_ms": float("inf")}, "providerRetryAfterMs"),
        ({"provider_retry_after_ms": True}, "providerRetryAfterMs"),
        ({"provider_retry_after_ms": "5"}, "providerRetryAfterMs"),
        ({"request_id": ""}, "requestId"),
        ({"request_id": 5}, "requestId"),
    ],
)
def test_facts_outside_their_range_are_refused(facts: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        LlmFailure(**{"message": "m", "code": "C", **facts})  # type: ignore[arg-type]


def test_an_empty_message_is_legal_data_but_no_good_error() -> None:
    assert LlmFailure("", "C").message == ""
    for message, code in (("", "C"), ("m", "")):
        with pytest.raises(ValueError, match="message and a code"):
            LlmError.of(message, code)


def test_the_tree_of_errors() -> None:
    assert issubclass(ProtocolError, TrunklineError)
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert issubclass(LlmError, TrunklineError)
    assert RemoteProtocolError("x").code == "MALFORMED"
    assert RemoteProtocolError("x", code="BAD_FRAME").code == "BAD_FRAME"


def test_an_error_carries_its_failure_also_through_copies() -> None:
    error = LlmError.of("m", "C", status=500, provider_retry_after_ms=0.5, request_id="r")
    for each in (error, copy.copy(error), copy.deepcopy(error)):
        assert (each.code, each.failure, str(each)) == (
            "C",
            LlmFailure("m", "C", 500, 0.5, "r"),
            "m",
        )


@pytest.mark.parametrize(
    ("raised", "failure"),
    [
        (LlmError.of("m", "AUTH", status=401), LlmFailure("m", "AUTH", 401)),
        (ForeignError(code="X", failure=LlmFailure("f", "X")), LlmFailure("f", "X")),
        (ForeignError(code="Y", failure=LlmFailure("f", "X")), LlmFailure("foreign", "UNKNOWN")),
        (ForeignError(code="RATE_LIMIT", failure=FULL), LlmFailure.from_dict(FULL)),
        (ForeignError(code="X", failure={**FULL, "code": "X", "status": None}), None),
        (ForeignError(code="X", failure={"message": 5, "code": "X"}), None),
        (ForeignError(code="X", failure={"message": "", "code": "X"}), None),
        (ForeignError(code="", failure={"message": "m", "code": ""}), None),
        (ForeignError(code="X", failure=[]), None),
        (ForeignError(failure=FULL), None),
        (ForeignError(code="ECONNREFUSED"), None),
        (ForeignError(""), LlmFailure("LLM adapter failed", "UNKNOWN")),
        (UntextableError(), LlmFailure("LLM adapter failed", "UNKNOWN")),
        (RemoteProtocolError("bad", code="BAD_FRAME"), LlmFailure("bad", "BAD_FRAME")),
        (LocalProtocolError("bad"), LlmFailure("bad", "UNKNOWN")),
        ("text", LlmFailure("text", "UNKNOWN")),
        ("", LlmFailure("LLM adapter failed", "UNKNOWN")),
    ],
)
def test_whatever_is_raised_becomes_a_failure(raised: object, failure: LlmFailure | None) -> None:
    assert normalize_failure(raised) == (failure or LlmFailure("foreign", Code.UNKNOWN))


def test_a_failure_behind_a_property_is_not_read() -> None:
    class TrickyError(ForeignError):
        @property
        def failure(self) -> dict[str, object]:
            raise AssertionError("must not be read")

    assert normalize_failure(TrickyError(code="RATE_LIMIT")).code == Code.UNKNOWN
