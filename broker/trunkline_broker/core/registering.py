"""What workers say: `REGISTER`, `REGISTRATIONS`, `HEARTBEAT`, `BYE` (SPEC 2.1).

Decides who a worker is and whether its registrations go in. What follows from that is `Staffing`'s;
which calls and leases it brings along is `adoption.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunkline_protocol import limits
from trunkline_protocol.frames import (
    Committed,
    Heartbeat,
    Refused,
    Register,
    Registered,
    Registrations,
    Role,
)
from trunkline_protocol.secret import NO_TOKEN, proves

from trunkline_broker.core.adoption import Adoption
from trunkline_broker.core.effects import Adopt, NoteLoad, NoteUnseen, SendToWorker
from trunkline_broker.core.forwarding import Forwarding
from trunkline_broker.core.hub import Hub, Timer, WorkerLost
from trunkline_broker.core.load_report import read_load
from trunkline_broker.core.refusal import Refusal
from trunkline_broker.core.registry import Offer, read_offer
from trunkline_broker.core.staffing import Staffing, manual_spec
from trunkline_broker.core.upkeep import Upkeep
from trunkline_broker.core.workers import Worker, WorkerState


class Registering:
    """Takes the frames of workers that are about themselves."""

    def __init__(
        self,
        hub: Hub,
        staffing: Staffing,
        adoption: Adoption,
        forwarding: Forwarding,
        upkeep: Upkeep,
    ) -> None:
        self._hub = hub
        self._upkeep = upkeep
        self._staffing = staffing
        self._adoption = adoption
        self._forwarding = forwarding

    def on_register(
        self,
        peer: bytes,
        frame: Register,
        pid: int | None,
        now_s: float,
        user: str | None = None,
        *,
        is_guest: bool = False,
    ) -> None:
        """Bind a worker to its connection, or refuse it; a refused one exits."""
        try:
            if is_guest:
                self._check_guest(frame)
            worker = self._identify(peer, frame, pid, now_s)
        except Refusal as refusal:
            self._hub.count_refused(refusal.code)
            self._hub.out.append(SendToWorker(peer, Refused(refusal.code, refusal.message)))
            return
        hub = self._hub
        is_new_link = worker.peer != peer
        hub.workers.bind(worker, peer)
        worker.heard_s = now_s
        worker.unheard_bytes = 0
        worker.is_remote = pid is None
        if worker.pid is None:
            worker.pid = pid if pid is not None else frame.pid
        hub.to_worker(
            worker,
            Registered(
                epoch=hub.epoch,
                lane=hub.spec.workers_lane if user is None else hub.spec.remote_workers_lane,
                generation=worker.generation,
                orphan_timeout_ms=round(hub.spec.orphan_timeout_s * 1000),
                attachments_dir=hub.spec.attachments_dir if user is None else "",
            ),
        )
        if worker.is_ready():
            hub.on_topology()  # calls may have waited for its connection
        self._adoption.take(worker, frame, now_s, is_new_link=is_new_link)
        if is_new_link:
            hub.log("info", "worker_registered", hub.worker_fields(worker))

    def on_registrations(self, worker: Worker, frame: Registrations, now_s: float) -> None:
        """Put everything a worker registers in force, or refuse it with nothing changed."""
        hub = self._hub
        if worker.state is WorkerState.STOPPING or frame.request < worker.request:
            hub.count("stale_registrations")
            return
        try:
            offer = read_offer(frame)
            if worker.state is not WorkerState.DRAINING:
                hub.registry.check(worker.pool, offer)
        except Refusal as refusal:
            self._refuse(worker, frame, refusal)
            return
        is_first = not worker.is_ready()
        is_repeat = frame.request == worker.request and offer == worker.offer
        worker.request, worker.offer = frame.request, offer
        hub.to_worker(worker, Committed(frame.request))
        if is_first:
            hub.awaited.discard(worker.generation)
            self._staffing.on_ready(worker, now_s)
            self._adoption.on_ready(worker)
            return
        hub.to_worker(worker, Role(worker.state.value))
        if worker.state is WorkerState.SERVING and not is_repeat:
            self._recommit(worker, offer)

    def on_heartbeat(self, worker: Worker, frame: Heartbeat, now_s: float) -> None:
        """Answer, so that the worker knows this broker lives; pass on what it has sent."""
        if frame.load is not None:
            load = read_load(frame.load)
            self._note_blocks(worker, load)
            worker.load = load
            note = NoteLoad(worker.pool, worker.slot, worker.generation, load)
            self._hub.out.append(note)
        self._hub.to_worker(worker, Heartbeat())
        if frame.sent:
            self._forwarding.on_sent(worker, frame.sent)
        if frame.held is not None:
            self._upkeep.on_beat(worker, frame.held, now_s)

    def _note_blocks(self, worker: Worker, load: Mapping[str, Any]) -> None:
        """Say that the loop of a worker stood still; one that does so for a lease is killed."""
        before, blocks = worker.load.get("loopBlocks", 0), load.get("loopBlocks", 0)
        late_ms = load.get("loopLateMs", 0)
        if not all(type(figure) is int for figure in (before, blocks, late_ms)):
            return  # its figures are its own; nothing depends on them
        if blocks > before:
            hub = self._hub
            hub.count("loops_blocked", blocks - before)
            routes = sorted(entry.key for entry in worker.offer.routes)
            fields = {"late_s": late_ms / 1000, "routes": ", ".join(routes)}
            hub.log("warning", "worker_blocked", {**hub.worker_fields(worker), **fields})

    def on_bye(self, worker: Worker, reason: str, now_s: float) -> None:
        """A worker leaves by itself; what it still held ends."""
        if worker.is_child:
            self._staffing.oust(worker, f"it left: {reason}", now_s)
        else:
            self._staffing.on_exited(worker.generation, f"it left: {reason}", (), now_s)

    def _recommit(self, worker: Worker, offer: Offer) -> None:
        hub = self._hub
        hub.registry.commit(worker.pool, worker.generation, offer)
        hub.announce_adapters()
        hub.on_topology()

    def _refuse(self, worker: Worker, frame: Registrations, refusal: Refusal) -> None:
        hub = self._hub
        hub.count_refused(refusal.code)
        hub.to_worker(worker, Refused(refusal.code, refusal.message, request=frame.request))
        if not worker.is_ready():
            worker.trouble = f"registrations refused: {refusal.code}: {refusal.message}"
            hub.facts.append(WorkerLost(worker, worker.trouble))

    def _identify(self, peer: bytes, frame: Register, pid: int | None, now_s: float) -> Worker:
        """Return the worker that registers, made if this broker did not know it.

        Raises:
            Refusal: `VERSION`, `SUPERSEDED`, `BAD_TOKEN`, `UNKNOWN_POOL` or `OVERLOADED`.
        """
        if frame.protocol[0] != limits.PROTOCOL_MAJOR:
            ours = f"{limits.PROTOCOL_MAJOR}.{limits.PROTOCOL_MINOR}"
            theirs = f"{frame.protocol[0]}.{frame.protocol[1]}"
            raise Refusal("VERSION", f"the broker speaks protocol {ours}, the worker {theirs}")
        known = self._hub.workers.get(frame.generation)
        if frame.generation.epoch == 0:
            known = self._said_again(peer, frame)
        if known is not None:
            return self._known(known, frame)
        is_given_up = frame.generation.epoch == self._hub.epoch and not frame.token
        if frame.generation.epoch >= self._hub.epoch and not is_given_up:
            raise Refusal("SUPERSEDED", "this generation was replaced or is unknown here")
        if len(self._hub.workers) >= self._hub.spec.max_workers:
            raise Refusal("OVERLOADED", f"{self._hub.spec.max_workers} workers are here already")
        if self._hub.is_draining:
            raise Refusal("STOPPING", "the broker is stopping")
        return self._newcomer(frame, pid, now_s)

    def _check_guest(self, frame: Register) -> None:
        """See that a process of another user is one that a broker started as that user.

        A user of its own keeps a worker away from the others: it must not join their pools.

        Raises:
            Refusal: `BAD_TOKEN`.
        """
        known = self._hub.workers.get(frame.generation)
        if known is None or not known.token:
            raise Refusal("BAD_TOKEN", "workers of other users are started by the broker alone")

    def _said_again(self, peer: bytes, frame: Register) -> Worker | None:
        """Return the worker whose first `REGISTER` is repeated, our answer being under way."""
        worker = self._hub.workers.at(peer)
        return worker if worker is not None and worker.pool == frame.pool else None

    def _known(self, worker: Worker, frame: Register) -> Worker:
        if worker.token and not proves(frame.token, worker.token):
            raise Refusal("BAD_TOKEN", "the token is not the one this worker was started with")
        if worker.state is WorkerState.STOPPING:
            raise Refusal("SUPERSEDED", "this worker was told to leave")
        return worker

    def _newcomer(self, frame: Register, pid: int | None, now_s: float) -> Worker:
        """Make the record of a worker that this broker has not started and was not told of."""
        hub = self._hub
        pool = hub.pools.get(frame.pool)
        if pool is None:
            if not hub.spec.accept_manual or not frame.pool:
                raise Refusal("UNKNOWN_POOL", f"no pool {frame.pool!r} is configured")
            pool = hub.pools.add(manual_spec(frame.pool), is_configured=False)
        # One of this epoch was given up for its silence: what it held has ended.
        is_new = frame.generation.epoch in (0, hub.epoch)
        number = pool.free_number() if is_new else frame.slot
        generation = hub.next_generation() if is_new else frame.generation
        worker = Worker(
            generation=generation,
            spec=pool.spec,
            slot=number,
            token=NO_TOKEN,
            started_s=now_s,
            is_child=pid is not None,
            is_manual=is_new or not pool.is_configured or number >= pool.spec.replicas,
        )
        hub.workers.add(worker)
        slot = pool.slot(number)
        if is_new:
            slot.coming = generation
            hub.deadlines.set((Timer.START, generation), now_s + pool.spec.start_timeout_s)
        if pid is not None:
            hub.out.append(Adopt(worker.pool, number, generation, pid, is_manual=worker.is_manual))
        else:
            hub.out.append(NoteUnseen(worker.pool, number, generation))
        return worker
