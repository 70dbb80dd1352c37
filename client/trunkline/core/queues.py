"""How full the client's queues are: what each holds, the most it ever held, the most it may hold.

Bookkeeping only; `mux` says what happens. What waits for the application is marked where it is put
(`intake`), since a second count of every frame would cost what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline_protocol import limits
from trunkline_protocol.ids import CallId

MAX_UNSENT_BYTES: Final = 256 * 1024 * 1024  # requests that no broker has taken; as a broker's own
TELL_EVERY_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.5  # whether a silent broker lives; as an OPEN is repeated at first


class QueueStatistics(NamedTuple):
    """One queue of a client.

    Attributes:
        name: `calls` (open ones), `unsent calls` and `unsent bytes` (no broker took them yet),
            `questions` (unanswered), `chunks` (not read yet, of the fullest stream),
            `confirmations` (of ends, that go out together).
        depth: what is in it now.
        high_water: the most that ever was.
        bound: the most that may be; what comes then is refused (`OVERLOADED`), or, for chunks, is
            not sent by the worker.
    """

    name: str
    depth: int
    high_water: int
    bound: int


class Unsent:
    """Requests that no broker has taken yet, and the high-water marks of what is counted by call.

    Attributes:
        bytes: of the requests that wait.
    """

    __slots__ = (
        "_bytes_high",
        "_calls_high",
        "_chunks_high",
        "_high",
        "_is_unheard",
        "_looked_s",
        "_said_s",
        "_waiting",
        "bytes",
    )

    def __init__(self) -> None:
        self._waiting: dict[CallId, int] = {}
        self._said_s: dict[CallId, float] = {}  # when the last OPEN of a call went out
        self._is_unheard = False
        self._looked_s = float("-inf")
        self.bytes = 0
        self._high = self._bytes_high = self._calls_high = self._chunks_high = 0

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether one more request may wait."""
        return self.bytes + size_bytes <= MAX_UNSENT_BYTES

    def put(self, call: CallId, size_bytes: int) -> None:
        """Take note of a call that waits."""
        self._waiting[call] = size_bytes
        self.bytes += size_bytes
        self._high = max(self._high, len(self._waiting))
        self._bytes_high = max(self._bytes_high, self.bytes)

    def drop(self, call: CallId) -> None:
        """Take note that a call was sent, or is over."""
        self.bytes -= self._waiting.pop(call, 0)

    def forget(self, call: CallId, most_chunks: int) -> None:
        """Let go of a call of whose chunks so many waited at once."""
        self.drop(call)
        self._said_s.pop(call, None)
        self.note_chunks(most_chunks)

    def may_repeat(self, call: CallId, heard_s: float, now_s: float) -> bool:
        """Tell whether to send an OPEN; one that may still lie in a queue is not put beside it.

        Frames get lost with their connection, or where somebody has answered meanwhile. A broker
        that stands still would find a request five times, and so long they are in our memory.
        """
        if self._said_s.get(call, heard_s) > heard_s:
            self._is_unheard = True
            return False
        self._said_s[call] = now_s
        return True

    def unsaid(self, call: CallId) -> None:
        """Take note that the last OPEN of a call did not go out."""
        self._said_s.pop(call, None)

    def note_unheard(self) -> None:
        """Take note that something was held back since nobody has answered."""
        self._is_unheard = True

    def take_unheard(self, now_s: float) -> bool:
        """Tell, once in a while, whether an OPEN was held back since nobody has answered."""
        if not self._is_unheard or now_s - self._looked_s < _LOOK_EVERY_S:
            return False
        self._is_unheard, self._looked_s = False, now_s
        return True

    def note_calls(self, count: int) -> None:
        """Take note of how many calls are open."""
        if count > self._calls_high:
            self._calls_high = count

    def note_chunks(self, most: int) -> None:
        """Take note of the most that ever waited in one stream."""
        if most > self._chunks_high:
            self._chunks_high = most

    def statistics(self, calls: int, chunks: int, max_chunks: int) -> tuple[QueueStatistics, ...]:
        """Return what is known here; `calls` are open, `chunks` wait in the fullest stream."""
        most = limits.MAX_OPEN_CALLS_PER_CLIENT
        return (
            QueueStatistics("calls", calls, self._calls_high, most),
            QueueStatistics("unsent calls", len(self._waiting), self._high, most),
            QueueStatistics("unsent bytes", self.bytes, self._bytes_high, MAX_UNSENT_BYTES),
            QueueStatistics("chunks", chunks, max(chunks, self._chunks_high), max_chunks),
        )


def to_wire(queues: tuple[QueueStatistics, ...]) -> Mapping[str, object]:
    """Return what `RESTATE` tells of the queues."""
    return {queue.name: [queue.depth, queue.high_water, queue.bound] for queue in queues}
