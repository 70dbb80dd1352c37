"""Queries that the broker answers itself."""

from __future__ import annotations

import pytest
from trunkline_broker.core.effects import LoadConfig, SendStatus
from trunkline_broker.core.events import ConfigRejected, ConfigReplaced
from trunkline_broker.core.specs import AliveWorker
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation, PoolName, QueryId
from trunkline_protocol.retry_policy import DEFAULT_RETRY_POLICY

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, only

OLD = Generation(Epoch(900), 1)


def a_rig() -> tuple[Rig, RigClient]:
    rig = Rig(a_pool(), a_pool("q"))
    spawns = rig.spawned()
    rig.a_worker(spawn=spawns[0], policy=NORMAL)
    rig.a_worker("q", "r", spawn=spawns[1])
    return rig, rig.a_client()


def test_lists_of_the_registry() -> None:
    """In the order of registration."""
    _, client = a_rig()
    client.query("listProviders")
    assert client.answer() == [{"id": name, "name": name.upper()} for name in ("p", "q", "r")]
    client.query("models")
    assert client.answer() == ["p", "q", "r"]
    client.query("listConfigurableProviders")
    assert client.answer() == []
    client.query("listModelDiscoveryNamespaces")
    assert client.answer() == []


def test_the_retry_policy_is_the_captured_one() -> None:
    """With the defaults where the adapter has none."""
    _, client = a_rig()
    client.query("providerRetryPolicy", provider="p")
    assert client.answer() == NORMAL
    client.query("providerRetryPolicy", provider="q")
    assert client.answer() == DEFAULT_RETRY_POLICY.to_dict()
    client.query("providerRetryPolicy", provider="nobody")
    assert client.answer()["code"] == "NO_ADAPTER"


def test_unknown_queries_and_bad_arguments() -> None:
    """Each has one answer."""
    _, client = a_rig()
    client.query("fly")
    assert client.answer()["code"] == "UNSUPPORTED"
    client.query("swap", [1])
    assert client.answer()["code"] == "INVALID_REQUEST"
    client.say(frames.Query(QueryId(b"q" * 16), "swap", body=b"\xc1"))
    assert client.answer()["code"] == "INVALID_REQUEST"
    client.query("swap")
    assert client.answer()["code"] == "INVALID_REQUEST"
    client.query("drain", {"pool": "nobody"})
    assert client.answer()["code"] == "UNKNOWN_POOL"
    for drain in (-1, "x", True, 1e9, float("nan")):
        client.query("stop", {"drainS": drain})
        assert client.answer()["code"] == "INVALID_REQUEST"


def test_a_stop_without_a_time_takes_the_configured_one() -> None:
    """Running calls get it, and whoever asked is told how long that may take."""
    rig = Rig(a_pool(), drain_s=7.0)
    worker = rig.a_worker()
    client = rig.a_client()
    client.open()
    client.query("stop")
    assert client.answer() == {"drainS": 7.0}
    rig.live(6.9, worker)
    assert client.got(frames.Failed) == []
    rig.live(0.2, worker)
    assert only(client.got(frames.Failed)).failure["code"] == "TRANSPORT"


def test_the_status_is_completed_by_the_shell() -> None:
    """The core only asks for it."""
    rig, client = a_rig()
    query = client.query("status")
    assert rig.of(SendStatus) == [SendStatus(client.peer, query.query)]


def test_lists_wait_until_the_registry_is_known() -> None:
    """After a restart an empty list would be a lie; bounded, and the status does not wait."""
    hint = AliveWorker(PoolName("p"), 0, OLD, 5)
    rig = Rig(alive=(hint,), max_clients=2)
    client = rig.a_client()
    client.query("models")
    client.query("models")
    assert client.got(frames.Reply) == []
    client.query("models")
    assert client.answer()["code"] == "OVERLOADED"
    client.query("status")
    assert rig.of(SendStatus)
    client.query("swap", {"pool": "p"})
    assert client.answer()["code"] == "SWAP_FAILED"
    worker = RigWorker(rig, "p", 0, OLD)
    worker.register("serving")
    worker.ready("p")
    assert len(client.got(frames.Reply)) == 2


def test_stop_and_restart_are_answered_first() -> None:
    """Then they are done."""
    rig, client = a_rig()
    client.query("stop")
    assert client.answer() == {"drainS": 30.0}
    assert client.got(frames.Stopping)
    assert len(rig.signals()) == 2
    rig, client = a_rig()
    client.query("restart")
    assert client.answer() is None
    assert rig.has_exited()
    assert rig.signals() == []


@pytest.mark.parametrize("path", ["", "/etc/other.toml"])
def test_reload_asks_the_shell_and_answers_when_all_is_in_force(path: str) -> None:
    """Or says why nothing changed."""
    rig, client = a_rig()
    query = client.query("reload", {"config": path} if path else None)
    assert rig.of(LoadConfig) == [LoadConfig(client.peer, query.query, path)]
    rig.tell(ConfigRejected(client.peer, query.query, "line 3: unknown key"))
    assert client.answer() == {"message": "line 3: unknown key", "code": "RELOAD_FAILED"}
    rig.tell(ConfigReplaced(rig.spec.pools, client.peer, query.query))
    assert client.answer()["unchanged"] == ["p", "q"]
    changed = (a_pool(options={"x": 1}), a_pool("q"))
    rig.tell(ConfigReplaced(changed, client.peer, query.query))
    assert client.got(frames.Reply) == []
    new = rig.a_worker(spawn=only(rig.spawned()))
    assert client.answer()["changed"] == ["p"]
    assert client.answer()["swapped"][0]["slots"][0]["newPid"] == new.pid
    rig.tell(ConfigReplaced(rig.spec.pools, client.peer, query.query))
    rig.spawn(only(rig.spawned())).exit("status 1", "no such model")
    assert client.answer()["code"] == "RELOAD_FAILED"
    assert "no such model" in client.answer()["message"]


def test_a_reload_by_signal_has_nobody_to_answer() -> None:
    """It is only logged."""
    rig, client = a_rig()
    rig.tell(ConfigReplaced(rig.spec.pools))
    assert client.got(frames.Reply) == []


def test_a_query_without_a_connection_is_a_defect() -> None:
    """Frames come on connections."""
    rig, client = a_rig()
    known = rig.hub.clients.at(client.peer)
    assert known is not None
    known.peer = None
    rig.hub.out = []
    query = frames.Query(QueryId(b"q" * 16), "models")
    with pytest.raises(AssertionError):
        rig.broker._answers.on_query(known, query, 0.0)
    rig.broker._answers.unknown(known, query)
    assert not rig.hub.out
