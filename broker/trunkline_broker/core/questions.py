"""Queries that a worker answers: who is asked, and that the asker gets exactly one `REPLY`.

It does not know what a query means but for prepared calls, whose leases it takes note of (SPEC 7).
What the broker itself answers is in `answers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, cast

from trunkline_protocol.codec import pack_body
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import Body, Query, QueryCancel, Reply
from trunkline_protocol.ids import (
    LEASE_ID_BYTES,
    QUERY_ID_BYTES,
    ClientId,
    Generation,
    LeaseId,
    QueryId,
    RouteName,
)

from trunkline_broker.core.arguments import read_argument
from trunkline_broker.core.claims import Claim
from trunkline_broker.core.clients import Client
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.openings import STOPPING, Openings
from trunkline_broker.core.workers import Worker

PREPARE: Final = "prepareCall"
RENEW: Final = "renewCall"
RELEASE: Final = "releaseCall"
DISCOVER: Final = "discoverModels"
ROUTE_OPS: Final = frozenset({"listModels", "resolveModelInfo", "resolveCallConfig", PREPARE})
LEASE_OPS: Final = frozenset({RENEW, RELEASE})  # asked of the worker that holds the lease
WORKER_OPS: Final = ROUTE_OPS | LEASE_OPS | {DISCOVER}
_MAX_TIMEOUT_S: Final = 600.0
_MAX_LEASE_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class Question:
    """One query that is not answered yet.

    Attributes:
        worker: who was asked; `None`: it waits for the route's worker to start.
        peer: the connection on which that worker was asked.
        held_bytes: of its argument, while it waits.
    """

    frame: Query
    client: ClientId
    worker: Generation | None = None
    peer: bytes | None = None
    held_bytes: int = 0


class Questions:
    """Queries under way."""

    def __init__(self, hub: Hub, openings: Openings) -> None:
        self._hub = hub
        self._openings = openings
        self._open: dict[QueryId, Question] = {}
        self._waiting: dict[QueryId, Question] = {}
        self.high_water = 0

    def __len__(self) -> int:
        """Return the number of queries that workers answer now, or will."""
        return len(self._open)

    def on_query(self, client: Client, frame: Query, now_s: float) -> None:
        """Ask the worker of a query.

        The same query again asks its worker again if that one has connected anew since: the
        question or its answer may have been lost with the connection before.
        """
        hub = self._hub
        known = self._open.get(frame.query)
        if known is not None:
            hub.count("query_again")
            self._ask_again(known, client, frame)
            return
        if hub.is_draining:
            self._refuse(client, frame, LlmFailure("the broker is stopping", STOPPING))
            return
        limit = hub.spec.max_queries_per_client
        if len(client.queries) >= limit:
            text = f"the client has {limit} open queries already"
            self._refuse(client, frame, LlmFailure(text, Code.OVERLOADED))
            return
        question = Question(frame, client.id)
        self._open[frame.query] = question
        self.high_water = max(self.high_water, len(self._open))
        client.queries.add(frame.query)
        timeout_s = frame.timeout_ms / 1000 or hub.spec.query_timeout_s
        hub.deadlines.set((Timer.QUERY, frame.query), now_s + min(timeout_s, _MAX_TIMEOUT_S))
        hub.count("queries")
        self._ask(question)

    def on_cancel(self, client: Client, frame: QueryCancel) -> None:
        """Nobody waits for the answer any more."""
        question = self._open.get(frame.query)
        if question is not None and question.client == client.id:
            self._withdraw(question)

    def on_reply(self, worker: Worker, frame: Reply, now_s: float) -> None:
        """Pass on an answer of the worker that was asked."""
        question = self._open.get(frame.query)
        if question is None or question.worker != worker.generation:
            self._hub.count("reply_unknown")
            return
        client = self._hub.clients.get(question.client)
        if question.frame.op in {PREPARE, RENEW} and frame.failure is None:
            self._note_lease(worker, client, frame.body, now_s)
        elif question.frame.op == RELEASE and frame.failure is None:
            lease = _lease_in(question.frame.body)
            if lease is not None:
                self._hub.drop_lease(lease)
        self._close(question)
        self._hub.to_client(client, frame)

    def on_query_due(self, query: QueryId) -> None:
        """An answer did not come in time."""
        question = self._open.get(query)
        if question is None:
            raise AssertionError("closing a query clears its deadline")
        self._withdraw(question, LlmFailure("no answer in time", Code.TIMEOUT))

    def worker_is_lost(self, worker: Worker, reason: str) -> None:
        """Answer what a worker will not."""
        failure = LlmFailure(f"adapter worker exited: {reason}", Code.TRANSPORT)
        for query in list(worker.queries):
            self._fail(self._open[query], failure)

    def client_is_gone(self, client: Client) -> None:
        """Tell the workers that nobody waits for what a dead client asked, or had prepared."""
        for query in list(client.queries):
            self._withdraw(self._open[query])
        for lease in list(client.leases):
            self._release(client, lease)

    def ask_waiting(self) -> None:
        """Look again at the queries that waited for a worker: the topology changed."""
        for question in list(self._waiting.values()):
            self._ask(question)

    def _release(self, client: Client, lease: LeaseId) -> None:
        """Have a worker forget the prepared call of a dead client, whose place we ask in."""
        hub = self._hub
        worker = hub.workers.get(hub.leases.get(lease))
        hub.drop_lease(lease)
        hub.count("leases_of_the_dead")
        if worker is None or worker.peer is None:
            return  # it names its leases and whose they are when it is back
        frame = Query(QueryId(hub.draw(QUERY_ID_BYTES)), RELEASE, body=pack_body({"lease": lease}))
        self._open[frame.query] = Question(frame, client.id, worker.generation)
        worker.queries.add(frame.query)
        due_s = hub.now_s + hub.spec.query_timeout_s
        hub.deadlines.set((Timer.QUERY, frame.query), due_s)
        hub.to_worker(worker, frame)

    def _ask(self, question: Question) -> None:
        hub = self._hub
        found = self._answerer(question.frame)
        if isinstance(found, LlmFailure):
            self._fail(question, found)
        elif found is None:
            self._wait(question)
        elif len(found.queries) >= hub.spec.max_queries_per_worker:
            text = f"its worker has {len(found.queries)} questions to answer already"
            self._fail(question, LlmFailure(text, Code.OVERLOADED))
        elif found.unheard_bytes >= hub.spec.queue_bytes:
            text = f"its worker has not read {found.unheard_bytes} bytes of requests yet"
            self._fail(question, LlmFailure(text, Code.OVERLOADED))
        else:
            self._ask_worker(question, found)

    def _ask_again(self, question: Question, client: Client, frame: Query) -> None:
        worker = self._hub.workers.get(question.worker)
        if worker is None or worker.peer in {None, question.peer} or question.client != client.id:
            return
        question.frame = frame  # with its argument, which was not kept
        self._ask_worker(question, worker)

    def _wait(self, question: Question) -> None:
        """Keep a question until a worker has started; arguments count with what else waits."""
        hub, query = self._hub, question.frame.query
        if query in self._waiting:
            return
        size = len(question.frame.body)
        if not hub.take_bytes(size):
            limit = hub.spec.queue_bytes
            text = f"requests of {limit} bytes wait already"
            self._fail(question, LlmFailure(text, Code.OVERLOADED))
            return
        question.held_bytes = size
        self._waiting[query] = question

    def _ask_worker(self, question: Question, worker: Worker) -> None:
        frame = question.frame
        self._stop_waiting(question)
        question.worker, question.peer = worker.generation, worker.peer
        worker.queries.add(frame.query)
        worker.queries_high_water = max(worker.queries_high_water, len(worker.queries))
        worker.hand(len(frame.body))
        asker, pid = None, 0  # told where it matters
        if frame.op == PREPARE:
            client = self._hub.clients.get(question.client)
            asker, pid = question.client, (client.pid or 0) if client is not None else 0
        self._hub.to_worker(worker, replace(frame, client=asker, client_pid=pid))
        if frame.op not in LEASE_OPS:  # asked once; a large argument is not kept for the answer
            question.frame = replace(frame, body=b"")

    def _stop_waiting(self, question: Question) -> None:
        if self._waiting.pop(question.frame.query, None) is not None:
            self._hub.queued_bytes -= question.held_bytes

    def _answerer(self, frame: Query) -> Worker | LlmFailure | None:
        """Return who answers; `None`: it is still starting."""
        hub = self._hub
        if frame.op in LEASE_OPS:
            lease = _lease_in(frame.body)
            worker = hub.workers.get(hub.leases.get(lease)) if lease is not None else None
            if worker is None and hub.is_settling:
                return None  # the worker that holds it may not have registered yet
            return worker or LlmFailure("no such prepared call", Code.INVALID_PREPARED_CALL)
        if frame.op == DISCOVER:
            namespace = _text_in(frame.body, "settingsNs")
            claim = hub.registry.discovery.get(namespace)
            if claim is None and not hub.is_settling:
                text = f"no discovery is registered for {namespace!r}"
                return LlmFailure(text, Code.NO_DISCOVERY)
            return self._holder(claim)
        route = RouteName(frame.provider)
        claim = hub.registry.routes.get(route)
        if claim is None and not self._openings.may_start(route):
            return self._openings.down_failure(route)
        return self._holder(claim)

    def _holder(self, claim: Claim[Any] | None) -> Worker | None:
        """Return the reachable holder that was asked the least."""
        if claim is None:
            return None
        workers = (self._hub.workers.get(generation) for generation in claim.holders)
        reachable = [worker for worker in workers if worker is not None and worker.peer is not None]
        return min(reachable, key=lambda worker: len(worker.queries), default=None)

    def _note_lease(self, worker: Worker, client: Client | None, body: Body, now_s: float) -> None:
        lease, left_ms = _lease_in(body), _number_in(body, "leaseMs")
        if lease is None or left_ms is None:
            self._hub.count("lease_unreadable")
            return
        self._hub.hold_lease(worker, lease, now_s + min(left_ms / 1000, _MAX_LEASE_S), client)

    def _refuse(self, client: Client, frame: Query, failure: LlmFailure) -> None:
        self._hub.count_refused(failure.code)
        self._hub.to_client(client, Reply(frame.query, failure.to_dict()))

    def _fail(self, question: Question, failure: LlmFailure) -> None:
        client = self._hub.clients.get(question.client)
        self._close(question)
        self._hub.to_client(client, Reply(question.frame.query, failure.to_dict()))

    def _withdraw(self, question: Question, failure: LlmFailure | None = None) -> None:
        worker = self._hub.workers.get(question.worker)
        if worker is not None:
            self._hub.to_worker(worker, QueryCancel(question.frame.query))
        if failure is not None:
            self._fail(question, failure)
        else:
            self._close(question)

    def _close(self, question: Question) -> None:
        query = question.frame.query
        del self._open[query]
        self._stop_waiting(question)
        self._hub.deadlines.clear((Timer.QUERY, query))
        client = self._hub.clients.get(question.client)
        if client is not None:
            client.queries.discard(query)
        worker = self._hub.workers.get(question.worker)
        if worker is not None:
            worker.queries.discard(query)


def _map_in(body: Body) -> dict[str, object]:
    try:
        value = read_argument(body)
    except RemoteProtocolError:  # the worker reads the body too and answers for it
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _text_in(body: Body, key: str) -> str:
    value = _map_in(body).get(key)
    return value if isinstance(value, str) else ""


def _number_in(body: Body, key: str) -> float | None:
    value = _map_in(body).get(key)
    return value if type(value) in {int, float} and cast("float", value) >= 0 else None  # type: ignore[return-value]


def _lease_in(body: Body) -> LeaseId | None:
    value = _map_in(body).get("lease")
    if isinstance(value, bytes) and len(value) == LEASE_ID_BYTES:
        return LeaseId(value)
    return None
