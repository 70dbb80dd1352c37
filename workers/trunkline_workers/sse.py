"""Incremental decoder for server-sent events on bytes: reads in, payloads out.

It does no I/O and does not know what a payload means, nor that `[DONE]` ends a chat-completions
stream. It follows the WHATWG rules (HTML standard, 9.2.6) with these choices: a CR ends its line at
once instead of waiting for the byte after it, events without data are not dispatched, and of the
names of events only errors and keep-alives are told apart. Payloads stay bytes, since a character
may be split over two reads and the JSON decoder checks UTF-8 itself.

The work is linear: bytes of an unfinished line are kept as they came and joined once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

MAX_EVENT_BYTES: Final = 16 * 1024 * 1024  # one event; inline images of providers stay below
MAX_EVENT_LINES: Final = 16_384  # of data in one event; indented JSON has some hundreds
STRAY_BYTES: Final = 4096  # kept of lines that are no field: enough for an error envelope

_BOM: Final = b"\xef\xbb\xbf"
_KEEP_ALIVES: Final = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_OTHER_FIELDS: Final = frozenset({b"event", b"id", b"retry"})
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class ErrorEvent(bytes):
    """The payload of an event whose `event:` field is `error`; equal to its bytes."""


class KeepAliveEvent(bytes):
    """The payload of an event that is named as a keep-alive; equal to its bytes."""


class EventTooLargeError(ValueError):
    """An event passed `MAX_EVENT_BYTES` or `MAX_EVENT_LINES`; the decoder must not be fed again."""


class SseDecoder:
    """Turn the reads of one response body into event payloads.

    Attributes:
        comments: comment lines seen so far (keep-alives).
        has_events: whether any field of an event was seen.
    """

    __slots__ = (
        "_at_start",
        "_bytes_between",
        "_data",
        "_data_bytes",
        "_name",
        "_on_comment",
        "_parts",
        "_parts_bytes",
        "_skip_lf",
        "_stray",
        "comments",
        "has_events",
    )

    def __init__(self, on_comment: Callable[[bytes], None] | None = None) -> None:
        """Start before the first byte of a body.

        Args:
            on_comment: takes the text of each comment line, without the leading colon and space.
        """
        self.comments = 0
        self.has_events = False
        self._on_comment = on_comment
        self._parts: list[bytes] = []  # the unfinished line, as it came
        self._parts_bytes = 0
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._name = b""  # of the unfinished event
        self._data_bytes = 0  # one per line more than the texts, so that empty lines count too
        self._bytes_between = 0  # since the last event: a flood of comments is no keep-alive
        self._stray = b""
        self._at_start = True
        self._skip_lf = False  # the last byte was a CR that ended its line

    @property
    def stray(self) -> bytes:
        """The beginning of what stood in lines that are no field of an event."""
        return self._stray

    def feed(self, data: bytes) -> list[bytes]:
        """Take one read and return the payloads that it completes, in order.

        Raises:
            EventTooLargeError: an event, or what stands before it, is larger than
                `MAX_EVENT_BYTES`, or it has more than `MAX_EVENT_LINES` lines.
        """
        payloads = self._fed(data)
        self._bytes_between = 0 if payloads else self._bytes_between + len(data)
        if self._bytes_between > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"{MAX_EVENT_BYTES} bytes without a whole event")
        return payloads

    def _fed(self, data: bytes) -> list[bytes]:
        if self._skip_lf and data:
            self._skip_lf = False
            if data.startswith(b"\n"):
                data = data[1:]
        if b"\n" not in data and b"\r" not in data:
            self._keep(data)
            return []
        if self._parts:
            self._parts.append(data)
            data = self._join()
        if self._at_start:
            self._at_start = False
            data = data.removeprefix(_BOM)
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            return self._lines(_LINE_END.split(data))
        if self._data or self._name:
            return self._lines(data.split(b"\n"))
        return self._events(data)

    def finish(self) -> bytes | None:
        """Take the end of the body; return the payload of an event that lacks its blank line.

        The standard drops such an event. Whoever asks decides: a payload that is complete by its
        own framing (a whole JSON object, `[DONE]`) was not cut.
        """
        line = self._join()
        if self._at_start:
            line = line.removeprefix(_BOM)
        if line:
            self._field(line)
        return self._take() if self._data else None

    def _events(self, data: bytes) -> list[bytes]:
        """Split whole events at once: the shape that nearly all traffic has."""
        out: list[bytes] = []
        append = out.append
        pieces = data.split(b"\n\n")
        tail = pieces.pop()
        for piece in pieces:
            if piece.startswith(b"data: ") and b"\n" not in piece:
                append(piece[6:])
                self.has_events = True
            elif piece:
                out += self._lines([*piece.split(b"\n"), b"", b""])
        if tail:
            out += self._lines(tail.split(b"\n"))
        return out

    def _lines(self, lines: list[bytes]) -> list[bytes]:
        """Take complete lines and, as the last one, the beginning of the next."""
        out: list[bytes] = []
        rest = lines.pop()
        for line in lines:
            if line:
                self._field(line)
            elif self._data:
                out.append(self._take())
            else:
                self._name = b""
        self._keep(rest)
        return out

    def _field(self, line: bytes) -> None:
        """Take one line that is not empty."""
        name, colon, value = line.partition(b":")
        if name == b"data":
            self.has_events = True
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            if len(self._data) > MAX_EVENT_LINES:
                raise EventTooLargeError(f"an event has more than {MAX_EVENT_LINES} lines")
        elif not name and colon:
            self.comments += 1
            if self._on_comment is not None:
                self._on_comment(value.removeprefix(b" "))
        elif name in _OTHER_FIELDS:
            self.has_events = True
            if name == b"event":
                self._name = value.strip()
        elif len(self._stray) < STRAY_BYTES:
            self._stray += line[: STRAY_BYTES - len(self._stray)] + b"\n"

    def _take(self) -> bytes:
        """Take the data of the event that ends here."""
        payload = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._data_bytes = 0
        name, self._name = self._name, b""
        if name == b"error":
            return ErrorEvent(payload)
        return KeepAliveEvent(payload) if name in _KEEP_ALIVES else payload

    def _join(self) -> bytes:
        """Take the kept beginning of a line."""
        line = b"".join(self._parts)
        self._parts.clear()
        self._parts_bytes = 0
        return line

    def _keep(self, part: bytes) -> None:
        """Keep the beginning of a line until its end comes."""
        if part:
            self._parts.append(part)
            self._parts_bytes += len(part)
        if self._parts_bytes + self._data_bytes > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
