"""The client's core: all calls and queries of one client, and what may be said when.

Facts in, effects out; `now_s` is the monotonic time of the caller. It joins `stream_state` (one
call), `link` (the broker) and `questions`, holds back what a broker could not take now, and batches
`DONE` and `RESTATE`. The idea of one table of streams over two sockets is SPEC.md section 5's.
"""

from __future__ import annotations

from typing import Final, assert_never

from trunkline_protocol import limits
from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.codec import PROBED, decode_lane_header
from trunkline_protocol.failure import Code, LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import (
    Accepted,
    Attach,
    Bye,
    Cancel,
    ClientFrame,
    Done,
    Ended,
    Event,
    Failed,
    Lost,
    Open,
    Query,
    Queued,
    Refused,
    Reply,
    Restate,
    Restated,
    Resume,
    Retry,
    RetryStarted,
    Sent,
    Snapshot,
    Stopping,
    ToClientFrame,
    Welcome,
    Who,
    Window,
)
from trunkline_protocol.ids import CallId, ClientId, QueryId, StreamKey

from trunkline.core import giving_up
from trunkline.core.attached import AttachedStream
from trunkline.core.confirmations import Confirmations
from trunkline.core.drawn import DrawnIds
from trunkline.core.effects import (
    NOTHING,
    BecameReady,
    Count,
    Effect,
    Effects,
    Happened,
    Left,
    Send,
    Suspected,
)
from trunkline.core.intake import MAX_WAITING_CHUNKS
from trunkline.core.link import Link, LinkPhase
from trunkline.core.phase import Phase
from trunkline.core.questions import Questions
from trunkline.core.queues import TELL_EVERY_S, QueueStatistics, Unsent, to_wire
from trunkline.core.readings import failure_from
from trunkline.core.requests import CallRequest
from trunkline.core.schedule import Schedule
from trunkline.core.stream_state import StreamState
from trunkline.core.unsent_frames import take_back

_RESTATE_AT_ONCE: Final = 1000  # calls in one RESTATE: well below MAX_ENVELOPE_BYTES
_NEVER_S: Final = float("inf")
ADAPTERS_UPDATED: Final = "adapters-updated"
CallFrame = Accepted | Queued | Window | Ended | Failed | Lost | Retry | RetryStarted
_LEFT: Final = LlmFailure("the client was closed; the call goes on", Code.ABORTED)
_HELD_HERE: Final = LlmFailure("this client holds the call already", Code.INVALID_REQUEST)
_CLOSED: Final = LlmFailure("the client was closed", Code.ABORTED)


