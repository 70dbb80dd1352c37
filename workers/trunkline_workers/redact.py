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
    text = _without(text, [form for secret in secrets for form in _forms(secret)])
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text


def _forms(secret: str) -> list[str]:
    """Return the ways in which a secret may be written, each at most once."""
    encoded = base64.b64encode(secret.encode(errors="surrogatepass")).decode()
    return list(dict.fromkeys((secret, quote(secret, safe="", errors="replace"), encoded)))


def _without(text: str, forms: list[str]) -> str:
    """Replace, at each place, the longest beginning of a form that has more than four characters.

    Of all forms at once: keys of one provider begin alike, and taking out the common beginning for
    one of them would leave the rest of another.
    """
    heads: dict[str, list[str]] = {}
    for form in sorted(forms, key=len, reverse=True):
        if form:
            heads.setdefault(form[: _SHOWN_MAX + 1], []).append(form)
    if not heads:
        return text
    finder = re.compile("|".join(map(re.escape, sorted(heads, key=len, reverse=True))))
    out: list[str] = []
    start = 0
    while (found := finder.search(text, start)) is not None:
        at = found.start()
        size = max(_common(text, at, form) for form in heads[found.group()])
        out += (text[start:at], MASK)
        start = at + size
    return "".join((*out, text[start:]))


def _common(text: str, at: int, form: str) -> int:
    """Return how much of the beginning of a form stands in the text at a place."""
    size = 0
    while size < len(form) and text[at + size : at + size + 1] == form[size]:
        size += 1
    return size
