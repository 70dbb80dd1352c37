"""What this process prints goes to its log without its secrets: a text stream in front of stderr.

It sees Python's writing only; what a C library prints by itself passes. Whole lines are cleaned,
since a secret may be written in two halves.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Final, TextIO

from trunkline_protocol.blanks import BLANKS

MAX_LINE_CHARS: Final = 64 * 1024  # a longer one is written in parts
MAX_FILE_BYTES: Final = 4 * 1024 * 1024  # of an output file, which the broker cuts at 1 MiB
_MAX_AT_ONCE_CHARS: Final = 256 * 1024  # of one write; cleaning takes some 0.6 s per MB of the loop
_MAX_WORD_CHARS: Final = 8 * 1024  # a longer one is cut anywhere


class CleanText(io.TextIOBase):
    """Writes whole lines to `sink` after `clean`; a full disk or a closed sink loses them.

    Args:
        sink: where cleaned lines go.
        clean: takes secrets out of a text.
        limit_bytes: above this size of the file behind `sink` lines are dropped until the broker
            has cut it, and the next line tells how much; 0: no limit.
    """

    def __init__(self, sink: TextIO, clean: Callable[[str], str], limit_bytes: int = 0) -> None:
        self._sink = sink
        self._clean = clean
        self._limit_bytes = limit_bytes
        self._dropped_chars = 0
        self._rest = ""

    def writable(self) -> bool:
        """Tell `print` and others that this can be written to."""
        return True

    def fileno(self) -> int:
        """Return the descriptor below, for `faulthandler` and for children."""
        return self._sink.fileno()

    def isatty(self) -> bool:
        """Tell whether a terminal is below."""
        return self._sink.isatty()

    def write(self, text: str, /) -> int:
        """Take text; lines that are complete are written at once."""
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            self._pass_on("".join(f"{line}\n" for line in lines))
        if len(self._rest) > MAX_LINE_CHARS:
            self._cut()
        return len(text)

    def _cut(self) -> None:
        """Write the beginning of a line that is too long, up to a blank: no secret has one."""
        at = max(self._rest.rfind(blank) for blank in BLANKS) + 1
        if at <= len(self._rest) - _MAX_WORD_CHARS:
            at = len(self._rest)
        self._pass_on(self._rest[:at])
        self._rest = self._rest[at:]

    def finish(self) -> None:
        """Write what waits for the end of its line."""
        rest, self._rest = self._rest, ""
        if rest:
            self._pass_on(rest)

    def _pass_on(self, text: str) -> None:
        # A log that can't be written (full disk, closed at the end) must not end the worker.
        with contextlib.suppress(OSError, ValueError):
            if self._limit_bytes and os.fstat(self._sink.fileno()).st_size > self._limit_bytes:
                self._dropped_chars += len(text)
                return
            if self._dropped_chars:
                dropped, self._dropped_chars = self._dropped_chars, 0
                self._sink.write(f"[trunkline] too much output: {dropped} characters dropped\n")
            self._sink.write(self._clean(text[:_MAX_AT_ONCE_CHARS]))
            if len(text) > _MAX_AT_ONCE_CHARS:
                self._sink.write("\n")
                self._dropped_chars += len(text) - _MAX_AT_ONCE_CHARS
            self._sink.flush()


def clean_output(clean: Callable[[str], str], limit_bytes: int = 0) -> None:
    """Have everything that this process prints from now on cleaned, also tracebacks.

    Args:
        clean: takes secrets out of a text.
        limit_bytes: as of `CleanText`; for files that a broker cuts.
    """
    for name in ("stdout", "stderr"):
        stream = CleanText(getattr(sys, name), clean, limit_bytes)
        setattr(sys, name, stream)
        atexit.register(stream.finish)
