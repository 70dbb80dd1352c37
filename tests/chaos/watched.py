"""The streams that an agent reads, and the net under them: ten seconds without progress fail.

A stream whose reader rests on purpose is left out. Time in which this process did not run does not
count either, so a stopped agent accuses no one.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Final

import trunkline

from tests.chaos import inside
from tests.chaos.book import Book
from tests.support.timing import SLOW

STUCK_S: Final = float(os.environ.get("CHAOS_STUCK_S", "10")) * SLOW
_LOOK_S: Final = 0.5
_LOOKED_S: Final = 8.0 * SLOW  # so long the watcher may take to look at all processes
_BEAT_EVERY: Final = 4  # looks


@dataclass(slots=True)
class Watched:
    """One stream that is read.

    Attributes:
        chunks: how many its reader has.
        rests: its reader has paused, so that no progress is expected.
        silent_s: seconds without a chunk while its reader waited.
    """

    id: str
    stream: trunkline.Stream | None = None
    chunks: int = 0
    rests: bool = False
    silent_s: float = 0.0
    is_told: bool = False
    seen: int = -1

    def look(self, passed_s: float) -> bool:
        """Count what has passed; return whether the stream is stuck and this was not told yet."""
        if self.rests or self.chunks != self.seen:
            self.seen, self.silent_s = self.chunks, 0.0
            return False
        self.silent_s += passed_s
        if self.is_told and self.silent_s >= STUCK_S + _LOOKED_S and self.stream is not None:
            self.stream.cancel()  # it is in the book with its state: the others go on
        if self.is_told or self.silent_s < STUCK_S:
            return False
        self.is_told = True
        return True


class Watch:
    """All streams of one agent process."""

    def __init__(self, book: Book, name: str) -> None:
        self.open: dict[str, Watched] = {}
        self.over = 0
        self._book = book
        self._name = name

    def begin(self, stream_id: str) -> Watched:
        """Watch a stream, until `end`."""
        watched = self.open[stream_id] = Watched(stream_id)
        return watched

    def end(self, stream_id: str) -> None:
        """Watch a stream no more."""
        self.over += self.open.pop(stream_id, None) is not None

    async def run(self) -> None:
        """Look at all streams until cancelled; note what is stuck, and a beat every two seconds."""
        last_s, looks = time.monotonic(), 0
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.monotonic()
            passed_s, last_s = min(now_s - last_s, 2 * _LOOK_S), now_s
            stuck = [each for each in self.open.values() if each.look(passed_s)]
            for each in stuck:
                self._tell(each)
            looks += 1
            if looks % _BEAT_EVERY == 0:
                self._beat()

    def _tell(self, stuck: Watched) -> None:
        call = stuck.stream.call_id.hex() if stuck.stream is not None else ""
        streams = inside.facts()["streams"]
        self._book.note(
            "stuck",
            id=stuck.id,
            pid=os.getpid(),
            call=call,
            chunks=stuck.chunks,
            silent=stuck.silent_s,
            state=[line for line in streams if line["call"] == call],
        )

    def _beat(self) -> None:
        oldest_s = max((each.silent_s for each in self.open.values()), default=0.0)
        self._book.note(
            "beat",
            name=self._name,
            pid=os.getpid(),
            open=len(self.open),
            over=self.over,
            oldest=oldest_s,
        )
