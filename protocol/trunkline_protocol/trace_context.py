"""W3C trace context (https://www.w3.org/TR/trace-context/) of a call: one text field.

The broker's span needs no memory: without a parent its trace id *is* the call id, and its span id
is always the second half of it, so every process can name it. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trunkline_protocol.ids import CallId

MAX_TRACEPARENT_CHARS: Final = 55
_FORM: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SAMPLED: Final = 1


class TraceParent(NamedTuple):
    """A span that others are children of.

    Attributes:
        trace_id: 32 lowercase hexadecimal digits.
        span_id: 16 of them.
        is_sampled: whoever began the trace records it.
    """

    trace_id: str
    span_id: str
    is_sampled: bool

    def to_text(self) -> str:
        """Return the header form, version 00."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def read_traceparent(text: str) -> TraceParent | None:
    """Read a `traceparent`; `None` for none, a wrong one or another version."""
    found = _FORM.fullmatch(text)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN:
        return None
    return TraceParent(found[1], found[2], bool(int(found[3], 16) & _SAMPLED))


def span_of_call(call: CallId, parent: str) -> TraceParent:
    """Return the broker's own span of a call, whose children the attempts are.

    Args:
        call: 16 random bytes.
        parent: `traceparent` of the application's span; empty or wrong: the call begins a trace.
    """
    above = read_traceparent(parent)
    span_id = call[8:].hex()
    if above is None:
        return TraceParent(call.hex(), span_id, is_sampled=True)
    return TraceParent(above.trace_id, span_id, above.is_sampled)
