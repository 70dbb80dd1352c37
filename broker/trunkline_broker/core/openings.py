"""How attempts begin: `OPEN` → route → admission → `START` (SPEC 3, 6).

It does not know how calls end but for a refusal, which it leaves to `Endings`.
"""

from __future__ import annotations

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.frames import (
    Accepted,
    CallRef,
    Cancel,
    Done,
    Failed,
    Lost,
    Open,
    Queued,
    Start,
)
from trunkline_protocol.ids import CallId, PoolName, RouteName
from trunkline_protocol.trace_context import span_of_call

from trunkline_broker.core import access, accounts
from trunkline_broker.core.accounts import FAILED
from trunkline_broker.core.admission import Gate
from trunkline_broker.core.calls import Call, CallState
from trunkline_broker.core.claims import Claim
from trunkline_broker.core.clients import Client
from trunkline_broker.core.endings import Endings, retry_frame
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.outcomes import Outcomes
from trunkline_broker.core.registry import Route
from trunkline_broker.core.retry import read_re_offer, resume_backoff
from trunkline_broker.core.specs import PoolSpec
from trunkline_broker.core.workers import Worker, WorkerState

STOPPING = "STOPPING"
_NO_POOL = PoolSpec(PoolName(""), "")  # bounds for calls of a route that nobody registered yet


