"""A configuration that was read again: pools that came, went or changed (ARCHITECTURE 5).

Pools that did not change are left alone; one whose processes would be other ones is swapped, and
stays what it was if that fails. What clients on other hosts may do is in force at once: their next
frames are judged by it, calls that run go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trunkline_protocol.ids import PoolName

from trunkline_broker.core.access import access_of
from trunkline_broker.core.events import ConfigReplaced
from trunkline_broker.core.hub import Hub
from trunkline_broker.core.refusal import Refusal
from trunkline_broker.core.specs import AccessSpec, PoolSpec
from trunkline_broker.core.staffing import Staffing
from trunkline_broker.core.supervision import Pool
from trunkline_broker.core.swaps import SwapReport, Swaps


@dataclass(slots=True, eq=False)
class ReloadReport:
    """What a reload did; complete once every swap it began is over.

    Attributes:
        clients: names of keys that may do something else than before.
        restart: keys of `[broker]` that are others now; they are in force after a restart.
    """

    added: list[PoolName] = field(default_factory=list[PoolName])
    removed: list[PoolName] = field(default_factory=list[PoolName])
    changed: list[PoolName] = field(default_factory=list[PoolName])
    unchanged: list[PoolName] = field(default_factory=list[PoolName])
    swapped: list[SwapReport] = field(default_factory=list[SwapReport])
    clients: list[str] = field(default_factory=list[str])
    restart: list[str] = field(default_factory=list[str])
    failures: list[str] = field(default_factory=list[str])

    def to_dict(self) -> dict[str, object]:
        """Return the body of the answer."""
        return {
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "unchanged": self.unchanged,
            "swapped": [report.to_dict() for report in self.swapped],
            "clients": self.clients,
            "restart": self.restart,
        }


OnReloaded = Callable[[ReloadReport], None]


class Reloading:
    """Brings the pools in line with a configuration."""

    def __init__(self, hub: Hub, staffing: Staffing, swaps: Swaps) -> None:
        self._hub = hub
        self._staffing = staffing
        self._swaps = swaps

    def replace(self, event: ConfigReplaced, now_s: float, on_done: OnReloaded) -> None:
        """Put a configuration in force; `on_done` is called when its last swap is over."""
        hub, specs = self._hub, event.pools
        report = ReloadReport(restart=list(event.restart))
        if event.access is not None:
            report.clients = self._judge_clients(event.access)
        wanted = {spec.name for spec in specs}
        for pool in list(hub.pools):
            if pool.is_configured and pool.spec.name not in wanted:
                self._remove(pool, now_s)
                report.removed.append(pool.spec.name)
        swaps: list[PoolSpec] = []
        for spec in specs:
            pool = hub.pools.get(spec.name)
            if pool is None:
                self._staffing.fill(hub.pools.add(spec), now_s)
                report.added.append(spec.name)
            elif pool.is_configured and pool.spec == spec:
                report.unchanged.append(spec.name)
            else:
                report.changed.append(spec.name)
                if pool.is_configured and _process_part(pool.spec) != _process_part(spec):
                    swaps.append(spec)
                else:
                    self._change(pool, spec, now_s)
        hub.end_pauses([route for route, _ in hub.gates])
        hub.on_topology()
        self._swap_all(swaps, report, now_s, on_done)

    def _judge_clients(self, table: Mapping[str, AccessSpec]) -> list[str]:
        """Have clients judged by another table; return the names it says something new of."""
        hub, before = self._hub, self._hub.access
        hub.access = table
        for client in hub.clients:
            client.access = access_of(table, client.user)
        names = sorted({*before, *table})
        return [name for name in names if access_of(before, name) != access_of(table, name)]

    def _remove(self, pool: Pool, now_s: float) -> None:
        name = pool.spec.name
        self._swaps.cancel(name, "its pool was removed from the configuration", now_s)
        self._hub.pools.remove(name)
        for number in list(pool.slots):
            self._staffing.close_slot(pool, number, now_s)
        self._hub.announce_adapters()

    def _change(self, pool: Pool, spec: PoolSpec, now_s: float) -> None:
        """Take over a changed pool whose processes may stay."""
        pool.spec = spec
        pool.is_configured = True
        for number in [number for number in pool.slots if number >= spec.replicas]:
            worker = self._hub.workers.get(pool.slots[number].serving)
            if worker is None or not worker.is_manual:
                self._staffing.close_slot(pool, number, now_s)
        self._staffing.fill(pool, now_s)

    def _swap_all(
        self, specs: list[PoolSpec], report: ReloadReport, now_s: float, on_done: OnReloaded
    ) -> None:
        left = len(specs)

        def on_swapped(swap: SwapReport) -> None:
            nonlocal left
            left -= 1
            report.swapped.append(swap)
            if swap.failure:
                report.failures.append(f"{swap.pool}: {swap.failure}")
            if not left:
                on_done(report)

        if not specs:
            on_done(report)
        for spec in specs:
            try:
                self._swaps.start(spec.name, now_s, on_swapped, spec)
            except Refusal as refusal:
                on_swapped(SwapReport(spec.name, (), (), refusal.message))


def _process_part(spec: PoolSpec) -> tuple[object, ...]:
    """Return what a worker process is told; other changes need no new process."""
    return (
        spec.adapter,
        spec.providers,
        spec.options,
        spec.python,
        spec.environment,
        spec.env_file,
        spec.user,
        spec.lease_s,
        spec.memory_limit_mib,
        spec.open_files_limit,
        spec.debug_prompts,
    )
