"""Hot swap: a new generation serves before the old one goes."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.events import ConfigRejected, ConfigReplaced, SpawnFailed
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation, RouteName

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, only


def a_rig(**pool: Any) -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(a_pool(**pool))
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def begin(client: RigClient) -> RigWorker:
    """Ask for a swap and return the new process, which has not registered."""
    client.query("swap", {"pool": "p"})
    spawn = only(client.rig.spawned())
    assert spawn.standby
    return client.rig.spawn(spawn)


def test_routes_flip_in_one_step_and_the_old_worker_drains() -> None:
    """Streams go on; the old worker leaves when its last client is done."""
    rig, client, old = a_rig()
    opened = client.open()
    new = begin(client)
    new.register()
    assert client.open()
    assert old.got(frames.Start)
    new.ready("p")
    assert only(new.got(frames.Role)).role == "serving"
    assert only(old.got(frames.Role)).role == "draining"
    assert client.got(frames.Event) == [frames.Event("adapters-updated")]
    assert client.answer() == {
        "pool": "p",
        "slots": [
            {
                "slot": 0,
                "oldPid": old.pid,
                "newPid": new.pid,
                "oldGeneration": list(old.generation),
                "newGeneration": list(new.generation),
                "aliveCalls": 2,
            }
        ],
        "routesLost": [],
    }
    client.open()
    assert new.got(frames.Start)
    second = next(call for call in rig.hub.calls if call.worker == old.generation)
    client.say(frames.Credit(opened.call, 0, 1, 1, 1))
    assert old.got(frames.Credit)
    old.end(opened)
    assert old.got(frames.Bye) == []
    client.say(done(opened))
    rest = next(c for c in rig.hub.calls if c.worker == old.generation)
    assert rest is not second or rest.id != opened.call
    old.say(frames.Ended(rest.id, 0, 1, {"kind": "stop"}))
    client.say(frames.Done((frames.CallRef(rest.id, 0),)))
    assert old.got(frames.Bye)
    assert rig.signals() == [(old.generation, "TERM")]
    old.exit("status 0")
    assert rig.spawned() == []
    rig.check()


def test_routes_that_the_new_worker_lacks_go_down() -> None:
    """And the answer says so."""
    rig = Rig(a_pool(providers=("a", "b")))
    rig.a_worker("a", "b")
    client = rig.a_client()
    new = begin(client)
    new.register()
    new.ready("b", "c")
    assert client.answer()["routesLost"] == ["a"]
    client.query("models")
    assert client.answer() == ["b", "c"]


@pytest.mark.parametrize("how", ["exit", "refused", "timeout", "spawn"])
def test_if_the_new_worker_does_not_come_the_old_one_keeps_serving(how: str) -> None:
    """The answer says why; nothing is restarted for it."""
    rig, client, old = a_rig(start_timeout_s=3.0, stop_s=1.0)
    client.query("swap", {"pool": "p"})
    spawn = only(rig.spawned())
    if how == "spawn":
        rig.tell(SpawnFailed(spawn.pool, spawn.slot, spawn.generation, "no such file"))
        assert "no such file" in client.answer()["message"]
    else:
        new = rig.spawn(spawn)
        new.register()
        if how == "exit":
            new.exit("status 1", "Traceback", "ImportError: nope")
        elif how == "refused":
            new.ready("", "p")
            assert client.answer()["code"] == "SWAP_FAILED"
            assert "INVALID_ADAPTER" in client.answer()["message"]
            assert rig.signals() == [(new.generation, "TERM")]
            new.exit("status 3")
        else:
            rig.live(3.0, old)
            assert (new.generation, "TERM") in rig.signals()
            rig.live(1.0, old)
            assert (new.generation, "KILL") in rig.signals()
            new.exit("signal 9")
        if how == "exit":
            assert "ImportError: nope" in client.answer()["message"]
        if how == "timeout":
            assert "not ready within 3 s" in client.answer()["message"]
    assert rig.spawned() == []
    client.open()
    assert old.got(frames.Start)
    client.query("swap", {"pool": "p"})
    assert rig.spawned()


def test_a_swap_while_a_swap_runs_is_refused() -> None:
    """As are pools that are unknown or manual, and no pool at all."""
    rig, client, _ = a_rig()
    begin(client)
    client.query("swap", {"pool": "p"})
    assert client.answer()["code"] == "SWAP_RUNNING"
    client.query("swap", {"pool": "nobody"})
    assert client.answer()["code"] == "UNKNOWN_POOL"
    client.query("swap", {"pool": 1})
    assert client.answer()["code"] == "INVALID_REQUEST"
    rig.hub.pools.add(a_pool("m"), is_configured=False)
    client.query("swap", {"pool": "m"})
    assert client.answer()["code"] == "SWAP_FAILED"


def test_replicas_are_exchanged_one_after_the_other() -> None:
    """The answer comes after the last."""
    rig = Rig(a_pool(replicas=2))
    for spawn in rig.spawned():
        rig.a_worker(spawn=spawn)
    client = rig.a_client()
    first = begin(client)
    first.register()
    first.ready("p")
    assert client.got(frames.Reply) == []
    second = rig.spawn(only(rig.spawned()))
    second.register()
    second.ready("p")
    assert [slot["slot"] for slot in client.answer()["slots"]] == [0, 1]
    assert client.answer()["slots"][0]["aliveCalls"] == 0


def test_the_standby_takes_over_where_the_old_worker_died() -> None:
    """Nothing else is started meanwhile, and calls wait."""
    rig, client, old = a_rig()
    new = begin(client)
    old.exit()
    assert rig.spawned() == []
    client.open()
    assert client.got(frames.Queued)
    rig.wait(1.0)
    assert rig.spawned() == []
    new.register()
    new.ready("p")
    assert new.got(frames.Start)
    assert client.answer()["slots"][0]["oldPid"] is None


def test_if_both_die_the_slot_starts_again() -> None:
    """By the ordinary rule."""
    rig, client, old = a_rig()
    new = begin(client)
    old.exit()
    new.exit()
    assert client.answer()["code"] == "SWAP_FAILED"
    rig.wait(0.3)
    assert not only(rig.spawned()).standby


def test_a_swap_revives_a_slot_that_is_down() -> None:
    """Also one whose worker is still starting: the faster one serves."""
    rig = Rig()
    client = rig.a_client()
    client.query("swap", {"pool": "p"})
    new = rig.spawn(only(rig.spawned()))
    new.register()
    new.ready("p")
    assert client.answer()["slots"][0]["oldPid"] is None
    assert [name for _, name in rig.signals()] == ["TERM"]
    client.query("drain", {"pool": "p"})
    client.open()
    assert client.failure()["code"] == "NO_ADAPTER"
    client.query("swap", {"pool": "p"})
    newer = rig.spawn(only(rig.spawned()))
    newer.register()
    newer.ready("p")
    client.open()
    assert newer.got(frames.Start)


def test_draining_a_pool_gives_up_its_swap() -> None:
    """The standby leaves, and whoever asked hears it."""
    rig, client, _ = a_rig()
    new = begin(client)
    client.query("drain", {"pool": "p"})
    codes = [reply.failure["code"] for reply in client.got(frames.Reply) if reply.failure]
    assert codes == ["SWAP_FAILED"]
    assert (new.generation, "TERM") in rig.signals()


def test_the_drain_deadline_ends_what_is_left() -> None:
    """Calls that the old worker still runs end with TRANSPORT."""
    rig, client, old = a_rig(drain_s=10.0, stop_s=1.0)
    client.open()
    new = begin(client)
    new.register()
    new.ready("p")
    rig.live(10.0, old, new)
    assert client.failure()["code"] == "TRANSPORT"
    assert "10 s" in client.failure()["message"]
    assert (old.generation, "TERM") in rig.signals()
    rig.live(1.0, new)
    assert (old.generation, "KILL") in rig.signals()
    rig.live(6.0, new)
    assert [worker.generation for worker in rig.hub.workers] == [new.generation]


def test_a_swap_to_another_interpreter() -> None:
    """Workers that are started later use it too."""
    rig, client, _ = a_rig()
    client.query("swap", {"pool": "p", "python": "/venv/bin/python"})
    new = rig.a_worker(spawn=only(rig.spawned()))
    assert new.got(frames.Start) == []
    new.exit()
    rig.wait(0.3)
    assert only(rig.spawned()).spec.python == "/venv/bin/python"


def test_a_failed_swap_leaves_the_pool_what_it_was() -> None:
    """A worker that dies afterwards is replaced by one of the old version."""
    rig, client, old = a_rig()
    client.query("swap", {"pool": "p", "python": "broken"})
    rig.spawn(only(rig.spawned())).exit("status 1")
    assert client.answer()["code"] == "SWAP_FAILED"
    old.exit()
    rig.wait(0.3)
    assert only(rig.spawned()).spec.python == ""


def two_of_three(client: RigClient) -> RigWorker:
    """Swap a pool of three to a broken version of which two get ready; return the third."""
    rig = client.rig
    client.query("swap", {"pool": "p", "python": "broken"})
    for _ in range(2):
        rig.a_worker(spawn=only(rig.spawned()))
    return rig.spawn(only(rig.spawned()))


def three() -> tuple[Rig, RigClient]:
    rig = Rig(a_pool(replicas=3))
    for spawn in rig.spawned():
        rig.a_worker(spawn=spawn)
    return rig, rig.a_client()


def test_slots_exchanged_before_the_failure_are_set_back() -> None:
    """One after the other; the answer comes when all are the old version again."""
    rig, client = three()
    two_of_three(client).exit("status 1", "ImportError: nope")
    for number in range(2):
        assert client.got(frames.Reply) == []
        spawn = only(rig.spawned())
        assert (spawn.slot, spawn.spec.python, spawn.standby) == (number, "", True)
        rig.a_worker(spawn=spawn)
    assert "ImportError: nope" in client.answer()["message"]
    assert "all slots are set back" in client.answer()["message"]
    assert rig.spawned() == []
    rig.check()


def test_a_slot_that_can_not_be_set_back_is_told() -> None:
    """It serves what it has; nothing else is tried."""
    rig, client = three()
    two_of_three(client).exit("status 1")
    rig.spawn(only(rig.spawned())).exit("status 7")
    assert "can't be set back" in client.answer()["message"]
    assert "status 7" in client.answer()["message"]
    assert rig.spawned() == []


def test_a_pool_shrinks_after_its_swap_and_grows_back_if_that_fails() -> None:
    """Capacity is given up when the new version has proven itself."""
    rig, client = three()
    manual = RigWorker(rig, "p", 0, Generation(Epoch(0), 0))
    manual.register()
    manual.ready("p")
    query = client.query("swap", {"pool": "p", "config": "/x.toml"})
    rig.tell(ConfigReplaced((a_pool(replicas=1, python="n"),), client.peer, query.query))
    rig.spawn(only(rig.spawned())).exit("status 1")
    assert len(list(rig.hub.workers)) == 4
    assert client.answer()["code"] == "SWAP_FAILED"
    query = client.query("swap", {"pool": "p", "config": "/x.toml"})
    rig.tell(ConfigReplaced((a_pool(replicas=1, python="n"),), client.peer, query.query))
    rig.a_worker(spawn=only(rig.spawned()))
    assert [worker.generation.number for worker in rig.hub.workers if worker.is_exit_asked]
    pool = only(list(rig.hub.pools))
    assert list(pool.slots) == [0, 3]  # the manual one stays


def test_a_pool_that_grew_for_a_failed_swap_is_trimmed() -> None:
    """The slot that never served is gone."""
    rig, client, _ = a_rig()
    query = client.query("swap", {"pool": "p", "config": "/x.toml"})
    rig.tell(ConfigReplaced((a_pool(replicas=2, python="n"),), client.peer, query.query))
    rig.a_worker(spawn=only(rig.spawned()))
    rig.spawn(only(rig.spawned())).exit("status 1")
    rig.a_worker(spawn=only(rig.spawned()))
    assert "all slots are set back" in client.answer()["message"]
    assert list(only(list(rig.hub.pools)).slots) == [0]
    rig.wait(0.3)
    assert rig.spawned() == []


def test_a_swap_to_a_file_that_is_wrong_or_lacks_the_pool() -> None:
    """Nothing changes, and the answer says why."""
    rig, client, _ = a_rig()
    query = client.query("swap", {"pool": "p", "config": "/x.toml", "python": "n"})
    rig.tell(ConfigRejected(client.peer, query.query, "line 1: what?"))
    assert client.answer() == {"message": "line 1: what?", "code": "SWAP_FAILED"}
    query = client.query("swap", {"pool": "p", "config": "/x.toml"})
    rig.tell(ConfigReplaced((a_pool("q"),), client.peer, query.query))
    assert client.answer()["code"] == "UNKNOWN_POOL"
    begin(client)
    query = client.query("swap", {"pool": "p", "config": "/x.toml"})
    rig.tell(ConfigReplaced((a_pool(),), client.peer, query.query))
    assert client.answer()["code"] == "SWAP_RUNNING"


@pytest.mark.parametrize("wished_ms", [60_000.0, 1e300, 2**63 - 1])
def test_a_swap_ends_the_pause_that_a_provider_asked_for(wished_ms: float) -> None:
    """The new worker may have another key; a pause is never longer than an hour."""
    _, client, old = a_rig()
    old.end_with(client.open(), "RATE_LIMIT", providerRetryAfterMs=wished_ms)
    client.open()
    refused = client.failure()
    assert refused["code"] == "RATE_LIMIT"
    assert refused["providerRetryAfterMs"] <= 3_600_000
    new = begin(client)
    new.register()
    new.ready("p")
    opened = client.open()
    assert only(new.got(frames.Start)).call == opened.call


def test_a_failed_swap_and_a_drained_worker_change_no_pause() -> None:
    """What was replaced may be over its quota while the new worker is not."""
    rig, client, old = a_rig()
    running = client.open()
    begin(client).exit()
    old.end_with(client.open(), "RATE_LIMIT", providerRetryAfterMs=4000.0)
    assert rig.hub.gates.at(RouteName("p")).is_paused(rig.now_s)
    new = begin(client)
    new.register()
    new.ready("p")
    assert not rig.hub.gates.at(RouteName("p")).is_paused(rig.now_s)
    old.end_with(running, "RATE_LIMIT", providerRetryAfterMs=4000.0)
    assert not rig.hub.gates.at(RouteName("p")).is_paused(rig.now_s)
