"""Finds attempts that stand still although nothing holds them up: the net under the wake-ups.

A stall is a fault of this program, never of a peer or an adapter. The rules of `calls` make stalls
impossible; this file does not know those rules and looks at the facts alone, once a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from trunkline_workers.core.attempt import Attempt
from trunkline_workers.core.calls import Key, WorkerCalls

STALLED_S: Final = 5.0
"""A puller that is woken asks in the next turn of the loop, so this is thousands of turns."""


class Stall(NamedTuple):
    """An attempt that stands still.

    Attributes:
        key: the attempt.
        is_pulled: it has a puller, which sleeps.
        state: its facts, for people.
    """

    key: Key
    is_pulled: bool
    state: str


class StallWatch:
    """Since when each attempt that should go on has been found standing still."""

    def __init__(self) -> None:
        self._since_s: dict[Key, float] = {}

    def look(self, calls: WorkerCalls, pullers: Mapping[Key, bool], now_s: float) -> list[Stall]:
        """Return the attempts that have stood still for `STALLED_S`; due once a second.

        Args:
            calls: the attempts.
            pullers: whether the puller of each attempt that has one waits for room.
            now_s: monotonic seconds.
        """
        before, self._since_s = self._since_s, {}
        stalls: list[Stall] = []
        for key, found in calls.unfinished():
            is_waiting = pullers.get(key)
            is_pulled = is_waiting is not None
            if is_pulled and not (is_waiting and found.room > 0):
                continue
            since_s = before.get(key, now_s)
            if now_s - since_s < STALLED_S:
                self._since_s[key] = since_s
            else:
                stalls.append(Stall(key, is_pulled, _told(found, is_pulled=is_pulled)))
        return stalls


def _told(found: Attempt, *, is_pulled: bool) -> str:
    return (
        f"{'its puller sleeps' if is_pulled else 'it has no puller'}; state {found.state.value},"
        f" room {found.room}, sent {found.sent}, received {found.received},"
        f" consumed {found.consumed}, window {found.window_chunks} chunks and"
        f" {found.window_bytes} bytes, waiting {found.pending_count}, detached {found.is_detached}"
    )
