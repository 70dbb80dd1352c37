"""Rules switched off, one at a time, to see that the oracle notices; nothing like it is shipped.

Each program of a run applies what concerns it, by `CHAOS_BREAK` in its environment:

| name | rule that is off | program |
|---|---|---|
| resume | LANE 3: ask for what is lacking | client |
| dedupe | LANE 3: drop or slice what came before | client |
| credit | LANE 2: send no more than was granted | worker |
| reconcile | LANE 8: take over what the workers of a dead broker hold | broker |
| probe | LANE 6: prove the lane when a stream is silent that should not be | client |
"""

from __future__ import annotations

import os
from typing import Any

from trunkline.core import link, mux
from trunkline.core.effects import NOTHING, Effects
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import chunks_from_arrays
from trunkline_protocol.codec import LaneHeader, decode_lane_arrays

NAMES = ("resume", "dedupe", "credit", "reconcile", "probe")
VARIABLE = "CHAOS_BREAK"


class _DeafStream(StreamState):
    """Never asks for what is lacking."""

    def _resume(self, now_s: float) -> Effects:
        self.intake.note_resumed(now_s)
        return NOTHING


class _UnslicedStream(StreamState):
    """Takes a frame that came before as if it were new."""

    def on_chunks(self, header: LaneHeader, frame: bytes, now_s: float) -> Effects:
        if header.count and header.first + header.count <= self.intake.expected:
            chunks = chunks_from_arrays(decode_lane_arrays(frame, header.count))
            self.intake.add(chunks, 0, 0, now_s)
            return [*self.woken]
        return super().on_chunks(header, frame, now_s)


class _TrustingLink(link.Link):
    """Never doubts its lane."""

    def doubt(self, nonce: int, now_s: float) -> Effects:
        return NOTHING


def break_client() -> None:
    """Switch off a rule of the client, if one is named."""
    match os.environ.get(VARIABLE, ""):
        case "resume":
            mux.StreamState = _DeafStream
        case "dedupe":
            mux.StreamState = _UnslicedStream
        case "probe":
            mux.Link = _TrustingLink
        case _:
            pass


def break_broker() -> None:
    """Switch off a rule of the broker, if one is named."""
    if os.environ.get(VARIABLE, "") == "reconcile":
        from trunkline_broker.core.adoption import Adoption

        def take_nothing(self: Adoption, *_: Any) -> None:
            del self

        Adoption._take_call = take_nothing
