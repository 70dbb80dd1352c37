"""The rule for API keys: judged before use, never shown."""

from __future__ import annotations

from enum import Enum
from typing import Final

from trunkline_protocol.blanks import BLANKS
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmError

_FIRST_LEGAL: Final = "!"
_LAST_LEGAL: Final = "~"  # RFC 9110 section 5.5: what a header may hold without blanks


class ApiKeyFault(Enum):
    """Why a text is no API key."""

    EMPTY = "empty"
    ILLEGAL_CHARACTERS = "illegalCharacters"


def normalize_api_key(raw: str) -> str | ApiKeyFault:
    """Strip the blanks around a key and judge the rest: printable ASCII without blanks."""
    key = raw.strip(BLANKS)
    if not key:
        return ApiKeyFault.EMPTY
    if all(_FIRST_LEGAL <= char <= _LAST_LEGAL for char in key):
        return key
    return ApiKeyFault.ILLEGAL_CHARACTERS


def usable_api_key(raw: str, owner: str, ref: str) -> str:
    """Return the key to send.

    Args:
        raw: as configured.
        owner: who needs it, for the error.
        ref: name of the variable or setting it came from, for the error.

    Raises:
        LlmError: `INVALID_CREDENTIAL`; the text names owner and ref, never the key.
    """
    key = normalize_api_key(raw)
    if isinstance(key, str):
        return key
    fault = "is blank" if key is ApiKeyFault.EMPTY else "has characters no API key can have"
    raise LlmError.of(f"{owner}: the API key from {ref} {fault}", Code.INVALID_CREDENTIAL)
