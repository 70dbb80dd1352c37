"""Attempts that are over, as the broker core tells of them."""

from __future__ import annotations

import itertools
from typing import Any

from trunkline_broker.core.effects import AttemptEnded
from trunkline_protocol.ids import CallId

_numbers = itertools.count(1)


def an_attempt(**fields: Any) -> AttemptEnded:
    """Return one that ended well in 2 s with 10 tokens in and 5 out, under a new call id."""
    values: dict[str, Any] = {
        "call": CallId(next(_numbers).to_bytes(16, "big")),
        "attempt": 0,
        "client": "agent",
        "provider": "p",
        "model": "m",
        "outcome": "ended",
        "kind": "stop",
        "pool": "w",
        "usage": {"inputTokens": 10, "outputTokens": 5},
        "figures": {"chunks": 6, "ttftMs": 100.0, "requestId": "req-1"},
        "waited_s": 0.0,
        "lasted_s": 2.0,
        "age_s": 2.0,
        **fields,
    }
    return AttemptEnded(**values)
