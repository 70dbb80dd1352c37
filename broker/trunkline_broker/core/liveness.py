"""Decides when a silent worker hangs: any frame renews its lease, and so does waiting for CPU.

Nothing is moved per frame: when a deadline comes up, the time of the last frame decides. Once two
thirds of a lease have passed in silence, the kernel is asked how much CPU the process got. The
lease counts only time in which the worker ran or slept; a worker that is runnable and gets no CPU
keeps its lease. It does not know frames, nor what a lapsed lease leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trunkline_protocol.ids import Generation
from trunkline_protocol.limits import HEARTBEAT_INTERVAL_S, LATE_TICK_S

from trunkline_broker.core.cpu import CpuLook, waited_s
from trunkline_broker.core.effects import LookAtWorker
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.workers import Doubt, Worker, WorkerState

CATCH_UP_S: Final = 1.5 * HEARTBEAT_INTERVAL_S
_LOOK_AT: Final = 2 / 3  # of a lease; what is left of it is long enough to measure
_ANSWER_S: Final = 0.5  # the shell answers at once; a look without an answer proves nothing
_AGAIN_S: Final = 0.25  # least time between two looks at a worker that waits for CPU


def is_late(lateness_s: float) -> bool:
    """Return whether a tick is so late that this broker itself was stopped or starved."""
    return lateness_s > LATE_TICK_S


def lease_ends_s(worker: Worker, lease_s: float) -> float:
    """Return when the lease of a worker ends if the broker receives nothing more from it."""
    return worker.heard_s + lease_s


def extend(worker: Worker, lateness_s: float) -> None:
    """Give back the time in which this broker could not receive anything, and a beat more.

    What a worker sent meanwhile may still be on its way through the kernel when the tick comes, and
    a lease whose deadline was the late one would otherwise end at this very tick.
    """
    worker.heard_s += lateness_s + CATCH_UP_S
    worker.doubt = None


class WorkerLeases:
    """The leases of all workers.

    Args:
        hub: the machines of the broker.
        kill: ends a worker whose lease is over: worker, reason, monotonic seconds.
    """

    def __init__(self, hub: Hub, kill: Callable[[Worker, str, float], None]) -> None:
        self._hub = hub
        self._kill = kill

    def renew(self, worker: Worker, now_s: float) -> None:
        """Start the lease of a worker anew."""
        worker.heard_s = now_s
        worker.doubt = None
        self._arm(worker, lease_ends_s(worker, self._lease_s(worker) * self._share(worker)))

    def on_due(self, generation: Generation, now_s: float) -> None:
        """Look at a worker that has been silent for most of its lease; kill it at the end.

        Effects: `LookAtWorker` for a process of this host, to which the shell answers with
        `WorkerLooked`. An answer that does not come within `_ANSWER_S` proves nothing.
        """
        worker = self._hub.workers.get(generation)
        if worker is None:
            raise AssertionError("a worker that goes clears its deadlines")
        lease_s = self._lease_s(worker)
        doubt_s = lease_ends_s(worker, lease_s * self._share(worker))
        if doubt_s > now_s:
            worker.doubt = None
            self._arm(worker, doubt_s)
        elif not self._can_look(worker) or (worker.doubt is not None and worker.doubt.is_asked):
            self._judge(worker, None, now_s)
        else:
            doubt = worker.doubt
            if doubt is None or doubt.heard_s != worker.heard_s:
                doubt = worker.doubt = Doubt(worker.heard_s)
            doubt.is_asked = True
            self._hub.out.append(LookAtWorker(generation, worker.pid or 0))
            self._arm(worker, max(lease_ends_s(worker, lease_s), now_s) + _ANSWER_S)

    def on_looked(self, generation: Generation, look: CpuLook | None, now_s: float) -> None:
        """Take the answer of the shell; `None`: the kernel says nothing of that process.

        An answer about a worker that has gone, leaves, or sent a frame meanwhile changes nothing.
        """
        worker = self._hub.workers.get(generation)
        if worker is None or worker.doubt is None or not worker.doubt.is_asked:
            return
        worker.doubt.is_asked = False
        if worker.state is not WorkerState.STOPPING:
            self._judge(worker, look, now_s)

    def _judge(self, worker: Worker, look: CpuLook | None, now_s: float) -> None:
        """Give back the time that the worker waited for CPU; kill it if its lease is over."""
        lease_s = self._lease_s(worker)
        doubt = worker.doubt
        starved_s = 0.0
        if doubt is not None and doubt.heard_s == worker.heard_s:
            if doubt.look is not None and look is not None:
                starved_s = min(waited_s(doubt.look, look), now_s - doubt.look.at_s)
            doubt.look = look
            if starved_s >= _AGAIN_S:
                worker.heard_s = doubt.heard_s = worker.heard_s + starved_s
                self._report_starved(worker, doubt, starved_s)
        ends_s = lease_ends_s(worker, lease_s)
        if ends_s > now_s:
            self._arm(worker, max(ends_s, now_s + _AGAIN_S) if starved_s else ends_s)
            return
        extra = doubt.starved_s if doubt is not None else 0.0
        waited = f", besides {extra:.1f} s that it waited for CPU" if extra else ""
        self._kill(worker, f"no frame for {lease_s:g} s{waited}", now_s)

    def _report_starved(self, worker: Worker, doubt: Doubt, starved_s: float) -> None:
        """Count the extension; log the first of a silence and then one per lease."""
        hub = self._hub
        hub.count("leases_extended_for_cpu")
        before, doubt.starved_s = doubt.starved_s, doubt.starved_s + starved_s
        lease_s = self._lease_s(worker)
        if not before or before // lease_s != doubt.starved_s // lease_s:
            fields = {**hub.worker_fields(worker), "waited_s": round(doubt.starved_s, 3)}
            hub.log("warning", "worker_starved", fields)

    def _share(self, worker: Worker) -> float:
        """Return after which share of a lease in silence the broker acts."""
        return _LOOK_AT if self._can_look(worker) else 1.0

    def _can_look(self, worker: Worker) -> bool:
        return worker.pid is not None and worker.pid > 0 and not worker.is_remote

    def _arm(self, worker: Worker, at_s: float) -> None:
        self._hub.deadlines.set((Timer.LEASE, worker.generation), at_s)

    def _lease_s(self, worker: Worker) -> float:
        return self._hub.spec.remote_lease_s if worker.is_remote else self._hub.spec.lease_s
