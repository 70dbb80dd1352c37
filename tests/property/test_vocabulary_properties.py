"""Messages, requests, failures, retry delays: what holds for every input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.classify import (
    http_error_code,
    is_context_window_exceeded,
    is_quota_exceeded,
    is_throttling,
)
from trunkline_protocol.error_chain import error_chain
from trunkline_protocol.failure import LlmFailure, RemoteProtocolError, normalize_failure
from trunkline_protocol.frozen import freeze, thaw
from trunkline_protocol.http_failure import http_failure, in_band_failure
from trunkline_protocol.messages import bound_context_summary
from trunkline_protocol.options import GenerateOptions, options_from_wire, options_to_wire
from trunkline_protocol.retry_policy import (
    AlwaysRetryPolicy,
    backoff_ms,
    policy_from_dict,
    policy_key,
)

texts = st.text(st.characters(), max_size=8)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | numbers | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
# Keys that no model declares must be valid Unicode; texts may hold lone surrogates.
keys = st.text(max_size=8).map(lambda key: f"x-{key}")
extras = st.dictionaries(keys, json_values, max_size=2)
leaf_blocks = st.one_of(
    st.builds(lambda text, more: {**more, "type": "text", "text": text}, texts, extras),
    st.builds(lambda text: {"type": "reasoning", "text": text}, texts),
    st.builds(lambda more: {**more, "type": "chart"}, extras),
    st.builds(
        lambda call, name, args: {"type": "tool-call", "id": call, "name": name, "arguments": args},
        texts,
        texts,
        texts,
    ),
)
blocks = st.recursive(
    leaf_blocks,
    lambda inner: st.builds(
        lambda call, content: {"type": "tool-result", "toolCallId": call, "content": content},
        texts,
        st.lists(inner, max_size=3),
    ),
    max_leaves=4,
)
sources = st.one_of(
    st.just({"kind": "user"}),
    st.builds(lambda name: {"kind": "plugin", "plugin": name}, texts),
    st.builds(
        lambda name, state: {"kind": "model", "provider": name, "model": "m", "replayState": state},
        texts,
        json_values.filter(lambda state: state is not None),
    ),
    st.builds(lambda more: {**more, "kind": "timer"}, extras),
)
messages = st.builds(
    lambda name, role, content, source: {
        "id": name,
        "role": role,
        "content": content,
        "source": source,
    },
    texts,
    st.sampled_from(["system", "user", "assistant"]),
    st.lists(blocks, max_size=3),
    sources,
)
requests = st.fixed_dictionaries(
    {"provider": texts, "model": texts, "messages": st.lists(messages, max_size=3)},
    optional={
        "system": texts,
        "temperature": st.integers(0, 2) | st.floats(0, 2),
        "maxTokens": st.integers(0, 2**40),
        "stop": st.lists(texts, max_size=2),
        "tools": st.lists(
            st.builds(
                lambda name, schema: {"name": name, "description": "", "parameters": schema},
                texts,
                json_values.filter(lambda schema: schema is not None),
            ),
            max_size=2,
        ),
    },
)


@given(requests)
def test_a_request_crosses_the_wire_unchanged(data: dict[str, Any]) -> None:
    options = GenerateOptions.from_dict(data)
    assert options.to_dict() == data
    back = options_from_wire(options_to_wire(options))
    assert back == options
    assert repr(back.to_dict()) == repr(options.to_dict())


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ((), ""),
        (("messages", 0), "messages.0: "),
        (("messages", 0, "source"), "messages.0.source: "),
        (("messages", 0, "content", 0), "messages.0.content.0: "),
        (("tools", 0), "tools.0: "),
    ],
)
def test_a_key_with_half_a_character_is_refused_by_its_place(
    path: tuple[str | int, ...], place: str
) -> None:
    """An undeclared key with a lone surrogate ends in an error that names the map it is in."""
    message = {"id": "1", "role": "user", "content": [{"type": "chart"}], "source": {"kind": "x"}}
    tool = {"name": "t", "description": "", "parameters": {}}
    data: Any = {"provider": "p", "model": "m", "messages": [message], "tools": [tool]}
    where = data
    for step in path:
        where = where[step]
    where["x-\ud800"] = 1
    with pytest.raises(ValueError, match="not valid Unicode") as raised:
        GenerateOptions.from_dict(data)
    assert str(raised.value).startswith(f"{place}a key is not valid Unicode")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_refused(body: bytes) -> None:
    try:
        options = options_from_wire(body)
    except RemoteProtocolError:
        return
    assert options_from_wire(options_to_wire(options)) == options


@given(json_values)
def test_freezing_and_thawing_change_nothing(value: Any) -> None:
    assert freeze(value) == value
    assert thaw(freeze(value)) == value


@given(texts, st.integers(100, 599))
def test_throttling_is_never_an_overflow_nor_a_quota(text: str, status: int) -> None:
    worded = f"{text} quota exceeded: 5 requests per minute; context_length_exceeded {text}"
    assert is_throttling(worded)
    assert not is_context_window_exceeded(worded)
    assert not is_quota_exceeded(worded)
    assert http_error_code(status, worded) not in {"QUOTA", "CONTEXT_WINDOW_EXCEEDED"}


@given(st.integers(100, 599), st.dictionaries(texts, texts), st.binary(max_size=40))
def test_any_response_is_a_failure_with_its_status(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    failure = http_failure(status, headers, body, 0.0)
    assert failure.status == status
    assert LlmFailure.from_dict(failure.to_dict()) == failure


@given(
    json_values,
    st.dictionaries(st.sampled_from(["message", "code", "type", "status"]), json_values),
)
def test_any_payload_is_a_failure(payload: Any, error: dict[str, Any]) -> None:
    for each in (payload, {"error": payload}, {"error": error}, [{"error": error}]):
        failure = in_band_failure(each)
        assert LlmFailure.from_dict(failure.to_dict()) == failure


@given(json_values)
def test_any_raised_value_is_a_failure_and_a_line(value: Any) -> None:
    assert normalize_failure(value).code == "UNKNOWN"
    assert isinstance(error_chain(value), str)
    error = ValueError(value)
    error.failure = value  # type: ignore[attr-defined]
    assert normalize_failure(error).code == "UNKNOWN"


delays = st.floats(min_value=1e-9, max_value=2_147_483_647)


@given(delays, delays, st.floats(0, 1), st.integers(1, 2**60), st.floats(0, 1))
def test_a_delay_never_passes_its_bound(
    initial: float, bound: float, jitter: float, retry: int, random: float
) -> None:
    policy = AlwaysRetryPolicy(min(initial, bound), bound, jitter)
    delay_ms = backoff_ms(policy, retry, random)
    assert 0 <= delay_ms <= bound
    assert policy_key(policy_from_dict(policy.to_dict())) == policy_key(policy)


@given(st.text(max_size=200))
def test_a_summary_fits_and_is_a_prefix(summary: str) -> None:
    bounded = bound_context_summary(summary)
    assert len(bounded.encode("utf-16-le", "surrogatepass")) // 2 <= 120
    assert bounded == summary or summary.startswith(bounded[:-1])
