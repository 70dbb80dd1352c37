"""What is told of an attempt that is over, for counters, ledger, log and spans.

It reads calls and frames and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from trunkline_protocol.counts import is_count, is_figure
from trunkline_protocol.frames import Ended, Open
from trunkline_protocol.limits import MAX_KIND_CHARS, MAX_TEXT_BYTES
from trunkline_protocol.printable import code_of, one_line

from trunkline_broker.core.calls import Call
from trunkline_broker.core.effects import AttemptEnded
from trunkline_broker.core.workers import Worker

ENDED = "ended"
CANCELLED = "cancelled"
FAILED = "failed"
RETRIED = "retried"
_NOTHING: Mapping[str, Any] = {}
_USAGE_KEYS: Final = (
    "inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens", "reasoningTokens",
)  # fmt: skip
_NUMBERS: Final = ("chunks", "ttftMs", "durationMs")
_NAMES: Final = ("model", "requestId")


def account(
    call: Call,
    outcome: str,
    now_s: float,
    worker: Worker | None = None,
    frame: Ended | None = None,
    failure: Mapping[str, Any] | None = None,
) -> AttemptEnded:
    """Return what is told of the end of an attempt.

    Args:
        call: before it changes its attempt or is forgotten.
        outcome: one of this file's.
        now_s: when it ended.
        worker: who ran it; `None`: nobody did.
        frame: the worker's report, if it came.
        failure: where there is no report.
    """
    finish = _map(frame.finish if frame is not None else None)
    failure = _map(failure if frame is None else finish.get("failure"))
    figures = _figures(_map(frame.figures if frame is not None else None))
    waited_s = lasted_s = None
    if call.opened_s is not None:
        waited_s = (call.started_s if call.started_s is not None else now_s) - call.opened_s
    if call.started_s is not None and worker is not None:
        lasted_s = now_s - call.started_s
    return AttemptEnded(
        call=call.id,
        attempt=call.attempt,
        client=call.client_name,
        provider=call.provider,
        model=call.model or figures.get("model", ""),
        outcome=outcome,
        kind=_text(finish, "kind", MAX_KIND_CHARS)
        or ("aborted" if outcome == CANCELLED else "error"),
        code=_code(failure),
        message=_text(failure, "message", MAX_TEXT_BYTES),
        pool=worker.pool if worker is not None else "",
        slot=worker.slot if worker is not None else 0,
        pid=worker.pid if worker is not None else None,
        usage=_counts(frame.usage) if frame is not None else None,
        figures=figures or None,
        waited_s=waited_s,
        lasted_s=lasted_s,
        age_s=now_s - call.begun_s if call.begun_s is not None else None,
        traceparent=call.traceparent,
    )


def refusal(frame: Open, client_name: str, failure: Mapping[str, Any]) -> AttemptEnded:
    """Return what is told of a call that was refused before it was held."""
    return AttemptEnded(
        call=frame.call,
        attempt=frame.attempt,
        client=client_name,
        provider=frame.provider,
        model=frame.model,
        outcome=FAILED,
        kind="error",
        code=_code(failure),
        message=_text(failure, "message", MAX_TEXT_BYTES),
        waited_s=0.0,
        age_s=0.0,
        traceparent=frame.traceparent,
    )


def _map(value: object) -> Mapping[str, Any]:
    # Decoded maps are dicts; asking the abstract class costs as much as all the rest here.
    is_map = isinstance(value, (dict, Mapping))
    return cast("Mapping[str, Any]", value) if is_map else _NOTHING


def _text(fields: Mapping[str, Any], key: str, limit: int) -> str:
    value = fields.get(key)
    return one_line(value, limit) if isinstance(value, str) else ""


def _code(failure: Mapping[str, Any]) -> str:
    """Return the code of a failure; empty: there is no failure."""
    return code_of(failure.get("code")) if failure else ""


def _counts(usage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the token counts of a report that are counts; a worker may report anything."""
    if usage is None:
        return None
    known = ((key, usage.get(key)) for key in _USAGE_KEYS)
    return {key: count for key, count in known if is_count(count)}


def _figures(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the measurements of a report that have their form; others are left out."""
    if not figures:
        return _NOTHING
    found = {key: value for key in _NUMBERS if is_figure(value := figures.get(key))}
    texts = ((key, figures.get(key)) for key in _NAMES)
    named = {key: one_line(text) for key, text in texts if isinstance(text, str)}
    return {**found, **named}
