"""One call in the client: the table of SPEC.md section 5.2 and nothing else assigns its phase.

Every method takes a fact and returns effects; none raises for what a peer sent. `mux` decides
whether a frame may go out at all; what is held back there is said again by `speak`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, assert_never

from trunkline_protocol.chunks import Finish, StreamChunk, chunks_from_arrays
from trunkline_protocol.codec import LaneHeader, decode_lane_arrays
from trunkline_protocol.failure import Code, LlmFailure, RemoteProtocolError
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.frames import (
    Accepted,
    CallRef,
    Cancel,
    Credit,
    Done,
    Ended,
    Open,
    Restated,
    Resume,
    Retry,
    RetryStarted,
)
from trunkline_protocol.ids import CallId, StreamKey
from trunkline_protocol.limits import (
    QUIET_AFTER_S,
    QUIET_MAX_S,
    REPEAT_AFTER_S,
    REPEAT_MAX_S,
)

from trunkline.core.asking import Asking
from trunkline.core.assembly import Assembly
from trunkline.core.effects import (
    NOTHING,
    Count,
    Effects,
    RetryBegan,
    RetryNotice,
    RetryOffered,
    Send,
    Wake,
)
from trunkline.core.intake import Intake
from trunkline.core.phase import Phase
from trunkline.core.readings import (
    CANCELLED,
    CREDIT_IGNORED,
    TAIL_LOST,
    WORKER_LOST,
    finish_of,
    malformed,
    notice_of,
    offer_of,
    repeated,
    withdrawn,
)
from trunkline.core.requests import CallRequest, ServedBy, open_frame

_QUIET_STEP_S: Final = 0.25  # calls that fall quiet within this share one RESTATE
_ASK_AGAIN_S: Final = 2.0  # a quiet call that was asked about in vain
_NO_CHUNKS: Final[list[StreamChunk]] = []
_NO_BODY: Final = b""


class StreamState:
    """One call, from `OPEN` to its last confirmation.

    Attributes:
        call: its id.
        request: what was asked; its body is kept apart, as long as it may be sent again.
        attempt: number of the current one; in BACKOFF the one that is offered.
        begun: attempts that were opened.
        stream_key: of the current attempt.
        phase: assigned in this file only.
        intake: what has arrived of the current attempt.
        assembly: what the application has taken of it.
        served_by: who serves it; `None` before the broker said so.
        is_over: the application gets nothing beyond what waits in `intake`.
        was_sent: the broker may know of the call; set by `mux` when an `OPEN` goes out.
        asking: what was asked about the call in vain, `lacking` of its chunks; kept by `mux`.
        opened_s: when the current attempt was begun, or offered.
        scheduled_s: for `mux`, when it looks at the call again.
    """

    __slots__ = (
        "_body",
        "_has_seen",
        "_held",
        "_is_accepted",
        "_notice",
        "_quiet_s",
        "_reopened_s",
        "_repeat_at_s",
        "_repeat_s",
        "_restated_s",
        "asking",
        "assembly",
        "attempt",
        "begun",
        "call",
        "intake",
        "is_over",
        "lacking",
        "opened_s",
        "phase",
        "request",
        "scheduled_s",
        "served_by",
        "stream_key",
        "was_sent",
        "woken",
    )

    def __init__(
        self, call: CallId, request: CallRequest, stream_key: StreamKey, now_s: float
    ) -> None:
        self.call = call
        self.request = replace(request, body=_NO_BODY)
        self.woken: Effects = (Wake(call),)
        self.attempt = 0
        self.begun = 1
        self.asking = Asking()
        self.lacking = Asking()
        self.served_by: ServedBy | None = None
        self.is_over = False
        self.was_sent = False
        self.scheduled_s = float("inf")
        self._body = request.body
        self._reopened_s = float("-inf")
        self._has_seen = False  # by the application, of any attempt
        self._notice: RetryNotice | None = None
        self._begin(stream_key, now_s)

    def _begin(self, stream_key: StreamKey, now_s: float) -> None:
        """Start an attempt from nothing: OPENING."""
        self.phase = Phase.OPENING
        self.stream_key = stream_key
        self.intake = Intake(now_s)
        self.assembly = Assembly()
        self.opened_s = self._restated_s = now_s
        self._held: Finish | None = None
        self._is_accepted = False
        self._quiet_s = QUIET_AFTER_S
        self._repeat_s = REPEAT_AFTER_S
        self._repeat_at_s = now_s + REPEAT_AFTER_S

    # --- the lane ------------------------------------------------------------------------------

    def on_chunks(self, header: LaneHeader, frame: bytes, now_s: float) -> Effects:
        """Take a lane frame of the current attempt.

        Returns:
            `NOTHING` or `woken` itself if the frame was simply next; then no deadline has come
            nearer and no frame is due.
        """
        phase = self.phase
        if phase is not Phase.OPEN and phase is not Phase.TAIL and phase is not Phase.OPENING:
            return [Count("late_lane_frames")]
        intake = self.intake
        skip = intake.expected - header.first
        if skip < 0:
            return self._on_gap(header.first + header.count, now_s)
        count = header.count - skip
        if count <= 0:
            return [Count("repeated_lane_frames")] if header.count else NOTHING
        waiting = intake.waiting_chunks + count
        if waiting > intake.most_waiting and not intake.may_hold(waiting):
            return self._break(CREDIT_IGNORED, now_s)
        try:
            chunks = chunks_from_arrays(decode_lane_arrays(frame, header.count))
        except RemoteProtocolError as exc:
            return self._break(malformed(exc), now_s)
        size = len(frame)
        if skip:
            del chunks[:skip]
            size = size * count // header.count
        had_waiting = intake.has_waiting
        intake.add(chunks, count, size, now_s)
        if phase is Phase.OPENING:
            self.phase = Phase.OPEN
        if chunks[-1].__class__ is Finish:
            return self._on_finish(chunks, now_s)
        if phase is Phase.TAIL and intake.expected >= intake.known_next and self._held is not None:
            return self._end_at_last()
        return NOTHING if had_waiting else self.woken

    def _on_gap(self, sent_next: int, now_s: float) -> Effects:
        """Rule 3: what lies beyond the gap is dropped; ask once for what is lacking."""
        intake = self.intake
        is_resuming = intake.is_resuming
        intake.note_sent(sent_next, now_s)
        if self.phase is Phase.OPENING:
            self.phase = Phase.OPEN
        return [Count("lane_gaps")] if is_resuming else [Count("lane_gaps"), *self._resume(now_s)]

    def _resume(self, now_s: float) -> Effects:
        self.intake.note_resumed(now_s)
        return [Send(Resume(self.call, self.attempt, self.intake.expected))]

    def _on_finish(self, chunks: list[StreamChunk], now_s: float) -> Effects:
        """Take the terminal chunk that arrived in order."""
        finish = chunks[-1]
        assert isinstance(finish, Finish)  # the caller has looked
        is_decided = self.phase is Phase.TAIL  # ENDED came, so no RETRY will
        if self.request.recovery == "policy" and finish.reason.kind == "error" and not is_decided:
            chunks.pop()
            self._held = finish
            self.phase = Phase.HELD
            self._restated_s = now_s
            return list(self.woken)
        return self._close_done()

    def _end_at_last(self) -> Effects:
        """End with the finish of `ENDED`: all its chunks are here and none was a finish."""
        assert self._held is not None  # the caller has looked
        self.intake.add_end(self._held)
        return self._close_done()

    def _close_done(self) -> Effects:
        """Everything is here: over, and the worker may forget the tail."""
        self._close()
        return [Send(Done((CallRef(self.call, self.attempt),))), *self.woken]

    def _close(self) -> None:
        self.phase = Phase.CLOSED
        self.is_over = True
        self._body = _NO_BODY

    def _fail(self, failure: LlmFailure) -> Effects:
        """Deliver what has arrived, then this failure; nobody will send more."""
        kind = "aborted" if failure.code == Code.ABORTED else "error"
        self.intake.add_end(Finish(FinishReason(kind, failure)))
        self._close()
        return list(self.woken)

    def _break(self, failure: LlmFailure, now_s: float) -> Effects:
        """End a call whose worker broke the rules, and tell it to stop."""
        self.intake.add_end(Finish(FinishReason("error", failure)))
        return [*self._stop(now_s), *self.woken]

    def _stop(self, now_s: float) -> Effects:
        """Over for the application; the broker must confirm: CANCELLING."""
        self._close()
        if not self.was_sent:
            return NOTHING
        self.phase = Phase.CANCELLING
        self._repeat_s = REPEAT_AFTER_S
        self._repeat_at_s = now_s + REPEAT_AFTER_S
        return [Send(Cancel(self.call, self.attempt))]

    # --- the application -----------------------------------------------------------------------

    def take(self, now_s: float) -> tuple[list[StreamChunk], Effects]:
        """Hand out the chunks of the next frame; the ones handed out before count as consumed.

        Returns:
            No chunks if none wait: the stream has ended then, if `is_over`. Effects: credit.
        """
        intake = self.intake
        intake.consume()
        effects = NOTHING
        if intake.owes_credit and not self.is_over:
            effects = self._credit(now_s)
        chunks = intake.take()
        if chunks is not None and not chunks:  # a frame of which the finish was withheld
            intake.consume()
            chunks = intake.take()
        if chunks is None:
            return _NO_CHUNKS, effects
        self._has_seen = not self.request.is_replayable
        try:
            filled = self.assembly.follow(chunks)
        except RemoteProtocolError as exc:
            return self._take_failure(malformed(exc), now_s)
        if len(filled) != len(chunks) and not self.is_over:
            # A worker that goes on after its finish: the rest is never shown.
            effects = [*effects, *self._stop(now_s)]
        if self.assembly.finish is not None:
            intake.drop_waiting()
        return filled, effects

    def _take_failure(self, failure: LlmFailure, now_s: float) -> tuple[list[StreamChunk], Effects]:
        finish = Finish(FinishReason("error", failure))
        self.intake.drop_waiting()
        self.assembly.finish = finish
        return [finish], NOTHING if self.is_over else self._stop(now_s)

    def _credit(self, now_s: float) -> Effects:
        intake = self.intake
        intake.note_credited()
        self._restated_s = now_s
        if self.request.recovery == "none":
            self._body = _NO_BODY  # part of it was seen, so it is never opened again
        totals = Credit(
            self.call, self.attempt, intake.expected, intake.consumed, intake.consumed_bytes
        )
        return [Send(totals)]

    def cancel(self, now_s: float) -> Effects:
        """Stop: the application gets one `aborted` finish and nothing that waits; once only."""
        if self.is_over:
            return NOTHING
        self.intake.drop_waiting()
        self.intake.add_end(Finish(FinishReason("aborted", CANCELLED)))
        return [*self._stop(now_s), *self.woken]

    def abandon(self, failure: LlmFailure, now_s: float) -> Effects:
        """End a call about which a broker that answers sends nothing; it is told."""
        return self.give_up(failure) if self.is_over else self._break(failure, now_s)

    def give_up(self, failure: LlmFailure) -> Effects:
        """End without a word to the broker: there is none."""
        if not self.is_over:
            return self._fail(failure)
        self.phase = Phase.CLOSED
        return NOTHING

    # --- control -------------------------------------------------------------------------------

    def on_accepted(self, frame: Accepted, now_s: float) -> Effects:
        """Learn who serves the attempt, under which window and policy."""
        if self.phase is Phase.CANCELLING:
            return [Send(Cancel(self.call, self.attempt))]
        if self.phase is Phase.CLOSED:
            return NOTHING
        self.served_by = ServedBy(
            frame.pool, frame.slot, frame.generation, frame.policy, frame.token
        )
        self._is_accepted = True
        return [
            *self.on_queued(now_s),
            *self.on_window(frame.window_chunks, frame.window_bytes, now_s),
        ]

    def on_queued(self, now_s: float) -> Effects:
        """Take the confirmation of `OPEN`."""
        if self.phase is Phase.CANCELLING:
            return [Send(Cancel(self.call, self.attempt))]
        began: Effects = NOTHING
        if self.phase is Phase.BACKOFF and self._notice is not None:  # its delay was over
            self.begun += 1
            self.phase = Phase.OPENING
            began = [RetryBegan(self.call, self._notice)]
        if self.phase is Phase.OPENING:
            self.phase = Phase.OPEN
            self._restated_s = now_s
        return began

    def on_window(self, window_chunks: int, window_bytes: int, now_s: float) -> Effects:
        """Take a window; a smaller one may make credit due."""
        intake = self.intake
        intake.window_chunks, intake.window_bytes = window_chunks, window_bytes
        if intake.owes_credit and not self.is_over:
            return self._credit(now_s)
        return NOTHING

    def on_sent(self, sent_next: int, now_s: float) -> Effects:
        """Learn how far the worker has sent."""
        if self.phase in {Phase.OPENING, Phase.OPEN, Phase.TAIL}:
            self.intake.note_sent(sent_next, now_s)
        return NOTHING

    def on_ended(self, frame: Ended, now_s: float) -> Effects:
        """Learn that the attempt is over at the worker, with `last` chunks in all."""
        match self.phase:
            case Phase.OPENING | Phase.OPEN:
                self.phase = Phase.TAIL
                self._held = Finish(finish_of(frame.finish))
                self.intake.note_sent(frame.last, now_s)
                if self.intake.expected >= frame.last:
                    return self._end_at_last()
                return NOTHING
            case Phase.HELD:
                return self._end_at_last()
            case Phase.CANCELLING:
                self.phase = Phase.CLOSED
                return NOTHING
            case Phase.BACKOFF:
                return self._fail(withdrawn(frame.finish))
            case Phase.TAIL | Phase.CLOSED:
                return NOTHING
            case _:
                assert_never(self.phase)

    def on_failed(self, failure: LlmFailure) -> Effects:
        """Learn that nobody will send more of the attempt."""
        match self.phase:
            case Phase.OPENING | Phase.OPEN | Phase.BACKOFF:
                return self._fail(failure)
            case Phase.TAIL:
                is_taken = failure.code == Code.ABORTED  # over by another client
                return self._fail(failure if is_taken else TAIL_LOST)
            case Phase.HELD:
                return self._end_held()
            case Phase.CANCELLING:
                self.phase = Phase.CLOSED
                return NOTHING
            case Phase.CLOSED:
                return NOTHING
            case _:
                assert_never(self.phase)

    def _end_held(self) -> Effects:
        """End with the error finish, which was final; there is no tail to release."""
        assert self._held is not None
        self.intake.add_end(self._held)
        self._close()
        return list(self.woken)

    def on_lost(self, now_s: float) -> Effects:
        """Learn that nobody holds the attempt: open it once more unless part of it was seen."""
        match self.phase:
            case Phase.OPENING:
                return self._open(now_s)
            case Phase.OPEN | Phase.TAIL:
                return self._on_really_lost(now_s)
            case Phase.HELD:
                return self._end_held()
            case Phase.BACKOFF:
                return self._open(now_s)
            case Phase.CANCELLING:
                self.phase = Phase.CLOSED
                return NOTHING
            case Phase.CLOSED:
                return NOTHING
            case _:
                assert_never(self.phase)

    def _on_really_lost(self, now_s: float) -> Effects:
        if not self.intake.expected:
            self._begin(self.stream_key, now_s)
            self._reopened_s = now_s
            return self._open(now_s)
        if now_s - self._reopened_s < QUIET_AFTER_S:
            # It may answer what was said before the OPEN, and lane frames of that overtook it.
            return NOTHING
        return self._fail(WORKER_LOST)

    def on_retry(self, frame: Retry, stream_key: StreamKey, now_s: float) -> Effects:
        """Take the offer of a further attempt, or turn it down if chunks were already seen."""
        notice = notice_of(frame)
        if self.phase is Phase.CANCELLING:  # the CANCEL crossed the offer, or got lost
            self.attempt = frame.attempt
            return [Send(Cancel(self.call, self.attempt))]
        if self.phase is Phase.CLOSED:
            return NOTHING
        if self._has_seen:
            withheld = self._held if self.phase is Phase.HELD else None
            self.intake.add_end(withheld or Finish(FinishReason("error", notice.failure)))
            done = Send(Done((CallRef(self.call, self.attempt),)))
            self.attempt = frame.attempt
            return [done, *self._stop(now_s), *self.woken]
        effects: Effects = NOTHING
        if self.phase is not Phase.BACKOFF:
            effects = [Send(Done((CallRef(self.call, self.attempt),)))]
        again = repeated(self._notice, notice)
        self._begin(self.stream_key if again else stream_key, now_s)  # an OPEN may be under way
        self.phase = Phase.BACKOFF
        self.attempt = frame.attempt
        self._notice = again or notice
        # The broker says when the delay is over; only its silence makes the client speak first.
        self._repeat_at_s = now_s + notice.delay_ms / 1000 + REPEAT_MAX_S
        return effects if again else [*effects, RetryOffered(self.call, notice)]

    def on_retry_started(self, frame: RetryStarted, now_s: float) -> Effects:
        """Open the attempt that was offered."""
        notice = self._notice
        if self.phase is not Phase.BACKOFF or notice is None or notice.retry_id != frame.retry_id:
            return NOTHING
        self._begin(self.stream_key, now_s)
        self.begun += 1
        return [RetryBegan(self.call, notice), *self._open(now_s)]

    # --- saying it again -----------------------------------------------------------------------

    def _open(self, now_s: float) -> Effects:
        """Send `OPEN`, and again with growing pauses until it is confirmed."""
        offer = None
        if self.phase is Phase.BACKOFF and self._notice is not None:
            left_ms = self._notice.delay_ms - (now_s - self.opened_s) * 1000
            offer = offer_of(self._notice, max(0.0, left_ms))
        self._repeat_at_s = now_s + self._repeat_s
        return [Send(self._open_frame(offer))]

    def _open_frame(self, offer: Mapping[str, Any] | None = None) -> Open:
        return open_frame(self.request, self.call, self.attempt, self.stream_key, self._body, offer)

    def speak(self, now_s: float) -> Effects:
        """Say everything that a broker which has just answered must know (rule 8).

        Calls with a position are not in it: `mux` puts `restated` of all of them in one frame.
        """
        match self.phase:
            case Phase.OPENING | Phase.BACKOFF:
                return self._open(now_s)
            case Phase.OPEN if not self.has_position:
                self.phase = Phase.OPENING  # it was queued: this broker has not confirmed that
                return self._open(now_s)
            case Phase.CANCELLING:
                return [Send(Cancel(self.call, self.attempt))]
            case Phase.OPEN | Phase.TAIL | Phase.HELD | Phase.CLOSED:
                return NOTHING
            case _:
                assert_never(self.phase)

    @property
    def has_position(self) -> bool:
        """Whether the attempt is known to run, so that it is restated and not opened again."""
        if self.phase in {Phase.TAIL, Phase.HELD}:
            return True
        return self.phase is Phase.OPEN and (self._is_accepted or self.intake.expected > 0)

    def restated(self, now_s: float) -> Restated:
        """Return the entry for `RESTATE`; the next one is due after twice the time."""
        (intake := self.intake).note_credited()
        again_s = _ASK_AGAIN_S if self.asking.count else 2 * self._quiet_after_s
        self._quiet_s = min(again_s, QUIET_MAX_S)
        self._restated_s = now_s
        return Restated(
            self.call,
            self.attempt,
            self.stream_key,
            self.request.provider,
            intake.expected,
            intake.consumed,
            intake.consumed_bytes,
            is_recovered=self.request.recovery == "policy",
        )

    @property
    def is_doubtful(self) -> bool:
        """Whether nothing has arrived since the call was last restated, so that `ask` is due."""
        return self.intake.progress_s <= self._restated_s and self._quiet_s > QUIET_AFTER_S

    def ask(self) -> Effects:
        """Ask what the broker knows: an `OPEN` of a seen attempt starts nothing (SPEC 5.16)."""
        return [Send(replace(self._open_frame(), seen=True, body=_NO_BODY))]

    def restate_soon(self, now_s: float) -> None:
        """Have totals that could not be sent restated after `REPEAT_AFTER_S`."""
        self._quiet_s = QUIET_AFTER_S
        self._restated_s = now_s - QUIET_AFTER_S + REPEAT_AFTER_S

    @property
    def is_attaching(self) -> bool:
        """Whether the call is another client's, of which nothing has come yet."""
        return False

    def on_proof(self, now_s: float) -> Effects:
        """Ask at once for what is lacking: the lane has just been proven."""
        if self.phase in {Phase.OPEN, Phase.TAIL} and self.intake.is_behind:
            return self._resume(now_s)
        return NOTHING

    # --- time ----------------------------------------------------------------------------------

    def next_deadline_s(self) -> float:
        """Return when `on_tick` must be called next; infinity for a closed call."""
        if self.phase in {Phase.OPENING, Phase.BACKOFF, Phase.CANCELLING}:
            return self._repeat_at_s
        if self.phase is Phase.CLOSED:
            return float("inf")
        if self.phase is Phase.HELD or not self.intake.is_behind:
            return self.quiet_due_s()
        return min(self.intake.resume_due_s(), self.quiet_due_s())

    def quiet_due_s(self) -> float:
        """Return when the call must be restated, if nothing happens before."""
        due_s = max(self.intake.progress_s, self._restated_s) + self._quiet_after_s
        return due_s - due_s % _QUIET_STEP_S + _QUIET_STEP_S

    def is_quiet(self, now_s: float) -> bool:
        """Whether the call is due for a `RESTATE`."""
        is_told = self.phase in {Phase.OPEN, Phase.TAIL, Phase.HELD}
        return is_told and self.quiet_due_s() <= now_s

    @property
    def _quiet_after_s(self) -> float:
        """How long the call may be quiet: doubles as long as nothing arrives."""
        return QUIET_AFTER_S if self.intake.progress_s > self._restated_s else self._quiet_s

    def on_tick(self, now_s: float) -> Effects:
        """Repeat what is due: `OPEN`, `CANCEL`, `RESUME`. A due `RESTATE` is the caller's."""
        match self.phase:
            case Phase.OPENING | Phase.BACKOFF | Phase.CANCELLING if now_s >= self._repeat_at_s:
                self._repeat_s = min(2 * self._repeat_s, REPEAT_MAX_S)
                self._repeat_at_s = now_s + self._repeat_s
                return self.speak(now_s)
            case Phase.OPEN | Phase.TAIL if self.intake.is_behind:
                if now_s >= self.intake.resume_due_s():
                    return self._resume(now_s)
                return NOTHING
            case _:
                return NOTHING
