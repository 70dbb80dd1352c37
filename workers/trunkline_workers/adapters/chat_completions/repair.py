"""Payloads that are not one JSON value each, taken apart; pure.

Gateways lose blank lines, prefix `data:` twice, print two objects into one line and pad `[DONE]`.
Whatever is not one of these is left alone: it is malformed, and the stream says so.
"""

from __future__ import annotations

import json
import re
from typing import Final

from trunkline_workers.adapters.chat_completions.wire import MalformedPayloadError, decode_untyped

DONE: Final = b"[DONE]"
_PREFIX: Final = b"data:"
_BLANK: Final = re.compile(r"[ \t\r\n]+")
_TAKEN_BYTES: Final = 256 * 1024  # of a payload that is taken apart; parts are tokens, not images
_PARTS_MAX: Final = 1024
_decoder: Final = json.JSONDecoder(strict=False)


def is_whole(payload: bytes) -> bool:
    """Tell whether an event without its blank line is complete by its own framing."""
    if payload == DONE:
        return True
    try:
        return isinstance(decode_untyped(payload, lenient=True), dict)
    except MalformedPayloadError:
        return False


def taken_apart(payload: bytes) -> list[bytes]:
    """Return the payloads that a malformed one stands for; none if it stands for nothing."""
    if len(payload) > _TAKEN_BYTES or payload.count(b"\n") > _PARTS_MAX:
        return []
    stripped = payload.strip()
    if stripped != payload:
        return [stripped]
    if payload == b'"[DONE]"':
        return [DONE]
    if payload.startswith(_PREFIX):
        return [payload[len(_PREFIX) :].strip()]
    lines = payload.split(b"\n")
    if len(lines) > 1 and all(not line or is_whole(line) for line in lines):
        return lines
    return _objects(payload)


def _objects(payload: bytes) -> list[bytes]:
    """Split several JSON objects that were printed one behind the other."""
    text = payload.decode(errors="replace")
    found: list[bytes] = []
    at = 0
    while at < len(text):
        if len(found) > _PARTS_MAX:
            return []
        if text.startswith(DONE.decode(), at):
            end = at + len(DONE)
        elif text[at] == "{":
            try:
                _, end = _decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                return []
        else:
            return []
        found.append(text[at:end].encode())
        at = _blank_end(text, end)
    return found if len(found) > 1 else []


def _blank_end(text: str, start: int) -> int:
    """Return where the blanks that begin at a place end."""
    blanks = _BLANK.match(text, start)
    return start if blanks is None else blanks.end()
