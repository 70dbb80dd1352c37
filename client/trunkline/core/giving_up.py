"""Decides when a call without an answer is given up, and which calls a client may leave.

None of them needs a particular frame (SPEC.md section 5.16); it changes nothing itself.
"""

from __future__ import annotations

from typing import Final

from trunkline_protocol.failure import Code, LlmFailure

from trunkline.core.asking import UNANSWERED_S
from trunkline.core.link import Link
from trunkline.core.phase import Phase
from trunkline.core.stream_state import StreamState

SUSPECT_AFTER_S: Final = 1.0  # rule 6
STANDSTILL_S: Final = 600.0  # as long as a broker waits for a client that stands still


def is_suspect(stream: StreamState, now_s: float) -> bool:
    """Return whether nothing has come for a second although chunks were sent: a deaf lane."""
    return (
        stream.phase in {Phase.OPEN, Phase.TAIL}
        and stream.intake.is_behind
        and now_s - stream.intake.behind_since_s() >= SUSPECT_AFTER_S
    )


def orphaned(
    stream: StreamState, link: Link, orphan_timeout_s: float, now_s: float
) -> LlmFailure | None:
    """Return why a call ends because no broker answers, or `None`.

    Args:
        stream: the call.
        link: the connection to the broker.
        orphan_timeout_s: how long a call waits for a broker, or for its first answer.
        now_s: monotonic seconds.
    """
    if link.down_for_s(now_s) >= orphan_timeout_s:
        is_due = stream.was_sent or now_s - stream.opened_s >= orphan_timeout_s
        return _silence(orphan_timeout_s) if is_due else None
    if stream.is_attaching and now_s - stream.opened_s >= orphan_timeout_s:
        text = f"no snapshot of this call has come within {orphan_timeout_s:g} s"
        return LlmFailure(text, Code.TRANSPORT)
    silent_s = now_s - max(stream.opened_s, stream.intake.progress_s, link.heard_s)
    bound_s = STANDSTILL_S if stream.phase is not Phase.OPENING else 0.0
    bound_s = max(bound_s, orphan_timeout_s)
    return _silence(bound_s) if silent_s >= bound_s else None


def unanswered(stream: StreamState) -> LlmFailure | None:
    """Return why a call ends although the broker answers, or `None`."""
    if stream.asking.is_hopeless:
        text = f"the broker answers, but for {UNANSWERED_S:g} s it has sent nothing about this call"
        return LlmFailure(text, Code.TRANSPORT)
    if stream.lacking.is_hopeless and stream.intake.is_behind:
        text = f"chunks that the worker has sent were asked for in vain for {UNANSWERED_S:g} s"
        return LlmFailure(text, Code.TRANSPORT)
    return None


def _silence(bound_s: float) -> LlmFailure:
    return LlmFailure(f"no broker has answered for {bound_s:g} s", Code.TRANSPORT)


def state_text(stream: StreamState, now_s: float) -> str:
    """Return the state of a call in words, for a report of a defect; no content."""
    intake = stream.intake
    return (
        f"{stream.phase.value}, attempt {stream.attempt}, opened {now_s - stream.opened_s:.1f} s"
        f" ago, progress {now_s - intake.progress_s:.1f} s ago, expected {intake.expected},"
        f" sent {intake.known_next}, consumed {intake.consumed},"
        f" {stream.asking.count} questions unanswered"
    )


def may_be_left(stream: StreamState) -> bool:
    """Return whether a call goes on when its client leaves: a detachable, accepted one."""
    is_held = stream.phase in {Phase.OPEN, Phase.TAIL} and stream.has_position
    return stream.is_attaching or (stream.request.is_detachable and is_held)
