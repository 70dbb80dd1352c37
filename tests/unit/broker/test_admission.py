"""Gates and their fair queues."""

from __future__ import annotations

from trunkline_broker.core.admission import FairQueue, Gate, Gates
from trunkline_protocol.ids import CallId, ClientId, RouteName


def call(number: int) -> CallId:
    return CallId(number.to_bytes(16, "big"))


A, B = ClientId(b"a" * 16), ClientId(b"b" * 16)
ROUTE = RouteName("r")


def test_clients_take_turns() -> None:
    """A client with many calls does not hold up one with few."""
    queue = FairQueue()
    for number in (1, 2, 3):
        queue.put(A, call(number))
    queue.put(B, call(9))
    assert len(queue) == 4
    assert list(queue) == [call(1), call(2), call(3), call(9)]
    assert queue.peek() == call(1)
    assert [queue.take() for _ in range(4)] == [call(1), call(9), call(2), call(3)]
    assert queue.peek() is None
    assert len(queue) == 0


def test_a_call_leaves_the_queue() -> None:
    """A client whose last call left has no turn any more."""
    queue = FairQueue()
    queue.put(A, call(1))
    queue.put(A, call(2))
    queue.put(B, call(3))
    queue.remove(A, call(1))
    queue.remove(A, call(2))
    assert queue.peek() == call(3)
    assert len(queue) == 1


def test_a_gate_has_places_pauses_and_a_bound() -> None:
    """Nothing but the limits it is told decides."""
    gate = Gate()
    assert gate.has_place(None)
    assert gate.has_place(1)
    gate.running = 1
    assert not gate.has_place(1)
    assert gate.put(A, call(1), 1)
    assert not gate.put(A, call(2), 1)
    assert (gate.high_water, gate.bound) == (1, 1)
    gate.paused_until_s = 5.0
    assert gate.is_paused(4.0)
    assert not gate.is_paused(5.0)
    gate.closed_until_s = 7.0
    assert gate.is_paused(6.0)
    gate.end_pause()
    assert not gate.is_paused(0.0)
    assert not gate.is_idle()


def test_gates_that_say_nothing_are_forgotten() -> None:
    """A client may name any route; that leaves nothing behind."""
    gates = Gates()
    gate = gates.at(ROUTE)
    assert gates.at(ROUTE) is gate
    gate.put(A, call(1), 10)
    gates.at(RouteName("other"))
    assert gates.waiting() == [ROUTE]
    gates.tidy(ROUTE)
    assert gates.at(ROUTE) is gate
    gate.queue.take()
    gates.tidy(ROUTE)
    gates.tidy(RouteName("other"))
    gates.tidy(RouteName("unknown"))
    assert list(gates) == []
