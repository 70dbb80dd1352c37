"""Events as an SDK gets them, and the shapes that are refused before."""

from __future__ import annotations

import json
import time

import pytest
from trunkline_workers.adapters.pydantic_ai.events import (
    VALUES_MAX,
    SdkEvents,
    UnreadableEventError,
)
from trunkline_workers.adapters.pydantic_ai.shapes import SHAPES, check_shape


def passed(*reads: bytes) -> bytes:
    """Return all that an SDK gets of these reads."""
    events, out = SdkEvents(), b""
    for data in reads:
        events.put(data)
        while piece := events.take():
            assert len(piece) <= 16 * 1024
            out += piece
    events.end()
    while piece := events.take():
        out += piece
    return out


STREAM = b": hi\r\nevent: a\r\ndata: {\r\ndata: }\r\n\r\n\r\n:\r\nstray\r\ndata: [DONE]\r\n\r\n"


def test_events_come_whole_and_plain() -> None:
    """Names stay, comments and empty events go, lines of JSON become one, wherever it is cut."""
    wanted = b"event: a\ndata: { }\n\ndata: [DONE]\n\n"
    assert passed(STREAM) == wanted
    for at in range(len(STREAM)):
        assert passed(STREAM[:at], STREAM[at:]) == wanted


def test_lines_that_are_not_json_stay_lines() -> None:
    """What they mean is the SDK's to say; an event that was cut is not made whole."""
    assert passed(b"data: a\ndata: b\n\n") == b"data: a\ndata: b\n\n"
    assert passed(b'data: {"a":1}\n') == b'data: {"a":1}\n'


def test_a_large_event_comes_in_pieces() -> None:
    """An SDK that looks at each byte must not hold the loop for all of it."""
    payload = json.dumps({"text": "x" * 1_000_000}).encode()
    assert passed(b"data: " + payload + b"\n\n") == b"data: " + payload + b"\n\n"


def test_too_many_values_are_refused() -> None:
    """Marks inside of texts are no values."""
    text = json.dumps({"text": '\\",{[' * 100_000}).encode()
    passed(b"data: " + text + b"\n\n")
    started_s = time.process_time()
    with pytest.raises(UnreadableEventError):
        passed(b"data: [" + b"{}," * VALUES_MAX + b"{}]\n\n")
    assert time.process_time() - started_s < 2.0


LONG = "x" * 500_000


@pytest.mark.parametrize(
    ("extra", "tree"),
    [
        ("google", {"candidates": LONG}),
        ("google", {"candidates": [{"content": {"parts": LONG}}]}),
        ("google", {"candidates": [{"safetyRatings": LONG}]}),
        ("google", {"candidates": [LONG]}),
        ("openai", {"response": {"output": LONG}}),
        ("openai", {"item": {"content": LONG}}),
        ("anthropic", {"message": {"content": LONG}}),
        ("anthropic", {"message": LONG}),
        ("groq", {"choices": LONG}),
        ("mistral", {"choices": [{"delta": {"tool_calls": LONG}}]}),
    ],
)
def test_a_text_where_a_list_is_expected_is_refused(extra: str, tree: object) -> None:
    """The error names the place and shows nothing of the text."""
    with pytest.raises(UnreadableEventError) as caught:
        check_shape(tree, SHAPES[extra])
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("extra", sorted(SHAPES))
def test_what_is_not_judged_is_left_to_the_sdk(extra: str) -> None:
    """Missing keys, null and trees that are no object."""
    for tree in ({}, [], "x", None, 1, {"other": LONG}, dict.fromkeys(SHAPES[extra])):
        check_shape(tree, SHAPES[extra])
