"""After a restart: what the workers of an older broker hold, and until when it is waited for.

The broker settles until every worker of the hint file has said what it holds or is dead, at most
`settle_s` (SPEC 5.8). The same comparison is made when a worker's connection to this broker was
re-made, since frames may have been lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trunkline_protocol.frames import Cancel, HeldCall, Register
from trunkline_protocol.ids import CallId, ClientId

from trunkline_broker.core.calls import Call, CallState
from trunkline_broker.core.clients import ALIVE_GRACE_S, Client
from trunkline_broker.core.effects import Adopt, NoteUnseen, WatchClient
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.forwarding import Forwarding
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.outcomes import Outcomes
from trunkline_broker.core.specs import AliveWorker
from trunkline_broker.core.staffing import Staffing, manual_spec
from trunkline_broker.core.workers import Worker, WorkerState


class _Beside(NamedTuple):
    """What `REGISTER` says of a call beside its entry: attachments, and its client's process."""

    attachments: tuple[str, ...]
    pid: int


class Adoption:
    """Joins what clients and workers say of calls that an older broker began."""

    def __init__(
        self,
        hub: Hub,
        endings: Endings,
        openings: Openings,
        forwarding: Forwarding,
        staffing: Staffing,
        outcomes: Outcomes,
    ) -> None:
        self._hub = hub
        self._outcomes = outcomes
        self._endings = endings
        self._openings = openings
        self._forwarding = forwarding
        self._staffing = staffing

    def start(self, alive: tuple[AliveWorker, ...], now_s: float) -> None:
        """Begin: wait for the workers that live, start one in every other slot."""
        hub = self._hub
        for spec in hub.spec.pools:
            hub.pools.add(spec)
        for entry in alive:
            self._expect(entry, now_s)
        hub.is_settling = bool(hub.awaited)
        hub.is_young = not hub.awaited
        hub.deadlines.set((Timer.SETTLE, None), now_s + hub.spec.settle_s)
        taken = {(entry.pool, entry.slot) for entry in alive}
        for pool in hub.pools:
            self._staffing.fill(pool, now_s, taken)

    def take(self, worker: Worker, frame: Register, now_s: float, *, is_new_link: bool) -> None:
        """Compare what a worker says it holds with what is known here.

        Args:
            worker: just bound to the connection on which it registered.
            frame: what it said.
            now_s: monotonic seconds.
            is_new_link: it registered on another connection before, or on none: frames to it may
                have been lost.
        """
        if not worker.is_ready() and not self._is_ours(worker):
            self._take_role(worker, frame, now_s)
        pids = {entry.client: entry.pid for entry in frame.clients}
        self._take_leases(worker, frame, pids, now_s)
        listed: dict[tuple[CallId, int], HeldCall] = {}
        named: dict[CallId, list[str]] = {}
        for held in frame.attachments:
            named.setdefault(held.call, []).append(held.attachment)
        for entry in frame.calls:
            listed[entry.call, entry.attempt] = entry
            beside = _Beside(tuple(named.get(entry.call, ())), pids.get(entry.client, 0))
            self._take_call(worker, entry, beside, now_s)
        for call in list(worker.calls.values()):
            entry = listed.get((call.id, call.attempt))
            if entry is not None:
                self._named(worker, call, entry, now_s)
            elif is_new_link:
                self._missing(call)

    def on_ready(self, worker: Worker) -> None:
        """The policies of an adopted worker's calls are known now: tell their clients."""
        for call in list(worker.calls.values()):
            self._openings.confirm_rebound(call)
            self._endings.say_ended(call, self._hub.now_s)

    def is_over(self) -> bool:
        """Tell whether every worker of the older broker has said what it holds, or is dead."""
        return self._hub.is_settling and not self._hub.awaited

    def settle(self, now_s: float) -> None:
        """Decide what had to wait; workers that stayed silent are killed and replaced."""
        hub = self._hub
        hub.is_settling = hub.is_young = False
        hub.deadlines.clear((Timer.SETTLE, None))
        for generation in list(hub.awaited):
            worker = hub.workers.get(generation)
            hub.awaited.discard(generation)
            if worker is not None and worker.peer is None:
                self._staffing.kill(worker, "it did not register with the new broker", now_s)
        self._staffing.settle(now_s)
        for pool in hub.pools:
            self._staffing.fill(pool, now_s)
        self._openings.settle(now_s)
        claims, hub.claims = hub.claims, {}
        for client_id, entry in claims.values():
            self._forwarding.restate_claim(client_id, entry, now_s)
        hub.on_topology()
        hub.log("info", "settled", {"workers": len(hub.workers), "calls": len(hub.calls)})

    def _expect(self, entry: AliveWorker, now_s: float) -> None:
        hub = self._hub
        pool = hub.pools.get(entry.pool)
        if pool is None and entry.is_manual and hub.spec.accept_manual:
            pool = hub.pools.add(manual_spec(entry.pool), is_configured=False)
        if pool is not None and (entry.is_manual or entry.slot < pool.spec.replicas):
            slot = pool.slot(entry.slot)
            if entry.is_manual:
                slot.coming = entry.generation  # it is its own; without it the slot goes too
        spec = pool.spec if pool is not None else manual_spec(entry.pool)
        hub.workers.add(
            Worker(
                generation=entry.generation,
                spec=spec,
                slot=entry.slot,
                token=entry.token,
                started_s=now_s,
                is_child=entry.pid is not None,
                is_manual=entry.is_manual,
                pid=entry.pid,
            )
        )
        hub.awaited.add(entry.generation)
        if entry.pid is None:
            hub.out.append(NoteUnseen(entry.pool, entry.slot, entry.generation))
            return
        hub.out.append(
            Adopt(
                pool=entry.pool,
                slot=entry.slot,
                generation=entry.generation,
                pid=entry.pid,
                token=entry.token,
                is_manual=entry.is_manual,
            )
        )

    def _is_ours(self, worker: Worker) -> bool:
        return worker.generation.epoch == self._hub.epoch

    def _take_role(self, worker: Worker, frame: Register, now_s: float) -> None:
        """Remember what an older broker meant a worker to be; its registrations decide the rest."""
        worker.was_serving = frame.role == "serving"
        worker.is_standby = frame.role == "standby"
        if frame.role == "draining" and worker.state is WorkerState.STARTING:
            self._hub.awaited.discard(worker.generation)
            self._staffing.drain(worker, now_s)
        elif frame.role != "standby":
            if frame.role == "starting":
                self._hub.awaited.discard(worker.generation)
            slot = self._staffing.slot_of(worker)
            if slot is not None and slot.serving is None:
                # One that this broker started meanwhile has a higher generation and stays.
                slot.coming = max(slot.coming or worker.generation, worker.generation)
        if not worker.is_ready() and worker.state is WorkerState.STARTING:
            self._hub.deadlines.set(
                (Timer.START, worker.generation), now_s + worker.spec.start_timeout_s
            )

    def _take_leases(
        self, worker: Worker, frame: Register, pids: Mapping[ClientId, int], now_s: float
    ) -> None:
        hub = self._hub
        for lease in worker.leases - set(frame.leases):
            hub.drop_lease(lease)
        holders = {entry.lease: entry.client for entry in frame.lease_holders}
        for lease in frame.leases:
            if lease not in hub.leases:
                client_id = holders.get(lease)
                pid = pids.get(client_id, 0) if client_id is not None else 0
                holder = self._holder(client_id, pid, now_s)
                hub.hold_lease(worker, lease, now_s + hub.spec.prepared_s, holder)

    def _holder(self, client_id: ClientId | None, pid: int, now_s: float) -> Client | None:
        """Return whose a lease is; a full table gets no more clients than its calls bring along."""
        clients = self._hub.clients
        if clients.get(client_id) is None and len(clients) >= self._hub.spec.max_clients:
            return None
        return self._client(client_id, pid, now_s)

    def _take_call(self, worker: Worker, entry: HeldCall, beside: _Beside, now_s: float) -> None:
        hub = self._hub
        call = hub.calls.get(entry.call)
        if call is None:
            if self._is_ours(worker) or hub.calls.past(entry.call) is not None:
                hub.to_worker(worker, Cancel(entry.call, entry.attempt))
            elif len(hub.calls) < hub.spec.max_calls:
                self._adopt(worker, entry, beside, now_s)
            else:
                hub.count("calls_not_adopted")
                hub.to_worker(worker, Cancel(entry.call, entry.attempt))
            return
        if call.worker == worker.generation and call.attempt == entry.attempt:
            if call.is_cancelled:
                hub.to_worker(worker, Cancel(entry.call, entry.attempt))
        elif call.waiting is not None and call.client == entry.client:
            if entry.is_detached:
                self._go_on_without(worker, call, entry, beside, now_s)
            else:
                self._rebind(worker, call, entry)
        else:
            hub.count("call_held_twice")
            hub.to_worker(worker, Cancel(entry.call, entry.attempt))

    def _adopt(self, worker: Worker, entry: HeldCall, beside: _Beside, now_s: float) -> None:
        hub = self._hub
        call = Call.held(entry, worker.generation, now_s, beside.attachments)
        client = self._client(call.client, beside.pid, now_s)
        hub.calls.add(call)
        if client is not None:
            client.calls[call.id] = call
        self._bind(worker, call, client)
        if entry.is_ended:
            self._endings.tail_only(call, worker, now_s, is_undecided=True)
        hub.count("calls_adopted")

    def _client(self, client_id: ClientId | None, pid: int, now_s: float) -> Client | None:
        """Return a client that a worker names; one that does not come back counts as dead.

        If its process is known, the end of that is what counts: it may stand still, or be busy.
        """
        hub = self._hub
        if client_id is None:
            return None
        client = hub.clients.ensure(client_id)
        if client.peer is None:
            if pid and client.pid is None:
                hub.clients.suppose(client, pid)
                hub.out.append(WatchClient(pid))
            patience_s = hub.spec.orphan_timeout_s if client.pid is None else ALIVE_GRACE_S
            hub.deadlines.set((Timer.CLIENT, client.id), now_s + patience_s)
        return client

    def _rebind(self, worker: Worker, call: Call, entry: HeldCall) -> None:
        """A client has opened again what a worker runs already."""
        hub = self._hub
        if call.attempt != entry.attempt:
            hub.to_worker(worker, Cancel(entry.call, entry.attempt))
            return
        self._endings.leave_queue(call)
        call.rebind(entry, worker.generation)
        self._bind(worker, call, hub.clients.ensure(entry.client))
        if entry.is_ended:
            self._endings.tail_only(call, worker, hub.now_s, is_undecided=True)
        hub.count("calls_adopted")

    def _go_on_without(
        self, worker: Worker, call: Call, entry: HeldCall, beside: _Beside, now_s: float
    ) -> None:
        """Adopt a detached call whose client seemed gone, never knew its token and opens it again.

        The client is told that it was given up, as the older broker would have told it.
        """
        client = self._hub.clients.get(call.client)
        self._endings.forget(call, remember=False)
        self._outcomes.give_up(client, call.id, call.attempt)
        self._adopt(worker, entry, beside, now_s)

    def _bind(self, worker: Worker, call: Call, client: Client | None) -> None:
        hub = self._hub
        worker.calls[call.id] = call
        worker.running += 1
        hub.gates.at(call.provider).running += 1
        if client is not None:
            hub.open_stream(client, call)

    def _named(self, worker: Worker, call: Call, entry: HeldCall, now_s: float) -> None:
        """Give a held call the window that holds here, and what its client said before."""
        hub = self._hub
        client = hub.clients.get(call.client)
        if client is not None and call.state is CallState.RUNNING:
            hub.send_window(client, call)
        elif call.state is CallState.RUNNING and not call.is_cancelled:
            # Its client may have died while the worker had no connection.
            self._endings.detach(call, worker, is_told=entry.is_detached)
        claim = hub.claims.pop(call.id, None)
        if claim is not None:
            self._forwarding.restate_claim(*claim, now_s)

    def _missing(self, call: Call) -> None:
        """A worker whose link was re-made does not hold what it should: the `START` got lost."""
        if call.is_cancelled:
            self._endings.abort(call)
        else:
            self._endings.lost(call)
