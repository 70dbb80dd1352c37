"""The receiving half of one attempt: positions, chunks that wait for the application, credit owed.

It does not know what a chunk is, nor why a stream ends; rules 1, 3 and 4 of SPEC.md section 5.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.limits import MIN_FRAME_COST_BYTES, RESUME_AFTER_S, WINDOW_CHUNKS

# The broker grants at most WINDOW_CHUNKS; twice that can only come from a worker that ignores
# credit, and is the bound of what waits here.
MAX_WAITING_CHUNKS: Final = 2 * WINDOW_CHUNKS


class Batch(NamedTuple):
    """The chunks of one lane frame and what the frame counts for credit."""

    chunks: list[StreamChunk]
    chunk_count: int
    cost_bytes: int


class Intake:
    """Counts what has arrived and what was consumed; keeps what lies between.

    Attributes:
        expected: number of the next chunk that is lacking; all below it have arrived.
        most_waiting: the most chunks that ever waited here.
        known_next: the highest number that anybody said was sent, at least `expected` when behind.
        consumed: chunks the application has consumed, in whole frames.
        consumed_bytes: cost of those frames.
        window_chunks: 0 until the broker has told it.
        window_bytes: likewise.
        progress_s: when `expected` last grew, or the attempt began.
    """

    __slots__ = (
        "_behind_s",
        "_credited",
        "_credited_bytes",
        "_resume_to",
        "_resumed_s",
        "_taken",
        "_waiting",
        "consumed",
        "consumed_bytes",
        "expected",
        "known_next",
        "most_waiting",
        "progress_s",
        "waiting_chunks",
        "window_bytes",
        "window_chunks",
    )

    def __init__(self, now_s: float) -> None:
        self.expected = self.known_next = 0
        self.consumed = self.consumed_bytes = 0
        self.window_chunks = self.window_bytes = 0
        self.waiting_chunks = self.most_waiting = 0
        self.progress_s = now_s
        self._behind_s = now_s
        self._credited = self._credited_bytes = 0
        self._resumed_s: float | None = None
        self._resume_to = 0
        self._waiting: deque[Batch] = deque()
        self._taken: Batch | None = None

    # --- arriving ------------------------------------------------------------------------------

    def add(self, chunks: list[StreamChunk], count: int, size_bytes: int, now_s: float) -> None:
        """Take the chunks of a frame that starts at `expected`.

        Args:
            chunks: what the application gets.
            count: how far `expected` moves.
            size_bytes: length of the encoded frame.
            now_s: monotonic seconds.
        """
        cost = max(MIN_FRAME_COST_BYTES, size_bytes)
        self._waiting.append(Batch(chunks, count, cost))
        self.waiting_chunks += count
        self.expected += count
        self.progress_s = now_s

    def may_hold(self, waiting: int) -> bool:
        """Tell whether so many chunks may wait here, more than ever before; it is a new mark."""
        if waiting > MAX_WAITING_CHUNKS:
            return False
        self.most_waiting = waiting
        return True

    def begin_at(self, position: int, before: list[StreamChunk], now_s: float) -> None:
        """Begin in the middle: everything below `position` is known, as the chunks `before`.

        No credit counts them.
        """
        self.expected = self.consumed = self._credited = position
        self.known_next = max(self.known_next, position)
        self.progress_s = now_s
        self._waiting.append(Batch(before, 0, 0))

    def add_end(self, chunk: StreamChunk) -> None:
        """Put a chunk behind the others that no worker sent and no credit counts."""
        self._waiting.append(Batch([chunk], 0, 0))

    def note_sent(self, sent_next: int, now_s: float) -> None:
        """Learn that chunks below `sent_next` were sent."""
        if sent_next > self.known_next:
            if self.known_next <= self.expected:
                self._behind_s = now_s
            self.known_next = sent_next

    @property
    def is_behind(self) -> bool:
        """Whether chunks are known to be sent that have not arrived."""
        return self.known_next > self.expected

    @property
    def is_resuming(self) -> bool:
        """Whether a `RESUME` is outstanding: what it asked for has not all arrived."""
        return self._resumed_s is not None and self.expected < self._resume_to

    def behind_since_s(self) -> float:
        """Return since when nothing has arrived although something was sent."""
        return max(self.progress_s, self._behind_s)

    def resume_due_s(self) -> float:
        """Return when to ask (again) for what is lacking; only meaningful while behind."""
        since_s = self.behind_since_s()
        if self._resumed_s is not None and self._resumed_s > since_s:
            since_s = self._resumed_s
        return since_s + RESUME_AFTER_S

    def note_resumed(self, now_s: float) -> None:
        """Remember that everything from `expected` on was asked for."""
        self._resumed_s = now_s
        self._resume_to = self.known_next

    # --- leaving -------------------------------------------------------------------------------

    def consume(self) -> None:
        """Count the batch taken last as consumed."""
        taken = self._taken
        if taken is not None:
            self.consumed += taken.chunk_count
            self.consumed_bytes += taken.cost_bytes
            self._taken = None

    def take(self) -> list[StreamChunk] | None:
        """Hand out the oldest batch; `None` if nothing waits."""
        if not self._waiting:
            return None
        batch = self._taken = self._waiting.popleft()
        self.waiting_chunks -= batch.chunk_count
        return batch.chunks

    @property
    def has_waiting(self) -> bool:
        """Whether something can be taken."""
        return bool(self._waiting)

    def drop_waiting(self) -> None:
        """Forget what the application has not taken."""
        self._waiting.clear()
        self.waiting_chunks = 0

    @property
    def owes_credit(self) -> bool:
        """Whether half of the window was consumed since credit was last given (SPEC 4.3).

        Any consumption counts while the window is not known: it may be a single chunk.
        """
        return self.consumed > self._credited and (
            2 * (self.consumed - self._credited) >= self.window_chunks
            or 2 * (self.consumed_bytes - self._credited_bytes) >= self.window_bytes
        )

    def note_credited(self) -> None:
        """Remember that the totals were told."""
        self._credited, self._credited_bytes = self.consumed, self.consumed_bytes
