"""From spawn to exit: how workers come, serve, are replaced, leave or are made to leave.

It does not know calls (it asks `Endings` to end those of a lost worker) nor swaps (it leaves the
facts they wait for in the hub). Registration is read in `registering.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from trunkline_protocol.frames import Bye, Role
from trunkline_protocol.ids import Generation, PoolName
from trunkline_protocol.secret import SecretBytes

from trunkline_broker.core.effects import Forget, Signal, Spawn
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.hub import Hub, Timer, WorkerLost, WorkerServed
from trunkline_broker.core.liveness import WorkerLeases
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.core.supervision import Pool, Slot
from trunkline_broker.core.workers import Worker, WorkerState

_TOKEN_BYTES = 32
_FRAME: Final = '  File "'  # as `faulthandler` writes a stack, the innermost call first
_LAST_WORD_CHARS: Final = 200  # of a worker, as agents are told it
_REAP_S = 5.0  # a killed process that is still there is waiting for a disk or a debugger


class Staffing:
    """Starts, promotes, drains and stops workers."""

    def __init__(self, hub: Hub, endings: Endings) -> None:
        self._hub = hub
        self._endings = endings
        self.leases = WorkerLeases(hub, self.kill)

    def fill(self, pool: Pool, now_s: float, taken: Collection[tuple[PoolName, int]] = ()) -> None:
        """Start a worker in every configured slot that has none, is not down and not taken.

        None at all while the broker stops: it would have to wait for their end.
        """
        if self._hub.is_draining:
            return
        for number in range(pool.spec.replicas):
            slot = pool.slot(number)
            is_leaving = self._hub.workers.get(slot.suspended) is not None
            has_worker = slot.serving or slot.coming or slot.standby or is_leaving
            is_due = self._hub.deadlines.at_s((Timer.RESTART, (pool.spec.name, number)))
            is_left = slot.down_reason or is_due or (pool.spec.name, number) in taken
            if not has_worker and not is_left:
                slot.coming = self.spawn(pool, slot, now_s).generation

    def spawn(self, pool: Pool, slot: Slot, now_s: float, *, is_standby: bool = False) -> Worker:
        """Start a worker process; the caller says in the slot what it is for."""
        hub = self._hub
        worker = Worker(
            generation=hub.next_generation(),
            spec=pool.spec,
            slot=slot.number,
            token=SecretBytes(hub.draw(_TOKEN_BYTES)),
            started_s=now_s,
            is_standby=is_standby,
        )
        hub.workers.add(worker)
        hub.deadlines.clear((Timer.RESTART, (pool.spec.name, slot.number)))
        hub.deadlines.set((Timer.START, worker.generation), now_s + pool.spec.start_timeout_s)
        hub.out.append(
            Spawn(
                pool=worker.pool,
                slot=worker.slot,
                generation=worker.generation,
                spec=worker.spec,
                token=worker.token,
                standby=is_standby,
            )
        )
        hub.count("workers_spawned")
        return worker

    def on_spawned(self, generation: Generation, pid: int) -> None:
        """Take note of the process of a worker."""
        worker = self._hub.workers.get(generation)
        if worker is not None:
            worker.pid = pid
            self._hub.log("info", "worker_spawned", self._hub.worker_fields(worker))

    def on_ready(self, worker: Worker, now_s: float) -> None:
        """A worker's first registrations are checked: its lease starts, and maybe its service."""
        hub = self._hub
        hub.deadlines.clear((Timer.START, worker.generation))
        self.leases.renew(worker, now_s)
        slot = self.slot_of(worker)
        pool = hub.pools.get(worker.pool)
        if pool is not None:
            pool.has_served = True
        if worker.state is WorkerState.DRAINING or slot is None:
            self.drain(worker, now_s)
        elif self._is_next(worker, slot):
            self._serve(worker, slot, now_s)
        elif slot.serving is None and worker.is_standby and hub.is_settling:
            worker.enter(WorkerState.STANDBY)
            hub.to_worker(worker, Role("standby"))
        else:
            self.drain(worker, now_s)

    def settle(self, now_s: float) -> None:
        """Let a standby of an older broker serve where nobody else does; dismiss the others."""
        for worker in list(self._hub.workers):
            if worker.state is WorkerState.STANDBY:
                slot = self.slot_of(worker)
                if slot is not None and slot.serving is None:
                    self._serve(worker, slot, now_s)
                else:
                    self.drain(worker, now_s)

    def drain(self, worker: Worker, now_s: float) -> None:
        """Let a worker finish what it holds, by the deadline of its pool, and then leave."""
        hub = self._hub
        if worker.state is WorkerState.STOPPING:
            return
        worker.is_exit_asked = True
        if worker.state is not WorkerState.DRAINING:
            worker.enter(WorkerState.DRAINING)
            hub.deadlines.set((Timer.DRAIN, worker.generation), now_s + worker.spec.drain_s)
        hub.deadlines.clear((Timer.START, worker.generation))
        hub.to_worker(worker, Role("draining"))
        hub.drained.append(worker)

    def leave_if_drained(self, worker: Worker, now_s: float) -> None:
        """Dismiss a draining worker that holds nothing any more."""
        hub = self._hub
        is_here = hub.workers.get(worker.generation) is worker
        # While it is not known what it holds, it holds something.
        is_known = worker.generation not in hub.awaited
        if is_here and worker.state is WorkerState.DRAINING and worker.is_drained() and is_known:
            self.dismiss(worker, "drained", now_s)

    def dismiss(self, worker: Worker, reason: str, now_s: float) -> None:
        """Ask a worker to leave: BYE, TERM, and KILL after `stop_s`; its exit is expected."""
        worker.is_exit_asked = True
        self.oust(worker, reason, now_s)

    def oust(self, worker: Worker, reason: str, now_s: float) -> None:
        """Make a worker leave; unless that was asked for, its exit counts and is made good."""
        hub = self._hub
        if worker.state is WorkerState.STOPPING:
            return
        self._endings.lose(worker, f"adapter worker stopped: {reason}", now_s)
        worker.trouble = worker.trouble or reason
        worker.enter(WorkerState.STOPPING)
        hub.log("info", "worker_leaves", {**hub.worker_fields(worker), "reason": reason})
        for timer in (Timer.START, Timer.LEASE, Timer.DRAIN):
            hub.deadlines.clear((timer, worker.generation))
        hub.to_worker(worker, Bye(reason))
        self._vacate(worker)
        self.signal(worker, "TERM")
        hub.deadlines.set((Timer.KILL, worker.generation), now_s + worker.spec.stop_s)

    def kill(self, worker: Worker, reason: str, now_s: float) -> None:
        """Kill a worker that does not react; its exit counts and is made good.

        One that no broker started is given up instead: it may come back, from a debugger or from
        behind a link that was down, and then registers anew.
        """
        if worker.state is WorkerState.STOPPING:
            return
        self._hub.count("workers_killed")
        text = f"adapter worker hangs: {reason}"
        self._endings.lose(worker, text, now_s, is_crash=worker.is_child)
        worker.trouble = reason
        worker.enter(WorkerState.STOPPING)
        for timer in (Timer.START, Timer.LEASE, Timer.DRAIN):
            self._hub.deadlines.clear((timer, worker.generation))
        self._vacate(worker)
        if worker.is_child and not worker.is_manual:
            self.signal(worker, "KILL")
            self._hub.deadlines.set((Timer.KILL, worker.generation), now_s + _REAP_S)
            worker.is_killed = True
        else:
            self.on_exited(worker.generation, reason, (), now_s)

    def signal(self, worker: Worker, name: str) -> None:
        """Signal a process that a broker started; a manual worker is only told BYE."""
        if worker.is_child and not worker.is_manual:
            self._hub.out.append(Signal(worker.pool, worker.slot, worker.generation, name))

    def on_kill_due(self, generation: Generation, now_s: float) -> None:
        """Kill a worker that was told to leave and did not; give up on one that can't be killed."""
        worker = self._hub.workers.get(generation)
        if worker is None:
            raise AssertionError("a worker that goes clears its deadlines")
        if worker.is_child and not worker.is_manual and not worker.is_killed:
            worker.is_killed = True
            self.signal(worker, "KILL")
            self._hub.deadlines.set((Timer.KILL, generation), now_s + _REAP_S)
        else:
            self.on_exited(generation, "no exit seen", (), now_s)

    def on_start_due(self, generation: Generation, now_s: float) -> None:
        """A worker was not ready in time."""
        worker = self._hub.workers.get(generation)
        if worker is None:
            raise AssertionError("a worker that goes clears its deadlines")
        timeout_s = worker.spec.start_timeout_s
        self.oust(worker, worker.trouble or f"not ready within {timeout_s:g} s", now_s)

    def on_drain_due(self, generation: Generation, now_s: float) -> None:
        """End what a draining worker still holds at its deadline."""
        worker = self._hub.workers.get(generation)
        if worker is None:
            raise AssertionError("a worker that goes clears its deadlines")
        self.dismiss(worker, f"not drained within {worker.spec.drain_s:g} s", now_s)

    def on_restart_due(self, place: tuple[PoolName, int], now_s: float) -> None:
        """Start the next worker of a slot; one that was given up stays down until it serves."""
        name, number = place
        pool = self._hub.pools.get(name)
        if pool is None or number not in pool.slots:
            raise AssertionError("removing a slot clears its restart")
        if self._hub.is_draining:
            return  # the broker waits for the end of every worker; it must not start another
        slot = pool.slots[number]
        slot.restarts += 1
        slot.coming = self.spawn(pool, slot, now_s).generation

    def on_exited(
        self, generation: Generation, text: str, tail: tuple[str, ...], now_s: float
    ) -> None:
        """A worker is gone: end what it held, and start another one if nobody asked for it."""
        hub = self._hub
        worker = hub.workers.get(generation)
        if worker is None:
            hub.count("exit_of_unknown_worker")
            return
        is_crash = worker.is_child and not worker.is_exit_asked
        self._endings.lose(worker, f"adapter worker exited: {text}", now_s, is_crash=is_crash)
        for timer in (Timer.START, Timer.LEASE, Timer.DRAIN, Timer.KILL):
            hub.deadlines.clear((timer, generation))
        hub.workers.remove(worker)
        hub.awaited.discard(generation)
        if worker.is_manual or not worker.is_child:
            hub.out.append(Forget(worker.pool, worker.slot, generation))
        fields = {**hub.worker_fields(worker), "exit": text}
        if worker.is_exit_asked:
            hub.log("info", "worker_exited", fields)
        else:
            why = {"why": worker.trouble} if worker.trouble not in ("", text) else {}
            hub.log("warning", "worker_exited", {**fields, **why, "said": _last_word(tail)})
        reason = "; ".join(part for part in (worker.trouble, text) if part)
        self._refill(worker, reason, tail, now_s)
        hub.facts.append(WorkerLost(worker, _with_output(reason, tail)))

    def slot_of(self, worker: Worker) -> Slot | None:
        """Return the slot of a worker; `None` if the configuration has none any more."""
        pool = self._hub.pools.get(worker.pool)
        return pool.slots.get(worker.slot) if pool is not None else None

    def close_slot(self, pool: Pool, number: int, now_s: float) -> None:
        """Take a slot away: its workers drain and nothing is started there any more."""
        slot = pool.slots.pop(number)
        hub = self._hub
        hub.deadlines.clear((Timer.RESTART, (pool.spec.name, number)))
        for generation in (slot.serving, slot.suspended):
            if generation is not None:
                hub.registry.drop(generation)
        for generation in (slot.serving, slot.coming, slot.standby):
            worker = hub.workers.get(generation)
            if worker is not None:
                self.drain(worker, now_s)
        hub.on_topology()

    def drain_pool(self, pool: Pool, now_s: float) -> None:
        """Take a pool out of service: its routes go at once, its workers finish what they hold."""
        hub = self._hub
        for slot in list(pool.slots.values()):
            hub.deadlines.clear((Timer.RESTART, (pool.spec.name, slot.number)))
            workers = [hub.workers.get(slot.serving), hub.workers.get(slot.coming)]
            if slot.serving is not None:
                slot.suspended, slot.serving = slot.serving, None
            slot.coming = None
            self.take_down(pool, slot, "it was drained on request")
            for worker in workers:
                if worker is not None:
                    self.drain(worker, now_s)

    def _is_next(self, worker: Worker, slot: Slot) -> bool:
        """Tell whether this worker takes over the slot now that it is ready."""
        if worker.generation in (slot.standby, slot.coming):
            return True
        if worker.is_standby:
            return False
        # Taken over from an older broker: the highest serving generation wins, also if it is not
        # ready yet; one that this broker started in the meantime does not.
        rival = slot.serving
        if rival is None and slot.coming is not None and slot.coming.epoch != self._hub.epoch:
            rival = slot.coming
        return rival is None or (worker.was_serving and worker.generation > rival)

    def _serve(self, worker: Worker, slot: Slot, now_s: float) -> None:
        """Cut over: exchange the whole route set in one step; what served before drains."""
        hub = self._hub
        old = hub.workers.get(slot.serving)
        previous = slot.serving or slot.suspended
        routes = hub.registry.routes
        before = list(routes.keys_of(previous)) if previous is not None else []
        hub.registry.commit(worker.pool, worker.generation, worker.offer, previous)
        other = hub.workers.get(slot.coming)
        slot.serving, slot.suspended, slot.down_reason = worker.generation, None, ""
        slot.coming = None
        if slot.standby == worker.generation:
            slot.standby = None
        hub.deadlines.clear((Timer.RESTART, (worker.pool, slot.number)))
        worker.enter(WorkerState.SERVING)
        worker.is_standby = False
        hub.to_worker(worker, Role("serving"))
        if old is not None:
            self.drain(old, now_s)
        if other is not None and other is not worker:
            self.dismiss(other, "another worker serves its slot", now_s)
        hub.announce_adapters()
        hub.on_topology()
        lost = tuple(key for key in before if routes.get(key) is None)
        alive = old.running if old is not None else 0
        hub.facts.append(WorkerServed(worker, old, alive, lost))
        hub.log("info", "worker_serves", hub.worker_fields(worker))

    def _vacate(self, worker: Worker) -> None:
        """Take the routes of a serving worker that is about to go; calls for them wait."""
        slot = self.slot_of(worker)
        if slot is not None and slot.serving == worker.generation:
            slot.serving = None
            slot.suspended = worker.generation
            self._hub.registry.suspend(worker.generation)

    def _refill(self, worker: Worker, reason: str, tail: tuple[str, ...], now_s: float) -> None:
        hub, generation = self._hub, worker.generation
        self._vacate(worker)
        pool, slot = hub.pools.get(worker.pool), self.slot_of(worker)
        is_of_slot = slot is not None and generation in (slot.suspended, slot.coming, slot.standby)
        if pool is None or slot is None or not is_of_slot:
            return
        if slot.standby == generation:
            slot.standby = None
            if slot.coming is not None or slot.serving is not None:
                return
        elif slot.coming == generation:
            slot.coming = None
        if worker.is_manual:
            self._remove_manual(pool, slot)
        elif not hub.is_draining and slot.standby is None and slot.serving is None:
            slot.last_exit, slot.output_tail = reason, tail
            self._restart(pool, slot, now_s - worker.started_s, now_s)

    def _restart(self, pool: Pool, slot: Slot, lived_s: float, now_s: float) -> None:
        place = (Timer.RESTART, (pool.spec.name, slot.number))
        rule = pool.spec.restart
        delay_s = slot.on_exit(rule, now_s)
        text = f"worker {pool.spec.name!r} ended more than {rule.intensity} times"
        text = f"{text} in {rule.period_s:g} s"
        if slot.down_reason:  # it was tried again, and did not get so far as to serve
            delay_s, text = None, f"worker {pool.spec.name!r} was tried again and ended"
        if delay_s is None:
            delay_s = slot.give_up(lived_s)
            text = f"{text}; the last time: {slot.last_exit}"
            last = _last_word(slot.output_tail)[:_LAST_WORD_CHARS]
            self.take_down(pool, slot, f"{text}: {last}" if last else text, slot.output_tail)
        self._hub.deadlines.set(place, now_s + delay_s)

    def take_down(self, pool: Pool, slot: Slot, reason: str, output: tuple[str, ...] = ()) -> None:
        """Take the routes of a slot; their callers hear the reason until a worker serves again.

        Args:
            pool: of the slot.
            slot: is down afterwards.
            reason: one line, for agents too.
            output: last lines of its worker, for the log alone.
        """
        hub = self._hub
        slot.down_reason = reason
        if slot.suspended is not None:
            pool.lost_routes |= set(hub.registry.routes.keys_of(slot.suspended))
            if hub.registry.drop(slot.suspended):
                hub.announce_adapters()
            slot.suspended = None
        hub.on_topology()
        fields = {"pool": pool.spec.name, "slot": slot.number, "reason": reason}
        hub.log("error", "slot_down", {**fields, "output": output} if output else fields)

    def _remove_manual(self, pool: Pool, slot: Slot) -> None:
        hub = self._hub
        del pool.slots[slot.number]
        if not pool.is_configured and not pool.slots:
            hub.pools.remove(pool.spec.name)
        if slot.suspended is not None and hub.registry.drop(slot.suspended):
            hub.announce_adapters()
        hub.on_topology()


def _last_word(tail: tuple[str, ...]) -> str:
    """Return the last line; of a stack that was written of a hanging process, where it hung."""
    at = len(tail) - 1
    while at > 0 and tail[at].startswith(_FRAME) and tail[at - 1].startswith(_FRAME):
        at -= 1
    return tail[at].strip() if tail else ""


def _with_output(reason: str, tail: tuple[str, ...]) -> str:
    return "\n".join((reason, *tail)) if tail else reason


def manual_spec(pool: PoolName) -> PoolSpec:
    """Return the bounds of a pool that manual workers make."""
    return PoolSpec(name=pool, adapter="", replicas=0)
