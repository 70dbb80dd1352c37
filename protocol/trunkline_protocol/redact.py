"""Take secrets out of text before it becomes a failure, a log line or a diagnostic; pure.

Providers echo the key they reject, whole or cut, and gateways put it into URLs. A secret is looked
for by value: any beginning of it longer than four characters, also URL-encoded, escaped as in JSON
and Python, and in base64 wherever it begins there (`user:key` of Basic authentication). Texts that
look like a key are taken out even if they are none of ours.

Which values of a table (an environment, options) are secrets is judged by their names.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, cast
from urllib.parse import quote

MASK: Final = "[redacted]"
MAX_LEARNED: Final = 256  # a token that is fetched anew for each call must not fill the memory
_SECRET_NAME: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth(?!or(?!iz))|cookie")
# They say where a secret is to be found.
_HARMLESS_NAME: Final = re.compile(r"(?i)(env|file|header|name|path|sock|dir)$")
_SCHEME: Final = re.compile(r"(?i)^(?:bearer|basic|token)\s+")
_AUTHORIZATION: Final = re.compile(r"(?i)(?:bearer|basic)\s+\S+")
_MIN_SECRET_CHARS: Final = 6  # a shorter value would blank out ordinary words
_ESCAPE: Final = re.compile(r"%[0-9A-F]{2}")
_URL_SAFE: Final = str.maketrans("+/", "-_")
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


class Redactor:
    """Takes the secrets of a worker out of texts; more may be learned at any time."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = list(dict.fromkeys(secrets))
        self._learned: dict[str, None] = {}

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        return redact(text, (*self._secrets, *self._learned))

    def learn(self, secret: str) -> None:
        """Take a secret from elsewhere, such as a key file; the latest `MAX_LEARNED` are kept."""
        if len(secret) < _MIN_SECRET_CHARS or secret in self._secrets:
            return
        self._learned.pop(secret, None)
        self._learned[secret] = None
        if len(self._learned) > MAX_LEARNED:
            del self._learned[next(iter(self._learned))]


def redactor(environ: Mapping[str, str], options: Mapping[str, object]) -> Redactor:
    """Return what takes this worker's secrets out of a text: values under a telling name."""
    return Redactor([*secrets_in(environ), *secrets_in(options)])


def secrets_in(table: Mapping[str, object]) -> Iterator[str]:
    """Yield the secrets in a table and what is below it; of headers without their scheme."""
    for name, value in table.items():
        for item in cast("list[object]", value) if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from secrets_in(cast("Mapping[str, object]", item))
            elif isinstance(item, str):
                yield from _secret_of(name, item)


def _secret_of(name: str, value: str) -> Iterator[str]:
    if not _SECRET_NAME.search(name) and not _AUTHORIZATION.fullmatch(value):
        return
    secret = _SCHEME.sub("", value)
    if len(secret) >= _MIN_SECRET_CHARS and not _HARMLESS_NAME.search(name):
        yield secret


@lru_cache(maxsize=1024)
def _forms(secret: str) -> tuple[str, ...]:
    """Return the ways in which a secret may be written, each at most once."""
    quoted = quote(secret, safe="", errors="replace")
    lower = _ESCAPE.sub(lambda found: found[0].lower(), quoted)
    escaped = json.dumps(secret)[1:-1]
    forms = [secret, quoted, lower, escaped, escaped.replace("/", "\\/"), repr(secret)[1:-1]]
    forms += _base64_forms(secret.encode(errors="surrogatepass"))
    return tuple(dict.fromkeys(forms))


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield what a secret looks like in base64 after 0, 1 or 2 other bytes, in both alphabets.

    The characters that also hold bits of the bytes before it are left out.
    """
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + secret).decode()
        form = encoded[(before * 8 + 5) // 6 :].rstrip("=")
        yield form
        yield form.translate(_URL_SAFE)


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
