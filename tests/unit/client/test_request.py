"""What an application may write, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline.request import config_from, options_from
from trunkline_protocol.content import TextBlock
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.messages import UserMessageSource, create_user_message
from trunkline_protocol.options import GenerateOptions, LlmCallConfig

FIELDS: dict[str, Any] = {"provider": "p", "model": "m"}


def messages_of(messages: object) -> list[dict[str, Any]]:
    options = options_from(None, {**FIELDS, "messages": messages})
    return [message.to_dict() for message in options.messages]


def test_whole_options_pass_unchanged() -> None:
    """The very same value, or one built from a map."""
    message = create_user_message([TextBlock(text="x")], UserMessageSource())
    options = GenerateOptions(provider="p", model="m", messages=(message,), max_tokens=3)
    assert options_from(options, {}) is options
    assert options_from(options.to_dict(), {}) == options


def test_a_text_is_one_user_message() -> None:
    """With an id and a source."""
    (message,) = messages_of("hello")
    assert message["role"] == "user"
    assert message["content"] == [{"type": "text", "text": "hello"}]
    assert message["source"] == {"kind": "user"}
    assert message["id"]


def test_messages_may_be_written_in_every_way() -> None:
    """A value, a map with a text, a map with blocks, a text; what is given is kept."""
    whole = create_user_message([TextBlock(text="a")], UserMessageSource())
    block = {"type": "text", "text": "c"}
    made = messages_of(
        [
            whole,
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [block], "id": "mine", "source": {"kind": "other"}},
            "d",
        ]
    )
    assert made[0] == whole.to_dict()
    assert made[1]["source"] == {"kind": "model", "provider": "p", "model": "m"}
    assert (made[2]["id"], made[2]["source"]) == ("mine", {"kind": "other"})
    assert [message["content"][0]["text"] for message in made] == ["a", "b", "c", "d"]
    assert len({message["id"] for message in made}) == 4


def test_fields_have_either_spelling() -> None:
    """snake_case as keywords, camelCase in maps; `None` is absent."""
    one = options_from(None, {**FIELDS, "messages": [], "max_tokens": 5, "system": None})
    other = options_from({**FIELDS, "messages": [], "maxTokens": 5}, {})
    assert one == other
    assert one.max_tokens == 5


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "options"),
        (FIELDS, "messages"),
        ({**FIELDS, "messages": {"role": "user"}}, "messages"),
        ({**FIELDS, "messages": [5]}, "messages.0"),
        ({**FIELDS, "messages": [{"role": "user"}]}, "messages.0.content"),
        ({**FIELDS, "messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"model": "m", "messages": "x"}, "provider"),
        ({**FIELDS, "messages": "x", "temperature": "hot"}, "temperature"),
        ({**FIELDS, "messages": "x", "max_token": 5}, "max_token"),
    ],
)
def test_a_wrong_request_is_refused_by_field(fields: dict[str, Any], name: str) -> None:
    """The text names it and never shows the value."""
    with pytest.raises(LocalProtocolError, match=name):
        options_from(None, fields)


def test_either_options_or_fields() -> None:
    """Not both."""
    options = options_from(None, {**FIELDS, "messages": "x"})
    for given in (options, options.to_dict()):
        with pytest.raises(LocalProtocolError, match="model"):
            options_from(given, {"model": "m"})


def test_a_call_config_may_be_a_map() -> None:
    """A wrong one is refused by field."""
    config = LlmCallConfig(provider="p", model="m", max_tokens=3)
    assert config_from(config) is config
    assert config_from({**FIELDS, "maxTokens": 3}) == config
    with pytest.raises(LocalProtocolError, match="maxTokens"):
        config_from({**FIELDS, "maxTokens": "many"})
