"""The status document: what the core knows, as a camelCase map for `trunkline status`.

The shell adds what only it knows: endpoints, its own process, sockets, output files.
"""

from __future__ import annotations

from trunkline_protocol.ids import Generation
from trunkline_protocol.version import __version__

from trunkline_broker.core.admission import Gate
from trunkline_broker.core.calls import CallState
from trunkline_broker.core.hub import Hub, Timer
from trunkline_broker.core.supervision import Pool, Slot
from trunkline_broker.core.swaps import Swaps
from trunkline_broker.core.workers import Worker


def status(hub: Hub, swaps: Swaps, now_s: float) -> dict[str, object]:
    """Return the status document; it looks at everything, so it is for people, not for loops."""
    return {
        "version": __version__,
        "epoch": hub.epoch,
        "settling": hub.is_settling,
        "draining": hub.is_draining,
        "pools": [_pool(hub, swaps, pool, now_s) for pool in hub.pools],
        "leaving": [_worker(worker, now_s) for worker in hub.workers if worker.is_exit_asked],
        "routes": _routes(hub, now_s),
        "clients": [
            {
                "client": client.id.hex()[:8],
                "name": client.name,
                "pid": client.pid,
                "connected": client.peer is not None,
                "openCalls": len(client.calls),
                "openStreams": len(client.budget),
                "openQueries": len(client.queries),
                "leases": len(client.leases),
            }
            for client in hub.clients
        ],
        "calls": _calls(hub),
        "counters": dict(hub.counters),
        "refused": dict(hub.refused),
    }


def _pool(hub: Hub, swaps: Swaps, pool: Pool, now_s: float) -> dict[str, object]:
    slots = [_slot(hub, slot, now_s) for slot in pool.slots.values()]
    states = {str(slot["state"]) for slot in slots}
    return {
        "name": pool.spec.name,
        "adapter": pool.spec.adapter,
        "configured": pool.is_configured,
        "swapping": swaps.is_running(pool.spec.name),
        "state": states.pop() if len(states) == 1 else "mixed" if states else "empty",
        "slots": slots,
    }


def _slot(hub: Hub, slot: Slot, now_s: float) -> dict[str, object]:
    return {
        "slot": slot.number,
        "state": slot.state.value,
        "restarts": slot.restarts,
        "lastExit": slot.last_exit or None,
        "reason": slot.down_reason or None,
        "retryInMs": _retry_in_ms(hub, slot, now_s),
        "output": list(slot.output_tail),
        **_first(hub, (slot.serving, slot.coming, slot.standby), now_s),
    }


def _retry_in_ms(hub: Hub, slot: Slot, now_s: float) -> int | None:
    """Return when a slot that was given up is tried again; `None`: it is not down, or not tried."""
    due_s = hub.deadlines.at_s((Timer.RESTART, (slot.pool, slot.number)))
    if not slot.down_reason or due_s is None:
        return None
    return round((due_s - now_s) * 1000)


def _first(hub: Hub, generations: tuple[Generation | None, ...], now_s: float) -> dict[str, object]:
    """Return what is said of the first of these workers that lives."""
    for generation in generations:
        worker = hub.workers.get(generation)
        if worker is not None:
            return _worker(worker, now_s)
    return {
        "generation": None,
        "pid": None,
        "role": None,
        "inFlight": 0,
        "held": 0,
        "leases": 0,
        "startedMsAgo": None,
        "load": {},
    }


def _worker(worker: Worker, now_s: float) -> dict[str, object]:
    return {
        "generation": list(worker.generation),
        "pid": worker.pid,
        "role": worker.state.value,
        "inFlight": worker.running,
        "held": len(worker.calls),
        "leases": len(worker.leases),
        "startedMsAgo": round((now_s - worker.started_s) * 1000),
        "load": dict(worker.load),
    }


def _routes(hub: Hub, now_s: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    gates: dict[str, Gate] = dict(hub.gates)
    for key, claim in hub.registry.routes:
        gate = gates.get(key)
        pauses = (gate.paused_until_s, gate.closed_until_s) if gate is not None else (0.0, 0.0)
        left_s = max(0.0, max(pauses) - now_s)
        rows.append(
            {
                "provider": key,
                "name": claim.value.name,
                "pool": claim.owner,
                "state": "paused" if left_s else "serving" if claim.holders else "starting",
                "pausedMs": round(left_s * 1000),
                "inFlight": gate.running if gate is not None else 0,
                "queued": len(gate) if gate is not None else 0,
            }
        )
    for pool in hub.pools:
        rows += _down_routes(hub, pool)
    return rows


def _down_routes(hub: Hub, pool: Pool) -> list[dict[str, object]]:
    reason = pool.down_reason()
    if not reason:
        return []
    names = sorted(pool.lost_routes | set(pool.spec.providers))
    return [
        {"provider": name, "pool": pool.spec.name, "state": "down", "reason": reason}
        for name in names
        if hub.registry.routes.get(name) is None
    ]


def _calls(hub: Hub) -> dict[str, object]:
    states = [call.state for call in hub.calls]
    counters = hub.counters
    return {
        "open": len(states),
        "queued": states.count(CallState.QUEUED),
        "running": states.count(CallState.RUNNING),
        "backoff": states.count(CallState.BACKOFF),
        "tails": states.count(CallState.ENDED),
        "started": counters.get("calls_started", 0),
        "ended": counters.get("calls_ended", 0),
        "failed": counters.get("calls_failed", 0),
    }
