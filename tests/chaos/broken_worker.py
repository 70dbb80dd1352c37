"""The scripted adapter in a worker that ignores credit: `BREAK=credit`."""

from __future__ import annotations

from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.core.attempt import Attempt

_PLENTY = 1 << 40


class BrokenAdapter(ScriptedAdapter):
    """Plays scripts; every attempt of this process believes to have credit without end."""


def _take_window(self: Attempt, _: int) -> None:
    del self


# An attempt's window is set from frames of the broker: whatever they say, it stays this large.
Attempt.window_chunks = property(lambda _: _PLENTY, _take_window)  # type: ignore[assignment]
Attempt.window_bytes = property(lambda _: _PLENTY, _take_window)  # type: ignore[assignment]
