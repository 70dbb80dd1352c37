"""A call that another client began and this one has attached to (LANE 12).

Until its `SNAPSHOT` comes, `ATTACH` is sent where another call would send `OPEN`. The call takes
neither a position nor an end meanwhile. Earlier ones belong to another reader, and its own may
overtake the snapshot. Only `FAILED` and `LOST` end it, or the bounds of `giving_up`. From the
snapshot on it is a stream like any other, which begins with the chunks before. It is never opened
again.
"""

from __future__ import annotations

from typing import Final, cast

from trunkline_protocol.chunks import Finish, chunks_from_arrays
from trunkline_protocol.codec import LaneHeader, unpack_body
from trunkline_protocol.failure import Code, LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import Accepted, Attach, Ended, Retry, Snapshot
from trunkline_protocol.ids import CallId, StreamKey

from trunkline.core.effects import NOTHING, Count, Effects, Send
from trunkline.core.phase import Phase
from trunkline.core.requests import CallRequest
from trunkline.core.stream_state import StreamState

_GONE: Final = LlmFailure(
    "nobody holds this call, or the ticket is not its own", Code.STREAM_CLOSED
)
_BAD_SNAPSHOT: Final = LlmFailure(
    "the worker sent a snapshot of no chunks", Code.MALFORMED_RESPONSE
)
_EARLY: Final[Effects] = (Count("frames_before_a_snapshot"),)


class AttachedStream(StreamState):
    """See the module."""

    __slots__ = ("_has_snapshot", "_token")

    def __init__(
        self,
        call: CallId,
        request: CallRequest,
        stream_key: StreamKey,
        now_s: float,
        token: bytes,
    ) -> None:
        super().__init__(call, request, stream_key, now_s)
        self._token = token
        self._has_snapshot = False

    @property
    def is_attaching(self) -> bool:
        """Whether nothing of the call has come yet."""
        return not self._has_snapshot and not self.is_over

    def on_snapshot(self, frame: Snapshot, now_s: float) -> Effects:
        """Take what was said before; what follows begins at its position."""
        if not self.is_attaching:
            return [Count("repeated_snapshots")]
        try:
            arrays = unpack_body(frame.body)
            chunks = chunks_from_arrays(cast("list[list[object]]", arrays))
        except (RemoteProtocolError, TypeError, ValueError):
            return self._break(_BAD_SNAPSHOT, now_s)
        self._has_snapshot = self._is_accepted = True
        self.attempt = frame.attempt
        self.phase = Phase.OPEN
        self._restated_s = now_s
        self.intake.begin_at(frame.next, chunks, now_s)
        if chunks and isinstance(chunks[-1], Finish):
            return self._close_done()
        # Frames of the lane that have overtaken the snapshot were dropped.
        return [*self._resume(now_s), *self.woken] if self.intake.is_behind else list(self.woken)

    # --- before the snapshot -------------------------------------------------------------------

    def on_chunks(self, header: LaneHeader, frame: bytes, now_s: float) -> Effects:
        """As `StreamState`; before the snapshot a frame only tells how far the worker is."""
        if not self.is_attaching:
            return super().on_chunks(header, frame, now_s)
        self.intake.note_sent(header.first + header.count, now_s)
        return _EARLY

    def on_accepted(self, frame: Accepted, now_s: float) -> Effects:
        """As `StreamState`."""
        return _EARLY if self.is_attaching else super().on_accepted(frame, now_s)

    def on_queued(self, now_s: float) -> Effects:
        """As `StreamState`."""
        return _EARLY if self.is_attaching else super().on_queued(now_s)

    def on_sent(self, sent_next: int, now_s: float) -> Effects:
        """As `StreamState`."""
        return _EARLY if self.is_attaching else super().on_sent(sent_next, now_s)

    def on_ended(self, frame: Ended, now_s: float) -> Effects:
        """As `StreamState`; the snapshot of a call that has ended holds its finish."""
        return _EARLY if self.is_attaching else super().on_ended(frame, now_s)

    def on_retry(self, frame: Retry, stream_key: StreamKey, now_s: float) -> Effects:
        """Turn a further attempt down, since the request is unknown here: the failure is final."""
        self._has_seen = True
        return super().on_retry(frame, stream_key, now_s)

    def on_lost(self, now_s: float) -> Effects:
        """Learn that nobody holds the call; it can't be opened again, its request is unknown."""
        if self.is_attaching and self.phase is not Phase.CANCELLING:
            return self._fail(_GONE)
        return super().on_lost(now_s)

    def _on_really_lost(self, now_s: float) -> Effects:
        del now_s
        return self._fail(_GONE)

    def _open(self, now_s: float) -> Effects:
        if self._has_snapshot:
            return NOTHING  # restated instead
        self._repeat_at_s = now_s + self._repeat_s
        return [Send(Attach(self.call, self._token, self.stream_key))]
