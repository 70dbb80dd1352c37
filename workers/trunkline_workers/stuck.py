"""A loop that stands still is noticed: how late it was, how often, and where it stood.

Code that blocks in an adapter stops every stream of its worker, and is killed with it after the
lease. A short beat measures how late the loop is; `faulthandler`, which needs neither the loop nor
the interpreter's lock, writes the stacks of all threads into the log while it still stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
from collections.abc import Callable
from typing import Any, Final

BEAT_S: Final = 0.25
BLOCKED_S: Final = 0.5  # later than this is told: half of what a reader notices as a pause
STACKS_AFTER_S: Final = 1.25  # well before the lease of 3 s, which may begin a second earlier
_WINDOW_S: Final = 30.0
_STDERR: Final = 2

Arm = Callable[[], None]


def arm_stacks() -> None:
    """Have the stacks written to stderr, unless this is called again in time."""
    with contextlib.suppress(RuntimeError):  # no memory for its thread: the next beat tries again
        faulthandler.dump_traceback_later(STACKS_AFTER_S, file=_STDERR)


class Lateness:
    """How late the loop was; pure, told by whoever measures.

    Attributes:
        blocks: how often it was later than `BLOCKED_S`.
    """

    def __init__(self) -> None:
        self.blocks = 0
        self._worst_s = self._older_s = 0.0
        self._since_s: float | None = None

    def note(self, late_s: float, now_s: float) -> bool:
        """Take one measurement; tell whether the loop was blocked."""
        if self._since_s is None or now_s - self._since_s >= _WINDOW_S:
            self._older_s, self._worst_s, self._since_s = self._worst_s, 0.0, now_s
        self._worst_s = max(self._worst_s, late_s)
        is_blocked = late_s >= BLOCKED_S
        self.blocks += is_blocked
        return is_blocked

    def to_dict(self) -> dict[str, Any]:
        """Return what a heartbeat carries: the worst of the last 30 to 60 s, and all blocks."""
        worst_s = max(self._worst_s, self._older_s)
        return {"loopLateMs": round(worst_s * 1000), "loopBlocks": self.blocks}


class LoopWatch:
    """Beats on the running loop from `start` to `stop`.

    Args:
        clock: monotonic seconds.
        on_blocked: told how many seconds the loop stood still, once it runs again.
        arm: called with each beat; see `arm_stacks`.
    """

    def __init__(
        self, clock: Callable[[], float], on_blocked: Callable[[float], None], arm: Arm | None
    ) -> None:
        self.lateness = Lateness()
        self._clock = clock
        self._on_blocked = on_blocked
        self._arm = arm
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Begin."""
        self._due_s = self._clock()
        self._beat()

    def stop(self) -> None:
        """End; what is armed is disarmed."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            if self._arm is not None:
                faulthandler.cancel_dump_traceback_later()

    def _beat(self) -> None:
        now_s = self._clock()
        late_s = now_s - self._due_s
        if self._arm is not None:
            self._arm()
        self._due_s = now_s + BEAT_S
        self._handle = asyncio.get_running_loop().call_later(BEAT_S, self._beat)
        if self.lateness.note(late_s, now_s):
            self._on_blocked(late_s)
