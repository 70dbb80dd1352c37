"""One machine per call: what state each is in, and the memory of calls that are over (SPEC 3).

All transitions are methods of `Call` and nothing else assigns its state. It does not know routes,
queues, windows or peers; whoever calls a transition sends the frames.

| state | means | may become |
|---|---|---|
| QUEUED | holds its `OPEN` with the body and waits | RUNNING, BACKOFF (re-offered) |
| RUNNING | a worker has its `START` | BACKOFF, ENDED |
| BACKOFF | the attempt failed; waits for the delay, then for the client's `OPEN` | QUEUED |
| ENDED | the worker said so; the tail may be under way | BACKOFF (no older broker had decided) |

In every state a call may be forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from trunkline_protocol.frames import Credit, Ended, Failed, HeldCall, Open, Resume
from trunkline_protocol.ids import CallId, ClientId, Generation, LeaseId, RouteName, StreamKey
from trunkline_protocol.retry_policy import DEFAULT_RETRY_POLICY, ResolvedRetryPolicy

from trunkline_broker.core.retry import Backoff
from trunkline_broker.core.suspicion import key_of

_START_UNDER_WAY: Final = -1  # the first heartbeat may have been sent before START was read
_SAID_AGAIN_S: Final = 0.05  # LANE 3, 5: nobody has a reason to say the same again so soon


class CallState(Enum):
    """See the table above."""

    QUEUED = "queued"
    RUNNING = "running"
    BACKOFF = "backoff"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Call:
    """One call.

    Attributes:
        client: whose it is; `None`: detached, or its client died.
        is_recovered: asked for the retry policy (`recovery="policy"`).
        waiting: the `OPEN` while QUEUED.
        worker: who runs it, or ran it (ENDED).
        policy: captured with the registration that serves the attempt.
        ended: the worker's report, once it came.
        is_cancelled: the client wants no more of it; `ENDED` closes it.
        is_done: the client has it all, but the worker's `ENDED` has not come yet.
        retries: over the whole call.
        backoff: while BACKOFF.
        is_retry_due: the delay is over and the client was told.
        tail: attempt and worker whose tail the client may still name in a `DONE`.
        heard_s: last word of the client about it; counts for the retention.
        asked_s: when the client was last reminded of it, and `asks` how often in a row.
        unnamed_beats: heartbeats of its worker in a row that did not name it.
        said: the last position that was passed on to the worker.
        said_s: when that was.
        is_rebound: taken over from an older broker; its client has not named it here yet.
        is_undecided: taken over with its end, of which the older broker may not have known.
        attacher: who asked for such a call and gets it if the worker agrees; `attacher_s` is when.
        attachments: what it names; they stay in the store as long as it is held.
        key: what equal requests have in common; of a call from an older broker its id.
        client_name: what its client calls itself; known also when that one is gone.
        model: empty for a call of an older broker.
        traceparent: the application's span.
        begun_s: when the call was opened here; `None`: by an older broker.
        opened_s: the same of this attempt.
        started_s: when a worker got the attempt; `None`: not yet, or from an older broker.
    """

    id: CallId
    client: ClientId | None
    attempt: int
    stream_key: StreamKey
    provider: RouteName
    state: CallState = CallState.QUEUED
    is_recovered: bool = False
    is_detachable: bool = False
    lease: LeaseId | None = None
    token: bytes | None = field(default=None, repr=False)
    waiting: Open | None = None
    queued_reason: str = ""
    worker: Generation | None = None
    policy: ResolvedRetryPolicy = DEFAULT_RETRY_POLICY
    policy_map: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ended: Ended | None = None
    is_cancelled: bool = False
    is_done: bool = False
    retries: int = 0
    backoff: Backoff | None = None
    is_retry_due: bool = False
    tail: tuple[int, Generation] | None = None
    heard_s: float = 0.0
    asked_s: float = 0.0
    asks: int = 0
    unnamed_beats: int = 0
    said: Credit | Resume | None = None
    said_s: float = 0.0
    is_rebound: bool = False
    is_undecided: bool = False
    attacher: ClientId | None = None
    attacher_s: float = 0.0
    attachments: tuple[str, ...] = ()
    key: bytes = b""
    client_name: str = ""
    model: str = ""
    traceparent: str = ""
    begun_s: float | None = None
    opened_s: float | None = None
    started_s: float | None = None

    def hear(self, now_s: float) -> None:
        """Take note that the client named this call: its retention time begins anew."""
        self.heard_s = now_s
        self.asks = 0

    def is_news(self, frame: Credit | Resume, now_s: float) -> bool:
        """Tell whether a position is more than what was passed on a moment ago; it is noted."""
        if frame == self.said and now_s - self.said_s < _SAID_AGAIN_S:
            return False
        self.said, self.said_s = frame, now_s
        return True

    @classmethod
    def opened(
        cls, frame: Open, client: ClientId, client_name: str = "", now_s: float = 0.0
    ) -> Call:
        """Make a call that waits, from its first `OPEN`."""
        return cls(
            id=frame.call,
            client=client,
            attempt=frame.attempt,
            stream_key=frame.stream_key,
            provider=frame.provider,
            is_recovered=frame.recovery == "policy",
            is_detachable=frame.detachable,
            lease=frame.lease,
            waiting=frame,
            # An attempt begins only with a retry, so its number is the number of retries.
            retries=frame.attempt,
            attachments=frame.attachments,
            key=key_of(frame.provider, frame.model, frame.body),
            client_name=client_name,
            model=frame.model,
            traceparent=frame.traceparent,
            heard_s=now_s,
            begun_s=now_s,
            opened_s=now_s,
        )

    @classmethod
    def held(
        cls,
        entry: HeldCall,
        worker: Generation,
        now_s: float,
        attachments: tuple[str, ...] = (),
    ) -> Call:
        """Make a call that a worker brought along from an older broker."""
        return cls(
            id=entry.call,
            client=None if entry.is_detached else entry.client,
            attempt=entry.attempt,
            stream_key=entry.stream_key,
            provider=entry.provider,
            state=CallState.RUNNING,
            is_detachable=bool(entry.token),
            token=entry.token or None,
            worker=worker,
            retries=entry.attempt,
            is_rebound=True,
            heard_s=now_s,
            attachments=attachments,
            key=entry.call,
        )

    def queue(self, frame: Open, reason: str) -> None:
        """Wait with the given `OPEN`; also the next attempt of a call in BACKOFF."""
        if self.state is not CallState.QUEUED:
            self._enter(CallState.BACKOFF, CallState.QUEUED)
            self._next_attempt(frame)
        self.waiting = frame
        self.queued_reason = reason

    def run(
        self,
        worker: Generation,
        policy: ResolvedRetryPolicy,
        policy_map: Mapping[str, Any],
    ) -> Open:
        """Go to a worker; return the `OPEN` whose body `START` carries."""
        frame = self.waiting
        if frame is None:
            raise AssertionError("only a call that waits can be started")
        self._enter(CallState.QUEUED, CallState.RUNNING)
        self.waiting = None
        self.unnamed_beats = _START_UNDER_WAY
        self.worker = worker
        self.policy = policy
        self.policy_map = policy_map
        return frame

    def rebind(self, entry: HeldCall, worker: Generation) -> None:
        """A worker of an older broker holds what waits here: it runs already."""
        self._enter(CallState.QUEUED, CallState.RUNNING)
        self.waiting = None
        self.worker = worker
        self.token = entry.token or None

    def end(self, frame: Ended | None, now_s: float) -> None:
        """Take the worker's report that the attempt is over; `None`: an older broker got it."""
        self._enter(CallState.RUNNING, CallState.ENDED)
        self.ended = frame
        self.hear(now_s)
        self.asked_s = now_s
        self.unnamed_beats = 0

    def back_off(self, backoff: Backoff) -> None:
        """Wait for a retry; `attempt` is from now on the offered one."""
        self._enter(CallState.ENDED if self.is_undecided else CallState.RUNNING, CallState.BACKOFF)
        if self.worker is None:
            raise AssertionError("a running or ended call has a worker")
        self.ended = None
        self.is_undecided = False
        self.tail = (self.attempt, self.worker)
        self.attempt += 1
        self.retries = backoff.retry
        self.backoff = backoff
        self.worker = None
        self.opened_s = self.started_s = None
        self.is_retry_due = False

    def re_offer(self, backoff: Backoff) -> None:
        """Go back to the retry that an older broker had decided."""
        self._enter(CallState.QUEUED, CallState.BACKOFF)
        self.waiting = None
        self.backoff = backoff
        self.is_retry_due = False

    def _next_attempt(self, frame: Open) -> None:
        self.stream_key = frame.stream_key
        self.provider = frame.provider
        self.key = key_of(frame.provider, frame.model, frame.body)
        self.backoff = None
        self.lease = None  # one-shot: the attempt that failed has used it up

    def _enter(self, before: CallState, after: CallState) -> None:
        if self.state is not before:
            raise AssertionError(f"a call goes from {self.state} to {after}")
        self.state = after


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of a call that is over.

    Attributes:
        failed: what the client was told; repeated if it asks again.
    """

    client: ClientId | None
    attempt: int
    failed: Failed | None


class Calls:
    """All calls by id, and a bounded memory of those that are over."""

    __slots__ = ("_calls", "_past", "_past_bound", "high_water")

    def __init__(self, past_bound: int) -> None:
        """Start empty; `past_bound` is the number of calls remembered after their end."""
        self.high_water = 0  # the most that were ever held
        self._calls: dict[CallId, Call] = {}
        self._past: OrderedDict[CallId, Past] = OrderedDict()
        self._past_bound = past_bound

    def __len__(self) -> int:
        """Return the number of calls that are held."""
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """Iterate over the calls that are held."""
        return iter(self._calls.values())

    def get(self, call: CallId) -> Call | None:
        """Return a call that is held."""
        return self._calls.get(call)

    def past(self, call: CallId) -> Past | None:
        """Return what is remembered of a call that is over."""
        return self._past.get(call)

    def add(self, call: Call) -> None:
        """Hold a new call."""
        self._calls[call.id] = call
        if len(self._calls) > self.high_water:
            self.high_water = len(self._calls)

    def forget(self, call: Call, failed: Failed | None = None, *, remember: bool = True) -> None:
        """Let go of a call.

        Args:
            call: a call that is held.
            failed: what its client was told last, if that was a failure.
            remember: a later `OPEN` of its id starts nothing; the oldest memory makes room.
        """
        del self._calls[call.id]
        if remember:
            self._past[call.id] = Past(call.client, call.attempt, failed)
            if len(self._past) > self._past_bound:
                self._past.popitem(last=False)
