"""What an older broker has left: its workers, its clients and the words they come with."""

from __future__ import annotations

from typing import Any

from trunkline_broker.core.specs import AliveWorker
from trunkline_protocol.ids import Epoch, Generation, PoolName, StreamKey
from trunkline_protocol.secret import SecretBytes

from tests.support.broker_rig import Rig, RigClient, RigWorker

OLD = Generation(Epoch(900), 3)
OLDER = Generation(Epoch(900), 2)
KEY = StreamKey(b"12345678")
TOKEN = b"t" * 32


def alive(generation: Generation = OLD, pool: str = "p", **fields: Any) -> AliveWorker:
    values: dict[str, Any] = {"slot": 0, "pid": 70_000, "token": SecretBytes(TOKEN), **fields}
    return AliveWorker(pool=PoolName(pool), generation=generation, **values)


def an_old_worker(rig: Rig, generation: Generation = OLD, pool: str = "p") -> RigWorker:
    """Return a worker of the older broker that has not registered yet."""
    return RigWorker(rig, pool, 0, generation, TOKEN)


def a_client(rig: Rig) -> RigClient:
    """Return a client that has not said HELLO yet."""
    return RigClient(rig, rig.number())
