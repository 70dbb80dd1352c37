"""Queries that wait for their answer; SPEC.md section 7. It knows no operation's meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Query, QueryCancel, Reply
from trunkline_protocol.ids import QueryId
from trunkline_protocol.limits import MAX_OPEN_QUERIES_PER_CLIENT

from trunkline.core.effects import NOTHING, Answered, Count, Effects, Send
from trunkline.core.queues import QueueStatistics

# These change something, so a broker that has not answered may have done it: never asked twice.
# `prepareCall` is: what its first answer granted and nobody got is released by its lease.
_ONCE_ONLY: Final = frozenset({"releaseCall", "swap", "stop", "restart", "reload", "drain"})


@dataclass(slots=True)
class _Waiting:
    query: Query
    deadline_s: float
    was_sent: bool = False


class Questions:
    """The open queries of one client, at most `MAX_OPEN_QUERIES_PER_CLIENT`."""

    def __init__(self) -> None:
        self._waiting: dict[QueryId, _Waiting] = {}
        self._high_water = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def ask(self, query: Query, timeout_s: float, now_s: float, *, can_send: bool) -> Effects:
        """Ask now, or as soon as a broker answers; ends in `Answered` whatever happens."""
        if len(self._waiting) >= MAX_OPEN_QUERIES_PER_CLIENT:
            message = f"{MAX_OPEN_QUERIES_PER_CLIENT} queries of this client are open already"
            return [Answered(query.query, b"", LlmFailure(message, Code.OVERLOADED))]
        self._waiting[query.query] = _Waiting(query, now_s + timeout_s, can_send)
        self._high_water = max(self._high_water, len(self._waiting))
        return [Send(query)] if can_send else NOTHING

    def statistics(self) -> QueueStatistics:
        """Return how many wait, waited and may wait."""
        bound = MAX_OPEN_QUERIES_PER_CLIENT
        return QueueStatistics("questions", len(self._waiting), self._high_water, bound)

    def abandon(self, query: QueryId, *, can_send: bool) -> Effects:
        """Forget a query nobody waits for."""
        found = self._waiting.pop(query, None)
        if found is None or not found.was_sent or not can_send:
            return NOTHING
        return [Send(QueryCancel(query))]

    def on_reply(self, frame: Reply, failure: LlmFailure | None) -> Effects:
        """Take the answer; a second one is only counted."""
        if self._waiting.pop(frame.query, None) is None:
            return [Count("late_replies")]
        return [Answered(frame.query, frame.body, failure)]

    def on_refused(self, query: QueryId, failure: LlmFailure) -> Effects:
        """Take a refusal as the answer."""
        if self._waiting.pop(query, None) is None:
            return NOTHING
        return [Answered(query, b"", failure)]

    def speak(self, *, is_new_epoch: bool) -> Effects:
        """Ask again what may be asked twice; the rest fails if another broker answers now."""
        effects: list[Send | Answered] = []
        for query_id, waiting in list(self._waiting.items()):
            if not waiting.was_sent or waiting.query.op not in _ONCE_ONLY:
                waiting.was_sent = True
                effects.append(Send(waiting.query))
            elif is_new_epoch:
                del self._waiting[query_id]
                message = f"the broker was restarted while it worked on {waiting.query.op}"
                effects.append(Answered(query_id, b"", LlmFailure(message, Code.TRANSPORT)))
        return effects

    def next_deadline_s(self) -> float:
        """Return when the next query times out."""
        return min((one.deadline_s for one in self._waiting.values()), default=float("inf"))

    def on_tick(self, now_s: float, *, can_send: bool) -> Effects:
        """End what has waited too long in `TIMEOUT`."""
        effects: list[Send | Answered] = []
        for query_id, waiting in list(self._waiting.items()):
            if now_s >= waiting.deadline_s:
                message = f"no answer to {waiting.query.op} in time"
                effects.extend(self._give_up(query_id, Code.TIMEOUT, message, can_send))
        return effects

    def give_up(self, code: str, message: str) -> Effects:
        """End all: no broker will answer."""
        effects: list[Send | Answered] = []
        for query_id in list(self._waiting):
            effects.extend(self._give_up(query_id, code, message, can_send=False))
        return effects

    def _give_up(
        self, query: QueryId, code: str, message: str, can_send: bool
    ) -> list[Send | Answered]:
        waiting = self._waiting.pop(query)
        answered = Answered(query, b"", LlmFailure(message, code))
        if can_send and waiting.was_sent:
            return [Send(QueryCancel(query)), answered]
        return [answered]
