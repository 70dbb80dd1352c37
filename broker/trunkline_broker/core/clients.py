"""Who the clients are: ids, connections, processes, and when one counts as dead (SPEC 2.1).

A local client is dead when its connection is closed and its process is gone; a blocked or stopped
one never is. This file does not know what a client's death leads to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, cast

from trunkline_protocol.counts import is_count
from trunkline_protocol.ids import CallId, ClientId, LeaseId, QueryId
from trunkline_protocol.limits import MAX_OPEN_CALLS_PER_CLIENT
from trunkline_protocol.printable import one_line

from trunkline_broker.core.access import FULL
from trunkline_broker.core.calls import Call
from trunkline_broker.core.specs import AccessSpec
from trunkline_broker.core.windows import StreamBudget

GONE_GRACE_S: Final = 0.25  # process gone but connection open: a child inherited the descriptor
ALIVE_GRACE_S: Final = 600.0  # silent for a new broker, or reading nothing, but its process lives
# Half of what a worker takes (measured); an agent would spend all its time on saying so much. At
# once: one for each call that it may have open, which is half of what fits into a worker's pipe.
POSITIONS_PER_S: Final = 20_000.0
POSITIONS_AT_ONCE: Final = float(MAX_OPEN_CALLS_PER_CLIENT)
REMOTE_GRACE_S: Final = 10.0  # ZMTP heartbeats noticed a dead link; a dropped link may come back
_MOST_QUEUES: Final = 16  # of a client
_LONGEST_NAME: Final = 64  # of a queue

Figures = tuple[int, int, int]
"""Depth, high-water mark and bound of a queue."""


def figures_of(said: object) -> Figures | None:
    """Return three numbers that a peer gave; `None` if they are anything else."""
    figures: list[Any] = list(cast("Any", said)) if isinstance(said, list | tuple) else []
    if len(figures) == 3 and all(map(is_count, figures)):
        return figures[0], figures[1], figures[2]
    return None


@dataclass(slots=True, eq=False)
class Client:
    """One client.

    Attributes:
        peer: its connection; `None` while it has none.
        pid: its process, if it is on this host and has said `HELLO` here.
        user: name of the key it said `HELLO` with, maybe empty; `None`: a local client.
        is_greeted: it has said `HELLO` here, so `user` is known.
        access: what it may ask for.
        is_remote: it said `HELLO` from another host; links break, and its process is out of sight.
        calls: every call that is held for it.
        budget: its open streams.
        heard_s: last frame from it.
        queries: its questions that nobody answered yet.
        spare: positions that may be passed on at once, as of `spare_s`.
        leases: its prepared calls.
        queues: what it said last of its queues, as far as that is numbers and not too much: depth,
            high-water mark and bound by name.
    """

    id: ClientId
    peer: bytes | None = None
    pid: int | None = None
    name: str = ""
    is_pid_gone: bool = False
    is_remote: bool = False
    user: str | None = None
    is_greeted: bool = False
    access: AccessSpec = FULL
    calls: dict[CallId, Call] = field(default_factory=dict[CallId, Call])
    budget: StreamBudget = field(default_factory=StreamBudget)
    queries: set[QueryId] = field(default_factory=set[QueryId])
    heard_s: float = 0.0
    spare: float = POSITIONS_AT_ONCE
    spare_s: float = 0.0
    leases: set[LeaseId] = field(default_factory=set[LeaseId])
    queues: Mapping[str, Figures] = field(default_factory=dict[str, Figures])

    def note_queues(self, said: Mapping[str, Any]) -> None:
        """Keep what it says of its queues; a map may be large, and there may be many clients."""
        entries = islice(said.items(), _MOST_QUEUES)
        read = ((one_line(name, _LONGEST_NAME), figures_of(figures)) for name, figures in entries)
        self.queues = {name: figures for name, figures in read if figures is not None}

    def may_say(self, now_s: float) -> bool:
        """Tell whether one more position may go to a worker now; it counts if it may."""
        spare = min(POSITIONS_AT_ONCE, self.spare + (now_s - self.spare_s) * POSITIONS_PER_S)
        if spare < 1.0:
            return False
        self.spare, self.spare_s = spare - 1.0, now_s
        return True

    def grace_s(self, orphan_timeout_s: float) -> float | None:
        """Return how long it may stay as it is before it counts as dead; `None`: for ever."""
        if self.is_pid_gone:
            return 0.0 if self.peer is None else GONE_GRACE_S
        if self.peer is not None:
            return None
        return REMOTE_GRACE_S if self.is_remote else orphan_timeout_s


class Clients:
    """All clients by id, by connection and by process."""

    __slots__ = ("_by_id", "_by_peer", "_by_pid", "high_water")

    def __init__(self) -> None:
        self.high_water = 0  # the most there ever were
        self._by_id: dict[ClientId, Client] = {}
        self._by_peer: dict[bytes, Client] = {}
        self._by_pid: dict[int, set[ClientId]] = {}

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[Client]:
        """Iterate over the clients in order of arrival."""
        return iter(self._by_id.values())

    def get(self, client: ClientId | None) -> Client | None:
        """Return a client by id."""
        return None if client is None else self._by_id.get(client)

    def at(self, peer: bytes) -> Client | None:
        """Return the client that said `HELLO` on a connection."""
        return self._by_peer.get(peer)

    def ensure(self, client_id: ClientId) -> Client:
        """Return a client, made without a connection if it is unknown (a worker named it)."""
        client = self._by_id.get(client_id)
        if client is None:
            client = self._by_id[client_id] = Client(client_id)
            self.high_water = max(self.high_water, len(self._by_id))
        return client

    def greet(self, client_id: ClientId, peer: bytes, pid: int | None, name: str) -> Client:
        """Bind a client to the connection on which it said `HELLO`; the older one is forgotten."""
        client = self.ensure(client_id)
        previous = self._by_peer.get(peer)
        if previous is not None and previous is not client:
            previous.peer = None  # one connection speaks for one client, the last one it named
        if client.peer is not None and client.peer != peer:
            del self._by_peer[client.peer]
        client.peer = peer
        client.name = name
        self._by_peer[peer] = client
        if client.pid != pid:
            self._leave_pid(client)
            client.pid = pid
            if pid is not None:
                self._by_pid.setdefault(pid, set()).add(client_id)
        client.is_pid_gone = False
        client.is_remote = pid is None
        return client

    def suppose(self, client: Client, pid: int) -> None:
        """Take a worker's word for which process a client is that has not said `HELLO` here."""
        client.pid = pid
        self._by_pid.setdefault(pid, set()).add(client.id)

    def disconnect(self, peer: bytes) -> Client | None:
        """Take note that a connection closed; return whose it was."""
        client = self._by_peer.pop(peer, None)
        if client is not None:
            client.peer = None
        return client

    def exited(self, pid: int) -> list[Client]:
        """Take note that a process is gone; return its clients."""
        clients = [self._by_id[client] for client in self._by_pid.get(pid, ())]
        for client in clients:
            client.is_pid_gone = True
        return clients

    def is_watched(self, pid: int) -> bool:
        """Tell whether clients of this process are known."""
        return pid in self._by_pid

    def remove(self, client: Client) -> None:
        """Forget a client."""
        del self._by_id[client.id]
        if client.peer is not None:
            del self._by_peer[client.peer]
            client.peer = None
        self._leave_pid(client)

    def _leave_pid(self, client: Client) -> None:
        if client.pid is None:
            return
        members = self._by_pid[client.pid]
        members.discard(client.id)
        if not members:
            del self._by_pid[client.pid]
        client.pid = None
