"""Take secrets out of text before it becomes a failure, a log line or a diagnostic; pure.

Providers echo the key they reject, whole or cut, and gateways put it into URLs. A secret is looked
for by value, whole and in parts, in every way of writing it (`secret_forms`). Texts that look like
a key are taken out even if they are none of ours. Callers cut a text before it comes here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from trunkline_protocol.secret_forms import FormIndex
from trunkline_protocol.secret_values import MIN_SECRET_CHARS, secrets_in

__all__ = ["MASK", "MAX_LEARNED", "Redactor", "redact", "redactor", "secrets_in"]

MASK: Final = "[redacted]"
MAX_LEARNED: Final = 256  # a token that is fetched anew for each call must not fill the memory

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
    return _redacted(text, FormIndex(secrets))


def _redacted(text: str, index: FormIndex) -> str:
    out: list[str] = []
    done = 0
    for start, end in index.spans(text):
        out += (text[done:start], MASK)
        done = end
    text = "".join((*out, text[done:]))
    for pattern in _PATTERNS:
        text = pattern.sub(MASK, text)
    return text


class Redactor:
    """Takes the secrets of a worker out of texts; more may be learned at any time."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = list(dict.fromkeys(secrets))
        self._learned: dict[str, None] = {}
        self._index: FormIndex | None = None

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        if self._index is None:
            self._index = FormIndex((*self._secrets, *self._learned))
        return _redacted(text, self._index)

    def learn(self, secret: str) -> None:
        """Take a secret from elsewhere, such as a key file; the latest `MAX_LEARNED` are kept."""
        if len(secret) < MIN_SECRET_CHARS or secret in self._secrets:
            return
        is_known = secret in self._learned
        self._learned.pop(secret, None)
        self._learned[secret] = None
        if len(self._learned) > MAX_LEARNED:
            del self._learned[next(iter(self._learned))]
            self._index = None
        elif not is_known and self._index is not None:
            self._index.add(secret)


def redactor(environ: Mapping[str, str], options: Mapping[str, object]) -> Redactor:
    """Return what takes this worker's secrets out of a text: values under a telling name."""
    return Redactor([*secrets_in(environ), *secrets_in(options)])
