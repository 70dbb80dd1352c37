"""Compares what this broker waits for with what workers and clients name (SPEC 5.14).

A frame may get lost with its connection, or be refused. What it stood for follows again from the
next comparison: of each heartbeat with the calls of its worker, and of everything once a second.
It ends no call by itself; it calls the flow that would have done so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trunkline_protocol import limits
from trunkline_protocol.frames import CallRef, Cancel, Done, Holding
from trunkline_protocol.ids import CallId

from trunkline_broker.core.calls import Call, CallState
from trunkline_broker.core.clients import Client
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.workers import Worker

LOOK_S: Final = 1.0
_BEATS: Final = 2  # that do not name a call; one may have crossed its START
_NAMED_AFTER_S: Final = 0.5  # from START; earlier beats may have been sent before it came
# A client restates each call it holds after QUIET_MAX_S at the latest.
_QUIET_S: Final = 2 * limits.QUIET_MAX_S
_MOST_ASKS: Final = 4
_UNDECIDED_ASKS: Final = 2  # some 7 s; a client restates what it holds to a new broker at once
_UNHELD: Final = "its worker does not hold this call any more, and has not reported its end"


class Upkeep:
    """Repeats from state what the other flows sent once."""

    def __init__(self, hub: Hub, endings: Endings, openings: Openings) -> None:
        self._hub = hub
        self._endings = endings
        self._openings = openings

    def arm(self, now_s: float) -> None:
        """See that there is a next look as long as there is anything to look at."""
        deadlines = self._hub.deadlines
        if len(self._hub.calls) and deadlines.at_s((Timer.LOOK, None)) is None:
            deadlines.set((Timer.LOOK, None), now_s + LOOK_S)

    # --- a worker ---------------------------------------------------------------------------

    def on_beat(self, worker: Worker, held: Sequence[Holding], now_s: float) -> None:
        """Compare what a worker says it holds with the calls that it has here.

        Args:
            worker: it has registered on its connection, which keeps frames in order.
            held: every attempt it holds.
            now_s: monotonic seconds.
        """
        ended = {(entry.call, entry.attempt): entry.is_ended for entry in held}
        for call in list(worker.calls.values()):
            is_ended = ended.pop((call.id, call.attempt), None)
            if is_ended is (call.state is CallState.ENDED):
                call.unnamed_beats = 0
                continue
            if call.started_s is not None and now_s - call.started_s < _NAMED_AFTER_S:
                continue  # beats that lay in the queue of a broker that stood still
            call.unnamed_beats += 1
            if call.unnamed_beats >= _BEATS:
                self._repair(worker, call, now_s, is_tail=is_ended is True)
        for (call_id, attempt), is_ended in ended.items():
            self._release(worker, call_id, attempt, is_ended=is_ended)

    def _repair(self, worker: Worker, call: Call, now_s: float, *, is_tail: bool) -> None:
        """End a call of which its worker holds nothing, or nothing but the tail."""
        call.unnamed_beats = 0
        if call.state is CallState.ENDED:
            if not is_tail:  # its tail was evicted for younger ones, or has run out there
                self._hub.count("tails_not_held")
                self._endings.lose_call(call, worker, _UNHELD, now_s)
            return
        self._hub.stuck("a running call that its worker does not name", _fields(call, worker))
        if not is_tail or call.is_cancelled:
            self._endings.lose_call(call, worker, _UNHELD, now_s)
        elif call.is_done:
            self._hub.to_worker(worker, Done((CallRef(call.id, call.attempt),)))
            self._endings.lose_call(call, worker, _UNHELD, now_s)
        else:
            self._endings.tail_only(call, worker, now_s, is_undecided=False)

    def _release(self, worker: Worker, call_id: CallId, attempt: int, *, is_ended: bool) -> None:
        """Have a worker forget an attempt that is not its own here any more."""
        call = self._hub.calls.get(call_id)
        if call is not None and call.tail == (attempt, worker.generation):
            return  # its client has not said yet that it needs no more of it
        if call is not None and call.worker == worker.generation and call.attempt == attempt:
            return  # named twice
        self._hub.count("attempts_released")
        if is_ended:
            self._hub.to_worker(worker, Done((CallRef(call_id, attempt),)))
        else:
            self._hub.to_worker(worker, Cancel(call_id, attempt))

    # --- everything -------------------------------------------------------------------------

    def on_look_due(self) -> None:
        """Have everything compared once what this moment brings is done."""
        self._hub.is_look_due = True

    def look(self, now_s: float) -> None:
        """Repeat what was not answered; report and repair what waits for nothing."""
        hub = self._hub
        hub.is_look_due = False
        for client in hub.clients:
            self._look_at_client(client, now_s)
        for call in list(hub.calls):
            self._look_at(call, now_s)
        for route in hub.gates.waiting():
            if self._openings.is_startable(route, now_s):
                hub.stuck("a queued call with a free place", {"route": route})
                hub.freed.add(route)

    def _look_at_client(self, client: Client, now_s: float) -> None:
        hub = self._hub
        if client.peer is None and hub.deadlines.at_s((Timer.CLIENT, client.id)) is None:
            hub.stuck("a client without connection or deadline", {"client": client.id.hex()[:8]})
            hub.deadlines.set((Timer.CLIENT, client.id), now_s + hub.spec.orphan_timeout_s)

    def _look_at(self, call: Call, now_s: float) -> None:
        if call.state is CallState.RUNNING:
            self._look_at_running(call, now_s)
        elif not self._has_exit(call):
            self._hub.stuck("a call without a deadline", _fields(call))
            self._endings.lost(call)
        elif call.state is CallState.ENDED:
            self._remind_of_end(call, now_s)

    def _has_exit(self, call: Call) -> bool:
        """Return whether a call that does not run leaves its state without any further frame."""
        at_s = self._hub.deadlines.at_s
        match call.state:
            case CallState.QUEUED:
                return call.id in self._hub.unsettled or at_s((Timer.QUEUE, call.id)) is not None
            case CallState.BACKOFF:
                names = (Timer.BACKOFF, call.id), (Timer.OFFER, call.id)
                return any(at_s(name) is not None for name in names)
            case CallState.ENDED:
                return at_s((Timer.RETENTION, call.id)) is not None
            case CallState.RUNNING:
                raise AssertionError("its worker's heartbeats and its client's frames end it")

    def _look_at_running(self, call: Call, now_s: float) -> None:
        hub, worker = self._hub, self._endings.worker_of(call)
        if call.is_cancelled:
            if now_s - call.asked_s >= LOOK_S:
                hub.to_worker(worker, Cancel(call.id, call.attempt))
        elif call.client is not None:
            self._remind_of_run(call, worker, now_s)
        elif hub.deadlines.at_s((Timer.DETACHED, call.id)) is None:
            hub.stuck("a detached running call without a deadline", _fields(call, worker))
            self._endings.detach(call, worker)

    def _remind_of_run(self, call: Call, worker: Worker, now_s: float) -> None:
        """Name a running call to its client, which cancels it if it holds it no more."""
        client = self._hub.clients.get(call.client)
        if call.is_done or client is None or client.peer is None:
            return
        if now_s - max(call.heard_s, call.asked_s) < _QUIET_S:
            return
        self._ask(call, client, now_s)
        if call.asks > _MOST_ASKS:
            self._hub.count("calls_unclaimed")
            self._endings.cancel(call)
        else:
            self._hub.send_window(client, call)

    def _remind_of_end(self, call: Call, now_s: float) -> None:
        """Name an ended call to its client, which answers `DONE` if it needs no more of it."""
        client = self._hub.clients.get(call.client)
        if client is None or client.peer is None or call.ended is None:
            return
        pause_s = min(LOOK_S * 2**call.asks, limits.QUIET_MAX_S)
        if now_s - max(call.heard_s, call.asked_s) < pause_s:
            return
        self._ask(call, client, now_s)
        if call.is_undecided and call.asks > _UNDECIDED_ASKS:
            call.is_undecided = False  # a client that asked for retries has named it long ago
        self._endings.say_ended(call, now_s)

    def _ask(self, call: Call, client: Client, now_s: float) -> None:
        """Count a reminder, but only if the client has sent anything since the last one.

        A client that stands still has not lost its calls.
        """
        if client.heard_s >= call.asked_s:
            call.asks += 1
        call.asked_s = now_s


def _fields(call: Call, worker: Worker | None = None) -> dict[str, object]:
    fields: dict[str, object] = {
        "call": call.id.hex()[:8],
        "attempt": call.attempt,
        "state": call.state.value,
        "route": call.provider,
        "cancelled": call.is_cancelled,
        "done": call.is_done,
        "attached": call.client is not None,
    }
    if worker is not None:
        fields["pid"] = worker.pid
    return fields
