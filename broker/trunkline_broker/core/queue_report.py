"""Every queue and table that others can fill, as rows of the status document.

Queues are empty when nobody wants anything; tables hold what there is.

Each row has depth, high-water mark and bound; docs/operating.md has the table of them all, with the
rule that holds at each bound. What clients and workers say of their own queues comes from them, so
it is checked to be numbers and believed no further.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from trunkline_protocol.limits import MAX_BODY_BYTES

from trunkline_broker.core.answers import Answers
from trunkline_broker.core.clients import Client, figures_of
from trunkline_broker.core.hub import Hub
from trunkline_broker.core.questions import Questions
from trunkline_broker.core.suspicion import MAX_SUSPECTS
from trunkline_broker.core.uploads import MAX_HELD, Uploads
from trunkline_broker.core.workers import Worker

Row = dict[str, object]


def queues(hub: Hub, questions: Questions, answers: Answers, uploads: Uploads) -> list[Row]:
    """Return a row for each queue of the broker's core, of its workers and of its clients."""
    spec = hub.spec
    return [
        *(_row(f"route {key}", len(g), g.high_water, g.bound) for key, g in hub.gates),
        _row("queued bytes", hub.queued_bytes, hub.queued_bytes_high_water, spec.queue_bytes),
        _row(
            "queries",
            len(questions),
            questions.high_water,
            spec.max_clients * spec.max_queries_per_client,
        ),
        _row("held queries", answers.held_count, answers.held_high_water, spec.max_clients),
        _row("held uploads", uploads.held_count, uploads.held_high_water, MAX_HELD),
        _row("claims", len(hub.claims), hub.claims_high_water, spec.max_calls),
        _row("unsettled calls", len(hub.unsettled), hub.unsettled_high_water, spec.max_calls),
        *(row for worker in hub.workers for row in _of_worker(hub, worker)),
        *(row for client in hub.clients for row in _of_client(client)),
    ]


def tables(hub: Hub) -> list[Row]:
    """Return a row for each table of the broker's core."""
    spec = hub.spec
    return [
        _row("calls", len(hub.calls), hub.calls.high_water, spec.max_calls),
        _row("clients", len(hub.clients), hub.clients.high_water, spec.max_clients),
        _row("workers", len(hub.workers), hub.workers.high_water, spec.max_workers),
        _row("suspects", len(hub.suspicion), hub.suspicion.high_water, MAX_SUSPECTS),
    ]


def _row(name: str, depth: int, high_water: int, bound: int) -> Row:
    return {"name": name, "depth": depth, "highWater": high_water, "bound": bound}


def _of_worker(hub: Hub, worker: Worker) -> Iterator[Row]:
    """Return what is known of a worker's queues, and what it said with its last heartbeat."""
    name = f"worker {worker.pool}/{worker.slot} pid {worker.pid}"
    most = hub.spec.max_queries_per_worker
    yield _row(f"{name} queries", len(worker.queries), worker.queries_high_water, most)
    most_bytes = hub.spec.queue_bytes + MAX_BODY_BYTES  # the last one may pass the line
    unheard = (worker.unheard_bytes, worker.unheard_high_water, most_bytes)
    yield _row(f"{name} unheard bytes", *unheard)
    given = worker.load.get("queues")
    said: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    for key, what, text in (
        ("kept", "Bytes", "kept bytes"),
        ("waiting", "Items", "waiting items"),
        ("calls", "Count", "calls"),
        ("leases", "Count", "leases"),
    ):
        figures = figures_of([said.get(f"{key}{each}") for each in (what, "HighWater", "Bound")])
        if figures is not None:
            yield _row(f"{name} {text}", *figures)


def _of_client(client: Client) -> Iterator[Row]:
    """Return what a client said of its queues when its calls were last quiet."""
    name = f"client {client.id.hex()[:8]} {client.name}".rstrip()
    for key, figures in client.queues.items():
        yield _row(f"{name} {key}", *figures)
