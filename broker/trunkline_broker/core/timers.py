"""What each deadline leads to; one place, so that none is set that nobody answers for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trunkline_broker.core.adoption import Adoption
from trunkline_broker.core.endings import Endings
from trunkline_broker.core.greeting import Greeting
from trunkline_broker.core.hub import Hub, Timer, TimerName
from trunkline_broker.core.openings import Openings
from trunkline_broker.core.questions import Questions
from trunkline_broker.core.staffing import Staffing
from trunkline_broker.core.stopping import Stopping
from trunkline_broker.core.upkeep import Upkeep


class Timers:
    """Hands deadlines that are due to whom they concern."""

    def __init__(
        self,
        hub: Hub,
        *,
        endings: Endings,
        openings: Openings,
        staffing: Staffing,
        adoption: Adoption,
        greeting: Greeting,
        questions: Questions,
        stopping: Stopping,
        upkeep: Upkeep,
    ) -> None:
        self._hub = hub
        # Names are typed by their timer only; each function takes what its timer is set with.
        self._on_due: Final[dict[Timer, Callable[[Any, float], None]]] = {
            Timer.START: staffing.on_start_due,
            Timer.LEASE: staffing.leases.on_due,
            Timer.DRAIN: staffing.on_drain_due,
            Timer.KILL: staffing.on_kill_due,
            Timer.RESTART: staffing.on_restart_due,
            Timer.QUEUE: openings.on_queue_over,
            Timer.BACKOFF: endings.on_backoff_over,
            Timer.OFFER: lambda call, _: endings.on_offer_over(call),
            Timer.RETENTION: endings.on_retention_over,
            Timer.PAUSE: lambda route, _: self._on_pause_over(route),
            Timer.PREPARED: lambda lease, _: hub.drop_lease(lease),
            Timer.QUERY: lambda query, _: questions.on_query_due(query),
            Timer.CLIENT: lambda client, _: greeting.on_client_due(client),
            Timer.SETTLE: lambda _, now_s: adoption.settle(now_s),
            Timer.DETACHED: lambda call, _: endings.on_detached_over(call),
            Timer.TRIAL: lambda generation, _: endings.on_trial_over(generation),
            Timer.LOOK: lambda _, __: upkeep.on_look_due(),
            Timer.STOP: lambda _, now_s: stopping.on_stop_due(now_s),
        }

    def on_due(self, name: TimerName, now_s: float) -> None:
        """Act on one deadline that has been taken from the heap."""
        timer, whose = name
        self._on_due[timer](whose, now_s)

    def _on_pause_over(self, route: Any) -> None:
        self._hub.gates.at(route).end_pause()
        self._hub.freed.add(route)