class Mux:
    """All streams and queries of one client.

    No method raises for what a peer sent. Effects must be performed in order.

    Attributes:
        is_leaving: `close` has taken leave, and the broker's answer is awaited.
    """

    def __init__(
        self,
        client: ClientId,
        pid: int,
        name: str,
        seed: bytes,
        now_s: float,
        orphan_timeout_s: float = limits.ORPHAN_TIMEOUT_S,
    ) -> None:
        """Start without a connection.

        Args:
            client: 16 random bytes; the routing id of the lane socket.
            pid: of this process.
            name: for the broker's status.
            seed: `drawn.SEED_BYTES` random bytes, from which all ids are drawn.
            now_s: monotonic seconds.
            orphan_timeout_s: how long calls wait for a broker to come back; `WELCOME` may set it.
        """
        self._drawn = DrawnIds(seed)
        self._link = Link(client, pid, name, now_s)
        self._questions = Questions()
        self._orphan_timeout_s = orphan_timeout_s
        self._calls: dict[CallId, StreamState] = {}
        self._by_key: dict[StreamKey, StreamState] = {}
        self._schedule = Schedule(self._calls)
        self._done = Confirmations()
        self._told_epoch: int | None = None
        self._unsent = Unsent()
        self._queues_told_s = -_NEVER_S
        self.is_leaving = False

    # --- facts for the shell -------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether a broker answers and the lane is proven."""
        return self._link.is_up

    @property
    def lane(self) -> str:
        """The endpoint of the lane; empty before a broker answered."""
        return self._link.lane

    @property
    def open_count(self) -> int:
        """Calls the broker may still know of."""
        return len(self._calls)

    @property
    def question_count(self) -> int:
        """Queries that wait for their answer."""
        return len(self._questions)

    def queues(self) -> tuple[QueueStatistics, ...]:
        """Return how full each queue is."""
        waiting = [stream.intake for stream in self._calls.values()]
        for intake in waiting:
            self._unsent.note_chunks(intake.most_waiting)
        deepest = max((intake.waiting_chunks for intake in waiting), default=0)
        return (
            *self._unsent.statistics(len(self._calls), deepest, MAX_WAITING_CHUNKS),
            self._questions.statistics(),
            self._done.statistics(),
        )

    def next_deadline_s(self) -> float:
        """Return when `on_tick` must be called next; infinity for never."""
        deadline_s = min(self._done.due_s, self._link.next_deadline_s())
        deadline_s = min(deadline_s, self._schedule.next_s())
        if self._questions.is_busy:
            deadline_s = min(deadline_s, self._questions.next_deadline_s())
        return deadline_s

    # --- the application -----------------------------------------------------------------------

    def new_call_id(self) -> CallId:
        """Return an id for `open`."""
        return self._drawn.call_id()

    def open(self, call: CallId, request: CallRequest, now_s: float) -> tuple[StreamState, Effects]:
        """Begin a call; it waits here while no broker answers.

        Returns:
            The call, and effects. It is over already, with `OVERLOADED`, beyond
            `MAX_OPEN_CALLS_PER_CLIENT`.
        """
        stream = self._new_stream(call, request, now_s)
        return stream, self._begin(stream, len(request.body), now_s)

    def _begin(self, stream: StreamState, size_bytes: int, now_s: float) -> Effects:
        refusal = self._refusal(size_bytes)
        if refusal is not None:
            return stream.give_up(refusal)
        self._calls[stream.call] = stream
        self._by_key[stream.stream_key] = stream
        self._unsent.note_calls(len(self._calls))
        effects = self._absorb(stream, stream.speak(now_s), now_s)
        if not stream.was_sent:
            self._unsent.put(stream.call, size_bytes)
        return effects

    def _new_stream(self, call: CallId, request: CallRequest, now_s: float) -> StreamState:
        return StreamState(call, request, self._drawn.stream_key(), now_s)

    def _refusal(self, size_bytes: int) -> LlmFailure | None:
        """Return why a new call can't even wait."""
        if self._link.has_given_up:
            return LlmFailure("the broker refuses this client", Code.TRANSPORT)
        bound = limits.MAX_OPEN_CALLS_PER_CLIENT
        if len(self._calls) >= bound:
            return LlmFailure(f"{bound} calls of this client are open already", Code.OVERLOADED)
        if not self._link.is_up and not self._unsent.has_room(size_bytes):
            text = f"requests of {self._unsent.bytes} bytes wait for a broker already"
            return LlmFailure(text, Code.OVERLOADED)
        return None

    def attach(
        self, call: CallId, request: CallRequest, token: bytes, now_s: float
    ) -> tuple[StreamState, Effects]:
        """Take over a call that another client began; it waits here while no broker answers.

        Returns:
            As `open`; the call is over already if this client holds it.
        """
        stream = AttachedStream(call, request, self._drawn.stream_key(), now_s, token)
        if call in self._calls:
            return stream, stream.give_up(_HELD_HERE)
        return stream, self._begin(stream, len(request.body), now_s)

    def take(self, stream: StreamState, now_s: float) -> tuple[list[StreamChunk], Effects]:
        """Hand out the chunks of a call's next frame; those handed out before count as consumed.

        Returns:
            No chunks if none wait; the stream has ended then if `stream.is_over`. And effects.
        """
        chunks, effects = stream.take(now_s)
        return chunks, effects and self._absorb(stream, effects, now_s)

    def cancel(self, stream: StreamState, now_s: float) -> Effects:
        """End a call for the application at once, and tell the broker until it confirms."""
        return self._absorb(stream, stream.cancel(now_s), now_s)

    def ask(
        self, op: str, provider: str, body: bytes, timeout_s: float, now_s: float
    ) -> tuple[QueryId, Effects]:
        """Send a query; it ends in exactly one `Answered`."""
        query = Query(self._drawn.query_id(), op, provider, int(timeout_s * 1000), body=body)
        asked = self._questions.ask(query, timeout_s, now_s, can_send=self._link.is_greeted)
        return query.query, asked

    def abandon(self, query: QueryId) -> Effects:
        """Forget a query nobody waits for; the answerer is told."""
        return self._questions.abandon(query, can_send=self._link.is_greeted)

    def close(self, now_s: float) -> Effects:
        """End every call in `aborted` and every query, and take leave of the broker.

        Detachable calls end here only; the broker lets them go on.

        Returns:
            Effects; `Left` comes later if `is_leaving` is true now. A connection that is closed
            too early takes its last frames with it: the broker finds the peer gone before it
            reads them.
        """
        effects: list[Effect] = []
        for stream in list(self._calls.values()):
            if giving_up.may_be_left(stream):
                effects.extend(stream.give_up(_LEFT))
                self._forget(stream)
            else:
                effects.extend(self.cancel(stream, now_s))
        effects.extend(self._questions.give_up(Code.ABORTED, _CLOSED.message))
        effects.extend(self._done.flush(now_s, can_send=self._link.is_up))
        if self._link.is_greeted:
            self.is_leaving = True
            # The second one comes from a stranger and is answered WHO: all else was read then.
            effects.extend((Send(Bye()), Send(Bye())))
        return effects

    def on_unsent(self, frame: ClientFrame, now_s: float) -> None:
        """Take the news that a frame of the last effects was not sent; it is said again later."""
        done, questions = self._done, self._questions
        for stream in take_back(frame, self._calls, questions, done, self._unsent, now_s):
            self._schedule.put(stream, now_s)

    # --- the link ------------------------------------------------------------------------------

    def on_connected(self, now_s: float) -> Effects:
        """Take the news of a new control connection."""
        return self._link.on_connected(now_s)

    def on_disconnected(self, now_s: float) -> Effects:
        """Take the news that the control connection broke."""
        return self._link.on_disconnected(now_s)

    def on_rejected(self, code: str, message: str) -> Effects:
        """Give up for good and end everything: no broker will ever answer here."""
        failure = LlmFailure(message, Code.TRANSPORT)
        return [*self._link.on_rejected(code, message), *self._end_all(failure)]

    def _on_proof(self, was_up: bool, now_s: float) -> Effects:
        """The lane is proven: say what a broker must know, ask for what is lacking."""
        effects: list[Effect] = []
        if was_up:
            for stream in list(self._calls.values()):
                effects.extend(self._absorb(stream, stream.on_proof(now_s), now_s))
            return effects
        told: list[Restated] = []
        for stream in list(self._calls.values()):
            if stream.has_position:
                told.append(stream.restated(now_s))
                self._schedule.put(stream, now_s)
            else:
                effects.extend(self._absorb(stream, stream.speak(now_s), now_s))
        effects.extend(self._restates(told, now_s))
        effects.extend(self._done.flush(now_s, can_send=self._link.is_up))
        return [*effects, BecameReady()]

    def _end_all(self, failure: LlmFailure) -> Effects:
        effects: list[Effect] = []
        for stream in list(self._calls.values()):
            effects.extend(stream.give_up(failure))
            self._forget(stream)
        return [*effects, *self._questions.give_up(failure.code, failure.message)]

    # --- the lane ------------------------------------------------------------------------------

    def on_lane(self, frame: bytes, now_s: float) -> Effects:
        """Take one lane frame."""
        try:
            header = decode_lane_header(frame)
        except RemoteProtocolError:
            return [Count("bad_lane_frames")]
        stream = self._by_key.get(header.stream_key)
        if stream is None:
            return self._on_stray(header.kind, header.first, now_s)
        effects = stream.on_chunks(header, frame, now_s)
        if effects is NOTHING or effects is stream.woken:
            return effects
        return self._absorb(stream, effects, now_s)

    def _on_stray(self, kind: int, nonce: int, now_s: float) -> Effects:
        """Take an echo, or count a frame of a stream that is over."""
        if kind != PROBED:
            return [Count("stray_lane_frames")]
        was_up = self._link.is_up
        if not self._link.on_echo(nonce, now_s):
            return [Count("stray_echoes")]
        return self._on_proof(was_up, now_s)

    # --- control -------------------------------------------------------------------------------

    def on_control(self, frame: ToClientFrame, now_s: float) -> Effects:
        """Take one control frame of the broker."""
        self._link.heard_s = now_s
        match frame:
            case Welcome():
                return self._on_welcome(frame, now_s)
            case Who():
                return [Left()] if self.is_leaving else self._link.on_who(now_s)
            case Refused():
                return self._on_refused(frame, now_s)
            case Stopping():
                self._link.is_restarting = frame.restart
                return NOTHING
            case Sent():
                return self._on_sent(frame, now_s)
            case Reply():
                failure = None if frame.failure is None else failure_from(frame.failure)
                return self._questions.on_reply(frame, failure)
            case Event():
                return [Happened(frame.event)]
            case Snapshot():
                return self._on_snapshot(frame, now_s)
            case _:
                return self._on_call_frame(frame, now_s)

    def _on_welcome(self, frame: Welcome, now_s: float) -> Effects:
        effects = self._link.on_welcome(frame, self._drawn.nonce(), now_s)
        if self._link.has_given_up:
            refusal = LlmFailure("the broker speaks another protocol version", Code.TRANSPORT)
            return [*effects, *self._end_all(refusal)]
        if not effects:
            return NOTHING
        is_again = self._told_epoch is not None
        is_new_epoch = is_again and frame.epoch != self._told_epoch
        self._told_epoch = frame.epoch
        if is_again:  # what was announced meanwhile was told to nobody
            effects = [*effects, Happened(ADAPTERS_UPDATED)]
        if frame.orphan_timeout_ms:
            self._orphan_timeout_s = frame.orphan_timeout_ms / 1000
        return [*effects, *self._questions.speak(now_s, is_new_epoch=is_new_epoch)]

    def _on_refused(self, frame: Refused, now_s: float) -> Effects:
        """A refusal that names a call or query ends it; others are counted (SPEC 8)."""
        failure = LlmFailure(frame.message, frame.code)
        if frame.query is not None:
            return self._questions.on_refused(frame.query, failure)
        if frame.call is not None:
            stream = self._calls.get(frame.call)
            is_waiting = frame.code == "STOPPING" and self._link.is_restarting
            is_ignored = frame.code == "BAD_CREDIT" or is_waiting
            if stream is None or stream.attempt != frame.attempt or is_ignored:
                return [Count("refused_frames")]
            return self._absorb(stream, stream.on_failed(failure), now_s)
        if self._link.phase is LinkPhase.GREETING:
            # A broker that is full for now has room later, but whoever is connecting wants to know.
            is_full = frame.code == Code.OVERLOADED and self._told_epoch is None
            if frame.code == "VERSION" or is_full:
                return self.on_rejected(frame.code, frame.message)
        return [Count("refused_frames")]

    def _on_snapshot(self, frame: Snapshot, now_s: float) -> Effects:
        stream = self._calls.get(frame.call)
        if not isinstance(stream, AttachedStream):
            return [Count("unexpected_snapshots")]
        return self._absorb(stream, stream.on_snapshot(frame, now_s), now_s)

    def _on_sent(self, frame: Sent, now_s: float) -> Effects:
        effects: list[Effect] = []
        for entry in frame.calls:
            stream = self._calls.get(entry.call)
            if stream is None and self._link.is_up:
                effects.extend(
                    self._done.on_named(entry.call, entry.attempt, now_s, is_ended=False)
                )
            elif stream is not None and stream.attempt == entry.attempt:
                told = stream.on_sent(entry.next, now_s)
                effects.extend(self._absorb(stream, told, now_s))
        return effects

    def _on_call_frame(self, frame: CallFrame, now_s: float) -> Effects:
        stream = self._calls.get(frame.call)
        if stream is None:
            return self._on_unheld(frame, now_s)
        # An offer names the next attempt; everything else must name the current one.
        is_next = type(frame) is Retry and stream.phase is not Phase.BACKOFF
        # Before its snapshot an attached call knows no attempt, and its refusal names any.
        is_any = stream.is_attaching and isinstance(frame, Failed | Lost)
        if frame.attempt != stream.attempt + is_next and not is_any:
            return [Count("frames_of_other_attempts")]
        stream.asking.answered()
        old_key = stream.stream_key
        self._unsent.note_chunks(stream.intake.most_waiting)  # a retry begins with an empty one
        effects = self._told(stream, frame, now_s)
        if type(frame) is Failed and stream.request.is_detachable:
            self._done.hand_over(frame.call, frame.attempt)
        if stream.stream_key != old_key:
            del self._by_key[old_key]
            self._by_key[stream.stream_key] = stream
        return self._absorb(stream, effects, now_s)

    def _on_unheld(self, frame: CallFrame, now_s: float) -> Effects:
        """Answer for a call that is over here, so that the broker does not hold it for ever.

        The lane's finish usually comes before `ENDED` does: then a `DONE` is under way.
        """
        if not self._link.is_up:
            return NOTHING  # it names the call again
        effects: Effects = NOTHING
        if not isinstance(frame, Failed | Lost):
            is_ended = type(frame) is Ended
            effects = self._done.on_named(frame.call, frame.attempt, now_s, is_ended=is_ended)
        if type(frame) is Ended:
            return effects
        return [Count("frames_of_unknown_calls"), *effects]

    def _told(self, stream: StreamState, frame: CallFrame, now_s: float) -> Effects:
        match frame:
            case Accepted():
                return stream.on_accepted(frame, now_s)
            case Queued():
                return stream.on_queued(now_s)
            case Window():
                return stream.on_window(frame.window_chunks, frame.window_bytes, now_s)
            case Ended():
                return stream.on_ended(frame, now_s)
            case Failed():
                return stream.on_failed(failure_from(frame.failure))
            case Lost():
                return stream.on_lost(now_s)
            case Retry():
                return stream.on_retry(frame, self._drawn.stream_key(), now_s)
            case RetryStarted():
                return stream.on_retry_started(frame, now_s)
            case _:
                assert_never(frame)

    # --- time ----------------------------------------------------------------------------------

    def on_tick(self, now_s: float, lateness_s: float = 0.0) -> Effects:
        """Repeat, restate, probe and give up what is due.

        Args:
            now_s: monotonic seconds; both sockets have been drained before.
            lateness_s: how much later than `next_deadline_s` this comes.
        """
        if lateness_s > limits.LATE_TICK_S:
            self._link.extend(lateness_s)
        effects: list[Effect] = list(self._link.on_tick(self._drawn.nonce(), now_s))
        if now_s >= self._done.due_s:
            effects.extend(self._done.flush(now_s, can_send=self._link.is_up))
        if self._questions.is_busy:
            link = self._link
            asked = self._questions.on_tick(now_s, link.heard_s, can_send=link.is_greeted)
            effects.extend(asked)
            if self._questions.take_unheard():
                self._unsent.note_unheard()
        return [*effects, *self._tick_calls(now_s)]

    def _tick_calls(self, now_s: float) -> Effects:
        effects: list[Effect] = []
        quiet: list[Restated] = []
        for stream in self._schedule.due(now_s):
            if self._gives_up(stream, effects, now_s):
                continue
            if giving_up.is_suspect(stream, now_s):
                effects.extend(self._link.doubt(self._drawn.nonce(), now_s))
            if self._link.is_up and stream.is_quiet(now_s):
                is_doubtful = stream.is_doubtful
                quiet.append(stream.restated(now_s))
                if is_doubtful:
                    effects.extend(self._absorb(stream, stream.ask(), now_s))
            effects.extend(self._absorb(stream, stream.on_tick(now_s), now_s))
            if stream.asking.take_suspicion():
                effects.append(Suspected(stream.call, giving_up.state_text(stream, now_s)))
        if self._unsent.take_unheard(now_s):  # does it live? A greeting is small
            effects.append(self._link.hello())
        return [*effects, *self._restates(quiet, now_s)]

    def _gives_up(self, stream: StreamState, effects: list[Effect], now_s: float) -> bool:
        """End a call for which nobody answers; return whether that is done with."""
        failure = giving_up.orphaned(stream, self._link, self._orphan_timeout_s, now_s)
        if failure is not None:
            effects.extend(stream.give_up(failure))
            self._forget(stream)
            return True
        failure = giving_up.unanswered(stream)
        if failure is None:
            return False
        effects.append(Count("unanswered_calls"))
        effects.extend(self._absorb(stream, stream.abandon(failure, now_s), now_s))
        return True

    # --- shared --------------------------------------------------------------------------------

    def _absorb(self, stream: StreamState, effects: Effects, now_s: float) -> Effects:
        """Keep the tables in step with a call that has just changed; hold back what can't go."""
        if stream.call in self._calls:
            if stream.phase is Phase.CLOSED:
                self._forget(stream)
            else:
                self._schedule.put(stream, now_s)
        if not effects:
            return effects
        out: list[Effect] = []
        for effect in effects:
            if not isinstance(effect, Send):
                out.append(effect)
            elif isinstance(effect.frame, Done):
                self._done.add(effect.frame.calls, now_s)
                if self._done.due_s <= now_s:
                    out.extend(self._done.flush(now_s, can_send=self._link.is_up))
            elif self._may_send(stream, effect.frame, now_s):
                out.append(effect)
        return out

    def _may_send(self, stream: StreamState, frame: object, now_s: float) -> bool:
        """Decide for a frame of a call; what is held back is said again when it may go out."""
        link = self._link
        match frame:
            case Open() | Attach():
                may = link.is_up and not link.is_restarting
                if may and not stream.was_sent:
                    stream.was_sent = True
                    self._unsent.drop(stream.call)
                if not may or not self._unsent.may_repeat(stream.call, link.heard_s, now_s):
                    return False
                stream.asking.ask(link.heard_s, stream.intake.progress_s, now_s)
                return True
            case Resume():
                if not link.is_up or link.is_probing:
                    return False
                stream.lacking.ask(link.heard_s, stream.intake.progress_s, now_s)
                return True
            case Cancel():
                if not link.is_greeted:
                    return False
                stream.asking.ask(link.heard_s, float("-inf"), now_s)
                return True
            case _:  # CREDIT
                return link.is_up

    def _forget(self, stream: StreamState) -> None:
        self._calls.pop(stream.call, None)
        self._by_key.pop(stream.stream_key, None)
        stream.scheduled_s = _NEVER_S
        self._unsent.forget(stream.call, stream.intake.most_waiting)

    def _restates(self, told: list[Restated], now_s: float) -> Effects:
        """Return as few `RESTATE` frames as their size allows; now and then with the queues."""
        queues = None
        if told and now_s - self._queues_told_s >= TELL_EVERY_S:
            self._queues_told_s = now_s
            queues = to_wire(self.queues())
        return [
            Send(Restate(tuple(told[at : at + _RESTATE_AT_ONCE]), None if at else queues))
            for at in range(0, len(told), _RESTATE_AT_ONCE)
        ]
