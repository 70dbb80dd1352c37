"""How calls end: the worker's report, its death, the client's death, a retry instead (SPEC 3, 6).

It does not know how calls begin. Whatever frees a place leaves the route in `Hub.freed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import (
    CallRef,
    Cancel,
    Done,
    Ended,
    Failed,
    Lost,
    Retry,
    RetryStarted,
    Window,
)
from trunkline_protocol.ids import CallId, Generation

from trunkline_broker.core.accounts import CANCELLED, ENDED, FAILED, RETRIED, account
from trunkline_broker.core.calls import Call, CallState
from trunkline_broker.core.clients import Client
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.retry import (
    ABORTED_FINISH,
    Backoff,
    failure_of,
    plan_retry,
    route_pause,
)
from trunkline_broker.core.suspicion import BARRED_S
from trunkline_broker.core.workers import Worker, WorkerState

_CRASHES: Final = "two worker processes died while this request was running in them"


def aborted(call: CallId, attempt: int) -> Ended:
    """Return the `ENDED` of a cancelled attempt of which nothing more will come."""
    return Ended(call, attempt, 0, ABORTED_FINISH)


def retry_frame(call: Call, backoff: Backoff, delay_ms: float) -> Retry:
    """Return the `RETRY` of a call in BACKOFF."""
    return Retry(
        call=call.id,
        attempt=call.attempt,
        retry_id=backoff.retry_id,
        provider=call.provider,
        mode=backoff.mode,
        policy_key=backoff.policy_key,
        retry=backoff.retry,
        delay_ms=delay_ms,
        failure=backoff.failure,
        max_retries=backoff.max_retries,
    )


class Endings:
    """Ends calls and lets go of what they held."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def on_ended(self, worker: Worker, frame: Ended, now_s: float) -> None:
        """Take a worker's report; one about a call that it does not run is counted."""
        call = self._hub.calls.get(frame.call)
        if call is None or call.worker != worker.generation or call.attempt != frame.attempt:
            self._hub.count("ended_unknown")
            return
        client = self._hub.clients.get(call.client)
        if call.state is CallState.ENDED:
            if call.ended is None:
                # The older broker may have died before it heard of this, or after.
                told = account(call, ENDED, self._hub.now_s, worker, frame)
                self._hub.out.append(replace(told, is_late=True))
            call.ended = frame
            self.say_ended(call, now_s)
            return
        self._hub.count("calls_ended")
        failure = failure_of(frame.finish)
        if failure is not None and worker.state is not WorkerState.DRAINING:
            # What was replaced may have had another key: its provider's wish is not the new one's.
            self._note_pause(call, failure, now_s)
        told = account(call, CANCELLED if call.is_cancelled else ENDED, now_s, worker, frame)
        if call.is_cancelled:
            self._hub.to_client(client, frame)
            self.forget(call)
        elif call.is_done:
            self._hub.to_worker(worker, Done((CallRef(call.id, call.attempt),)))
            self.forget(call)
        elif failure is not None and self._retries(call, failure, now_s):
            told = replace(told, outcome=RETRIED)
        else:
            self._stop_running(call, worker)
            call.end(frame, now_s)
            retention_s = self._hub.spec.retention_s
            self._hub.deadlines.set((Timer.RETENTION, call.id), now_s + retention_s)
            self._hub.to_client(client, frame)
        self._hub.out.append(told)

    def say_ended(self, call: Call, now_s: float) -> None:
        """Tell a client how an attempt ended, or offer the next one if nobody has decided that.

        A worker may have ended an attempt while there was no broker. Whether the call asked for
        retries its client tells, and the policy the worker: until both have, nothing is said.
        """
        hub = self._hub
        if call.state is not CallState.ENDED or call.ended is None:
            return
        if call.is_undecided:
            if call.is_rebound or not self.worker_of(call).is_ready():
                return
            failure = failure_of(call.ended.finish)
            if failure is not None and self._retries(call, failure, now_s):
                return
            call.is_undecided = False
        hub.to_client(hub.clients.get(call.client), call.ended)

    def lose(self, worker: Worker, text: str, now_s: float, *, is_crash: bool = False) -> None:
        """End all calls of a worker that has died or is treated as dead.

        Args:
            worker: it runs nothing any more.
            text: how it ended, for people.
            now_s: monotonic seconds.
            is_crash: nobody asked for it, so a request that it ran may be the reason.
        """
        guilty = self._judge(worker, now_s) if is_crash else frozenset[bytes]()
        for call in list(worker.calls.values()):
            is_running = call.state is CallState.RUNNING and not call.is_cancelled
            if is_running and not call.is_done and call.key in guilty:
                reason = f"{_CRASHES} ({text}); it is refused for {BARRED_S:g} s"
                self.fail(call, LlmFailure(reason, Code.CRASHES_WORKER))
            else:
                self.lose_call(call, worker, text, now_s)
        for lease in list(worker.leases):
            self._hub.drop_lease(lease)

    def _judge(self, worker: Worker, now_s: float) -> frozenset[bytes]:
        """Note what ran in a worker that died by itself; return the requests that are barred."""
        hub = self._hub
        running: dict[bytes, float] = {}
        for call in worker.calls.values():
            if call.state is CallState.RUNNING and not call.is_done:
                began_s = worker.started_s if call.started_s is None else call.started_s
                ran_s = now_s - began_s
                running[call.key] = min(running.get(call.key, ran_s), ran_s)
        if not running:
            return frozenset()
        guilty = hub.suspicion.on_death(running, now_s)
        fields = {**hub.worker_fields(worker), "requests": len(running)}
        hub.log("warning", "requests_suspect", fields)
        for key in guilty:
            hub.count("requests_barred")
            hub.log("error", "request_barred", {"request": key.hex()[:8], **fields})
            hub.freed.update(hub.gates.waiting())  # others are cleared by it
        return guilty

    def begin_trial(self, call: Call, worker: Worker, turn_s: float) -> None:
        """Begin nothing else in a worker while a suspect call has its turn."""
        worker.trial = call.id
        name = (Timer.TRIAL, worker.generation)
        self._hub.deadlines.set(name, self._hub.now_s + turn_s)

    def end_trial(self, worker: Worker) -> None:
        """Let a worker begin other calls again."""
        worker.trial = None
        self._hub.deadlines.clear((Timer.TRIAL, worker.generation))
        self._hub.freed.update(self._hub.gates.waiting())

    def on_trial_over(self, generation: Generation) -> None:
        """The turn of a suspect call is over, and its worker lives."""
        worker = self._hub.workers.get(generation)
        if worker is None:
            raise AssertionError("a worker that goes loses its calls, and with them the turn")
        self.end_trial(worker)

    def lose_call(self, call: Call, worker: Worker, text: str, now_s: float) -> None:
        """End one call that its worker does not hold any more."""
        if call.state is CallState.ENDED:
            self.fail(call, LlmFailure(f"the tail is lost: {text}", Code.STREAM_CLOSED))
        elif call.is_cancelled:
            self.abort(call)
        elif call.is_done:
            self._tell(call, ENDED, None)
            self.forget(call)
        else:
            failure = LlmFailure(text, Code.TRANSPORT)
            told = account(call, RETRIED, now_s, worker, failure=failure.to_dict())
            if self._retries(call, failure, now_s):
                self._hub.out.append(told)
            else:
                self.fail(call, failure)

    def fail(self, call: Call, failure: LlmFailure) -> None:
        """End a call for good with a failure; repeated if its client asks again."""
        self.fail_with(call, failure.to_dict())

    def fail_with(self, call: Call, failure: Mapping[str, Any]) -> None:
        """End a call for good with a failure map."""
        frame = Failed(call.id, call.attempt, failure)
        self._hub.count("calls_failed")
        if call.state is not CallState.ENDED:  # its worker has told of its end before
            self._tell(call, FAILED, failure)
        self._hub.to_client(self._hub.clients.get(call.client), frame)
        self.forget(call, frame)

    def abort(self, call: Call) -> None:
        """Close a cancelled call of which nothing more will come."""
        client = self._hub.clients.get(call.client)
        self._hub.to_client(client, aborted(call.id, call.attempt))
        self._tell(call, CANCELLED, None)
        self.forget(call)

    def drop(self, call: Call) -> None:
        """Forget what its client no longer wants and no worker runs."""
        if call.state is not CallState.ENDED:
            self._tell(call, CANCELLED, None)
        self.forget(call)

    def tail_only(self, call: Call, worker: Worker, now_s: float, *, is_undecided: bool) -> None:
        """Take note that a worker keeps only the tail of a call whose end was not reported here.

        Args:
            call: runs as far as this broker knows.
            worker: holds it.
            now_s: monotonic seconds; the retention time begins.
            is_undecided: an older broker got the report, and maybe has not decided on a retry.
        """
        self._stop_running(call, worker)
        call.end(None, now_s)
        call.is_undecided = is_undecided
        self._hub.deadlines.set((Timer.RETENTION, call.id), now_s + self._hub.spec.retention_s)

    def lost(self, call: Call) -> None:
        """Tell the client that nobody holds its attempt, and forget it: it may open it again."""
        self._hub.to_client(self._hub.clients.get(call.client), Lost(call.id, call.attempt))
        self._hub.count("calls_lost")
        self.forget(call, remember=False)

    def forget(self, call: Call, failed: Failed | None = None, *, remember: bool = True) -> None:
        """Let go of a call and of everything it holds, whatever its state."""
        hub = self._hub
        if call.state is CallState.QUEUED:
            self.leave_queue(call)
        elif call.state is CallState.BACKOFF:
            hub.deadlines.clear((Timer.BACKOFF, call.id))
            hub.deadlines.clear((Timer.OFFER, call.id))
        else:
            self._leave_worker(call)
        client = hub.clients.get(call.client)
        if client is not None:
            del client.calls[call.id]
        hub.calls.forget(call, failed, remember=remember)

    def client_is_gone(self, client: Client) -> None:
        """End what a dead client left; detachable attempts go on for whoever attaches."""
        hub = self._hub
        for call in list(client.calls.values()):
            worker = hub.workers.get(call.worker)
            if worker is not None and call.is_detachable:
                self._detach(client, call)
                if call.state is CallState.RUNNING:
                    self.detach(call, worker)
            elif call.state is CallState.RUNNING and worker is not None:
                self._detach(client, call)
                self.cancel(call)
            else:
                if worker is not None:
                    hub.to_worker(worker, Done((CallRef(call.id, call.attempt),)))
                self.drop(call)

    def cancel(self, call: Call) -> None:
        """Have the worker of a running call stop it; its `ENDED` closes the call."""
        hub = self._hub
        call.is_cancelled = True
        call.asked_s = hub.now_s
        hub.deadlines.clear((Timer.DETACHED, call.id))
        hub.to_worker(self.worker_of(call), Cancel(call.id, call.attempt))

    def detach(self, call: Call, worker: Worker, *, is_told: bool = False) -> None:
        """Let a running call go on without a client for a bounded time.

        Args:
            call: has no client.
            worker: runs it, and is told unless it knows.
            is_told: it knows.
        """
        name = (Timer.DETACHED, call.id)
        if self._hub.deadlines.at_s(name) is None:
            self._hub.deadlines.set(name, self._hub.now_s + self._hub.spec.detached_s)
        if not is_told:
            self._hub.to_worker(worker, Window(call.id, call.attempt, 0, 0))

    def on_detached_over(self, call_id: CallId) -> None:
        """Cancel a running call to which no client has attached for too long."""
        call = self._hub.calls.get(call_id)
        if call is None:
            raise AssertionError("a call that stops running clears this deadline")
        self._hub.count("detached_over")
        self._hub.log("warning", "detached_over", {"call": call_id.hex()[:8]})
        self.cancel(call)

    def attach(self, call: Call, client: Client) -> None:
        """Give a running or ended call to another client, as its open stream."""
        owner = self._hub.clients.get(call.client)
        if owner is not None:
            self._detach(owner, call)
            if owner is not client:
                failure = LlmFailure("another client has attached to this call", Code.ABORTED)
                frame = Failed(call.id, call.attempt, failure.to_dict())
                self._hub.to_client(owner, frame)
        self._hub.deadlines.clear((Timer.DETACHED, call.id))
        call.client, call.client_name = client.id, client.name
        client.calls[call.id] = call
        self._hub.open_stream(client, call)

    def on_retention_over(self, call_id: CallId, now_s: float) -> None:
        """Forget an ended call that nobody asked for lately."""
        call = self._hub.calls.get(call_id)
        if call is None:
            raise AssertionError("forgetting a call clears its retention")
        ends_s = call.heard_s + self._hub.spec.retention_s
        if ends_s > now_s:
            self._hub.deadlines.set((Timer.RETENTION, call_id), ends_s)
            return
        self._hub.count("retention_over")
        self._hub.to_worker(self.worker_of(call), Done((CallRef(call.id, call.attempt),)))
        self.forget(call)

    def on_backoff_over(self, call_id: CallId, now_s: float) -> None:
        """Tell the client to open the next attempt; it has the retention time to do so."""
        call = self._hub.calls.get(call_id)
        if call is None or call.backoff is None:
            raise AssertionError("leaving the backoff clears its deadline")
        self.offer(call, call.backoff, now_s)

    def offer(self, call: Call, backoff: Backoff, now_s: float) -> None:
        """Say `RETRY_STARTED` and wait for the client's `OPEN`."""
        call.is_retry_due = True
        self._hub.deadlines.set((Timer.OFFER, call.id), now_s + self._hub.spec.retention_s)
        self._hub.to_client(
            self._hub.clients.get(call.client),
            RetryStarted(call.id, call.attempt, backoff.retry_id),
        )

    def say_retry(self, call: Call, client: Client, now_s: float) -> None:
        """Repeat the offer of the next attempt, which got lost with a connection."""
        backoff = call.backoff
        if backoff is None:
            raise AssertionError("a call in BACKOFF has one")
        due_s = self._hub.deadlines.at_s((Timer.BACKOFF, call.id))
        left_ms = 0.0 if due_s is None else max(0.0, due_s - now_s) * 1000
        self._hub.to_client(client, retry_frame(call, backoff, left_ms))
        if call.is_retry_due:
            self.offer(call, backoff, now_s)

    def on_offer_over(self, call_id: CallId) -> None:
        """The client never opened the attempt: the call ends as the last one did."""
        call = self._hub.calls.get(call_id)
        if call is None or call.backoff is None:
            raise AssertionError("leaving the backoff clears its deadline")
        self.fail_with(call, call.backoff.failure)

    def _tell(self, call: Call, outcome: str, failure: Mapping[str, Any] | None) -> None:
        """Tell of the end of an attempt that no report tells of."""
        hub = self._hub
        worker = hub.workers.get(call.worker)
        hub.out.append(account(call, outcome, hub.now_s, worker, failure=failure))

    def _detach(self, client: Client, call: Call) -> None:
        del client.calls[call.id]
        self._hub.close_stream(client, call)
        call.client = None

    def _retries(self, call: Call, failure: LlmFailure, now_s: float) -> bool:
        hub = self._hub
        if not call.is_recovered or hub.is_draining:
            return False
        retry_id = hub.draw(8).hex()
        backoff = plan_retry(call.policy, failure, call.retries, hub.jitter(), retry_id)
        if backoff is None:
            return False
        self._leave_worker(call)
        call.back_off(backoff)
        hub.count("retries")
        hub.deadlines.set((Timer.BACKOFF, call.id), now_s + backoff.delay_ms / 1000)
        hub.to_client(hub.clients.get(call.client), retry_frame(call, backoff, backoff.delay_ms))
        return True

    def _note_pause(self, call: Call, failure: LlmFailure, now_s: float) -> None:
        pause = route_pause(call.policy, failure)
        if pause is None:
            return
        gate = self._hub.gates.at(call.provider)
        until_s = now_s + pause.seconds
        if pause.is_closed:
            gate.closed_until_s = max(gate.closed_until_s, until_s)
        else:
            gate.paused_until_s = max(gate.paused_until_s, until_s)
        self._hub.count("route_pauses")
        ends_s = max(gate.closed_until_s, gate.paused_until_s)
        self._hub.deadlines.set((Timer.PAUSE, call.provider), ends_s)
        self._hub.freed.add(call.provider)

    def leave_queue(self, call: Call) -> None:
        """Take a call from where it waits."""
        hub = self._hub
        if call.waiting is None:
            raise AssertionError("a queued call holds its OPEN")
        hub.queued_bytes -= len(call.waiting.body)
        if hub.unsettled.pop(call.id, None) is None:
            hub.gates.at(call.provider).remove(call.client, call.id)
            hub.gates.tidy(call.provider)
            hub.deadlines.clear((Timer.QUEUE, call.id))

    def _leave_worker(self, call: Call) -> None:
        hub, worker = self._hub, self.worker_of(call)
        if call.state is CallState.RUNNING:
            self._stop_running(call, worker)
        else:
            hub.deadlines.clear((Timer.RETENTION, call.id))
        del worker.calls[call.id]
        if worker.state is WorkerState.DRAINING:
            hub.drained.append(worker)
        client = hub.clients.get(call.client)
        if client is not None:
            hub.close_stream(client, call)

    def worker_of(self, call: Call) -> Worker:
        """Return the worker of a running or ended call."""
        worker = self._hub.workers.get(call.worker)
        if worker is None:
            raise AssertionError("a worker that goes loses its calls first")
        return worker

    def _stop_running(self, call: Call, worker: Worker) -> None:
        self._hub.deadlines.clear((Timer.DETACHED, call.id))
        if worker.running == self._hub.spec.max_calls_per_worker:
            self._hub.on_topology()  # its other routes may have waited for this place
        worker.running -= 1
        gate = self._hub.gates.at(call.provider)
        gate.running -= 1
        if len(gate):
            self._hub.freed.add(call.provider)
        if worker.trial == call.id:
            self.end_trial(worker)
