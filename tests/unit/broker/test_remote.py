"""Clients and workers on other hosts: which lanes they are told, and what they may ask for."""

from __future__ import annotations

import pytest
from trunkline_broker.core import events
from trunkline_broker.core.specs import AccessSpec
from trunkline_protocol import frames
from trunkline_protocol.frames import Welcome
from trunkline_protocol.ids import Epoch, Generation, QueryId

from tests.support.broker_rig import VERSION, Rig, RigClient, RigWorker, a_pool, only

UNBORN = Generation(Epoch(0), 0)
ACCESS = {
    "narrow": AccessSpec(frozenset({"q"})),
    "chief": AccessSpec(is_admin=True),
}


class RemoteClient(RigClient):
    """A client that came over TCP with a key of some name."""

    def __init__(self, rig: Rig, user: str) -> None:
        super().__init__(rig, rig.number(), pid=None)
        self.user = user
        self.hello()

    def say(self, frame: frames.ClientFrame) -> list[object]:  # type: ignore[override]
        event = events.ClientFrameReceived(self.peer, frame, None, self.user)
        return list(self.rig.tell(event))


def refused(client: RigClient) -> str:
    """Return the code with which the last query was refused."""
    failure = only(client.got(frames.Reply)).failure
    assert failure is not None
    return str(failure["code"])


def a_rig() -> Rig:
    rig = Rig(
        a_pool(),
        a_pool("q"),
        remote_lane="tcp://*:2",
        remote_workers_lane="tcp://*:4",
        attachments_dir="/images",
        access=ACCESS,
    )
    for spawn in rig.spawned():
        rig.a_worker(spawn=spawn)
    return rig


def test_a_client_is_told_the_lane_of_its_transport() -> None:
    rig = a_rig()
    assert only(RemoteClient(rig, "any").got(Welcome)).lane == "tcp://*:2"
    assert only(rig.a_client().got(Welcome)).lane == "ipc://lane"
    in_a_container = RigClient(rig, rig.number(), pid=None)
    in_a_container.hello()
    assert only(in_a_container.got(Welcome)).lane == "ipc://lane"


def test_a_worker_is_told_the_lane_of_its_transport_and_no_directory_of_this_host() -> None:
    rig = a_rig()
    far = RigWorker(rig, "far", 0, UNBORN)
    frame = frames.Register(VERSION, far.pool, 0, UNBORN, 1, role="starting")
    rig.tell(events.WorkerFrameReceived(far.peer, frame, None, "gpu"))
    registered = only(far.got(frames.Registered))
    assert registered.lane == "tcp://*:4"
    assert registered.attachments_dir == ""


def test_a_narrow_key_opens_and_asks_its_routes_alone() -> None:
    client = RemoteClient(a_rig(), "narrow")
    client.open("p")
    assert only(client.got(frames.Failed)).failure["code"] == "FORBIDDEN"
    client.open("q")
    assert only(client.got(frames.Accepted)).pool == "q"
    for op in ("listModels", "providerRetryPolicy", "prepareCall"):
        client.query(op, provider="p")
        assert refused(client) == "FORBIDDEN"
    client.query("listProviders")
    assert [entry["id"] for entry in client.answer()] == ["q"]
    client.query("models")
    assert client.answer() == ["q"]
    client.query("discoverModels", {"settingsNs": "any"})
    assert refused(client) == "FORBIDDEN"


def test_another_table_holds_for_the_next_call_and_lets_the_others_go_on() -> None:
    """For clients that are connected, in both directions, also for who may administer."""
    rig = a_rig()
    narrow, chief, other = (RemoteClient(rig, name) for name in ("narrow", "chief", "other"))
    narrow.open("q")
    running = only(narrow.got(frames.Accepted))
    table = {"narrow": AccessSpec(frozenset({"p"})), "other": AccessSpec(is_admin=True)}
    query = QueryId(b"q" * 16)
    rig.tell(events.ConfigReplaced(rig.spec.pools, chief.peer, query, table))
    assert chief.answer()["clients"] == ["chief", "narrow", "other"]
    narrow.say(frames.Credit(running.call, 0, 0, 0, 0))
    assert not narrow.got(frames.Ended)
    assert not narrow.got(frames.Failed)
    narrow.open("q")
    assert only(narrow.got(frames.Failed)).failure["code"] == "FORBIDDEN"
    narrow.open("p")
    assert only(narrow.got(frames.Accepted)).pool == "p"
    chief.query("status")
    assert refused(chief) == "FORBIDDEN"
    other.query("reload")
    assert not other.got(frames.Reply)
    assert not rig.hub.clients.at(RemoteClient(rig, "chief").peer).access.is_admin
    local = rig.a_client()
    rig.tell(events.ConfigReplaced(rig.spec.pools, local.peer, query, {}))
    assert local.answer()["clients"] == ["narrow", "other"]
    rig.tell(events.ConfigReplaced(rig.spec.pools, local.peer, query))
    assert local.answer()["clients"] == []


@pytest.mark.parametrize("op", ["status", "swap", "stop", "restart", "reload", "drain"])
def test_only_a_key_that_says_so_administers(op: str) -> None:
    rig = a_rig()
    for user in ("other", "narrow", ""):
        client = RemoteClient(rig, user)
        client.query(op)
        assert refused(client) == "FORBIDDEN"
    assert not rig.has_exited()
    assert rig.hub.clients.at(RemoteClient(rig, "chief").peer).access.is_admin


def test_a_client_id_belongs_to_the_key_that_named_it_first() -> None:
    """A HELLO with another key, or with none, would take the control connection of that client."""
    rig = Rig()
    worker = rig.a_worker()
    client = RemoteClient(rig, "alice")
    opened = client.open()
    for user in ("mallory", "", None):
        hello = frames.Hello(VERSION, client.id, 1, "thief")
        rig.tell(events.ClientFrameReceived(b"thief", hello, None, user))
        (refused,) = rig.to(b"thief", frames.Refused)
        assert refused.code == "FORBIDDEN"
    assert rig.count("client_id_of_another_key") == 3
    worker.end(opened)
    assert client.got(frames.Ended)
    client.hello()
    assert client.got(frames.Welcome)
