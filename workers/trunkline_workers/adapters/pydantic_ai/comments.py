"""Comment lines taken out of an event stream, for an SDK that can't read them; pure.

Gateways keep connections alive with comments. Of the SDKs under the library google-genai (2.34)
takes such a line for the payload of an event.
"""

from __future__ import annotations

from typing import Final

_LINE_ENDS: Final = (b"\n", b"\r")


class CommentFilter:
    """Takes the reads of one body, gives them back without comments."""

    __slots__ = ("_in_comment", "_in_line")

    def __init__(self) -> None:
        self._in_comment = False
        self._in_line = False  # the last read ended in the middle of a line that is none

    def __call__(self, data: bytes) -> bytes:
        """Return a read without comments; `b""` if there was nothing else in it."""
        begins = self._in_comment or (not self._in_line and data.startswith(b":"))
        if not begins and b"\n:" not in data and b"\r:" not in data:
            self._in_line = not data.endswith(_LINE_ENDS)
            return data
        return b"".join(line for line in data.splitlines(keepends=True) if self._is_kept(line))

    def _is_kept(self, line: bytes) -> bool:
        is_comment = self._in_comment or (not self._in_line and line.startswith(b":"))
        has_ended = line.endswith(_LINE_ENDS)
        self._in_comment = is_comment and not has_ended
        self._in_line = not is_comment and not has_ended
        return not is_comment
