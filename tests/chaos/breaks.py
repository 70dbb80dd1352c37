"""Rules switched off, one at a time, to see that the oracle notices; nothing like it is shipped.

Each program of a run applies what concerns it, by `CHAOS_BREAK` in its environment:

| name | rule that is off | program |
|---|---|---|
| resume | LANE 3: ask for what is lacking | client |
| dedupe | LANE 3: drop or slice what came before | client |
| credit | LANE 2: send no more than was granted | worker |
| reconcile | LANE 8: take over what the workers of a dead broker hold | broker |
| probe | LANE 6: prove the lane when a stream is silent that should not be | client |
| wakeup | LANE 2: an attempt that has room is pulled | worker |
"""

from __future__ import annotations

import os
from typing import Any

from trunkline.core import link, mux
from trunkline.core.effects import NOTHING, Effects
from trunkline.core.stream_state import StreamState
from trunkline_protocol.chunks import chunks_from_arrays
from trunkline_protocol.codec import LaneHeader, decode_lane_arrays
from trunkline_protocol.ids import CallId
from trunkline_workers.core import worker
from trunkline_workers.core.attempt import Attempt
from trunkline_workers.core.calls import WorkerCalls
from trunkline_workers.core.effects import CallEffect, Pull

NAMES = ("resume", "dedupe", "credit", "reconcile", "probe", "wakeup")
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


class ForgetfulCalls(WorkerCalls):
    """Remembers whether an attempt is paused, as a second truth beside its credit.

    A `Pull` makes it running. If the window shrinks before the puller asks, the puller waits for
    a `Pull` that no credit brings: the attempt is not paused.
    """

    def __init__(self) -> None:
        super().__init__()
        self._paused: set[tuple[CallId, int]] = set()

    def ask_room(self, call: CallId, attempt: int) -> int:
        return 0 if (call, attempt) in self._paused else self.room(call, attempt)

    def _send(self, found: Attempt, now_s: float) -> list[CallEffect]:
        effects = super()._send(found, now_s)
        key = (found.start.call, found.start.attempt)
        if found.room == 0:
            self._paused.add(key)
        else:
            self._paused.discard(key)
        return effects

    def _go_on(self, key: tuple[CallId, int], found: Attempt, now_s: float) -> list[CallEffect]:
        self._touch(key, found, now_s)
        if key not in self._paused:
            return []
        effects = self._send(found, now_s) if found.pending_count or not found.ending else []
        if found.room > 0:
            effects.append(Pull(*key))
        return effects


def break_worker() -> None:
    """Switch off a rule of the worker, if one is named."""
    if os.environ.get(VARIABLE, "") == "wakeup":
        worker.WorkerCalls = ForgetfulCalls


def break_broker() -> None:
    """Switch off a rule of the broker, if one is named."""
    if os.environ.get(VARIABLE, "") == "reconcile":
        from trunkline_broker.core.adoption import Adoption

        def take_nothing(self: Adoption, *_: Any) -> None:
            del self

        Adoption._take_call = take_nothing
