"""The scripted adapter in a worker of a test: it shows its state on SIGUSR1, and may lack a rule.

The rule is the one that `BREAK=credit` or `BREAK=wakeup` names.
"""

from __future__ import annotations

import os

from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.core.attempt import Attempt

from tests.chaos import inside
from tests.chaos.breaks import VARIABLE, break_worker

_PLENTY = 1 << 40


class SeenAdapter(ScriptedAdapter):
    """Plays scripts."""


def _take_window(self: Attempt, _: int) -> None:
    del self


inside.install()
break_worker()
if os.environ.get(VARIABLE, "") == "credit":
    # An attempt's window is set from frames of the broker: whatever they say, it stays this large.
    Attempt.window_chunks = property(lambda _: _PLENTY, _take_window)  # type: ignore[assignment]
    Attempt.window_bytes = property(lambda _: _PLENTY, _take_window)  # type: ignore[assignment]
