"""The text that names a span."""

from __future__ import annotations

import pytest
from trunkline_protocol.ids import CallId
from trunkline_protocol.trace_context import (
    MAX_TRACEPARENT_CHARS,
    TraceParent,
    read_traceparent,
    span_of_call,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TEXT = f"00-{TRACE}-{SPAN}-01"
CALL = CallId(bytes(range(1, 17)))


def test_the_example_of_the_recommendation_goes_both_ways() -> None:
    assert read_traceparent(TEXT) == TraceParent(TRACE, SPAN, is_sampled=True)
    assert TraceParent(TRACE, SPAN, is_sampled=True).to_text() == TEXT
    assert len(TEXT) == MAX_TRACEPARENT_CHARS


@pytest.mark.parametrize(
    "text",
    [
        "",
        TEXT.upper(),
        TEXT + "\n",
        TEXT + "-00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
    ],
)
def test_what_is_no_context_is_none(text: str) -> None:
    assert read_traceparent(text) is None


def test_flags_of_later_versions_count_by_their_first_bit() -> None:
    for flags, is_sampled in (("00", False), ("02", False), ("03", True), ("ff", True)):
        found = read_traceparent(f"00-{TRACE}-{SPAN}-{flags}")
        assert found is not None
        assert found.is_sampled is is_sampled


def test_the_span_of_a_call_follows_from_its_id() -> None:
    """With a parent it is in the parent's trace, without one in a trace named like the call."""
    assert span_of_call(CALL, "") == TraceParent(CALL.hex(), CALL[8:].hex(), is_sampled=True)
    under = span_of_call(CALL, TEXT[:-1] + "0")
    assert under == TraceParent(TRACE, CALL[8:].hex(), is_sampled=False)
