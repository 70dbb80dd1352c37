"""Clients by id, connection and process."""

from __future__ import annotations

from trunkline_broker.core.clients import GONE_GRACE_S, REMOTE_GRACE_S, Clients
from trunkline_protocol.ids import ClientId

A, B = ClientId(b"a" * 16), ClientId(b"b" * 16)


def test_a_client_moves_between_connections() -> None:
    """The older connection is forgotten, and says nothing any more."""
    clients = Clients()
    client = clients.greet(A, b"1", 7, "name")
    assert clients.at(b"1") is client
    assert clients.greet(A, b"2", 7, "name") is client
    assert clients.at(b"1") is None
    assert clients.disconnect(b"1") is None
    assert clients.disconnect(b"2") is client
    assert client.peer is None
    assert list(clients) == [client]


def test_one_connection_speaks_for_one_client() -> None:
    """For the one it named last."""
    clients = Clients()
    first = clients.greet(A, b"1", 7, "")
    second = clients.greet(B, b"1", 7, "")
    assert first.peer is None
    assert clients.at(b"1") is second


def test_a_process_may_have_several_clients() -> None:
    """It is watched as long as one is left; a client may change its process."""
    clients = Clients()
    first, second = clients.greet(A, b"1", 7, ""), clients.greet(B, b"2", 7, "")
    assert clients.exited(7) == [first, second] or set(clients.exited(7)) == {first, second}
    assert clients.exited(8) == []
    clients.greet(A, b"1", 8, "")
    assert not first.is_pid_gone
    assert clients.is_watched(7)
    clients.remove(second)
    assert not clients.is_watched(7)
    assert clients.is_watched(8)
    clients.disconnect(b"1")
    clients.remove(first)
    assert len(clients) == 0
    assert clients.get(A) is None
    assert clients.get(None) is None


def test_how_long_a_client_may_be_away() -> None:
    """For ever while it is connected; not at all once it is closed and gone."""
    clients = Clients()
    client = clients.greet(A, b"1", 7, "")
    assert client.grace_s(30.0) is None
    clients.disconnect(b"1")
    assert client.grace_s(30.0) == 30.0
    clients.exited(7)
    assert client.grace_s(30.0) == 0.0
    clients.greet(A, b"1", 7, "")
    clients.exited(7)
    assert client.grace_s(30.0) == GONE_GRACE_S
    remote = clients.greet(B, b"2", None, "")
    clients.disconnect(b"2")
    assert remote.grace_s(30.0) == REMOTE_GRACE_S
    unseen = clients.ensure(ClientId(b"c" * 16))
    assert unseen.grace_s(30.0) == 30.0
    clients.remove(unseen)
