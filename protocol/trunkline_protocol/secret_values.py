"""Finds the secrets in a table of names and values, such as an environment or options; pure.

A value is a secret because of its name, or because it carries credentials inside: a URL with a
password, a query or a connection string with a field whose name says so.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Final, cast
from urllib.parse import unquote

MIN_SECRET_CHARS: Final = 6  # a shorter value would blank out ordinary words
_MIN_USER_CHARS: Final = 16  # of a token that stands where a user does: no name of a person
_MAX_VALUE_CHARS: Final = 8 * 1024  # of a value that is searched for credentials inside
_SECRET_NAME: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth(?!or(?!iz))|cookie")
# They say where a secret is to be found.
_HARMLESS_NAME: Final = re.compile(r"(?i)(env|file|header|name|path|sock|dir)$")
_SCHEME: Final = re.compile(r"(?i)^(?:bearer|basic|token)\s+")
_AUTHORIZATION: Final = re.compile(r"(?i)(?:bearer|basic)\s+\S+")
# The last @ ends the user part, as in browsers; a proxy may stand without its scheme. A password
# may hold a slash that nobody encoded; what begins like a port is none.
_USER_PART: Final = re.compile(
    r"(?:://|^|(?<=[\s,;=\"']))"
    r"([^\s/?#\"']+|[^\s/?#\"'@:]*:(?!//|\d{1,5}[/?#])[^\s\"'@]+)@(?=[^\s@/?#])"
)
_FIELD: Final = re.compile(
    r"(?i)(?:^|[?&;,\s])([\w.\-]*(?:key|token|secret|passw|pwd|sig|credential|auth)[\w.\-]*)"
    r"\s*=\s*([^&;,\s\"'#]+)"
)


def secrets_in(table: Mapping[str, object]) -> Iterator[str]:
    """Yield the secrets in a table and what is below it; of headers without their scheme.

    Passwords inside of URLs are yielded as they stand and percent-decoded, and the base64 text that
    Basic authentication makes of user and password.
    """
    for name, value in table.items():
        for item in cast("list[object]", value) if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from secrets_in(cast("Mapping[str, object]", item))
            elif isinstance(item, str):
                yield from _secret_of(name, item)
                yield from credentials_in(item[:_MAX_VALUE_CHARS])


def _secret_of(name: str, value: str) -> Iterator[str]:
    if not _SECRET_NAME.search(name) and not _AUTHORIZATION.fullmatch(value):
        return
    secret = _SCHEME.sub("", value)
    if len(secret) >= MIN_SECRET_CHARS and not _HARMLESS_NAME.search(name):
        yield secret


def credentials_in(value: str) -> Iterator[str]:
    """Yield the credentials that a URL, a query or a connection string carries."""
    if "@" in value:
        for found in _USER_PART.finditer(value):
            yield from _of_user_part(found[1])
    if "=" in value:
        for found in _FIELD.finditer(value):
            yield from _long_enough(found[2], MIN_SECRET_CHARS)


def _of_user_part(part: str) -> Iterator[str]:
    user, colon, password = part.partition(":")
    yield from _long_enough(user, _MIN_USER_CHARS)
    if not colon:
        return
    yield from _long_enough(password, MIN_SECRET_CHARS)
    if user or password:
        pair = f"{unquote(user)}:{unquote(password)}".encode(errors="surrogatepass")
        # What a short password would be recognized by; a beginning of it is the user's name.
        yield base64.b64encode(pair).decode()


def _long_enough(text: str, least: int) -> Iterator[str]:
    for written in dict.fromkeys((text, unquote(text))):
        if len(written) >= least:
            yield written
