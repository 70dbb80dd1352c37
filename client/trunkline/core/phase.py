"""The phases of a call in the client (SPEC.md section 5.2); only `stream_state` assigns them."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Phases of a call."""

    OPENING = "opening"  # OPEN was not confirmed yet
    OPEN = "open"
    TAIL = "tail"  # the number of the last chunk is known
    HELD = "held"  # an error finish waits for the broker's decision to retry
    BACKOFF = "backoff"  # a further attempt was offered
    CANCELLING = "cancelling"  # over for the application, not yet for the broker
    CLOSED = "closed"
