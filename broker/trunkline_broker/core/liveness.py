"""Leases of workers: any frame renews one; one that runs out means the worker hangs.

Nothing is moved per frame: when a lease's deadline comes up, the time of the last frame decides.
It does not know frames, nor what a lapsed lease leads to.
"""

from __future__ import annotations

from typing import Final

from trunkline_protocol.limits import HEARTBEAT_INTERVAL_S, LATE_TICK_S

from trunkline_broker.core.workers import Worker

CATCH_UP_S: Final = 1.5 * HEARTBEAT_INTERVAL_S


def is_late(lateness_s: float) -> bool:
    """Tell whether a tick is so late that this broker itself was stopped or starved."""
    return lateness_s > LATE_TICK_S


def lease_ends_s(worker: Worker, lease_s: float) -> float:
    """Return when the lease of a worker runs out if nothing more is heard."""
    return worker.heard_s + lease_s


def extend(worker: Worker, lateness_s: float) -> None:
    """Give back the time in which this broker could not have heard anything, and a beat more.

    What a worker sent meanwhile may still be on its way through the kernel when the tick comes, and
    a lease whose deadline was the late one would otherwise end at this very tick.
    """
    worker.heard_s += lateness_s + CATCH_UP_S
