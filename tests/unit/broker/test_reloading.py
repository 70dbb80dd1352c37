"""A configuration that was read again."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_broker.core.events import ConfigReplaced
from trunkline_broker.core.specs import PoolSpec
from trunkline_protocol import frames
from trunkline_protocol.ids import Epoch, Generation, QueryId

from tests.support.broker_rig import Rig, RigWorker, a_pool, only


def reload(rig: Rig, *pools: PoolSpec) -> None:
    rig.tell(ConfigReplaced(pools, b"client", QueryId(b"q" * 16)))


def a_rig(**pool: Any) -> tuple[Rig, RigWorker]:
    rig = Rig(a_pool(**pool))
    return rig, rig.a_worker()


def test_a_new_pool_is_started() -> None:
    """The others are left alone."""
    rig, _ = a_rig()
    reload(rig, a_pool(), a_pool("q"))
    assert only(rig.spawned()).pool == "q"
    assert rig.signals() == []


def test_a_removed_pool_drains() -> None:
    """Its routes go at once, its calls go on, and a swap of it is given up."""
    rig, worker = a_rig()
    client = rig.a_client()
    opened = client.open()
    client.query("swap", {"pool": "p"})
    standby = only(rig.spawned())
    reload(rig, a_pool("q"))
    assert only(worker.got(frames.Role)).role == "draining"
    assert client.got(frames.Event)
    assert (standby.generation, "TERM") in rig.signals()
    client.open()
    assert client.failure()["code"] == "NO_ADAPTER"
    worker.end(opened)
    assert client.got(frames.Ended)
    worker.exit()
    rig.wait(50.0)
    assert [spawn.pool for spawn in rig.spawned()] == ["q"] * len(rig.spawned())


def test_a_removed_pool_that_was_starting_is_not_restarted() -> None:
    """Neither its starting worker nor the one that waits to be restarted."""
    rig = Rig(a_pool("p"), a_pool("q"))
    first, second = [rig.spawn(spawn) for spawn in rig.spawned()]
    second.exit()
    reload(rig, a_pool("z"))
    assert (first.generation, "TERM") in rig.signals()
    first.exit()
    rig.wait(5.0)
    assert rig.spawned() == []


def test_bounds_change_without_a_new_process() -> None:
    """The next call meets them."""
    rig, worker = a_rig()
    client = rig.a_client()
    client.open()
    reload(rig, a_pool(concurrency=1))
    assert rig.spawned() == []
    client.open()
    assert only(client.got(frames.Queued)).reason == "concurrency"
    reload(rig, a_pool(concurrency=2))
    assert worker.got(frames.Start)


@pytest.mark.parametrize(
    "told",
    [
        {"options": {"x": 1}},
        {"environment": ("KEY",)},
        {"lease_s": 5.0},
        {"memory_limit_mib": 512},
        {"open_files_limit": 64},
        {"debug_prompts": True},
    ],
)
def test_what_a_process_is_told_at_its_start_needs_a_new_one(told: dict[str, Any]) -> None:
    """It starts beside the old one."""
    rig, _ = a_rig()
    reload(rig, a_pool(**told))
    assert only(rig.spawned()).standby


def test_keys_that_only_another_broker_obeys_are_told() -> None:
    rig, _ = a_rig()
    client = rig.a_client()
    query = QueryId(b"q" * 16)
    rig.tell(ConfigReplaced((a_pool(),), client.peer, query, restart=("metrics",)))
    answer = client.answer()
    assert (answer["unchanged"], answer["restart"]) == (["p"], ["metrics"])


def test_more_and_fewer_replicas() -> None:
    """New slots are filled, the last ones drain; manual workers stay."""
    rig, worker = a_rig()
    reload(rig, a_pool(replicas=2))
    second = rig.a_worker(spawn=only(rig.spawned()))
    manual = RigWorker(rig, "p", 0, Generation(Epoch(0), 0))
    manual.register()
    manual.ready("p")
    reload(rig, a_pool(replicas=1))
    assert only(second.got(frames.Role)).role == "draining"
    assert worker.got(frames.Role) == []
    assert manual.got(frames.Role) == []


def test_a_pool_that_manual_workers_made_may_become_configured() -> None:
    """Its slot is filled beside them."""
    rig, _ = a_rig()
    manual = RigWorker(rig, "m", 0, Generation(Epoch(0), 0))
    manual.register()
    manual.ready("m")
    reload(rig, a_pool(), a_pool("m", replicas=2))
    spawn = only(rig.spawned())
    assert (spawn.pool, spawn.slot) == ("m", 1)
    pool = rig.hub.pools.get(spawn.pool)
    assert pool is not None
    assert pool.is_configured


def test_a_pool_whose_swap_runs_already_is_reported() -> None:
    """The running swap goes on with what it began with."""
    rig, _ = a_rig()
    client = rig.a_client()
    client.query("swap", {"pool": "p"})
    rig.tell(ConfigReplaced((a_pool(python="other"),), client.peer, QueryId(b"q" * 16)))
    assert client.answer()["code"] == "RELOAD_FAILED"
    assert "under way" in client.answer()["message"]


def test_the_answer_comes_after_the_last_swap() -> None:
    """Pools are exchanged at the same time."""
    rig = Rig(a_pool("p"), a_pool("q"))
    for spawn in rig.spawned():
        rig.a_worker(spawn=spawn)
    client = rig.a_client()
    fresh = (a_pool("p", python="x"), a_pool("q", python="x"))
    rig.tell(ConfigReplaced(fresh, client.peer, QueryId(b"q" * 16)))
    first, second = rig.spawned()
    rig.a_worker(spawn=first)
    assert client.got(frames.Reply) == []
    rig.a_worker(spawn=second)
    assert client.answer()["changed"] == ["p", "q"]


def test_a_pool_whose_new_version_fails_is_what_it_was() -> None:
    """Its next worker is of the old version again."""
    rig, worker = a_rig()
    reload(rig, a_pool(python="broken"))
    rig.spawn(only(rig.spawned())).exit("status 1")
    worker.exit()
    rig.wait(0.3)
    assert only(rig.spawned()).spec.python == ""


def test_a_reload_ends_every_pause_and_starts_what_waited() -> None:
    """Also where nothing else changes: it is the operator's way to say that a wish is over."""
    rig, worker = a_rig()
    client = rig.a_client()
    worker.end_with(client.open(), "RATE_LIMIT", providerRetryAfterMs=4000.0)
    waiting = client.open()
    assert only(client.got(frames.Queued)).reason == "paused"
    worker.got(frames.Start)
    reload(rig, a_pool())
    assert only(worker.got(frames.Start)).call == waiting.call
    rig.wait(10.0)  # the deadline of the pause is gone with it
