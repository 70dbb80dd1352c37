"""The worker's one core: composes link, calls, leases and load; the only one the shell calls.

Events come in as method calls with the monotonic time, effects go out in order. It knows neither
adapters nor sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, assert_never, cast

from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.finish import FAILED_KINDS, TokenUsage
from trunkline_protocol.frames import (
    Attach,
    Bye,
    Cancel,
    Committed,
    Credit,
    Done,
    Heartbeat,
    HeldClient,
    HeldLease,
    Query,
    QueryCancel,
    Refused,
    Registered,
    Reply,
    Resume,
    Role,
    Start,
    ToWorkerFrame,
    Who,
    Window,
)
from trunkline_protocol.ids import CallId, ClientId, LeaseId
from trunkline_protocol.limits import MAX_LIST_ENTRIES

from trunkline_workers.core.calls import Key, WorkerCalls
from trunkline_workers.core.effects import (
    Answer,
    Begin,
    CallEffect,
    DropAnswer,
    Effect,
    Exit,
    Pull,
    SendControl,
    Stalled,
    Stop,
    TakeReply,
)
from trunkline_workers.core.leases import MAX_LEASES
from trunkline_workers.core.link import EXIT_OK, BrokerLink, RegistrationSet, WorkerIdentity
from trunkline_workers.core.load import CallMeter, LoadMeter
from trunkline_workers.core.stalls import StallWatch

_LOST: Final = Finish(
    FinishReason("error", LlmFailure("the worker lost the adapter's stream", Code.INVARIANT))
)


class WorkerCore:
    """All state of a worker but its adapters.

    Args:
        identity: who this process is.
        now_s: monotonic seconds; the orphan timeout runs from here.
        orphan_timeout_s: how long to live without a broker.
        lease_ids: names the prepared calls held, for the greeting.
        lease_holders: says whose they are.
        lease_clients: says which processes those are.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        now_s: float,
        orphan_timeout_s: float,
        lease_ids: Callable[[], tuple[LeaseId, ...]] = tuple,
        lease_holders: Callable[[], tuple[HeldLease, ...]] = tuple,
        lease_clients: Callable[[], Mapping[ClientId, int]] = dict,
    ) -> None:
        self.link = BrokerLink(identity, now_s, orphan_timeout_s)
        self.calls = WorkerCalls()
        self.load = LoadMeter()
        self._stalls = StallWatch()
        self._lease_ids = lease_ids
        self._lease_holders = lease_holders
        self._lease_clients = lease_clients
        self._leases_high_water = 0  # as far as ticks have seen
        self._meters: dict[tuple[CallId, int], CallMeter] = {}
        self._leave_by_s: float | None = None  # set: it leaves as soon as it holds nothing

    # --- from the sockets ----------------------------------------------------------------------

    def on_connected(self) -> list[Effect]:
        """Greet the broker on a new connection."""
        return self.link.register(
            self.calls.held(),
            self._lease_ids(),
            self.calls.attachments(),
            self._lease_holders(),
            self._clients(),
        )

    def _clients(self) -> tuple[HeldClient, ...]:
        pids = {**self._lease_clients(), **self.calls.clients()}
        return tuple(HeldClient(*each) for each in list(pids.items())[:MAX_LIST_ENTRIES])

    def on_lane_connected(self) -> list[Effect]:
        """Report at once how far was sent: frames may have gone down with the old connection."""
        progress = self.calls.progress()
        return [SendControl(Heartbeat(progress))] if progress and self.link.is_registered else []

    def on_frame(self, frame: ToWorkerFrame, now_s: float) -> list[Effect]:
        """Take a decoded control frame of the broker."""
        self.link.on_word(now_s)
        match frame:
            case Start() | Window() | Credit() | Resume() | Cancel() | Done() | Attach():
                return self._metered(self._on_call_frame(frame, now_s), now_s)
            case Query():
                return [Answer(frame)]
            case QueryCancel():
                return [DropAnswer(frame.query)]
            case Reply():
                return [TakeReply(frame)]
            case _:
                return self._on_link_frame(frame)

    def _on_call_frame(
        self, frame: Start | Window | Credit | Resume | Cancel | Done | Attach, now_s: float
    ) -> list[CallEffect]:
        match frame:
            case Credit():
                return self.calls.on_credit(frame, now_s)
            case Start():
                return self.calls.on_start(frame, now_s)
            case Done():
                return self.calls.on_done(frame, now_s)
            case Resume():
                return self.calls.on_resume(frame, now_s)
            case Cancel():
                return self.calls.on_cancel(frame, now_s)
            case Window():
                return self.calls.on_window(frame, now_s)
            case Attach():
                return self.calls.on_attach(frame, now_s)
            case _:
                assert_never(frame)

    def _on_link_frame(
        self, frame: Registered | Who | Refused | Committed | Role | Heartbeat | Bye
    ) -> list[Effect]:
        match frame:
            case Heartbeat():
                return []
            case Registered():
                return self._on_registered(frame)
            case Who():
                return self.on_connected() if self.link.on_who() else []
            case Refused():
                return self.link.on_refused(frame)
            case Committed():
                return self.link.on_committed(frame)
            case Role():
                return self.link.on_role(frame)
            case Bye():
                return [Exit(EXIT_OK, frame.reason or "the broker said BYE")]
            case _:
                assert_never(frame)

    def _on_registered(self, frame: Registered) -> list[Effect]:
        """Report the ends that a new broker may not have heard of."""
        effects = self.link.on_registered(frame)
        return [*effects, *(SendControl(ended) for ended in self.calls.endings())]

    # --- from the adapters ---------------------------------------------------------------------

    def ask(self, wanted: RegistrationSet) -> tuple[int, list[Effect]]:
        """Ask the broker for a whole set of registrations; `Resolve` answers."""
        return self.link.ask(wanted)

    def on_chunks(
        self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]], now_s: float
    ) -> list[Effect]:
        """Take chunks of an attempt as lane arrays; none of them is a finish."""
        meter = self._meters.get((call, attempt))
        if meter is not None:
            meter.on_chunks(len(arrays), now_s)
        # No copy: this runs for every frame, and a list of the wider type is what it becomes.
        effects = cast("list[Effect]", self.calls.on_chunks(call, attempt, arrays, now_s))
        if len(effects) > 1 and any(isinstance(effect, Stop) for effect in effects):
            self._meters.pop((call, attempt), None)
        return effects

    def on_finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: TokenUsage | None,
        now_s: float,
        arrays: Sequence[Sequence[Any]] = (),
    ) -> list[Effect]:
        """Take the one terminal finish of an attempt and the last chunks before it.

        Token counts come along if they are known.
        """
        meter = self._meters.pop((call, attempt), None)
        if meter is not None:
            if arrays:
                meter.on_chunks(len(arrays), now_s)
            tokens = 0 if usage is None else usage.output_tokens
            meter.on_finish(tokens, is_failure=finish.reason.kind in FAILED_KINDS)
        counts = None if usage is None else usage.to_dict()
        return [*self.calls.on_finish(call, attempt, finish, counts, now_s, arrays)]

    def room(self, call: CallId, attempt: int) -> int:
        """Return how many chunks may be pulled now."""
        return self.calls.room(call, attempt)

    def ask_room(self, call: CallId, attempt: int) -> int:
        """Return the room to a puller; after 0 the puller waits for `Pull`, and then asks again."""
        return self.calls.ask_room(call, attempt)

    def state(self) -> str:
        """Say in one word what this worker is: serving, draining or waiting (for a broker)."""
        if self.link.is_leaving or self.link.role == "draining":
            return "draining"
        return "serving" if self.link.is_serving() else "waiting"

    # --- time ----------------------------------------------------------------------------------

    def on_tick(self, now_s: float, lateness_s: float, figures: Mapping[str, Any]) -> list[Effect]:
        """Beat, forget what has run out, leave if orphaned; due once a second.

        Args:
            now_s: monotonic seconds.
            lateness_s: how late this tick is.
            figures: what the shell knows of the process (memory, descriptors, counters).
        """
        effects: list[Effect] = [*self.link.on_tick(now_s, lateness_s)]
        effects.extend(self.calls.on_tick(now_s))
        if self._leave_by_s is not None and (now_s >= self._leave_by_s or not self._holds()):
            return [*effects, *_leave()]
        if not self.link.is_registered:
            return [*effects, *self.on_connected()]
        leases = len(self._lease_ids())
        self._leases_high_water = max(self._leases_high_water, leases)
        queues = {
            **self.calls.queues(),
            "leasesCount": leases,
            "leasesHighWater": self._leases_high_water,
            "leasesBound": MAX_LEASES,
        }
        load = {
            **figures,
            "running": self.calls.running_count,
            "tails": self.calls.tail_count,
            "leases": leases,
            "queues": queues,
            "routes": self.load.to_dict(),
        }
        return [*effects, SendControl(self._beat(load))]

    def _beat(self, load: Mapping[str, Any]) -> Heartbeat:
        return Heartbeat(self.calls.progress(), load, self.calls.holdings())

    def on_look(self, pullers: Mapping[Key, bool], now_s: float) -> list[Effect]:
        """Look for attempts that stand still; due once a second.

        Args:
            pullers: whether the puller of each attempt that has one waits for room.
            now_s: monotonic seconds.

        Returns:
            For each such attempt `Stalled`, then what makes it go on: a puller that sleeps is woken
            again, and an attempt without a puller ends `error/INVARIANT`.
        """
        effects: list[Effect] = []
        for stall in self._stalls.look(self.calls, pullers, now_s):
            effects.append(Stalled(*stall.key, stall.state))
            if stall.is_pulled:
                effects.append(Pull(*stall.key))
            else:
                effects.extend(self.on_finish(*stall.key, _LOST, None, now_s))
        return effects

    def on_stop(self, now_s: float, drain_s: float) -> list[Effect]:
        """Leave on a signal: at once, or when what it holds is finished.

        Args:
            now_s: monotonic seconds.
            drain_s: longest time for that; 0: say goodbye now, and the broker ends what runs. A
                second signal does the same.
        """
        if self._leave_by_s is not None or drain_s <= 0 or not self._holds():
            return _leave()
        self._leave_by_s = now_s + drain_s
        return self.link.withdraw()

    def _holds(self) -> bool:
        """Tell whether there is anything that a client may still ask this worker for."""
        return bool(self.calls.held() or self._lease_ids())

    def _metered(self, effects: list[CallEffect], now_s: float) -> list[Effect]:
        """Begin and end the measurement of attempts along with them."""
        for effect in effects:
            if isinstance(effect, Begin):
                start = effect.start
                key = (start.call, start.attempt)
                self._meters[key] = self.load.open(start.provider, now_s)
            elif isinstance(effect, Stop):
                self._meters.pop((effect.call, effect.attempt), None)
        return [*effects]


def _leave() -> list[Effect]:
    return [SendControl(Bye("stopped by a signal")), Exit(EXIT_OK, "stopped by a signal")]
