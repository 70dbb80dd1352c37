"""The status document."""

from __future__ import annotations

import json

from trunkline_broker.core.specs import RestartSpec
from trunkline_protocol import frames

from tests.support.broker_rig import NORMAL, Rig, a_pool, done, only, status_of


def test_an_idle_broker() -> None:
    """It is JSON, and says what starts."""
    status = status_of(Rig(a_pool(replicas=2), a_pool("none", replicas=0)))
    json.dumps(status)
    assert [pool["state"] for pool in status["pools"]] == ["starting", "empty"]
    assert status["pools"][0]["slots"][1]["role"] == "starting"
    assert status["routes"] == []
    assert (status["settling"], status["draining"]) == (False, False)


def test_a_busy_broker() -> None:
    """Calls by state, routes, clients, queues with bound and high-water mark."""
    rig = Rig(a_pool(concurrency=2, queue_size=7))
    worker = rig.a_worker(policy=NORMAL)
    worker.beat(load={"chunks": 1})
    client = rig.a_client()
    retried = client.open(recovery="policy")
    ended = client.open()
    worker.end_with(retried, "SERVER")
    worker.end(ended)
    for _ in range(4):
        client.open()
    client.query("listModels", provider="p")
    rig.now_s += 1.0
    status = status_of(rig)
    json.dumps(status)
    assert status["calls"] == {
        "open": 6,
        "queued": 2,
        "running": 2,
        "backoff": 1,
        "tails": 1,
        "started": 4,
        "ended": 2,
        "failed": 0,
    }
    assert status["routes"] == [
        {
            "provider": "p",
            "name": "P",
            "pool": "p",
            "state": "serving",
            "pausedMs": 0,
            "inFlight": 2,
            "queued": 2,
        }
    ]
    slot = status["pools"][0]["slots"][0]
    assert (slot["inFlight"], slot["held"], slot["load"]) == (2, 3, {"chunks": 1})
    assert slot["startedMsAgo"] == 1000
    row = status["clients"][0]
    assert (row["openCalls"], row["openStreams"], row["openQueries"]) == (6, 3, 1)
    queues = {queue["name"]: queue for queue in status["queues"]}
    assert queues["route p"] == {"name": "route p", "depth": 2, "highWater": 2, "bound": 7}
    assert queues["queued bytes"]["depth"] == 8
    assert queues["queries"]["depth"] == 1
    assert queues["claims"]["bound"] == queues["unsettled calls"]["bound"] == 65_536


def test_what_a_worker_says_of_its_queues_is_shown_as_far_as_it_is_numbers() -> None:
    """It may be an older one, or lie."""
    rig = Rig(a_pool())
    worker = rig.a_worker(policy=NORMAL)
    said = {"keptBytes": 5, "keptHighWater": 9, "keptBound": 20}
    rows: list[dict[str, object]] = []
    for load in ({}, {"queues": 3}, {"queues": {"keptBytes": "x"}}, {"queues": said}):
        worker.beat(load=load)
        rows = [row for row in status_of(rig)["queues"] if row["name"].startswith("worker ")]
        assert rows.pop(0)["name"].endswith(" queries")  # which the broker itself knows
        assert rows.pop(0)["name"].endswith(" unheard bytes")
        assert len(rows) == (load == {"queues": said})
    (row,) = rows
    assert row["name"].endswith(" kept bytes")
    assert (row["depth"], row["highWater"], row["bound"]) == (5, 9, 20)


def test_what_a_client_says_of_its_queues_is_shown_as_far_as_it_is_numbers() -> None:
    """By the name of the client, and not too much of it."""
    rig = Rig(a_pool())
    client = rig.a_client()
    for queues, shown in (
        (None, []),
        ({"chunks": [3, 9, 2048], "x": 7, "y": [1, 2], "z": [1, -2, True]}, [(3, 9, 2048)]),
        ({f"{number}q" * 60: [1, 1, 1] for number in range(99)}, [(1, 1, 1)] * 16),
        (None, [(1, 1, 1)] * 16),  # the last word holds
    ):
        client.say(frames.Restate((), queues))
        rows = [row for row in status_of(rig)["queues"] if row["name"].startswith("client ")]
        assert [(row["depth"], row["highWater"], row["bound"]) for row in rows] == shown
        assert all(row["name"].startswith(f"client {client.id.hex()[:8]} rig ") for row in rows)
        assert all(len(row["name"]) < 100 for row in rows)


def test_tables_have_a_bound_too() -> None:
    rig = Rig(a_pool())
    worker = rig.a_worker()
    clients = [rig.a_client(), rig.a_client()]
    opened = clients[0].open()
    clients[1].die()
    worker.end(opened)
    clients[0].say(done(opened))
    tables = {row["name"]: row for row in status_of(rig)["tables"]}
    assert {name: (row["depth"], row["highWater"]) for name, row in tables.items()} == {
        "calls": (0, 1),
        "clients": (1, 2),
        "workers": (1, 1),
        "suspects": (0, 0),
    }
    assert [row["bound"] for row in tables.values()] == [65_536, 4096, 256, 8192]


def test_routes_that_are_paused_starting_or_down() -> None:
    """Each says what it is, and why."""
    rig = Rig(
        a_pool("p", restart=RestartSpec(1, 60.0, 0.1, 1.0)),
        a_pool("q", providers=("q", "x"), restart=RestartSpec(0, 60.0, 0.1, 1.0)),
        a_pool("r", replicas=2),
    )
    spawns = rig.spawned()
    first = rig.a_worker(spawn=spawns[0])
    second = rig.a_worker(spawn=spawns[1])
    rig.a_worker(spawn=spawns[2])
    client = rig.a_client()
    second.exit("status 1", "boom")
    first.end_with(client.open(), "RATE_LIMIT", providerRetryAfterMs=4000.0)
    states = {row["provider"]: row for row in status_of(rig)["routes"]}
    assert (states["p"]["state"], states["p"]["pausedMs"]) == ("paused", 4000)
    assert states["q"]["state"] == states["x"]["state"] == "down"
    assert "boom" in states["q"]["reason"]
    first.exit()
    rig.now_s += 10.0
    states = {row["provider"]: row for row in status_of(rig)["routes"]}
    assert states["p"]["state"] == "starting"
    pools = {pool["name"]: pool for pool in status_of(rig)["pools"]}
    assert pools["q"]["state"] == "down"
    assert pools["r"]["state"] == "mixed"
    assert pools["p"]["slots"][0]["pid"] is None
    assert pools["q"]["slots"][0]["output"] == ["boom"]


def test_a_draining_worker_is_listed_as_leaving() -> None:
    """With what it still holds; its pool shows the new one."""
    rig = Rig()
    old = rig.a_worker()
    client = rig.a_client()
    client.open()
    client.query("swap", {"pool": "p"})
    assert status_of(rig)["pools"][0]["swapping"]
    new = rig.a_worker(spawn=only(rig.spawned()))
    status = status_of(rig)
    leaving = only(status["leaving"])
    assert (leaving["pid"], leaving["role"], leaving["held"]) == (old.pid, "draining", 1)
    assert status["pools"][0]["slots"][0]["pid"] == new.pid
