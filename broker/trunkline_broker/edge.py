"""Keeps the errors of each side service at its edge: counted, logged, and not passed on.

A side service is a part of the broker that no stream needs. These are the metrics page, the status
document, the usage ledger, spans, the log, systemd's socket and the reading of files. An error in
the core is a broken invariant and ends the process. An error in a side service is that service's
alone: its asker gets an answer, and the broker goes on. This file does not know the services.
"""

from __future__ import annotations

import functools
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from trunkline_broker.measured.line_budget import LineBudget

P = ParamSpec("P")
T = TypeVar("T")

LINES_PER_S: Final = 1  # of one service: its first error tells most
_TEXT_CHARS: Final = 300
_FRAMES: Final = 3

Count = Callable[[str], None]
Log = Callable[[str, str, Mapping[str, object]], None]


class Edge:
    """The edge of one side service; usable from any thread.

    Args:
        name: of the service, for counter, log and people.
        count: takes `service_failed.NAME`, once per error.
        log: takes level, event and fields, at most once per second.

    Attributes:
        errors: how many errors ended here.
        last: the last one in a line; empty if there was none.
    """

    def __init__(self, name: str, count: Count, log: Log) -> None:
        self.name = name
        self.errors = 0
        self.last = ""
        self._count = count
        self._log = log
        self._lock = threading.Lock()
        self._lines = LineBudget(LINES_PER_S)

    def run(self, work: Callable[[], T], otherwise: T) -> T:
        """Return what `work` returns, or `otherwise` if it raises; the error is noted."""
        try:
            return work()
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self.note(exc)
            return otherwise

    def guard(self, call: Callable[P, object]) -> Callable[P, None]:
        """Return a function that calls `call` and raises nothing."""

        @functools.wraps(call)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                call(*args, **kwargs)
            except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
                self.note(exc)

        return guarded

    def note(self, error: BaseException) -> None:
        """Count an error that was caught, and log it with the place where it was raised."""
        text = in_a_line(error)
        with self._lock:
            self.errors += 1
            self.last = text
            held = self._lines.take(time.monotonic())
            self._count(f"service_failed.{self.name}")
        if held is not None:
            fields: dict[str, object] = {"service": self.name, "error": text}
            if place := _place(error):
                fields["at"] = place
            if held:
                fields["held_back"] = held
            self._log("error", "service_failed", fields)


class Edges:
    """The edges of one broker, one per service.

    Args:
        count: as of `Edge`.
        log: as of `Edge`.
        known: edges that were made before, as that of the log itself.
    """

    def __init__(self, count: Count, log: Log, *known: Edge) -> None:
        self._count = count
        self._log = log
        self._edges = {edge.name: edge for edge in known}

    def of(self, name: str) -> Edge:
        """Return the edge of a service; the same one for the same name."""
        edge = self._edges.get(name)
        if edge is None:
            edge = self._edges[name] = Edge(name, self._count, self._log)
        return edge

    def figures(self) -> dict[str, object]:
        """Return what the status document says of services that had errors."""
        return {
            edge.name: {"errors": edge.errors, "last": edge.last}
            for edge in list(self._edges.values())
            if edge.errors
        }


def in_a_line(error: BaseException) -> str:
    """Return type and text of an error, bounded; also of one whose text cannot be made."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # code of a library, which may raise anything
        text = "(its text cannot be made)"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return " ".join(text[:_TEXT_CHARS].split())


def _place(error: BaseException) -> str:
    """Return the innermost functions that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
