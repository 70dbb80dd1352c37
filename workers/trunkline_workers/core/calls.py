"""The attempts of this worker: the table of SPEC 5.1, frames and chunks in, effects out.

Pure: `now_s` is the monotonic time of the caller, no method raises for what a peer sent, and the
caller performs the effects in order. It knows neither adapters nor sockets. Joined back to back
with the client's core over a link that loses, doubles and reorders, every stream arrives whole.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trunkline_protocol.chunks import Finish, FinishReason
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.frames import (
    Attach,
    Cancel,
    Credit,
    Done,
    Ended,
    HeldAttachment,
    HeldCall,
    Holding,
    Progress,
    Resume,
    Start,
    Window,
)
from trunkline_protocol.ids import CallId, ClientId
from trunkline_protocol.limits import (
    DETACHED_S,
    MAX_ENDED_CALLS,
    MAX_LIST_ENTRIES,
    MAX_OPEN_CALLS_PER_WORKER,
    RETENTION_S,
)

from trunkline_workers.core.attempt import Attempt, AttemptState, Ending
from trunkline_workers.core.effects import (
    Begin,
    CallEffect,
    Count,
    Pull,
    SendControl,
    SendLane,
    Stop,
)

Key = tuple[CallId, int]
"""A call and its attempt."""

_Effects = list[CallEffect]

_CANCELLED: Final = LlmFailure("the call was cancelled", Code.ABORTED)
_ABORTED: Final = FinishReason("aborted", _CANCELLED)
_UNNAMED: Final = LlmFailure(
    f"no client has named this call for {DETACHED_S / 3600:g} h", Code.TRANSPORT
)
_FULL: Final = LlmFailure(
    f"this worker already runs {MAX_OPEN_CALLS_PER_WORKER} calls", Code.OVERLOADED
)


@dataclass(slots=True)
class _Gone:
    """An ended attempt whose chunks are forgotten; kept so that it is never started again."""

    ended: Ended
    last_word_s: float


class WorkerCalls:
    """All attempts of one worker: running, ended with a tail, and remembered ones."""

    def __init__(self) -> None:
        self._held: dict[Key, Attempt] = {}
        self._tails: OrderedDict[Key, Attempt] = OrderedDict()  # those of _held in TAIL
        self._kept_high_water = self._kept_bound = self._waiting_high_water = 0
        self._high_water = 0  # the most attempts that were ever held
        self._gone: OrderedDict[Key, _Gone] = OrderedDict()  # the longest unheard of first

    # --- facts for the shell and for REGISTER, HEARTBEAT ---------------------------------------

    def room(self, call: CallId, attempt: int) -> int:
        """Return how many chunks may be pulled before the next `on_chunks`.

        Also 0 for an attempt that is over or unknown.
        """
        found = self._held.get((call, attempt))
        return 0 if found is None else found.room

    def ask_room(self, call: CallId, attempt: int) -> int:
        """Return the room of an attempt to its puller, and note whether the puller waits for some.

        After 0 the puller waits: `Pull` follows every event that leaves room, until the puller has
        asked again and got some. Room that is gone when the puller asks costs nothing but that.
        """
        found = self._held.get((call, attempt))
        if found is None:
            return 0
        room = found.room
        found.is_awaited = room == 0
        return room

    def is_unfinished(self, call: CallId, attempt: int) -> bool:
        """Return whether an attempt still waits for the finish of its adapter."""
        found = self._held.get((call, attempt))
        return found is not None and found.ending is None

    @property
    def running_count(self) -> int:
        """Attempts whose finish was not sent yet."""
        return len(self._held) - len(self._tails)

    @property
    def tail_count(self) -> int:
        """Attempts that only wait to be received."""
        return len(self._tails)

    def queues(self) -> dict[str, int]:
        """Return what is held: attempts, items that wait for credit, bytes that may be resent.

        All with the most that was ever found, and with their bounds: of each attempt one item of
        its adapter waits, and its window is kept (which one chunk may overdraw); the windows of all
        are counted where they were most.
        """
        held = self._held.values()
        kept = sum(found.kept_bytes for found in held)
        waiting = sum(found.pending_count > 0 for found in held)
        self._kept_high_water = max(self._kept_high_water, kept)
        self._kept_bound = max(self._kept_bound, sum(found.window_bytes for found in held))
        self._waiting_high_water = max(self._waiting_high_water, waiting)
        return {
            "waitingChunks": sum(found.pending_count for found in held),
            "waitingItems": waiting,
            "waitingHighWater": self._waiting_high_water,
            "waitingBound": 2 * MAX_OPEN_CALLS_PER_WORKER,
            "keptBytes": kept,
            "keptHighWater": self._kept_high_water,
            "keptBound": self._kept_bound,
            "callsCount": len(self._held),
            "callsHighWater": self._high_water,
            "callsBound": 2 * MAX_OPEN_CALLS_PER_WORKER,  # as many that run, and as many tails
        }

    def progress(self) -> tuple[Progress, ...]:
        """Return how far each attempt with unreceived chunks was sent; the oldest first."""
        entries = (
            Progress(call, attempt, found.sent)
            for (call, attempt), found in self._held.items()
            if found.received < found.sent
        )
        return tuple(entry for entry, _ in zip(entries, range(MAX_LIST_ENTRIES), strict=False))

    def holdings(self) -> tuple[Holding, ...] | None:
        """Return every attempt held, for `HEARTBEAT`; `None` if a frame cannot name them all."""
        if len(self._held) > MAX_LIST_ENTRIES:
            return None
        tails = self._tails
        return tuple(Holding(*key, key in tails) for key in self._held)

    def held(self) -> tuple[HeldCall, ...]:
        """Return every attempt held, for `REGISTER`; running ones first."""
        found = sorted(self._held.values(), key=lambda one: one.state is AttemptState.TAIL)
        return tuple(one.held() for one in found[:MAX_LIST_ENTRIES])

    def attachments(self) -> tuple[HeldAttachment, ...]:
        """Return what running attempts name, for `REGISTER`: it must not be removed meanwhile."""
        entries = (
            HeldAttachment(call, name)
            for (call, _), found in self._held.items()
            if found.state is not AttemptState.TAIL
            for name in found.start.attachments
        )
        return tuple(entry for entry, _ in zip(entries, range(MAX_LIST_ENTRIES), strict=False))

    def clients(self) -> dict[ClientId, int]:
        """Return the processes of clients whose attempts are held, as far as they are known."""
        starts = (found.start for found in self._held.values())
        return {start.client: start.client_pid for start in starts if start.client_pid}

    def endings(self) -> tuple[Ended, ...]:
        """Return the report of every ended attempt whose tail is still held."""
        return tuple(one.ended() for one in self._tails.values())

    def routes(self) -> tuple[str, ...]:
        """Name the routes of all attempts whose finish was not sent yet, sorted."""
        held = self._held.items()
        return tuple(
            sorted({found.start.provider for key, found in held if key not in self._tails})
        )

    def running(self) -> tuple[Key, ...]:
        """Name every attempt whose finish was not sent yet."""
        return tuple(key for key in self._held if key not in self._tails)

    def unfinished(self) -> list[tuple[Key, Attempt]]:
        """Return every attempt whose adapter has not given its finish."""
        return [each for each in self._held.items() if each[1].ending is None]

    # --- frames --------------------------------------------------------------------------------

    def on_start(self, start: Start, now_s: float) -> _Effects:
        """Begin an attempt, or bind one that is known to the client and window named here.

        Returns:
            `Begin` for a new one; `ENDED` again for an ended one; `Pull` if the new window lets
            it go on. Beyond `MAX_OPEN_CALLS_PER_WORKER` it ends at once in `OVERLOADED`.
        """
        key = (start.call, start.attempt)
        found = self._held.get(key)
        if found is not None:
            found.rebind(start)
            if found.state is AttemptState.TAIL:
                self._touch(key, found, now_s)
                return [SendControl(found.ended())]
            return self._go_on(key, found, now_s)
        gone = self._gone.get(key)
        if gone is not None:
            return self._again(key, gone, now_s)
        found = self._held[key] = Attempt(start, now_s)
        self._high_water = max(self._high_water, len(self._held))
        if self.running_count > MAX_OPEN_CALLS_PER_WORKER:
            finish = Finish(FinishReason("error", _FULL))
            return self.on_finish(start.call, start.attempt, finish, None, now_s)
        return [Begin(start)]

    def on_window(self, frame: Window, now_s: float) -> _Effects:
        """Take a changed window; `Pull` if it leaves room to a puller that waits.

        A window of 0 means that nobody is attached: a detachable attempt goes on without credit.
        """
        key = (frame.call, frame.attempt)
        found = self._held.get(key)
        if found is None:
            return [Count("frames_of_unknown_calls")]
        if not frame.window_chunks:
            if not found.is_detachable:
                return [Count("bad_window")]
            found.detach()
            return self._go_on(key, found, now_s)
        if found.is_detached:
            return [Count("late_windows")]  # for the client that has left
        found.window_chunks, found.window_bytes = frame.window_chunks, frame.window_bytes
        return self._go_on(key, found, now_s)

    def on_attach(self, frame: Attach, now_s: float) -> _Effects:
        """Give a detachable attempt to whoever knows its token (LANE 12).

        Returns:
            `SNAPSHOT` and what follows; only a count for a wrong token, an unknown call, or a
            client that has its snapshot already.
        """
        key = max((key for key in self._held if key[0] == frame.call), default=None)
        if key is None or frame.client is None:
            return [Count("frames_of_unknown_calls")]
        found = self._held[key]
        if not found.is_detachable or found.start.token != frame.token:
            return [Count("attach_refused")]
        snapshot = found.attach(frame, frame.client)
        if snapshot is None:
            return [Count("attached_already")]
        again = [SendLane(found.client, kept) for kept in found.frames_from(0)]
        effects: _Effects = [SendControl(snapshot), *again]
        if found.state is AttemptState.TAIL:
            self._touch(key, found, now_s)
            return [*effects, SendControl(found.ended())]
        return [*effects, *self._go_on(key, found, now_s)]

    def on_credit(self, frame: Credit, now_s: float) -> _Effects:
        """Take the totals that the client has received and consumed since the attempt began.

        Returns:
            Frames that waited for credit, then `Pull` or, behind a finish, `ENDED`. Only a
            count, and no change, if a total passes what was sent (SPEC 4.3).
        """
        key = (frame.call, frame.attempt)
        found = self._held.get(key)
        if found is None:
            return [Count("frames_of_unknown_calls")]
        if not found.take_totals(frame.received, frame.consumed, frame.consumed_bytes):
            return [Count("bad_credit")]
        return self._go_on(key, found, now_s)

    def on_resume(self, frame: Resume, now_s: float) -> _Effects:
        """Send again from `expected` on, before anything new."""
        key = (frame.call, frame.attempt)
        found = self._held.get(key)
        if found is None:
            return [Count("frames_of_unknown_calls")]
        if frame.expected > found.sent:
            return [Count("bad_resume")]
        frames = found.frames_from(frame.expected)
        effects: _Effects = [SendLane(found.client, kept) for kept in frames]
        if frames:
            effects.append(Count("frames_resent", len(frames)))
        return [*effects, *self._go_on(key, found, now_s)]

    def on_cancel(self, frame: Cancel, now_s: float) -> _Effects:
        """Stop an attempt and forget its tail.

        Returns:
            `Stop` for a running one; always `ENDED`, also for an attempt that nobody started,
            which from then on is remembered, so that a `START` that comes late starts nothing.
        """
        key = (frame.call, frame.attempt)
        gone = self._gone.get(key)
        if gone is not None:
            return self._again(key, gone, now_s)
        found = self._held.get(key)
        if found is not None and found.state is AttemptState.TAIL:
            return [SendControl(self._forget(key, found, now_s))]
        ended = _aborted(frame.call, frame.attempt)
        if found is not None:
            ended = _cut(found, now_s)
        self._remember(key, ended, now_s)
        if found is None:
            return [SendControl(ended)]
        del self._held[key]
        return [Stop(frame.call, frame.attempt), SendControl(ended)]

    def _abandon(self, key: Key, found: Attempt, now_s: float) -> _Effects:
        """End an attempt that its client does not read any more, without a tail."""
        ended = _cut(found, now_s, FinishReason("error", _UNNAMED))
        del self._held[key]
        self._remember(key, ended, now_s)
        return [Stop(*key), SendControl(ended), Count("attempts_unnamed")]

    def on_done(self, frame: Done, now_s: float) -> _Effects:
        """Forget attempts that were received whole; a running one is counted and goes on."""
        effects: _Effects = []
        for ref in frame.calls:
            key = (ref.call, ref.attempt)
            found = self._held.get(key)
            if found is None:
                continue  # done before: DONE may be repeated
            if found.state is AttemptState.TAIL:
                self._forget(key, found, now_s)
            else:
                effects.append(Count("bad_done"))
        return effects

    def note(
        self, call: CallId, attempt: int, usage: Mapping[str, Any] | None, request_id: str
    ) -> None:
        """Take what is known of an attempt that is about to end, for its report."""
        found = self._held.get((call, attempt))
        if found is not None:
            found.usage, found.request_id = usage, request_id

    def first_chunk_after_s(
        self, call: CallId, attempt: int, told_s: float | None = None
    ) -> float | None:
        """Return how long the first chunk of an attempt took; `None` if there was none yet.

        Args:
            call: with `attempt`, the attempt.
            attempt: counts from 0.
            told_s: monotonic seconds, if chunks are about to be told of here.
        """
        found = self._held.get((call, attempt))
        if found is None:
            return None
        first_s = told_s if found.first_s is None else found.first_s
        return None if first_s is None else first_s - found.started_s

    # --- the adapter ---------------------------------------------------------------------------

    def on_chunks(
        self, call: CallId, attempt: int, arrays: Sequence[Sequence[Any]], now_s: float
    ) -> _Effects:
        """Number and send chunks of the adapter; what passes the credit waits here.

        Args:
            call: with `attempt`, the attempt they belong to.
            attempt: counts from 0.
            arrays: lane arrays (`chunks.chunk_to_array`), none of them a finish.
            now_s: monotonic seconds.

        Returns:
            Lane frames. `room` is 0 afterwards if the credit is used up. Also `Stop` and `ENDED`
            if a chunk has no form on the lane. Only a count for an attempt that is over.
        """
        found = self._held.get((call, attempt))
        if found is None or found.ending is not None:
            return [Count("late_chunks", len(arrays))]
        if found.first_s is None and arrays:
            found.first_s = now_s
        found.queue(arrays)
        return self._send(found, now_s)

    def on_finish(
        self,
        call: CallId,
        attempt: int,
        finish: Finish,
        usage: Mapping[str, Any] | None,
        now_s: float,
        arrays: Sequence[Sequence[Any]] = (),
    ) -> _Effects:
        """Take the terminal finish, send it behind what waits, and report the end once it is out.

        Args:
            call: with `attempt`, the attempt that ended.
            attempt: counts from 0.
            finish: the one terminal finish; a second one is only counted.
            usage: the token counts as a camelCase map, if known; reported in `ENDED`.
            now_s: monotonic seconds.
            arrays: the last chunks before it, so that they share its frame.
        """
        found = self._held.get((call, attempt))
        if found is None or found.ending is not None:
            return [Count("late_chunks", len(arrays) + 1)]
        if found.first_s is None:
            found.first_s = now_s
        found.queue((*arrays, finish.to_array()))
        found.ending = Ending(_compact(finish.reason), usage, _figures(found, finish.reason, now_s))
        return self._send(found, now_s)

    def on_tick(self, now_s: float) -> _Effects:
        """Forget tails and ended attempts of which nothing was heard for `RETENTION_S`.

        Also end an attempt that waits for credit and that no frame has named for `DETACHED_S`: a
        client names a call that it reads, however slowly, every 30 s.
        """
        effects: _Effects = []
        for key, found in self.unfinished():
            if now_s - found.last_word_s >= DETACHED_S and found.room == 0:
                effects.extend(self._abandon(key, found, now_s))
        dropped = 0
        while self._tails:
            key, tail = next(iter(self._tails.items()))
            if now_s - tail.last_word_s < RETENTION_S:
                break
            self._forget(key, tail, now_s)
            dropped += 1
        while self._gone:
            key, gone = next(iter(self._gone.items()))
            if now_s - gone.last_word_s < RETENTION_S:
                break
            del self._gone[key]
        if dropped:
            effects.append(Count("tails_expired", dropped))
        return effects

    # --- transitions ---------------------------------------------------------------------------

    def _go_on(self, key: Key, found: Attempt, now_s: float) -> _Effects:
        """Send what waits, then `Pull` if the puller waits and there is room.

        Every event that can change the room of an attempt ends here, and nothing else decides
        whether it is pulled.
        """
        self._touch(key, found, now_s)
        effects = self._send(found, now_s) if found.pending_count else []
        if found.is_awaited and found.room > 0:
            effects.append(Pull(*key))
        return effects

    def _send(self, found: Attempt, now_s: float) -> _Effects:
        """Send what credit allows; report the end once its finish is out."""
        had_ending = found.ending is not None
        client = found.client
        effects: _Effects = [SendLane(client, frame) for frame in found.cut_frames()]
        if found.ending is None:
            return effects
        key = (found.start.call, found.start.attempt)
        if not had_ending:
            effects.append(Stop(*key))  # the rest of the adapter's stream has nowhere to go
        if found.pending_count:
            return effects
        found.last_word_s = now_s
        self._tails[key] = found
        return [*effects, SendControl(found.ended()), *self._bound_tails(now_s)]

    def _touch(self, key: Key, found: Attempt, now_s: float) -> None:
        """Restart the retention time."""
        found.last_word_s = now_s
        if found.state is AttemptState.TAIL:
            self._tails.move_to_end(key)

    def _again(self, key: Key, gone: _Gone, now_s: float) -> _Effects:
        gone.last_word_s = now_s
        self._gone.move_to_end(key)
        return [SendControl(gone.ended)]

    def _forget(self, key: Key, tail: Attempt, now_s: float) -> Ended:
        """TAIL → GONE."""
        del self._held[key]
        del self._tails[key]
        ended = tail.ended()
        self._remember(key, ended, now_s)
        return ended

    def _remember(self, key: Key, ended: Ended, now_s: float) -> None:
        self._gone[key] = _Gone(ended, now_s)
        if len(self._gone) > MAX_ENDED_CALLS:
            self._gone.popitem(last=False)

    def _bound_tails(self, now_s: float) -> _Effects:
        """Keep at most `MAX_OPEN_CALLS_PER_WORKER` tails: the longest unheard of goes."""
        if len(self._tails) <= MAX_OPEN_CALLS_PER_WORKER:
            return []
        key, tail = next(iter(self._tails.items()))
        self._forget(key, tail, now_s)
        return [Count("tails_evicted")]


def _aborted(call: CallId, attempt: int) -> Ended:
    return Ended(call, attempt, 0, FinishReason("aborted", _CANCELLED).to_dict())


def _cut(found: Attempt, now_s: float, finish: FinishReason = _ABORTED) -> Ended:
    """Return the report of an attempt that is ended while it runs."""
    call, attempt = found.start.call, found.start.attempt
    figures = _figures(found, finish, now_s)
    return Ended(call, attempt, found.sent, finish.to_dict(), found.usage, figures)


def _compact(reason: FinishReason) -> dict[str, Any]:
    """Return what `ENDED` says of a finish; keys of other kinds travel on the lane alone."""
    return FinishReason(reason.kind, reason.failure).to_dict()


def _figures(found: Attempt, finish: FinishReason, now_s: float) -> dict[str, Any]:
    """Return the measurements of an attempt; a waiting finish has not been sent yet."""
    first_s = now_s if found.first_s is None else found.first_s
    figures: dict[str, Any] = {
        "model": found.start.model,
        "chunks": found.sent + found.pending_count,
        "ttftMs": round((first_s - found.started_s) * 1000, 3),
        "durationMs": round((now_s - found.started_s) * 1000, 3),
    }
    failure = finish.failure
    request_id = failure.request_id if failure is not None else None
    if request_id or found.request_id:
        figures["requestId"] = request_id or found.request_id
    return figures
