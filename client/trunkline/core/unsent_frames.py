"""Takes back what was counted as sent and was not: the control socket took no more.

Every frame is said again later: by a timer that it has anyway, or as decided here.
"""

from __future__ import annotations

from collections.abc import Mapping

from trunkline_protocol.frames import (
    Attach,
    Cancel,
    ClientFrame,
    Credit,
    Done,
    Open,
    Query,
    QueryCancel,
    Restate,
    Resume,
)
from trunkline_protocol.ids import CallId

from trunkline.core.confirmations import Confirmations
from trunkline.core.questions import Questions
from trunkline.core.queues import Unsent
from trunkline.core.stream_state import StreamState


def take_back(
    frame: ClientFrame,
    calls: Mapping[CallId, StreamState],
    questions: Questions,
    done: Confirmations,
    unsent: Unsent,
    now_s: float,
) -> list[StreamState]:
    """Take the news that a frame was not sent.

    Returns:
        Calls whose next deadline may have come nearer.
    """
    match frame:
        case Query() | QueryCancel():
            questions.on_unsent(frame, now_s)
        case Done():
            done.on_unsent(frame.calls, now_s)
        case Open() | Attach() | Cancel() | Resume():  # repeated until they are answered
            stream = calls.get(frame.call)
            if stream is not None:
                unsent.unsaid(frame.call)
                (stream.lacking if isinstance(frame, Resume) else stream.asking).take_back()
        case Credit():
            return _restated_soon([calls.get(frame.call)], now_s)
        case Restate():
            return _restated_soon([calls.get(entry.call) for entry in frame.calls], now_s)
        case _:  # HELLO and PROBE are repeated; after BYE the connection is closed
            pass
    return []


def _restated_soon(streams: list[StreamState | None], now_s: float) -> list[StreamState]:
    held = [stream for stream in streams if stream is not None]
    for stream in held:
        stream.restate_soon(now_s)
    return held
