"""The translator: ends of a stream, and errors inside it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trunkline_protocol.chunks import BlockStart, Finish
from trunkline_protocol.http_failure import in_band_failure
from trunkline_workers.adapters.chat_completions.profiles import ResponseRules
from trunkline_workers.adapters.chat_completions.translate import DONE, Translator
from trunkline_workers.sse import ErrorEvent

from tests.unit.workers.a_response import COUNTS, EXACT, LENIENT, Result, call, chunk


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("end_turn", "stop"),
        ("eos", "stop"),
        ("length", "max-tokens"),
        ("MAX_TOKENS", "max-tokens"),
        ("content_filter", "CONTENT_FILTER"),
        ("SAFETY", "CONTENT_FILTER"),
        ("insufficient_system_resource", "INSUFFICIENT_SYSTEM_RESOURCE"),
        ("abort", "SERVER"),
        ("weird", "WEIRD"),
        (None, "stop"),
        ("", "stop"),
    ],
)
def test_finish_reasons(reason: str | None, kind: str) -> None:
    """Known words map, unknown ones become the code of a failure."""
    assert Result(chunk({"content": "x"}), chunk(finish=reason), DONE).finish == kind


def test_a_finish_reason_object_is_read() -> None:
    """SGLang's object has the reason in its type."""
    payload = json.dumps({"choices": [{"finish_reason": {"type": "length", "length": 3}}]}).encode()
    assert Result(chunk({"content": "x"}), payload, DONE).finish == "max-tokens"


def test_a_null_reason_after_the_real_one_changes_nothing() -> None:
    """Azure's trailing choice is no finish."""
    result = Result(chunk({"content": "x"}), chunk(finish="length"), chunk(finish=None), DONE)
    assert result.finish == "max-tokens"


def test_the_end_after_a_finish_reason_is_normal() -> None:
    """`[DONE]` is not required."""
    assert Result(chunk({"content": "x"}), chunk(finish="stop")).finish == "stop"


def test_the_end_without_a_finish_reason_is_a_failure() -> None:
    """A cut answer is never a whole one; its blocks stay open."""
    result = Result(chunk({"content": "x"}, usage=COUNTS))
    assert result.thrown is not None
    assert result.thrown.code == "STREAM_CLOSED"
    assert result.usage == {"inputTokens": 7, "outputTokens": 2}
    assert result.blocks == []


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"error": {"message": "slow down", "code": 429}}, "RATE_LIMIT"),
        ({"error": "boom"}, "SERVER"),
        (
            {"choices": [], "error": {"code": 400, "message": "prompt is too long: 2 > 1"}},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ({"object": "error", "message": "bad", "code": 400}, "INVALID_REQUEST"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "SERVER"),
        ({"choices": [{"delta": {}, "error": {"code": 502, "message": "x"}}]}, "SERVER"),
        ({"detail": "nope"}, "SERVER"),
        ({"x_groq": {"error": "failed"}}, "SERVER"),
    ],
)
def test_errors_inside_a_stream_end_it(payload: dict[str, Any], code: str) -> None:
    """Whatever the shape, the error ends the stream, also after text."""
    for before in ((), (chunk({"content": "x"}),)):
        result = Result(*before, json.dumps(payload).encode(), chunk(finish="stop"), DONE)
        assert result.thrown is not None
        assert result.thrown.code == code


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b'{"message":"overloaded"}', "SERVER"),
        (b'{"error":{"code":429,"message":"x"}}', "RATE_LIMIT"),
        (b"rate limit reached", "RATE_LIMIT"),
    ],
)
def test_an_event_that_says_error_is_one(payload: bytes, code: str) -> None:
    """The field of the event counts, whatever its data looks like."""
    result = Result(chunk({"content": "x"}), ErrorEvent(payload), DONE)
    assert result.thrown is not None
    assert result.thrown.code == code


def test_events_that_ran_together_are_taken_apart() -> None:
    """A server that forgets the blank lines is still understood; broken JSON is not."""
    joined = b"\n".join([chunk({"content": "a"}), chunk({"content": "b"}, "stop"), DONE])
    assert Result(joined).blocks == [{"type": "text", "text": "ab"}]
    broken = Result(chunk({"content": "a"}) + b"\n{")
    assert broken.thrown is not None
    assert broken.thrown.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("payload", [{"error": None}, {"error": {}}, {"message": "queued"}, {}])
