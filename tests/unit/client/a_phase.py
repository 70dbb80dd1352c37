"""Phases in which a stream is live, and how it has ended."""

from __future__ import annotations

from trunkline.core.phase import Phase
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.failure import LlmFailure

from tests.unit.client.a_stream import taken

LIVE = (Phase.OPENING, Phase.OPEN, Phase.TAIL)
ABORTED = LlmFailure("gone", "ABORTED")


def finish_of(stream: StreamState) -> FinishReason:
    """Return the one finish that an application gets."""
    finishes = [chunk for chunk in taken(stream) if isinstance(chunk, Finish)]
    assert len(finishes) == 1
    return finishes[0].reason
