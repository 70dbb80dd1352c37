"""Requests: their fields, their comparison, their way over the wire."""

from __future__ import annotations

import msgpack
import pytest
from trunkline_protocol import options as options_module
from trunkline_protocol.codec import unpack_body
from trunkline_protocol.failure import LocalProtocolError, RemoteProtocolError
from trunkline_protocol.messages import Message
from trunkline_protocol.options import (
    GenerateOptions,
    LlmCallConfig,
    ToolSchema,
    call_config_equals,
    options_from_wire,
    options_to_wire,
)

FULL = {
    "provider": "p",
    "model": "m",
    "messages": [
        {
            "id": "1",
            "role": "user",
            "content": [{"type": "text", "text": "lone \ud83d surrogate"}],
            "source": {"kind": "user"},
        },
        {
            "id": "2",
            "role": "assistant",
            "content": [
                {"type": "tool-call", "id": "c", "name": "f", "arguments": '{"b":1, "a":2}'}
            ],
            "source": {"kind": "model", "provider": "p", "model": "m"},
        },
    ],
    "reasoningEffort": "high",
    "system": "s",
    "tools": [
        {"name": "f", "description": "d", "parameters": {"z": {"type": "object"}, "a": [1.0, 1]}}
    ],
    "temperature": 0,
    "maxTokens": 5,
    "stop": ["x", ""],
    "sessionId": "s1",
    "purpose": "compaction",
    "later": {"x": None},
}


def test_the_wire_keeps_order_and_content_exactly() -> None:
    options = GenerateOptions.from_dict(FULL)
    back = options_from_wire(options_to_wire(options))
    assert back == options
    assert back.to_dict() == FULL
    assert repr(back.to_dict()["tools"]) == repr(FULL["tools"])
    assert repr(back.temperature) == "0"


def test_absent_fields_are_not_sent() -> None:
    options = GenerateOptions(provider="p", model="m", messages=())
    assert msgpack.unpackb(options_to_wire(options)) == {
        "provider": "p",
        "model": "m",
        "messages": [],
    }


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"provider": None}, "provider"),
        ({"messages": [{"id": "1"}]}, "messages.0.role"),
        ({"tools": [{"name": "f"}]}, "tools.0.description"),
        ({"temperature": float("inf")}, "temperature"),
        ({"maxTokens": 1.5}, "maxTokens"),
        ({"stop": "x"}, "stop"),
        ({"purpose": "other"}, "purpose"),
    ],
)
def test_wrong_options_name_the_field(change: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match="^" + names.replace(".", r"\.")):
        GenerateOptions.from_dict({**FULL, **change})


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"tools": [ToolSchema(name="f", description="", parameters={"x": object()})]}, "tools.0"),
        ({"tools": [ToolSchema(name="f", description="", parameters={"x": 2**70})]}, "tools.0"),
        ({"later": object()}, "later"),
    ],
)
def test_what_has_no_form_on_the_wire_is_refused_by_field(
    change: dict[str, object], names: str
) -> None:
    options = GenerateOptions(**{"provider": "p", "model": "m", "messages": (), **change})  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match="^" + names.replace(".", r"\.")):
        options_to_wire(options)


def test_a_request_that_is_too_large_names_its_largest_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(options_module, "MAX_BODY_BYTES", 100)
    options = GenerateOptions(provider="p", model="m", messages=(), system="x" * 200)
    with pytest.raises(LocalProtocolError, match=r"^system: "):
        options_to_wire(options)
    with pytest.raises(RemoteProtocolError, match="too large"):
        options_from_wire(bytes(101))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb(5),
        msgpack.packb({}),
        msgpack.packb({5: 1}),
        msgpack.packb({**FULL, "messages": 5}, unicode_errors="surrogatepass"),
        b"\x91" * 5_000,
    ],
    ids=["empty", "reserved", "number", "no-fields", "number-key", "no-messages", "deep"],
)
def test_bad_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        options_from_wire(body)


