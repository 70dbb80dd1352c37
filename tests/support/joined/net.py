"""Simulated time, and links that break one at a time.

A link carries frames in order and loses what is under way when it breaks, as a socket does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

Action = Callable[[], None]


class Clock:
    """Runs actions at their time; equal times in the order in which they were asked for."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now_s = start_s
        self.turns = 0
        self.after_turn: Action = lambda: None
        self._due: list[tuple[float, int, Action]] = []
        self._serial = 0

    def after(self, delay_s: float, action: Action) -> None:
        """Run an action later."""
        self.at(self.now_s + delay_s, action)

    def at(self, at_s: float, action: Action) -> None:
        """Run an action at a time, at once if that is over."""
        self._serial += 1
        heapq.heappush(self._due, (max(at_s, self.now_s), self._serial, action))

    def run(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Run everything that is due until then, or until something is over."""
        while self._due and self._due[0][0] <= until_s and not is_over():
            self.now_s, _, action = heapq.heappop(self._due)
            self.turns += 1
            action()
            self.after_turn()
        if not is_over():
            self.now_s = max(self.now_s, until_s)


class Pipe:
    """One direction of a connection."""

    def __init__(self, clock: Clock, rng: Random, max_delay_s: float) -> None:
        self.is_up = False
        self._clock = clock
        self._rng = rng
        self._max_delay_s = max_delay_s
        self._generation = 0
        self._last_s = 0.0

    def open(self) -> None:
        """Carry frames from now on."""
        self.is_up = True

    def close(self) -> None:
        """Lose what is under way, and what is sent from now on."""
        self.is_up = False
        self._generation += 1

    def send(self, arrive: Action) -> bool:
        """Carry one frame behind those before it; `False` if the pipe is down."""
        if not self.is_up:
            return False
        generation = self._generation
        delay_s = self._rng.random() * self._max_delay_s
        self._last_s = max(self._last_s, self._clock.now_s + delay_s)

        def deliver() -> None:
            if self._generation == generation:
                arrive()

        self._clock.at(self._last_s, deliver)
        return True
