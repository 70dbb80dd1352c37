"""The broker's log and counters; nothing in here ever blocks or stops the loop.

One line per record, JSON or for people. A writer thread of its own does the writing: a terminal
that is paused or a disk that hangs must not stop streams. What can't be written (disk full) or no
longer fits in the queue is counted, and said with the next line that can be written.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import threading
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from structlog.typing import EventDict, FilteringBoundLogger

from trunkline_broker import outputs
from trunkline_broker.edge import Edge, Edges
from trunkline_broker.queues import QueueFigures

_QUEUE_LINES: Final = 2000
MAX_LINE_BYTES: Final = 64 * 1024  # a longer one is cut: it may quote what a peer has sent
_FLUSH_S: Final = 1.0  # how long the end of the broker waits for the last lines
_MAX_FIELD_CHARS: Final = 4096  # of one text in a line; failures of 16 Ki may come from a worker
_RESERVED: Final = frozenset({"event", "exc_info", "exception", "stack_info"})

LogFormat = Literal["json", "pretty"]


class LineWriter:
    """Writes lines to a descriptor from a thread; `put` never blocks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUE_LINES)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self.lost = 0  # lines that were not written, ever
        self._high_water = 0
        self._unsaid = 0
        self._file: Path | None = None
        self._limit_bytes = 0
        self._thread.start()

    def keep_below(self, file: Path, limit_bytes: int) -> None:
        """Keep the file that is written to below a size; its last part stays beside it as `.old`.

        Args:
            file: where the descriptor leads, opened for appending.
            limit_bytes: the most it may have at any moment; as much again is in `.old`.
        """
        self._limit_bytes = limit_bytes
        self._file = file

    def put(self, line: bytes) -> None:
        """Take a line without its newline; counted as lost if the queue is full."""
        try:
            self._lines.put_nowait(line[:MAX_LINE_BYTES])
        except queue.Full:
            self._lose()
        self._high_water = max(self._high_water, self._lines.qsize())

    def queue(self) -> QueueFigures:
        """Return how many lines wait for the thread."""
        return QueueFigures("log lines", self._lines.qsize(), self._high_water, _QUEUE_LINES)

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
            if self._file is not None:
                self._make_room(self._file, len(whole))
            return os.write(self._fd, whole) == len(whole)
        except OSError:
            return False  # disk full, terminal gone: counted by the caller

    def _make_room(self, file: Path, coming_bytes: int) -> None:
        """Cut the file if a line would make it too large; also one that has lost its name."""
        facts = os.fstat(self._fd)
        if facts.st_size + coming_bytes <= self._limit_bytes:
            return
        with contextlib.suppress(OSError):  # another file has its name, or none: nothing to keep
            if os.path.samestat(file.stat(), facts):
                outputs.keep_end(file, self._limit_bytes)
        os.ftruncate(self._fd, 0)


class _JsonLines:
    """The last processor for programs: one object per line, time, level and event first."""

    def __call__(self, _logger: object, level: str, entry: EventDict) -> str:
        head = {"at": _now().isoformat(timespec="milliseconds"), "level": level}
        head["event"] = _with_traceback(entry)
        return json.dumps({**head, **entry}, default=str)


class _PrettyLines:
    """The last processor for people.

    Whole facts for files; on a terminal only what tells one line from the next.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def __call__(self, _logger: object, level: str, entry: EventDict) -> str:
        at = _now().isoformat(timespec="milliseconds")
        text = _with_traceback(entry)
        if self._is_terminal:
            at = at[11:19]  # in UTC like every other time
            entry.pop("generation", None)
        tail = " ".join(f"{key}={_shown(value)}" for key, value in entry.items())
        return f"{at} {level:7} {text} {tail}".rstrip()


def _now() -> datetime:
    return datetime.now(UTC)


def _with_traceback(entry: EventDict) -> str:
    """Take the event out of an entry, with the traceback that `format_exc_info` has put there."""
    text = str(entry.pop("event"))
    traceback = entry.pop("exception", None)
    return f"{text}\n{traceback}" if traceback else text


def _shown(value: object) -> str:
    """Return a value as one word, so that nothing in it looks like a line or field of its own."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text.isprintable() and not set(text) & set(' ="') else json.dumps(text)


class _Sink:
    """What structlog writes to: every level is the same line writer."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    def msg(self, message: str) -> None:
        """Take a line."""
        self._writer.put(message.encode("utf-8", "replace"))

    debug = info = warning = error = msg


class Telemetry:
    """Log and counters of one broker.

    Attributes:
        counters: everything that is counted, by name.
        edges: of the side services of this broker; the log is one of them.
    """

    def __init__(self, fd: int, style: LogFormat, level: str) -> None:
        self.counters: Counter[str] = Counter()
        self._fd = fd
        self._edge = Edge("log", self.count, self._log_plainly)
        self.edges = Edges(self.count, self.log, self._edge)
        self._writer = LineWriter(fd)
        last = _JsonLines() if style == "json" else _PrettyLines(is_terminal=os.isatty(fd))
        self._logger: FilteringBoundLogger = structlog.wrap_logger(
            _Sink(self._writer),
            processors=[structlog.processors.format_exc_info, last],
            wrapper_class=structlog.make_filtering_bound_logger(level),
            context_class=dict,
            cache_logger_on_first_use=True,
        ).bind()

    @property
    def lines_lost(self) -> int:
        """Log lines that could not be written."""
        return self._writer.lost

    def queue(self) -> QueueFigures:
        """Return how many log lines wait to be written."""
        return self._writer.queue()

    def log(self, level: str, event: str, fields: Mapping[str, Any] | None = None) -> None:
        """Write one line; never the text of a prompt or answer, a key or a header."""
        self._edge.guard(self._log_line)(level, event, fields or {})

    def own_file(self, file: Path, limit_bytes: int) -> None:
        """Keep the log's file below a size.

        Args:
            file: where the descriptor of this log leads.
            limit_bytes: as of `LineWriter.keep_below`.
        """
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_APPEND)  # cut under its writers
        self._writer.keep_below(file, limit_bytes)

    def _log_line(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        getattr(self._logger, level)(event, **_kept(fields))

    def _log_plainly(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        """Write what went wrong with a line; of values that can be written in any case."""
        self._writer.put(f"{level} {event} {dict(fields)}".encode("utf-8", "replace"))

    def crash(self, event: str, error: BaseException) -> None:
        """Write an error with its traceback."""
        self._logger.error(event, exc_info=error)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] += amount

    def close(self) -> None:
        """Write what was taken, for at most two seconds."""
        self._writer.close()


def _kept(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields under names that mean nothing else to structlog; long texts are cut."""
    return {f"{key}_" if key in _RESERVED else key: _cut(value) for key, value in fields.items()}


def _cut(value: object) -> object:
    if isinstance(value, str) and len(value) > _MAX_FIELD_CHARS:
        return f"{value[: _MAX_FIELD_CHARS - 1]}\u2026"
    return value
