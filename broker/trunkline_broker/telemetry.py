"""The broker's log and counters; nothing in here ever blocks or stops the loop.

One line per record, JSON or for people. A writer thread of its own does the writing: a terminal
that is paused or a disk that hangs must not stop streams. What can't be written (disk full) or no
longer fits in the queue is counted, and said with the next line that can be written.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from trunkline_broker.core.effects import AttemptEnded, NoteLoad

_QUEUE_LINES: Final = 2000
_FLUSH_S: Final = 1.0  # how long the end of the broker waits for the last lines
_FIELDS: Final = "fields"

LogFormat = Literal["json", "pretty"]


class LineWriter:
    """Writes lines to a descriptor from a thread; `put` never blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUE_LINES)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self.lost = 0  # lines that were not written, ever
        self._unsaid = 0
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Take a line without its newline; counted as lost if the queue is full."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lose()

    def close(self) -> None:
        """Wait up to one second for the lines that were taken; the descriptor stays open."""
        try:
            self._lines.put(None, timeout=_FLUSH_S)
        except queue.Full:
            return  # the reader of our log has stopped; the thread is a daemon
        self._thread.join(_FLUSH_S)

    def _lose(self) -> None:
        self.lost += 1
        self._unsaid += 1

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._unsaid and self._write(b"(%d log lines were lost)" % self._unsaid):
                self._unsaid = 0
            if not self._write(line):
                self._lose()

    def _write(self, line: bytes) -> bool:
        whole = line + b"\n"
        try:
            return os.write(self._fd, whole) == len(whole)
        except OSError:
            return False  # disk full, terminal gone: counted by the caller


class _Formatter(logging.Formatter):
    """Whole facts for files and programs; on a terminal only what tells one line from the next."""

    def __init__(self, style: LogFormat, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_json = style == "json"
        self._is_terminal = is_terminal

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: Mapping[str, Any] = record.__dict__.get(_FIELDS, {})
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if self._is_json:
            head = {"at": at, "level": record.levelname.lower(), "event": text}
            return json.dumps(head | dict(fields), default=str)
        if self._is_terminal:
            at = at[11:19]  # in UTC like every other time
            fields = {key: value for key, value in fields.items() if key != "generation"}
        tail = " ".join(f"{key}={_shown(value)}" for key, value in fields.items())
        return f"{at} {record.levelname.lower():7} {text} {tail}".rstrip()


def _shown(value: object) -> str:
    """Return a value as one word, so that nothing in it looks like a line or field of its own."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.isprintable() and not set(text) & set(' ="') else json.dumps(text)


class _LineHandler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self.format(record).encode("utf-8", "replace"))


class Telemetry:
    """Log and counters of one broker."""

    def __init__(self, fd: int, style: LogFormat, level: str) -> None:
        self.counters: Counter[str] = Counter()
        self._writer = LineWriter(fd)
        self._handler = _LineHandler(self._writer)
        self._handler.setFormatter(_Formatter(style, is_terminal=os.isatty(fd)))
        self._logger = logging.getLogger("trunkline.broker")
        self._logger.setLevel(level.upper())
        self._logger.propagate = False
        self._logger.addHandler(self._handler)

    @property
    def lines_lost(self) -> int:
        """Log lines that could not be written."""
        return self._writer.lost

    def log(self, level: str, event: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write one line; never the text of a prompt or answer, a key or a header."""
        number = logging.getLevelNamesMapping()[level.upper()]
        self._logger.log(number, event, extra={_FIELDS: fields or {}})

    def crash(self, event: str, error: BaseException) -> None:
        """Write an error with its traceback."""
        self._logger.error(event, exc_info=error, extra={_FIELDS: {}})

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def on_attempt(self, ended: AttemptEnded) -> None:
        """Take note of an attempt that is over."""

    def on_load(self, note: NoteLoad) -> None:
        """Take note of what a worker measured."""

    def close(self) -> None:
        """Write what was taken, for at most two seconds."""
        self._logger.removeHandler(self._handler)
        self._writer.close()
