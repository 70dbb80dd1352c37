"""Take secrets out of text before it becomes a failure, a log line or a diagnostic; pure.

Providers echo the key they reject, whole or cut, and gateways put it into URLs. A secret is looked
for by value: any beginning of it longer than four characters, also URL-encoded and in base64. Texts
that look like a key are taken out even if they are none of ours.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

MASK: Final = "[redacted]"
_SHOWN_MAX: Final = 4  # characters of a key that may stay: what people recognize it by

_PATTERNS: Final = (
    re.compile(r"\b(?:sk|pk|rk|gsk|xai|pplx|hf|nvapi|key)[-_][A-Za-z0-9_\-]{8,}"),
    re.compile(r"\bAIza[A-Za-z0-9_\-]{8,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/\-]{6,}=*"),
    re.compile(
        r"(?i)(?<=[?&]key=)[^&\s\"']+|(?<=[?&]api_key=)[^&\s\"']+|(?<=[?&]token=)[^&\s\"']+"
    ),
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text with every secret in it replaced by `MASK`."""
    for secret in secrets:
        for form in _forms(secret):
            text = _without(text, form)
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text


def _forms(secret: str) -> list[str]:
    """Return the ways in which a secret may be written, each at most once."""
    encoded = base64.b64encode(secret.encode(errors="surrogatepass")).decode()
    return list(dict.fromkeys((secret, quote(secret, safe="", errors="replace"), encoded)))


def _without(text: str, secret: str) -> str:
    """Replace each longest beginning of the secret that has more than four characters."""
    head = secret[: _SHOWN_MAX + 1]
    if len(head) <= _SHOWN_MAX:
        return text.replace(secret, MASK) if secret else text
    out: list[str] = []
    start = 0
    while (found := text.find(head, start)) >= 0:
        size = len(head)
        while size < len(secret) and text[found + size : found + size + 1] == secret[size]:
            size += 1
        out += (text[start:found], MASK)
        start = found + size
    return "".join((*out, text[start:]))