def test_what_only_looks_like_an_error_is_none(payload: dict[str, Any]) -> None:
    """A null error and a status message change nothing."""
    result = Result(json.dumps(payload).encode(), chunk({"content": "x"}), DONE)
    assert result.finish == "stop"


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b'{"choices":[null]}',
        b'{"choices":"ab"}',
        b'{"choices":[{"delta":"x"}]}',
        b'{"choices":[{"delta":{"tool_calls":[null]}}]}',
        b'{"choices":[{"delta":{"tool_calls":"x"}}]}',
        b"{",
        b"[done]",
        b"\xff",
        b'{"x":' + b"[" * 3000,
    ],
)
def test_payloads_of_the_wrong_shape_are_malformed(payload: bytes) -> None:
    """Never a raw exception."""
    result = Result(chunk({"content": "x"}), payload, DONE)
    assert result.thrown is not None
    assert result.thrown.code == "MALFORMED_RESPONSE"


@pytest.mark.parametrize("rules", [LENIENT, EXACT])
def test_half_a_character_is_replaced(rules: ResponseRules) -> None:
    """Tokenizers cut characters; the text goes on."""
    payload = b'{"choices":[{"delta":{"content":"a\xe4b"}}]}'
    assert Result(payload, DONE, rules=rules).blocks == [{"type": "text", "text": "a\ufffdb"}]


def test_numbers_that_json_does_not_have() -> None:
    """Python's servers write them into logprobs; DeepSeek's API has none."""
    payload = b'{"choices":[{"delta":{"content":"a"},"logprobs":[NaN,-Infinity]}]}'
    assert Result(payload, DONE).blocks == [{"type": "text", "text": "a"}]
    strict = Result(payload, DONE, rules=EXACT)
    assert strict.thrown is not None
    assert strict.thrown.code == "MALFORMED_RESPONSE"


def test_deep_nesting_of_an_extra_is_harmless() -> None:
    """A field nobody reads may be as deep as it likes."""
    payload = b'{"x":' + b"[" * 5000 + b'"]"' + b"]" * 5000 + b"," + chunk({"content": "x"})[1:]
    assert Result(payload, DONE).blocks == [{"type": "text", "text": "x"}]


def test_an_empty_answer_beyond_the_window_is_an_overflow() -> None:
    """A silent overflow is named, if the window is known."""
    payload = chunk(finish="stop", usage={"prompt_tokens": 36_100, "completion_tokens": 0})
    assert Result(payload, DONE, context_window=32_768).finish == "CONTEXT_WINDOW_EXCEEDED"
    assert Result(payload, DONE).finish == "EMPTY_RESPONSE"


def test_nothing_after_the_end_is_read() -> None:
    """Whatever follows `[DONE]` is dropped."""
    translator = Translator(LENIENT, in_band_failure)
    chunks = translator.feed([chunk({"content": "x"}), DONE, b"garbage"])
    assert isinstance(chunks[-1], Finish)
    assert translator.feed([b"garbage"]) == []
    assert translator.failure is None


@pytest.mark.parametrize(
    ("pending", "code"),
    [(DONE, None), (chunk(finish="stop"), None), (b'{"choices":[', "STREAM_CLOSED")],
)
def test_an_event_without_its_blank_line(pending: bytes, code: str | None) -> None:
    """It counts if it is whole by its own framing."""
    translator = Translator(LENIENT, in_band_failure)
    translator.feed([chunk({"content": "x"})])
    translator.end(pending)
    assert (translator.failure.code if translator.failure else None) == code


@pytest.mark.parametrize("wrap", ["{}", "[{}]", "junk\n{}\n"])
def test_an_error_beside_the_events_is_found(wrap: str) -> None:
    """A JSON line without `data:` says why the stream ended."""
    error = json.dumps({"error": {"code": 400, "message": "Blocked"}})
    translator = Translator(LENIENT, in_band_failure)
    translator.end(None, wrap.replace("{}", error).encode())
    assert translator.failure is not None
    assert (translator.failure.code, translator.failure.message) == ("INVALID_REQUEST", "Blocked")


def test_a_whole_completion_is_adapted() -> None:
    """A JSON answer makes the chunks a stream would."""
    message = {"content": "Hi", **call(id="a", name="f", arguments="{}")}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": COUNTS}
    for rules in (LENIENT, EXACT):
        translator = Translator(rules, in_band_failure)
        chunks = translator.whole(json.dumps(body).encode())
        starts = [c.block_type for c in chunks if isinstance(c, BlockStart)]
        assert starts == ["text", "tool-call"]
        assert chunks[-1] == Finish(chunks[-1].reason)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"error":{"message":"no","code":401}}', "AUTH"),
        (b'[{"error":{"code":429,"message":"x"}}]', "RATE_LIMIT"),
        (b"{}", "MALFORMED_RESPONSE"),
        (b'{"a":1}\n{"a":2}', "MALFORMED_RESPONSE"),
    ],
)
def test_a_json_answer_that_is_no_completion(body: bytes, code: str) -> None:
    """It fails with its own error or as malformed, never as an empty success."""
    translator = Translator(LENIENT, in_band_failure)
    translator.whole(body)
    assert translator.failure is not None
    assert translator.failure.code == code
