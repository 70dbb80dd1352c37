"""Frames of a running call that pass through the broker, each between its two parties only.

`CREDIT`, `RESUME`, `RESTATE`, `CANCEL`, `DONE`, `ATTACH` come from clients, `SENT` and `SNAPSHOT`
from workers (SPEC 3, 5). Totals are checked by the worker, which knows what it has sent.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trunkline_protocol.frames import (
    Attach,
    CallRef,
    Cancel,
    Credit,
    Done,
    Lost,
    Progress,
    Restate,
    Restated,
    Resume,
    Sent,
    Snapshot,
    Window,
)
from trunkline_protocol.ids import CallId, ClientId

from trunkline_broker.core.calls import Call, CallState
from trunkline_broker.core.clients import Client
from trunkline_broker.core.endings import Endings, aborted
from trunkline_broker.core.hub import Hub
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.outcomes import Outcomes
from trunkline_broker.core.windows import window_for
from trunkline_broker.core.workers import Worker

_ATTACH_S: Final = 2.0  # a worker that knows the token answers an ATTACH in one turn of its loop


class Forwarding:
    """Passes frames on, or answers for calls that are not here."""

    def __init__(self, hub: Hub, endings: Endings, openings: Openings, outcomes: Outcomes) -> None:
        self._hub = hub
        self._outcomes = outcomes
        self._endings = endings
        self._openings = openings

    def on_position(self, client: Client, frame: Credit | Resume, now_s: float) -> None:
        """Pass `CREDIT` or `RESUME` to the worker of the call."""
        call = self._mine(client, frame.call, frame.attempt, now_s)
        if call is None:
            return
        worker = self._endings.worker_of(call)
        # Positions are totals, and a quiet client says them again: what is held back costs time.
        if call.is_news(frame, now_s) and client.may_say(now_s):
            self._hub.to_worker(worker, frame)
        else:
            self._hub.count("positions_held_back")

    def on_restate(self, client: Client, frame: Restate, now_s: float) -> None:
        """Take what a client holds: quiet calls, or all of them for a new broker."""
        if frame.queues is not None:
            client.note_queues(frame.queues)
        for entry in frame.calls:
            self._restate(client, entry, now_s)

    def restate_claim(self, client_id: ClientId, entry: Restated, now_s: float) -> None:
        """Decide a claim that waited for the workers of an older broker."""
        client = self._hub.clients.get(client_id)
        if client is not None:
            self._restate(client, entry, now_s)

    def on_cancel(self, client: Client, frame: Cancel) -> None:
        """Stop a call; the client repeats this until it hears that the call ended."""
        hub = self._hub
        call = hub.calls.get(frame.call)
        if call is None:
            hub.claims.pop(frame.call, None)
            if hub.calls.past(frame.call) is not None or not hub.may_be_held():
                hub.to_client(client, aborted(frame.call, frame.attempt))
            return
        if call.client != client.id:
            hub.count("foreign_call")  # it goes on for the client that holds it, or for none
            hub.to_client(client, aborted(frame.call, frame.attempt))
            return
        hub.count("calls_cancelled")
        worker = hub.workers.get(call.worker)
        if call.state is CallState.RUNNING:
            self._endings.cancel(call)
            return
        if worker is not None:  # ENDED: its answer will find nobody, so the tail is just dropped
            hub.to_worker(worker, Done((CallRef(call.id, call.attempt),)))
        hub.to_client(client, aborted(call.id, frame.attempt))
        self._endings.drop(call)

    def on_done(self, client: Client, frame: Done) -> None:
        """Forget calls that the client received whole; one frame to each worker."""
        by_worker: dict[Worker, list[CallRef]] = {}
        for ref in frame.calls:
            worker = self._done(client, ref)
            if worker is not None:
                by_worker.setdefault(worker, []).append(ref)
        for worker, refs in by_worker.items():
            self._hub.to_worker(worker, Done(tuple(refs)))

    def on_attach(self, client: Client, frame: Attach, now_s: float) -> None:
        """Let a client take over a detachable call; to a wrong token it is an unknown call."""
        hub = self._hub
        call = hub.calls.get(frame.call)
        worker = hub.workers.get(call.worker) if call is not None else None
        if call is None or worker is None:
            if not hub.may_be_held() or hub.calls.past(frame.call) is not None:
                hub.to_client(client, Lost(frame.call, 0))
            return
        if call.token is None:
            if call.begun_s is not None or self._has_waited(call, client, now_s):
                hub.count("attach_refused")
                hub.to_client(client, Lost(frame.call, 0))
                return
            # Taken over from a worker of an older version, which alone knows the token. If it is
            # right, its SNAPSHOT gives the call to the client that asked.
        elif not hmac.compare_digest(call.token, frame.token):
            hub.count("attach_refused")
            hub.to_client(client, Lost(frame.call, 0))
            return
        else:
            self._endings.attach(call, client)
            call.stream_key = frame.stream_key
            call.is_rebound = False
        call.hear(now_s)
        is_new = call.client != client.id
        chunks, size = window_for(len(client.budget) + is_new)
        hub.to_worker(
            worker, replace(frame, client=client.id, window_chunks=chunks, window_bytes=size)
        )

    def _has_waited(self, call: Call, client: Client, now_s: float) -> bool:
        """Return whether a worker of an older version has left this client's token unanswered."""
        if call.attacher != client.id:
            call.attacher, call.attacher_s = client.id, now_s
        return now_s - call.attacher_s >= _ATTACH_S

    def on_snapshot(self, worker: Worker, frame: Snapshot) -> None:
        """Pass the blocks of an attached call to its client."""
        call = self._hub.calls.get(frame.call)
        if call is None or call.worker != worker.generation:
            self._hub.count("foreign_call")
            return
        attacher = self._hub.clients.get(call.attacher)
        if attacher is not None:
            self._endings.attach(call, attacher)
            call.attacher = None
            call.is_rebound = False
            call.is_detachable = True
        client = self._hub.clients.get(call.client)
        self._hub.to_client(client, frame)
        if client is not None:
            chunks, size = client.budget.window(call.id)
            self._hub.to_client(client, Window(call.id, call.attempt, chunks, size))

    def on_sent(self, worker: Worker, sent: Sequence[Progress]) -> None:
        """Pass what a worker says it has sent; one frame to each client."""
        by_client: dict[ClientId, list[Progress]] = {}
        for entry in sent:
            call = worker.calls.get(entry.call)
            if call is None or call.attempt != entry.attempt:
                self._hub.count("sent_unknown")
            elif call.client is not None:
                by_client.setdefault(call.client, []).append(entry)
        for client_id, entries in by_client.items():
            self._hub.to_client(self._hub.clients.get(client_id), Sent(tuple(entries)))

    def _mine(self, client: Client, call_id: CallId, attempt: int, now_s: float) -> Call | None:
        """Return the call whose running or ended attempt a frame is about; else answer it."""
        call = self._hub.calls.get(call_id)
        if call is None:
            self._outcomes.unknown(client, call_id, attempt)
            return None
        if call.client != client.id:
            self._outcomes.foreign(client, call, attempt, is_opening=False)
            return None
        call.hear(now_s)
        if call.state is CallState.BACKOFF:
            self._endings.say_retry(call, client, now_s)
            return None
        if call.attempt != attempt:
            self._outcomes.other_attempt(client, call, attempt, is_opening=False)
            return None
        if call.waiting is not None:
            self._openings.say_queued(call, call.waiting)
            return None
        return call

    def _restate(self, client: Client, entry: Restated, now_s: float) -> None:
        hub = self._hub
        call = hub.calls.get(entry.call)
        if call is None and hub.calls.past(entry.call) is None and hub.may_be_held():
            if len(hub.claims) < hub.spec.max_calls:
                hub.claims[entry.call] = (client.id, entry)
                hub.claims_high_water = max(hub.claims_high_water, len(hub.claims))
            return
        call = self._mine(client, entry.call, entry.attempt, now_s)
        if call is None:
            return
        call.is_recovered = entry.is_recovered
        worker = self._endings.worker_of(call)
        if call.is_rebound:
            self._openings.rebind(call)
        hub.to_worker(
            worker,
            Credit(entry.call, entry.attempt, entry.received, entry.consumed, entry.consumed_bytes),
        )
        self._endings.say_ended(call, now_s)

    def _done(self, client: Client, ref: CallRef) -> Worker | None:
        """Take one `DONE`; return the worker that must hear of it."""
        call = self._hub.calls.get(ref.call)
        if call is None:
            return None  # said twice, or the retention is over
        if call.client != client.id:
            self._hub.count("foreign_call")
            return None
        if call.tail is not None and call.tail[0] == ref.attempt:
            worker = self._hub.workers.get(call.tail[1])
            call.tail = None
            return worker
        if call.attempt != ref.attempt:
            self._hub.count("stale_attempt")
            return None
        worker = self._hub.workers.get(call.worker)
        if call.state is CallState.ENDED:
            self._endings.forget(call)
            return worker
        if call.state is CallState.RUNNING:
            # The finish on the lane overtook the worker's ENDED, which now closes the call.
            call.is_done = True
        else:
            self._hub.count("done_early")
        return None
