"""The table of a worker, and workers by generation and connection."""

from __future__ import annotations

import itertools

import pytest
from trunkline_broker.core.workers import Worker, Workers, WorkerState
from trunkline_protocol.ids import Epoch, Generation
from trunkline_protocol.secret import SecretBytes

from tests.support.broker_rig import a_pool

S = WorkerState
LEGAL = {
    (S.STARTING, S.STANDBY),
    (S.STARTING, S.SERVING),
    (S.STARTING, S.DRAINING),
    (S.STARTING, S.STOPPING),
    (S.STANDBY, S.SERVING),
    (S.STANDBY, S.DRAINING),
    (S.STANDBY, S.STOPPING),
    (S.SERVING, S.DRAINING),
    (S.SERVING, S.STOPPING),
    (S.DRAINING, S.STOPPING),
}


def a_worker(number: int = 1) -> Worker:
    return Worker(Generation(Epoch(1), number), a_pool(), 0, SecretBytes(b"secret-token"), 0.0)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(S, S)))
def test_every_pair_of_states(before: WorkerState, after: WorkerState) -> None:
    """A change is in the table or a defect of ours."""
    worker = a_worker()
    worker.state = before
    if (before, after) in LEGAL:
        worker.enter(after)
        assert worker.state is after
    else:
        with pytest.raises(AssertionError):
            worker.enter(after)
        assert worker.state is before


def test_a_token_is_not_shown() -> None:
    """Not in a log line, not in a crash."""
    assert "secret" not in repr(a_worker())


def test_workers_by_connection() -> None:
    """A worker moves between connections; one connection speaks for one worker."""
    workers = Workers()
    one, two = a_worker(1), a_worker(2)
    for worker in (one, two):
        workers.add(worker)
    workers.bind(one, b"1")
    workers.bind(one, b"2")
    assert workers.at(b"1") is None
    assert workers.at(b"2") is one
    workers.bind(two, b"2")
    assert one.peer is None
    assert workers.disconnect(b"2") is two
    assert workers.disconnect(b"2") is None
    workers.bind(two, b"3")
    workers.bind(two, b"3")
    workers.remove(two)
    assert workers.at(b"3") is None
    workers.remove(one)
    assert len(workers) == 0
    assert workers.get(one.generation) is None
    assert workers.get(None) is None
    assert list(workers) == []
    assert not one.is_ready()
    assert one.is_drained()
    assert one.pool == "p"
