"""What a provider may send without content, and how many values one event may hold."""

from __future__ import annotations

import time

import pytest
from trunkline_workers.adapters.chat_completions.wire import (
    VALUES_MAX,
    MalformedPayloadError,
    decode,
)
from trunkline_workers.core.quiet import (
    QUIET_BYTES,
    QUIET_EVENTS,
    QUIET_EVENTS_PER_S,
    Quiet,
)
from trunkline_workers.core.values import has_more_values

from tests.support.timing import SLOW

MIB = 1024 * 1024
STEP_S = 1.0  # of one step without leaving the loop, with all that is heavy around it


@pytest.mark.parametrize(
    ("payload", "limit", "is_more"),
    [
        (b"[1,2,3,4,5]", 3, True),
        (b"[1,2,3]", 3, False),
        (b'["a,b,c,d"]', 2, False),
        (b'["\\\\",1,2,3]', 3, True),
        (b'["\\",,,,,,,,"]', 3, False),
        (b'{"a":{"b":[{"c":1}]}}', 3, True),
        (b'["{{{{{{", "[[[["]', 3, False),
        (b'["cut [,,,,,,', 3, False),
    ],
)
def test_only_what_stands_between_texts_counts(payload: bytes, limit: int, is_more: bool) -> None:
    """Tool arguments are texts that are full of commas."""
    assert has_more_values(payload, limit) is is_more


HEAVY = {
    "objects": b'{"choices":[' + b"{}," * (5 * MIB) + b"{}]}",
    "calls": b'{"usage":5,"choices":[{"delta":{"tool_calls":[' + b"{}," * (5 * MIB) + b"{}]}}]}",
    "deep": b"[" * (15 * MIB),
    "closing": b"[" * 2000 + b"]" * (15 * MIB),
    "texts": b"[" * 2000 + b'""' * (7 * MIB),
    "texts in a list": b"[" + b'"",' * (5 * MIB),
    "escapes": b'{"choices":"' + b'\\",' * (5 * MIB) + b'"}',
    "backslashes": b'{"choices":"' + b"\\" * (15 * MIB) + b'"}',
}


@pytest.mark.parametrize("kind", HEAVY)
def test_an_event_of_the_largest_size_costs_little(kind: str) -> None:
    """Whatever it holds: the other streams of the worker wait for it."""
    began_s = time.process_time()
    with pytest.raises(MalformedPayloadError):
        decode(HEAVY[kind])
    assert time.process_time() - began_s < STEP_S * SLOW


def test_a_large_event_of_few_values_is_read() -> None:
    """Images and tool arguments are large, and their commas are no values."""
    text = "[1,2]," * VALUES_MAX
    read = decode(b'{"choices":[{"index":0,"delta":{"content":"%s"}}]}' % text.encode())
    assert read.choices is not None
    assert read.choices[0].delta is not None
    assert read.choices[0].delta.content == text


def test_events_without_content_have_a_bound() -> None:
    """A burst at once, and more in time that was waited for."""
    quiet = Quiet()
    assert quiet.add(10, QUIET_EVENTS, 0.0) is None
    assert quiet.add(10, QUIET_EVENTS_PER_S, 1.0) is None
    said = quiet.add(10, 1, 1.0)
    assert said is not None
    assert "events without content" in said
    quiet.end()
    assert quiet.add(QUIET_BYTES, 1, 0.0) is None
    assert quiet.add(1, 0, 1000.0) == "the provider sent 16 MiB without content"
