"""Leases of workers: any frame renews one; one that runs out means the worker hangs.

Nothing is moved per frame: when a lease's deadline comes up, the time of the last frame decides.
It does not know frames, nor what a lapsed lease leads to.
"""

from __future__ import annotations

from trunkline_protocol.limits import LATE_TICK_S

from trunkline_broker.core.workers import Worker


def is_late(lateness_s: float) -> bool:
    """Tell whether a tick is so late that this broker itself was stopped or starved."""
    return lateness_s > LATE_TICK_S


def lease_ends_s(worker: Worker, lease_s: float) -> float:
    """Return when the lease of a worker runs out if nothing more is heard."""
    return worker.heard_s + lease_s


def extend(worker: Worker, lateness_s: float) -> None:
    """Give back the time in which this broker could not have heard anything."""
    worker.heard_s += lateness_s