class Openings:
    """Starts calls, or lets them wait, or refuses them."""

    def __init__(self, hub: Hub, endings: Endings, outcomes: Outcomes) -> None:
        self._hub = hub
        self._outcomes = outcomes
        self._endings = endings

    def on_open(self, client: Client, frame: Open, now_s: float) -> None:
        """Take an `OPEN`; one that is known already is answered as before and starts nothing."""
        call = self._hub.calls.get(frame.call)
        if call is not None:
            self._open_again(call, client, frame, now_s)
            return
        past = self._hub.calls.past(frame.call)
        if past is not None:
            self._outcomes.past(client, frame.call, frame.attempt, past)
            return
        refusal = self._refusal(client, frame)
        if refusal is not None:
            self._hub.count("calls_failed")
            failure = refusal.to_dict()
            self._hub.to_client(client, Failed(frame.call, frame.attempt, failure))
            self._hub.out.append(accounts.refusal(frame, client.name, failure))
            return
        if frame.seen and not self._hub.may_be_held():
            self._hub.to_client(client, Lost(frame.call, frame.attempt))
            self._hub.count("calls_lost")
            return
        call = Call.opened(frame, client.id, client.name, now_s)
        self._hub.calls.add(call)
        client.calls[call.id] = call
        self._hub.count("calls_opened")
        if self._hub.is_settling or frame.seen:
            self._wait_settled(call, frame)
        else:
            self._begin(call, frame, now_s)

    def settle(self, now_s: float) -> None:
        """Begin every call that waited for the workers of an older broker and that none holds."""
        for call in list(self._hub.unsettled.values()):
            frame = call.waiting
            if frame is None:
                raise AssertionError("an unsettled call holds its OPEN")
            if frame.seen:
                self._endings.lost(call)
                continue
            del self._hub.unsettled[call.id]
            self._hub.queued_bytes -= len(frame.body)
            self._begin(call, frame, now_s)

    def pump(self, route: RouteName, now_s: float) -> None:
        """Start, or refuse, as many of the waiting calls of a route as can be decided now."""
        gate = self._hub.gates.at(route)
        while (call := self._next(gate)) is not None:
            if self._hub.suspicion.is_suspect(call.key, now_s):
                gate.bench_next()
            elif not self._decide(call, gate, now_s):
                break
        while (call := self._next_suspect(gate, now_s)) is not None:
            if not self._decide(call, gate, now_s):
                return

    def is_startable(self, route: RouteName, now_s: float) -> bool:
        """Return whether a waiting call of a route could be started or refused now."""
        gate = self._hub.gates.at(route)
        firsts = (self._next(gate), self._next_suspect(gate, now_s))
        return any(
            call is not None and not isinstance(self._verdict(call, gate, now_s), str)
            for call in firsts
        )

    def _next(self, gate: Gate) -> Call | None:
        call_id = gate.queue.peek()
        return None if call_id is None else self._waiting(call_id)

    def _next_suspect(self, gate: Gate, now_s: float) -> Call | None:
        """Return the likeliest culprit of those that wait for a turn: the others go free with it.

        One that was cleared meanwhile comes first.
        """
        calls = map(self._waiting, gate.bench)
        order = self._hub.suspicion.order
        return min(calls, key=lambda call: order(call.key, now_s), default=None)

    def _waiting(self, call_id: CallId) -> Call:
        call = self._hub.calls.get(call_id)
        if call is None or call.waiting is None:
            raise AssertionError("forgetting a call takes it from its queue")
        return call

    def _decide(self, call: Call, gate: Gate, now_s: float) -> bool:
        """Start or refuse a waiting call; return whether that could be decided."""
        verdict = self._verdict(call, gate, now_s)
        if isinstance(verdict, str) or call.waiting is None:
            return False
        if isinstance(verdict, LlmFailure):
            self._endings.fail(call, verdict)
            return True
        gate.take(call.client, call.id)
        self._hub.queued_bytes -= len(call.waiting.body)
        self._hub.deadlines.clear((Timer.QUEUE, call.id))
        self._start(call, gate, *verdict)
        return True

    def on_queue_over(self, call_id: CallId, now_s: float) -> None:
        """End a call that waited too long, saying what was full."""
        call = self._hub.calls.get(call_id)
        if call is None:
            raise AssertionError("forgetting a call clears its queue timeout")
        gate = self._hub.gates.at(call.provider)
        self._endings.fail(call, self._timeout_failure(call, gate, now_s))

    def confirm(self, call: Call) -> None:
        """Say `ACCEPTED`, with what was captured when the attempt was started."""
        hub = self._hub
        worker, client = hub.workers.get(call.worker), hub.clients.get(call.client)
        if worker is None or client is None:
            raise AssertionError("only a call with a worker is confirmed to its client")
        window = client.budget.window(call.id)
        hub.to_client(
            client,
            Accepted(
                call=call.id,
                attempt=call.attempt,
                pool=worker.pool,
                slot=worker.slot,
                generation=worker.generation,
                window_chunks=window.chunks,
                window_bytes=window.bytes,
                policy=call.policy_map,
                token=call.token,
            ),
        )

    def rebind(self, call: Call) -> None:
        """A client names a call that runs: confirm it as soon as its policy is known."""
        worker = self._hub.workers.get(call.worker)
        if not call.is_rebound or (worker is not None and worker.is_ready()):
            self.confirm_rebound(call)
        call.is_rebound = False

    def confirm_rebound(self, call: Call) -> None:
        """Confirm a running call, with the policy its worker registered if none was captured."""
        worker, client = self._hub.workers.get(call.worker), self._hub.clients.get(call.client)
        if worker is not None and not call.policy_map:
            for entry in worker.offer.routes:
                if entry.key == call.provider:
                    call.policy, call.policy_map = entry.value.policy, entry.value.policy_map
        if client is not None:
            call.client_name = client.name
            self.confirm(call)

    def may_start(self, route: RouteName) -> bool:
        """Tell whether a worker may yet come that registers a route nobody serves."""
        if self._hub.is_settling:
            return True
        for pool in self._hub.pools:
            if pool.may_still_start():
                names = pool.spec.providers
                # Without names only the worker knows its routes; once ready they are known.
                if route in names or (not names and not pool.has_served):
                    return True
        return False

    def down_failure(self, route: RouteName) -> LlmFailure:
        """Return why nobody serves a route."""
        for pool in self._hub.pools:
            reason = pool.down_reason()
            if reason and (route in pool.lost_routes or route in pool.spec.providers):
                return LlmFailure(f"route {route!r} is down: {reason}", Code.NO_ADAPTER)
        return LlmFailure(f"no adapter is registered for {route!r}", Code.NO_ADAPTER)

    # --- known calls ------------------------------------------------------------------------

    def _open_again(self, call: Call, client: Client, frame: Open, now_s: float) -> None:
        if call.client != client.id:
            self._outcomes.foreign(client, call, frame.attempt, is_opening=True)
            return
        call.hear(now_s)
        if frame.attempt > call.attempt and call.is_rebound:
            self._supersede(call, client, frame, now_s)
            return
        if frame.attempt != call.attempt:
            self._other_attempt(call, client, frame, now_s)
            return
        match call.state:
            case CallState.QUEUED:
                self.say_queued(call, frame)
            case CallState.RUNNING:
                # What an older broker knew, and a worker does not say.
                call.is_recovered = frame.recovery == "policy"
                call.model = frame.model
                self.rebind(call)
            case CallState.ENDED:
                call.is_recovered = frame.recovery == "policy"
                call.is_rebound = False
                self.confirm(call)
                self._endings.say_ended(call, now_s)
            case CallState.BACKOFF:
                self._open_retry(call, client, frame, now_s)

    def _supersede(self, call: Call, client: Client, frame: Open, now_s: float) -> None:
        """Begin a further attempt of a call whose last one a worker brought along.

        The older broker had offered it: the worker has not heard that its attempt is done with.
        """
        worker = self._hub.workers.get(call.worker)
        if worker is not None and call.state is CallState.ENDED:
            self._hub.to_worker(worker, Done((CallRef(call.id, call.attempt),)))
        elif worker is not None:
            self._hub.to_worker(worker, Cancel(call.id, call.attempt))
        self._hub.count("attempts_superseded")
        self._endings.forget(call, remember=False)
        self.on_open(client, frame, now_s)

    def _open_retry(self, call: Call, client: Client, frame: Open, now_s: float) -> None:
        backoff = call.backoff
        if backoff is None:
            raise AssertionError("a call in BACKOFF has one")
        if not call.is_retry_due:
            # Early, or the RETRY got lost with a connection: say again how long it takes.
            due_s = self._hub.deadlines.at_s((Timer.BACKOFF, call.id)) or now_s
            left_ms = max(0.0, due_s - now_s) * 1000
            self._hub.to_client(client, retry_frame(call, backoff, left_ms))
            return
        self._hub.deadlines.clear((Timer.OFFER, call.id))
        call.queue(frame, "")
        call.opened_s = now_s
        self._admit(call, frame, now_s)

    def _other_attempt(self, call: Call, client: Client, frame: Open, now_s: float) -> None:
        if call.state is CallState.BACKOFF and frame.attempt < call.attempt:
            self._endings.say_retry(call, client, now_s)
        else:
            self._outcomes.other_attempt(client, call, frame.attempt, is_opening=True)

    # --- new calls --------------------------------------------------------------------------

    def _refusal(self, client: Client, frame: Open) -> LlmFailure | None:
        hub = self._hub
        forbidden = access.refusal(client.access, frame.provider)
        if forbidden is not None:
            return forbidden
        if hub.is_draining:
            return LlmFailure("the broker is stopping", STOPPING)
        if len(client.calls) >= hub.spec.max_calls_per_client:
            limit = hub.spec.max_calls_per_client
            return LlmFailure(f"the client has {limit} open calls already", Code.OVERLOADED)
        if len(hub.calls) >= hub.spec.max_calls:
            return LlmFailure(
                f"the broker has {hub.spec.max_calls} open calls already", Code.OVERLOADED
            )
        return None

    def _wait_settled(self, call: Call, frame: Open) -> None:
        hub = self._hub
        if not self._hub.take_bytes(len(frame.body)):
            self._refuse(call, self._bytes_failure())
            return
        call.queued_reason = "settling"
        hub.unsettled[call.id] = call
        hub.unsettled_high_water = max(hub.unsettled_high_water, len(hub.unsettled))
        self.say_queued(call, frame)

    def say_queued(self, call: Call, frame: Open) -> None:
        """Tell the client of a queued call that it waits, and for what."""
        # That would begin the retry; whether its delay is over is decided when all is settled.
        if frame.retry_offer is not None and call.id in self._hub.unsettled:
            return
        client = self._hub.clients.get(call.client)
        self._hub.to_client(client, Queued(call.id, call.attempt, call.queued_reason))

    def _begin(self, call: Call, frame: Open, now_s: float) -> None:
        offer = read_re_offer(frame.retry_offer) if frame.retry_offer is not None else None
        if offer is not None:
            call.retries = offer.retry
            if offer.delay_ms > 0:
                claim = self._hub.registry.routes.get(call.provider)
                policy = claim.value.policy if claim is not None else call.policy
                backoff = resume_backoff(offer, policy)
                call.re_offer(backoff)
                self._hub.deadlines.set((Timer.BACKOFF, call.id), now_s + backoff.delay_ms / 1000)
                client = self._hub.clients.get(call.client)
                self._hub.to_client(client, retry_frame(call, backoff, backoff.delay_ms))
                return
        self._admit(call, frame, now_s)

    def _admit(self, call: Call, frame: Open, now_s: float) -> None:
        gate = self._hub.gates.at(call.provider)
        verdict = self._verdict(call, gate, now_s)
        if isinstance(verdict, tuple) and not len(gate.queue):
            self._start(call, gate, *verdict)
        elif isinstance(verdict, LlmFailure):
            self._refuse(call, verdict)
        else:
            reason = verdict if isinstance(verdict, str) else "turn"
            self._enqueue(call, frame, gate, reason, now_s)

    def _enqueue(self, call: Call, frame: Open, gate: Gate, reason: str, now_s: float) -> None:
        hub = self._hub
        spec = self._pool_spec(call.provider)
        if not self._hub.take_bytes(len(frame.body)):
            self._refuse(call, self._bytes_failure())
            return
        is_suspect = hub.suspicion.is_suspect(call.key, now_s)
        if not gate.put(call.client, call.id, spec.queue_size, is_suspect=is_suspect):
            hub.queued_bytes -= len(frame.body)
            text = f"the queue of route {call.provider!r} is full: {len(gate)} calls wait"
            self._refuse(call, LlmFailure(text, Code.OVERLOADED))
            return
        call.queue(frame, reason)
        hub.deadlines.set((Timer.QUEUE, call.id), now_s + spec.queue_timeout_s)
        hub.count("calls_queued")
        hub.to_client(hub.clients.get(call.client), Queued(call.id, call.attempt, reason))

    def _refuse(self, call: Call, failure: LlmFailure) -> None:
        """Fail a call that waits nowhere yet."""
        hub = self._hub
        frame = Failed(call.id, call.attempt, failure.to_dict())
        hub.count("calls_failed")
        hub.out.append(accounts.account(call, FAILED, hub.now_s, failure=frame.failure))
        client = hub.clients.get(call.client)
        hub.to_client(client, frame)
        if client is not None:
            del client.calls[call.id]
        hub.calls.forget(call, frame)
        hub.gates.tidy(call.provider)

    def _bytes_failure(self) -> LlmFailure:
        limit = self._hub.spec.queue_bytes
        return LlmFailure(f"requests of {limit} bytes wait already", Code.OVERLOADED)

    # --- admission --------------------------------------------------------------------------

    def _verdict(
        self, call: Call, gate: Gate, now_s: float
    ) -> tuple[Worker, Route] | LlmFailure | str:
        """Decide for one call: the worker and the route, a failure, or why it has to wait."""
        barred_s = self._hub.suspicion.barred_s(call.key, now_s)
        if barred_s > 0:
            return _barred_failure(barred_s)
        # A call that is repeated without a limit is no new one: its own delay is all it waits.
        is_repeated = call.retries > 0 and call.policy.mode == "always"
        if now_s < gate.closed_until_s and not is_repeated:
            return _closed_failure(call.provider, gate.closed_until_s - now_s)
        if now_s < gate.paused_until_s:
            return "paused"
        if call.lease is not None:
            return self._prepared_verdict(call, gate)
        claim = self._hub.registry.routes.get(call.provider)
        if claim is None:
            if self.may_start(call.provider):
                return "starting"
            return self.down_failure(call.provider)
        if not gate.has_place(self._pool_spec(call.provider).concurrency):
            return "concurrency"
        worker = self._choose(claim)
        if worker is None:
            return "workers" if claim.holders else "starting"
        return worker, claim.holders[worker.generation]

    def _prepared_verdict(self, call: Call, gate: Gate) -> tuple[Worker, Route] | LlmFailure | str:
        hub = self._hub
        worker = hub.workers.get(hub.leases.get(call.lease)) if call.lease is not None else None
        route = None
        if worker is not None:
            routes = (entry.value for entry in worker.offer.routes if entry.key == call.provider)
            route = next(routes, None)
        if worker is None or route is None:
            lease_s = self._pool_spec(call.provider).lease_s
            text = (
                "the prepared call is unknown, was used already or is for another provider, or its"
                f" lease has run out ({lease_s:g} s, unless it is renewed)"
            )
            return LlmFailure(text, Code.INVALID_PREPARED_CALL)
        if not gate.has_place(worker.spec.concurrency):
            return "concurrency"
        is_busy = worker.running >= hub.spec.max_calls_per_worker
        is_unheard = worker.unheard_bytes >= hub.spec.queue_bytes
        if worker.peer is None or is_busy or is_unheard or worker.trial is not None:
            return "workers"
        return worker, route

    def _choose(self, claim: Claim[Route]) -> Worker | None:
        """Return the reachable replica that runs the fewest attempts.

        One that was handed a lot and has said nothing since may stand still: it gets no more.
        Nor does one in which a suspect call has its turn.
        """
        chosen: Worker | None = None
        least, most_bytes = self._hub.spec.max_calls_per_worker, self._hub.spec.queue_bytes
        for generation in claim.holders:
            worker = self._hub.workers.get(generation)
            if worker is None or worker.state is not WorkerState.SERVING:
                raise AssertionError("only serving workers hold routes")
            is_open = worker.peer is not None and worker.unheard_bytes < most_bytes
            if is_open and worker.trial is None and worker.running < least:
                chosen, least = worker, worker.running
        return chosen

    def _start(self, call: Call, gate: Gate, worker: Worker, route: Route) -> None:
        hub = self._hub
        client = hub.clients.get(call.client)
        if client is None:
            raise AssertionError("a dead client's waiting calls are forgotten")
        if call.state is CallState.QUEUED and call.lease is not None:
            hub.drop_lease(call.lease)
        frame = call.run(worker.generation, route.policy, route.policy_map)
        worker.calls[call.id] = call
        worker.running += 1
        worker.hand(len(frame.body))
        gate.running += 1
        hub.count("calls_started")
        call.started_s = hub.now_s
        if call.is_detachable:
            call.token = hub.draw(16)
        hub.open_stream(client, call)
        window = client.budget.window(call.id)
        hub.to_worker(
            worker,
            Start(
                call=call.id,
                attempt=call.attempt,
                client=client.id,
                stream_key=call.stream_key,
                provider=call.provider,
                model=frame.model,
                window_chunks=window.chunks,
                window_bytes=window.bytes,
                detachable=call.is_detachable,
                token=call.token,
                lease=call.lease,
                attachments=frame.attachments,
                traceparent=self._traceparent(call),
                client_pid=client.pid or 0,
                body=frame.body,
            ),
        )
        if hub.suspicion.is_suspect(call.key, hub.now_s):
            turn_s = hub.suspicion.begin(call.key, hub.now_s)
            self._endings.begin_trial(call, worker, turn_s)
        self.confirm(call)

    def _traceparent(self, call: Call) -> str:
        """Return the span whose child the attempt is."""
        if self._hub.spec.is_traced:
            return span_of_call(call.id, call.traceparent).to_text()
        return call.traceparent

    def _pool_spec(self, route: RouteName) -> PoolSpec:
        claim = self._hub.registry.routes.get(route)
        pool = self._hub.pools.get(claim.owner) if claim is not None else None
        return pool.spec if pool is not None else _NO_POOL

    def _timeout_failure(self, call: Call, gate: Gate, now_s: float) -> LlmFailure:
        spec = self._pool_spec(call.provider)
        waited = f"within {spec.queue_timeout_s:g} s"
        if gate.is_paused(now_s):
            ends_s = max(gate.paused_until_s, gate.closed_until_s)
            return _closed_failure(call.provider, ends_s - now_s)
        if call.queued_reason == "starting":
            text = f"no worker for route {call.provider!r} was ready {waited}"
            return LlmFailure(text, Code.TRANSPORT)
        text = (
            f"no place on route {call.provider!r} {waited}: {gate.running} attempts run,"
            f" {len(gate)} calls wait"
        )
        return LlmFailure(text, Code.OVERLOADED)


def _barred_failure(left_s: float) -> LlmFailure:
    text = (
        "two worker processes died while a request with this content was running in them;"
        f" it is refused for {left_s:.0f} s more"
    )
    return LlmFailure(text, Code.CRASHES_WORKER)


def _closed_failure(route: RouteName, left_s: float) -> LlmFailure:
    text = f"the provider of route {route!r} asked to wait {left_s:.1f} s more"
    return LlmFailure(text, Code.RATE_LIMIT, provider_retry_after_ms=left_s * 1000)
