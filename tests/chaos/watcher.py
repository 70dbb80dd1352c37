"""Waits for word of a stream that stands still, and notes the state of all three processes.

Agents watch their own streams (`watched`) and note `stuck`. This watcher hears of it, and notes
itself if an agent that runs sends no beat. What it notes is part of the file that is judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any, Final

from tests.chaos import inside
from tests.chaos.book import Book
from tests.chaos.watched import STUCK_S
from tests.support.broker import BrokerProcess
from tests.support.raw_peer import RawClient
from tests.support.timing import NotSoonEnoughError, until_async

_LOOK_S: Final = 0.5
_ANSWER_S: Final = 5.0
_MOST_STATES: Final = 3  # a broken rule stops many streams, and one state explains it


class Watcher:
    """Watches the agents and players of one world."""

    def __init__(self, world: int, path: Path, broker: BrokerProcess, shown: Path) -> None:
        self._world = world
        self._book = Book(path)
        self._broker = broker
        self._shown = shown
        self._beats: dict[int, tuple[float, str]] = {}  # pid -> last beat as this process heard it
        self._states = 0

    async def run(self, is_mine: Callable[[Mapping[str, Any]], bool]) -> None:
        """Watch until cancelled.

        Args:
            is_mine: whether a line of the book is of this world.
        """
        try:
            while True:
                for line in self._book.news():
                    if is_mine(line):
                        await self._take(line)
                self._look_at_beats()
                await asyncio.sleep(_LOOK_S)
        finally:
            self._book.close()

    async def _take(self, line: Mapping[str, Any]) -> None:
        match line["k"]:
            case "beat":
                self._beats[line["pid"]] = (monotonic(), line["name"])
            case "closed" | "left":
                self._beats = {p: b for p, b in self._beats.items() if b[1] != line["name"]}
            case "stuck":
                await self._note_state(line)
            case _:
                pass

    def _look_at_beats(self) -> None:
        for pid, (heard_s, name) in list(self._beats.items()):
            state = _state_of(pid)
            if state in "ZX":
                del self._beats[pid]
            elif state == "T":
                self._beats[pid] = (monotonic(), name)
            elif (silent_s := monotonic() - heard_s) > STUCK_S:
                del self._beats[pid]
                self._book.note("stuck", id=f"agent {name}", pid=pid, chunks=0, silent=silent_s)

    async def _note_state(self, stuck: Mapping[str, Any]) -> None:
        """Note what broker and workers hold; what the client holds is in the line itself."""
        self._states += 1
        if self._states > _MOST_STATES:
            return
        document = await asyncio.to_thread(self._status)
        pids = [entry["pid"] for entry in document.get("processes", ())]
        workers = {str(pid): await self._inside(pid) for pid in pids}
        broker = {
            name: document[name] for name in ("calls", "clients", "pools") if name in document
        }
        shown = {"client": stuck, "workers": workers, "broker": broker}
        self._book.note("state", w=self._world, of=stuck.get("id"), shown=shown)
        mine = [e for each in workers.values() for e in each if e["call"] == stuck.get("call")]
        text = f"a stream stands still: {json.dumps(stuck)}\n  its worker: {json.dumps(mine)}\n"
        sys.stderr.write(f"{text}  broker: {json.dumps(broker.get('calls'))}\n")

    def _status(self) -> Mapping[str, Any]:
        try:
            with RawClient(self._broker.endpoint) as client:
                client.hello(_ANSWER_S)
                return client.query("status", None, _ANSWER_S)
        except AssertionError as exc:
            return {"calls": f"no answer: {exc}"}

    async def _inside(self, pid: int) -> list[dict[str, Any]]:
        path = inside.path_of(self._shown, pid)
        path.unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError, NotSoonEnoughError):
            os.kill(pid, signal.SIGUSR1)
            await until_async(path.exists, _ANSWER_S)
            return json.loads(path.read_text())["attempts"]
        return []


def _state_of(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return stat[stat.rindex(")") + 2]
