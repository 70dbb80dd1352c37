"""Encodes control frames so that each fits: a short one stands in for what its receiver refuses.

Texts of adapters are bounded where they are made. This is the last look before a frame leaves,
since a report that is refused leaves its asker waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trunkline_protocol.codec import encode
from trunkline_protocol.failure import Code, LlmFailure
from trunkline_protocol.finish import FAILED_KINDS
from trunkline_protocol.frames import (
    Body,
    Ended,
    Heartbeat,
    Register,
    Registrations,
    Reply,
    WorkerFrame,
)
from trunkline_protocol.limits import (
    MAX_BODY_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_KIND_CHARS,
    MAX_PARTS,
    MAX_REGISTER_BYTES,
)

_LARGE: Final = (Register, Registrations)
_TOO_LARGE: Final = LlmFailure("the report of this worker was too large to be sent", Code.INVARIANT)


class Fitted(NamedTuple):
    """The parts of a frame as it may leave.

    Attributes:
        parts: `None`: it has no form, and no short frame says the same.
        is_short: a short frame stands in for it.
    """

    parts: list[Body] | None
    is_short: bool


def fitted(frame: WorkerFrame) -> Fitted:
    """Return the parts of a frame, or those of a short one that ends the same wait."""
    parts = _encoded(frame)
    if parts is not None:
        return Fitted(parts, is_short=False)
    short = _short(frame)
    return Fitted(None if short is None else _encoded(short), is_short=True)


def _encoded(frame: WorkerFrame) -> list[Body] | None:
    """Return the parts of a frame; `None` if its receiver would refuse it."""
    try:
        parts = encode(frame)
    # What msgpack raises for a value that it has no form for.
    except (TypeError, ValueError, OverflowError):
        return None
    bound = MAX_REGISTER_BYTES if isinstance(frame, _LARGE) else MAX_ENVELOPE_BYTES
    if len(parts[1]) > bound or (len(parts) == MAX_PARTS and len(parts[2]) > MAX_BODY_BYTES):
        return None
    return parts


def _short(frame: WorkerFrame) -> WorkerFrame | None:
    match frame:
        case Ended():
            return Ended(frame.call, frame.attempt, frame.last, _short_finish(frame.finish))
        case Reply():
            return Reply(frame.query, _TOO_LARGE.to_dict())
        case Heartbeat():
            return Heartbeat(frame.sent)
        case _:
            return None


def _short_finish(finish: Mapping[str, Any]) -> dict[str, Any]:
    """Return the finish of a short report: its kind, and our own failure for one that failed."""
    kind = finish.get("kind")
    if type(kind) is not str or len(kind) > MAX_KIND_CHARS:
        kind = "error"
    if kind in FAILED_KINDS:
        return {"kind": kind, "failure": _TOO_LARGE.to_dict()}
    return {"kind": kind}
