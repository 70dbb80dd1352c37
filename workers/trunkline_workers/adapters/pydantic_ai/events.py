"""The events of a stream as an SDK gets them: whole, one line of data each, judged before; pure.

The decoders of the SDKs cost the square of the lines of an event, or look at every byte, and what
they make of an event costs much per value. So an event is taken apart here first. Comments, empty
events and lines that are no field do not reach an SDK. An event of too many values, or with a text
where the SDK expects a list, is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from trunkline_workers.core.values import has_more_values
from trunkline_workers.sse import SseDecoder

VALUES_MAX: Final = 20_000  # of one event; the SDKs need some 10 microseconds for each
_TOGETHER: Final = 8  # small events that an SDK gets at once
_PIECE_BYTES: Final = 16 * 1024


class UnreadableEventError(ValueError):
    """An event that an SDK must not see; the text says why."""


class SdkEvents(SseDecoder):
    """Takes the reads of one body, gives pieces for an SDK.

    Args:
        judge: takes the decoded data of an event; raises `UnreadableEventError` to refuse it.
    """

    __slots__ = ("_judge", "_ready")

    def __init__(self, judge: Callable[[object], None] | None = None) -> None:
        super().__init__()
        self._judge = judge
        self._ready: deque[bytes] = deque()

    def put(self, data: bytes) -> int:
        """Take one read; return how many events it completes.

        Raises:
            EventTooLargeError: as `SseDecoder.feed`.
            UnreadableEventError: an event is refused.
        """
        whole = self.feed(data)
        self._ready += whole
        return len(whole)

    def end(self) -> None:
        """Take the end of the body; an event without its blank line is passed on without it."""
        if (last := self.finish()) is not None:
            self._ready.append(last.removesuffix(b"\n"))

    def take(self) -> bytes:
        """Return the next piece, of some small events or a part of a large one; `b""`: none."""
        ready = self._ready
        if not ready:
            return b""
        first = ready.popleft()
        if len(first) > _PIECE_BYTES:
            ready.appendleft(first[_PIECE_BYTES:])
            return first[:_PIECE_BYTES]
        pieces, size = [first], len(first)
        while ready and len(pieces) < _TOGETHER and size + len(ready[0]) <= _PIECE_BYTES:
            size += len(ready[0])
            pieces.append(ready.popleft())
        return b"".join(pieces)

    def _events(self, data: bytes) -> list[bytes]:
        """Take reads without the shortcut that drops the names of events."""
        return self._lines(data.split(b"\n"))

    def _take(self) -> bytes:
        """Take the data of the event that ends here, and write the event anew."""
        name, lines = self._name, list(self._data)
        payload = b"\n".join(lines)
        super()._take()
        is_json = self._check(payload)
        # Line ends mean nothing between the values of JSON, and many lines cost an SDK much.
        data = payload.replace(b"\n", b" ") if is_json else payload.replace(b"\n", b"\ndata: ")
        head = b"event: %s\n" % name if name else b""
        return b"%sdata: %s\n\n" % (head, data)

    def _check(self, payload: bytes) -> bool:
        """Return whether the data of an event is JSON.

        Raises:
            UnreadableEventError: it is refused.
        """
        if has_more_values(payload, VALUES_MAX):
            raise UnreadableEventError(f"an event of more than {VALUES_MAX} values")
        try:
            tree: object = msgspec.json.decode(payload)
        except (ValueError, RecursionError):
            return False
        if self._judge is not None:
            self._judge(tree)
        return True
