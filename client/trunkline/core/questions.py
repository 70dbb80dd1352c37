"""Queries that wait for their answer; SPEC.md section 7. It knows no operation's meaning.

A `QUERY` or `QUERY_CANCEL` that did not fit into the socket is sent later. A query that changes
nothing is repeated until it is answered, as `OPEN` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import Query, QueryCancel, Reply
from trunkline_protocol.ids import QueryId
from trunkline_protocol.limits import (
    MAX_OPEN_QUERIES_PER_CLIENT,
    REPEAT_AFTER_S,
    REPEAT_MAX_S,
)

from trunkline.core.effects import NOTHING, Answered, Count, Effects, Send
from trunkline.core.queues import QueueStatistics

# These change something, so a broker that has not answered may have done it: never asked twice.
# `prepareCall` is: what its first answer granted and nobody got is released by its lease.
_ONCE_ONLY: Final = frozenset({"releaseCall", "swap", "stop", "restart", "reload", "drain"})


_NEVER_S: Final = float("inf")


@dataclass(slots=True)
class _Waiting:
    query: Query
    deadline_s: float
    was_sent: bool = False
    said_s: float = -_NEVER_S
    again_s: float = _NEVER_S  # when to look whether to repeat it
    pause_s: float = REPEAT_AFTER_S

    def say(self, now_s: float) -> Send:
        """Send it, and look again after a growing pause unless it may be sent only once."""
        self.was_sent = True
        self.said_s = now_s
        self.again_s = _NEVER_S if self.query.op in _ONCE_ONLY else now_s + self.pause_s
        self.pause_s = min(2 * self.pause_s, REPEAT_MAX_S)
        return Send(self.query)


class Questions:
    """The open queries of one client, at most `MAX_OPEN_QUERIES_PER_CLIENT`."""

    def __init__(self) -> None:
        self._waiting: dict[QueryId, _Waiting] = {}
        self._called_off: dict[QueryId, None] = {}  # its answerer has not been told yet
        self._call_off_s = _NEVER_S
        self._high_water = 0
        self._is_unheard = False

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether `on_tick` has anything to do."""
        return bool(self._waiting or self._called_off)

    def ask(self, query: Query, timeout_s: float, now_s: float, *, can_send: bool) -> Effects:
        """Ask now, or as soon as a broker answers; ends in `Answered` whatever happens."""
        if len(self._waiting) >= MAX_OPEN_QUERIES_PER_CLIENT:
            message = f"{MAX_OPEN_QUERIES_PER_CLIENT} queries of this client are open already"
            return [Answered(query.query, b"", LlmFailure(message, Code.OVERLOADED))]
        waiting = self._waiting[query.query] = _Waiting(query, now_s + timeout_s)
        self._high_water = max(self._high_water, len(self._waiting))
        return [waiting.say(now_s)] if can_send else NOTHING

    def statistics(self) -> QueueStatistics:
        """Return how many wait, waited and may wait."""
        bound = MAX_OPEN_QUERIES_PER_CLIENT
        return QueueStatistics("questions", len(self._waiting), self._high_water, bound)

    def abandon(self, query: QueryId, *, can_send: bool) -> Effects:
        """Forget a query nobody waits for."""
        found = self._waiting.pop(query, None)
        if found is None or not found.was_sent:
            return NOTHING
        if not can_send:
            self._call_off(query, _NEVER_S)
            return NOTHING
        return [Send(QueryCancel(query))]

    def _call_off(self, query: QueryId, at_s: float) -> None:
        self._called_off[query] = None
        while len(self._called_off) > MAX_OPEN_QUERIES_PER_CLIENT:
            del self._called_off[next(iter(self._called_off))]  # its own timeout ends it
        self._call_off_s = min(self._call_off_s, at_s)

    def _say_called_off(self) -> list[Send | Answered]:
        said: list[Send | Answered] = [Send(QueryCancel(query)) for query in self._called_off]
        self._called_off.clear()
        self._call_off_s = _NEVER_S
        return said

    def on_unsent(self, frame: Query | QueryCancel, now_s: float) -> None:
        """Take the news that a frame was not sent: it goes out later, whatever it asks for."""
        if isinstance(frame, QueryCancel):
            self._call_off(frame.query, now_s + REPEAT_AFTER_S)
            return
        waiting = self._waiting.get(frame.query)
        if waiting is not None:
            waiting.was_sent = False
            waiting.again_s = now_s + REPEAT_AFTER_S

    def take_unheard(self) -> bool:
        """Return whether a query was held back since the broker has sent nothing; once."""
        is_unheard, self._is_unheard = self._is_unheard, False
        return is_unheard

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

    def speak(self, now_s: float, *, is_new_epoch: bool) -> Effects:
        """Ask again what may be asked twice; the rest fails if another broker answers now."""
        effects = self._say_called_off()
        for query_id, waiting in list(self._waiting.items()):
            if not waiting.was_sent or waiting.query.op not in _ONCE_ONLY:
                effects.append(waiting.say(now_s))
            elif is_new_epoch:
                del self._waiting[query_id]
                message = f"the broker was restarted while it worked on {waiting.query.op}"
                effects.append(Answered(query_id, b"", LlmFailure(message, Code.TRANSPORT)))
        return effects

    def next_deadline_s(self) -> float:
        """Return when `on_tick` must be called next."""
        due_s = self._call_off_s
        for one in self._waiting.values():
            due_s = min(due_s, one.deadline_s, one.again_s)
        return due_s

    def on_tick(self, now_s: float, heard_s: float, *, can_send: bool) -> Effects:
        """End what has waited too long in `TIMEOUT`, and repeat what is due.

        Args:
            now_s: monotonic seconds.
            heard_s: when the broker last sent anything; a query that it may not have read yet is
                not put beside itself.
            can_send: the broker knows this client.
        """
        effects: list[Send | Answered] = []
        for query_id, waiting in list(self._waiting.items()):
            if now_s >= waiting.deadline_s:
                message = f"no answer to {waiting.query.op} in time"
                effects.extend(self._give_up(query_id, Code.TIMEOUT, message, can_send))
            elif now_s >= waiting.again_s:
                effects.extend(self._again(waiting, heard_s, now_s, can_send=can_send))
        if can_send and now_s >= self._call_off_s:
            effects.extend(self._say_called_off())
        elif now_s >= self._call_off_s:
            self._call_off_s = _NEVER_S  # `speak` sends them
        return effects

    def _again(
        self, waiting: _Waiting, heard_s: float, now_s: float, *, can_send: bool
    ) -> list[Send | Answered]:
        if not can_send:
            waiting.again_s = _NEVER_S  # `speak` sends it
            return []
        if waiting.was_sent and heard_s <= waiting.said_s:
            waiting.again_s = now_s + REPEAT_AFTER_S
            self._is_unheard = True
            return []
        return [waiting.say(now_s)]

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
