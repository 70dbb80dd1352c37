"""The TCP endpoints of a broker, as its configuration wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from trunkline_broker.config import Settings
from trunkline_broker.core.specs import BrokerSpec
from trunkline_broker.key_files import read_server
from trunkline_broker.security import AllowList, Bell, Guard, Kind, TcpListen

_ANY_HOST: Final = "tcp://*:"


class Telemetry(Protocol):
    """Where the door's news go."""

    @property
    def count(self) -> Callable[[str], None]:
        """Add to a counter."""
        ...

    def log(self, level: str, event: str, fields: Mapping[str, object] | None = None) -> None:
        """Write one line."""
        ...


@dataclass(frozen=True, slots=True)
class Door:
    """What listens on TCP; nothing does by default.

    Attributes:
        guard: keys of the sockets; `None`: nothing listens, or without keys on loopback.
        clients, workers: endpoints of the control sockets.
        lanes: endpoints of the chunk lane: of workers, of clients.
    """

    guard: Guard | None
    clients: TcpListen | None
    workers: TcpListen | None
    lanes: tuple[TcpListen | None, TcpListen | None]

    @classmethod
    def of(cls, settings: Settings, telemetry: Telemetry) -> Door:
        """Read what is needed.

        Raises:
            KeyFileError: TCP is wanted and there are no keys for it.
        """
        broker = settings.broker
        guard = None
        if broker.has_tcp and not broker.plain_tcp:
            bell = Bell(telemetry.count, telemetry.log)
            directory = settings.keys_dir
            guard = Guard(read_server(directory), AllowList(directory), bell.ring)

        def listen(address: str, kind: Kind) -> TcpListen | None:
            return TcpListen(address, kind, guard) if address else None

        return cls(
            guard,
            listen(broker.tcp_clients, "clients"),
            listen(broker.tcp_workers, "workers"),
            (
                listen(broker.tcp_workers_lane, "workers"),
                listen(broker.tcp_clients_lane, "clients"),
            ),
        )

    def with_lanes(self, spec: BrokerSpec, inside: str, outside: str) -> BrokerSpec:
        """Return a specification that names the lanes as peers on other hosts find them."""
        return replace(
            spec,
            remote_lane=_told(outside, self.lanes[1], self.clients),
            remote_workers_lane=_told(inside, self.lanes[0], self.workers),
        )


def _told(bound: str, lane: TcpListen | None, control: TcpListen | None) -> str:
    """Return a lane's address; on the host of the control endpoint only the port is certain."""
    if lane is None or control is None:
        return ""
    host = lane.address.rpartition(":")[0]
    if host == control.address.rpartition(":")[0]:
        return _ANY_HOST + bound.rpartition(":")[2]
    return f"tcp://{host}:{bound.rpartition(':')[2]}"