def test_deep_content_is_refused_on_both_sides() -> None:
    block: dict[str, object] = {"type": "text", "text": "x"}
    for _ in range(300):
        block = {"type": "tool-result", "toolCallId": "c", "content": [block]}
    message = {"id": "1", "role": "user", "content": [block], "source": {"kind": "user"}}
    data = {"provider": "p", "model": "m", "messages": [message]}
    with pytest.raises(ValueError, match="messages"):
        GenerateOptions.from_dict(data)
    with pytest.raises(RemoteProtocolError, match="messages"):
        options_from_wire(msgpack.packb(data))


@pytest.mark.parametrize("levels", [40, 200])
def test_a_request_is_refused_where_a_worker_could_not_walk_it(levels: int) -> None:
    """Two levels for each nested result: what is accepted here is accepted there."""
    block: dict[str, object] = {"type": "text", "text": "x"}
    for _ in range(levels):
        block = {"type": "tool-result", "toolCallId": "c", "content": [block]}
    messages = [
        {"id": str(number), "role": "user", "content": [item], "source": {"kind": "user"}}
        for number, item in enumerate(({"type": "text", "text": "x"}, block))
    ]
    options = GenerateOptions.from_dict({"provider": "p", "model": "m", "messages": messages})
    if levels == 40:
        assert unpack_body(options_to_wire(options))["messages"] == messages
        return
    with pytest.raises(LocalProtocolError, match=r"^messages\.1: nested deeper"):
        options_to_wire(options)


@pytest.mark.parametrize("levels", [125, 126])
def test_the_bound_of_depth_is_the_one_of_the_reader(levels: int) -> None:
    """The request, its tools and the tool are three levels more."""
    deep: object = 1
    for _ in range(levels):
        deep = {"a": deep}
    tool = {"name": "t", "description": "d", "parameters": deep}
    options = GenerateOptions.from_dict(
        {"provider": "p", "model": "m", "messages": [], "tools": [tool]}
    )
    if levels == 125:
        assert unpack_body(options_to_wire(options))["tools"] == [tool]
        return
    with pytest.raises(LocalProtocolError, match=r"^tools\.0: nested deeper"):
        options_to_wire(options)


def test_a_request_put_together_without_checks_is_refused_too() -> None:
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    options = GenerateOptions.model_construct(provider="p", model="m", messages=(), system=deep)
    with pytest.raises(LocalProtocolError, match=r"^options: nested deeper"):
        options_to_wire(options)


def test_the_config_of_a_request() -> None:
    options = GenerateOptions.from_dict(FULL)
    assert options.call_config().to_dict() == {
        "provider": "p",
        "model": "m",
        "reasoningEffort": "high",
        "temperature": 0,
        "maxTokens": 5,
        "stop": ["x", ""],
    }


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        ({}, {}, True),
        ({"temperature": 0}, {"temperature": 0.0}, True),
        ({"temperature": None}, {}, False),
        ({"max_tokens": True}, {"max_tokens": 1}, True),  # not a declared key: ignored
        ({"maxTokens": True}, {"maxTokens": 1}, False),
        ({"stop": ["a"]}, {"stop": ["a", "b"]}, False),
        ({"extra": 1}, {}, True),
    ],
)
def test_comparison_of_maps(a: dict[str, object], b: dict[str, object], answer: bool) -> None:
    base = {"provider": "p", "model": "m"}
    assert call_config_equals({**base, **a}, {**base, **b}) is answer


def test_comparison_of_models_takes_none_for_absent() -> None:
    base = LlmCallConfig(provider="p", model="m")
    assert call_config_equals(base, LlmCallConfig(provider="p", model="m", stop=None))
    assert call_config_equals(base, {"provider": "p", "model": "m"})
    assert not call_config_equals(base, LlmCallConfig(provider="p", model="m", stop=()))


def test_a_message_of_a_request_is_the_message() -> None:
    assert isinstance(GenerateOptions.from_dict(FULL).messages[0], Message)


def test_only_values_without_a_form_reach_the_search_for_the_field() -> None:
    with pytest.raises(AssertionError):
        options_module._unserializable({"a": [1], "b": 2})
