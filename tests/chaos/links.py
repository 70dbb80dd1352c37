"""The links of a chaos world: over Unix sockets or TCP, four of them behind proxies."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trunkline_broker.paths import RunPaths

from tests.chaos.proxy import Address, Proxy, endpoint_of

NAMES: Final = ("control", "lane", "workers-control", "workers-lane")
_TCP_CONFIG: Final = """\
plain_tcp = true
tcp_clients = "{control}"
tcp_clients_lane = "{lane}"
tcp_workers = "{workers-control}"
tcp_workers_lane = "{workers-lane}"
"""


@dataclass(frozen=True, slots=True)
class Links:
    """Where the broker listens, and the proxies before it.

    Attributes:
        config: lines for `[broker]`.
        direct: where clients connect that no proxy disturbs.
        proxies: by name of the link.
    """

    config: str
    direct: str
    proxies: dict[str, Proxy]

    def told(self) -> dict[str, str]:
        """Return the endpoints of the proxies."""
        return {name: proxy.endpoint for name, proxy in self.proxies.items()}


def make_links(directory: Path, paths: RunPaths, *, is_tcp: bool) -> Links:
    """Choose all addresses of a world; a broker that is started again has the same ones."""
    if not is_tcp:
        sockets = (paths.control, paths.lane, paths.workers_control, paths.workers_lane)
        targets: dict[str, Address] = dict(zip(NAMES, sockets, strict=True))
        proxies = {name: Proxy(directory / name, targets[name]) for name in NAMES}
        return Links("", endpoint_of(paths.control), proxies)
    ports = free_ports(2 * len(NAMES))
    addresses: list[Address] = [("127.0.0.1", port) for port in ports]
    targets = dict(zip(NAMES, addresses, strict=False))
    proxies = {
        name: Proxy(address, targets[name])
        for name, address in zip(NAMES, addresses[len(NAMES) :], strict=True)
    }
    told = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=False)}
    return Links(_TCP_CONFIG.format(**told), endpoint_of(targets["control"]), proxies)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback address that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
