"""One attempt in the worker: numbering, framing, credit and the resend window (SPEC 4, 5).

Frames are encoded once and kept as bytes until they were received, so a resend is the same bytes
and a consumer's totals in chunks and in bytes always belong together. This file does not know
which events are legal when; that is the table in `calls`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Final, NamedTuple

from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.codec import encode_lane, pack_body
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Attach, Ended, HeldCall, Snapshot, Start
from trunkline_protocol.ids import ClientId
from trunkline_protocol.limits import (
    MAX_LANE_BODY_BYTES,
    MAX_LANE_CHUNKS,
    MAX_LANE_FRAME_BYTES,
    MIN_FRAME_COST_BYTES,
)

from trunkline_workers.core.record import RECORD_LIMIT_BYTES, Record


class AttemptState(Enum):
    """States of an attempt that the worker holds (SPEC 5.1; GONE ones are not held).

    Derived from the facts of the attempt and never assigned, so that no second truth exists.
    """

    RUNNING = "running"
    PAUSED = "paused"  # no credit, or chunks wait for some
    TAIL = "tail"  # the finish was sent


KeptFrame = tuple[int, bytes]
"""A frame that may have to be sent again, behind the number of the chunk after its last one."""


class Ending(NamedTuple):
    """The finish that the adapter gave, before or after it was sent."""

    finish: Mapping[str, Any]
    usage: Mapping[str, Any] | None
    figures: dict[str, Any]


class Attempt:
    """Chunks of one attempt on their way to one client.

    Attributes:
        start: the frame that began it; client and window of the latest `START` count.
        sent: chunks sent so far, so also the number of the next one.
        sent_bytes: cost of the frames sent so far (SPEC 4.2).
        received: everything below it has arrived at the client.
        consumed: chunks the application has taken, `consumed_bytes` their frames' cost.
        ending: set once the adapter has finished.
        is_awaited: the puller has asked for room, got none, and has not asked again.
        started_s: when it began, monotonic.
        first_s: when its first chunk came from the adapter.
        last_word_s: when anything was last heard of it.
        usage: the last token counts, for one that is cancelled.
        request_id: the provider's name of its request; empty: unknown.
    """

    __slots__ = (
        "_fit",
        "_kept",
        "_pending",
        "_record",
        "_snapshot",
        "client",
        "consumed",
        "consumed_bytes",
        "ending",
        "first_s",
        "is_awaited",
        "is_detached",
        "last_word_s",
        "received",
        "request_id",
        "sent",
        "sent_bytes",
        "start",
        "started_s",
        "usage",
        "window_bytes",
        "window_chunks",
    )

    def __init__(self, start: Start, now_s: float) -> None:
        self.start = start
        self.client = start.client
        self.window_chunks = start.window_chunks
        self.window_bytes = start.window_bytes
        self.sent = self.sent_bytes = 0
        self.received = self.consumed = self.consumed_bytes = 0
        self.ending: Ending | None = None
        self.is_awaited = False
        self.started_s = self.last_word_s = now_s
        self.first_s: float | None = None
        self.usage: Mapping[str, Any] | None = None
        self.request_id = ""
        self._kept: deque[KeptFrame] = deque()
        self._pending: list[Sequence[Any]] = []
        self._fit = MAX_LANE_CHUNKS  # how many chunks of late fitted into one frame
        self.is_detached = False
        self._record = Record() if start.detachable else None
        self._snapshot: Snapshot | None = None  # until its receiver has told a position

    @property
    def state(self) -> AttemptState:
        """The state that follows from the credit, from what waits for it, and from the finish."""
        if self._pending:
            return AttemptState.PAUSED
        if self.ending is not None:
            return AttemptState.TAIL
        return AttemptState.RUNNING if self.room > 0 else AttemptState.PAUSED

    @property
    def room(self) -> int:
        """Chunks that the adapter may be asked for now.

        0 when the credit in chunks or in bytes is used up, when chunks wait for credit, and when
        the adapter has finished.
        """
        if self._pending or self.ending is not None:
            return 0
        if self.is_detached:
            return MAX_LANE_CHUNKS
        if self.sent_bytes >= self.consumed_bytes + self.window_bytes:
            return 0
        left = self.consumed + self.window_chunks - self.sent
        return max(0, left)

    @property
    def pending_count(self) -> int:
        """Chunks that wait for credit; never more than one item of the adapter."""
        return len(self._pending)

    @property
    def kept_bytes(self) -> int:
        """Size of the resend window."""
        return sum(len(frame) for _, frame in self._kept)

    def rebind(self, start: Start) -> None:
        """Take the client and the window of a repeated `START`."""
        self.client = start.client
        self.window_chunks, self.window_bytes = start.window_chunks, start.window_bytes

    def take_totals(self, received: int, consumed: int, consumed_bytes: int) -> bool:
        """Take the totals of a `CREDIT` and free what was received.

        Returns:
            `False`, with nothing changed, if a total passes what was sent or what was received.
        """
        if received > self.sent or consumed > received or consumed_bytes > self.sent_bytes:
            return False
        self.consumed = max(self.consumed, consumed)
        self.consumed_bytes = max(self.consumed_bytes, consumed_bytes)
        if received > self.received:
            self.received = received
            self._snapshot = None
            while self._kept and self._kept[0][0] <= received:
                self._kept.popleft()
        return True

    # --- detaching (LANE 12) -------------------------------------------------------------------

    @property
    def is_detachable(self) -> bool:
        """Whether it may go on without a client."""
        return self._record is not None

    def detach(self) -> None:
        """Go on without a client: only the record is kept from now on."""
        self.is_detached = True
        self._kept.clear()
        self._snapshot = None
        self.received = self.consumed = self.sent

    def attach(self, frame: Attach, client: ClientId) -> Snapshot | None:
        """Give what was said so far to a client, and what comes to it under its stream key.

        Returns:
            `None` if that client has the snapshot already; a lost one is said again.

        Raises:
            AssertionError: the attempt is not detachable.
        """
        if self._record is None:
            raise AssertionError("only a detachable attempt is attached to")
        if frame.stream_key == self.start.stream_key:
            return self._snapshot
        self.client = client
        self.start = replace(self.start, client=client, stream_key=frame.stream_key)
        self.window_chunks, self.window_bytes = frame.window_chunks, frame.window_bytes
        self.is_detached = False
        self._kept.clear()
        self.received = self.consumed = self.sent
        self.sent_bytes = self.consumed_bytes = 0
        body = pack_body(self._record.arrays())
        self._snapshot = Snapshot(frame.call, self.start.attempt, self.sent, body=body)
        return self._snapshot

    def _note(self, arrays: Sequence[Sequence[Any]]) -> None:
        """Keep numbered chunks in the record; one that grows too large ends the attempt."""
        record = self._record
        if record is None:
            return
        record.add(arrays)
        if record.size_bytes > RECORD_LIMIT_BYTES and self.ending is None:
            self._record = Record()
            reason = FinishReason("error", LlmFailure(_TOO_LARGE, Code.OVERLOADED))
            self._pending[:] = [Finish(reason).to_array()]
            self.ending = Ending(reason.to_dict(), None, {})

    def _absorb(self) -> None:
        """Number what waits and put it into the record alone; an overflow adds a finish."""
        while self._pending:
            arrays, self._pending = self._pending, []
            self.sent += len(arrays)
            self._note(arrays)
        self.received = self.consumed = self.sent

    # --- sending -------------------------------------------------------------------------------

    def frames_from(self, expected: int) -> list[bytes]:
        """Return the kept frames that hold chunk `expected` or a later one, oldest first."""
        return [frame for end, frame in self._kept if end > expected]

    def queue(self, arrays: Sequence[Sequence[Any]]) -> None:
        """Put chunks, as lane arrays, behind those that wait."""
        self._pending.extend(arrays)

    def cut_frames(self) -> list[bytes]:
        """Number and encode what credit allows of the waiting chunks, as few frames as possible.

        A chunk that has no form on the lane, or is larger than any receiver accepts, is replaced
        by an `error` finish, with everything after it dropped; `ending` is that finish then.
        """
        if self.is_detached:
            self._absorb()
            return []
        frames: list[bytes] = []
        pending = self._pending
        while pending:
            # `room` in line: this runs for every frame.
            room = self.consumed + self.window_chunks - self.sent
            if room <= 0 or self.sent_bytes >= self.consumed_bytes + self.window_bytes:
                break
            waiting = len(pending)
            count = min(waiting, room, self._fit)
            arrays = pending if count == waiting else pending[:count]
            frame = self._encode(arrays)
            if frame is None:
                continue  # a chunk was replaced, or fewer fit than of late
            noted = None if self._record is None else list(arrays)
            if count == waiting:
                pending.clear()
            else:
                del pending[:count]
            self.sent += count
            self.sent_bytes += max(MIN_FRAME_COST_BYTES, len(frame))
            self._kept.append((self.sent, frame))
            frames.append(frame)
            if noted is not None:
                self._note(noted)
        return frames

    def _encode(self, arrays: Sequence[Sequence[Any]]) -> bytes | None:
        """Encode waiting chunks as one frame, or change what waits so that the next try works."""
        try:
            frame = encode_lane(self.start.stream_key, self.sent, arrays)
        # What msgpack raises for a value that it has no form for.
        except (TypeError, ValueError, OverflowError):
            self._spoil()
            return None
        size = len(frame)
        if size <= MAX_LANE_FRAME_BYTES:
            if self._fit < MAX_LANE_CHUNKS and size * 2 < MAX_LANE_FRAME_BYTES:
                self._fit = min(MAX_LANE_CHUNKS, self._fit * 2)
            return frame
        if len(arrays) == 1:
            if size <= MAX_LANE_BODY_BYTES:
                return frame
            self._spoil()
            return None
        # Proportional, so a run of equal chunks fits at the second try.
        self._fit = max(1, len(arrays) * MAX_LANE_FRAME_BYTES // size)
        return None

    def _spoil(self) -> None:
        """End the attempt with an error in place of the first chunk that cannot be sent."""
        at = next(i for i, array in enumerate(self._pending) if not _is_sendable(array))
        reason = FinishReason("error", LlmFailure(_UNSENDABLE, Code.INVARIANT))
        self._pending[at:] = [Finish(reason).to_array()]  # in place: the caller looks at it again
        self.ending = Ending(reason.to_dict(), None, {})

    def ended(self) -> Ended:
        """Return the report of the end.

        Raises:
            AssertionError: the adapter has not finished.
        """
        if self.ending is None:
            raise AssertionError("only an attempt with an ending is reported")
        start, ending = self.start, self.ending
        return Ended(
            start.call, start.attempt, self.sent, ending.finish, ending.usage, ending.figures
        )

    def held(self) -> HeldCall:
        """Return the entry for `REGISTER`."""
        start = self.start
        return HeldCall(
            start.call,
            start.attempt,
            self.client,
            start.stream_key,
            start.provider,
            self.sent,
            self.state is AttemptState.TAIL,
            (start.token or b"") if self.is_detachable else b"",
            self.is_detached,
        )


_TOO_LARGE: Final = (
    f"a detachable call keeps at most {RECORD_LIMIT_BYTES >> 20} MiB, and this one has more"
)
_UNSENDABLE: Final = "the adapter emitted a chunk that has no form on the lane"


def _is_sendable(array: Sequence[Any]) -> bool:
    try:
        return len(pack_body(array)) <= MAX_LANE_BODY_BYTES - 64  # room for header and array head
    except (TypeError, ValueError, OverflowError):
        return False
