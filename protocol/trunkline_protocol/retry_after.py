"""When a provider wants to be asked again: headers and bodies → milliseconds from now.

It decides no retry. Sources, best first: `retry-after-ms` (OpenAI, Azure), `Retry-After` (RFC 9110
section 10.2.3), Google's `RetryInfo`, the provider's text, the `x-ratelimit-reset` family.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

_DIGITS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_MONTHS: Final = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
# RFC 9110 section 5.6.7, all three forms; the weekday says nothing and is not checked.
_IMF_DATE: Final = re.compile(
    r"[a-z]+, ?(\d{1,2})[ -]([a-z]{3})[ -](\d{4}|\d\d) (\d\d):(\d\d):(\d\d) (?:gmt|utc|\+0000)",
    re.IGNORECASE | re.ASCII,
)
_ASCTIME: Final = re.compile(
    r"[a-z]{3} ([a-z]{3}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", re.IGNORECASE | re.ASCII
)
# OpenAI, Groq and Azure write "1s", "6m0s", "1h2m3.5s", "20ms".
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|h|m|s))+", re.ASCII)
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)", re.ASCII)
_UNIT_MS: Final = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "h": 3_600_000.0}
_IN_TEXT: Final = re.compile(
    r"\b(?:retry|try again) (?:in|after) (\d+(?:\.\d+)?) ?"
    r"(ms|milliseconds?|m|minutes?|s|seconds?)\b",
    re.IGNORECASE | re.ASCII,
)
# A reset above this is a point in time, not a duration: 2001 in seconds, 1970 in milliseconds.
_EPOCH_S: Final = 1e9
_EPOCH_MS: Final = 1e12
_RESET_HEADERS: Final = ("requests", "tokens")


def usable_ms(delay_ms: float) -> float | None:
    """Return a delay that is finite and above 0, else `None`; whole ones as `int`."""
    if not math.isfinite(delay_ms) or delay_ms <= 0:
        return None
    return int(delay_ms) if delay_ms == int(delay_ms) and delay_ms < 1e15 else delay_ms


def header_delay_ms(headers: Mapping[str, str], now_ms: float) -> float | None:
    """Read the explicit wish of a provider.

    Args:
        headers: names in lower case.
        now_ms: wall clock, milliseconds since 1970. A header that gives a date is measured from the
            response's own `Date`, and from this clock only where there is none that can be read.
    """
    exact = headers.get("retry-after-ms", "").strip()
    if _DIGITS.fullmatch(exact):
        delay_ms = usable_ms(float(exact))
        if delay_ms is not None:
            return delay_ms
    return parse_retry_after(headers.get("retry-after", ""), answered_ms(headers, now_ms))


def answered_ms(headers: Mapping[str, str], now_ms: float) -> float:
    """Return when a response was made by the clock of its server, in milliseconds since 1970.

    Args:
        headers: names in lower case.
        now_ms: our wall clock, for a response without a `Date` that can be read.
    """
    stated_ms = _date_ms(headers.get("date", "").strip())
    return now_ms if stated_ms is None else stated_ms


def parse_retry_after(value: str, now_ms: float) -> float | None:
    """Read a `Retry-After`: seconds or a date; anything else, and the past, is `None`."""
    value = value.strip()
    if _DIGITS.fullmatch(value):
        return usable_ms(_seconds_ms(value))
    at_ms = _date_ms(value)
    return None if at_ms is None else usable_ms(at_ms - now_ms)


def _seconds_ms(digits: str) -> float:
    """Convert seconds; more digits than a float holds are infinite."""
    return float(digits) * 1_000.0


def _date_ms(value: str) -> float | None:
    """Read an HTTP date or an ISO 8601 one, in milliseconds since 1970."""
    try:
        return _http_date_ms(value) or _iso_date_ms(value)
    except (ValueError, OverflowError):  # no such day, or no date at all
        return None


def _http_date_ms(value: str) -> float | None:
    match = _IMF_DATE.fullmatch(value)
    if match:
        day, month, year, *clock = match.groups()
    elif match := _ASCTIME.fullmatch(value):
        month, day, *clock, year = match.groups()
    else:
        return None
    number = int(year) + (2000 if len(year) == 2 else 0)
    hour, minute, second = map(int, clock)
    month_number = _MONTHS.index(month.lower()) + 1  # no such month: ValueError
    moment = datetime(number, month_number, int(day), hour, minute, second, tzinfo=UTC)
    return moment.timestamp() * 1_000.0


def _iso_date_ms(value: str) -> float:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() * 1_000.0


def duration_ms(value: str) -> float | None:
    """Read a duration such as `6m0s`, `1.5s` or `20ms`."""
    if not _DURATION.fullmatch(value):
        return None
    parts = _DURATION_PART.findall(value)
    return usable_ms(sum(float(number) * _UNIT_MS[unit] for number, unit in parts))


def text_delay_ms(text: str) -> float | None:
    """Read "Please retry in 12.5s", "try again in 20 seconds" and their like."""
    match = _IN_TEXT.search(text)
    if match is None:
        return None
    unit = match[2].lower()
    key = "ms" if unit == "ms" or unit.startswith("milli") else unit[0]
    return usable_ms(float(match[1]) * _UNIT_MS[key])


def rate_limit_reset_ms(headers: Mapping[str, str], now_ms: float) -> float | None:
    """Read the `x-ratelimit-reset` family, for a 429 that names no delay of its own.

    Where requests and tokens have limits of their own, the exhausted one counts; where none is
    said to be exhausted nothing is known. Points in time are measured from the response's `Date`.
    """
    now_ms = answered_ms(headers, now_ms)
    resets = [_reset_ms(headers.get("x-ratelimit-reset", ""), now_ms)]
    for what in _RESET_HEADERS:
        for stem in ("x-ratelimit", "anthropic-ratelimit"):
            if stem == "x-ratelimit":
                left, reset = f"{stem}-remaining-{what}", f"{stem}-reset-{what}"
            else:
                left, reset = f"{stem}-{what}-remaining", f"{stem}-{what}-reset"
            if headers.get(left, "").strip() == "0":
                resets.append(_reset_ms(headers.get(reset, ""), now_ms))
    known = [reset for reset in resets if reset is not None]
    return max(known, default=None)


def _reset_ms(value: str, now_ms: float) -> float | None:
    """Read one reset: a duration, a number of seconds, or a point in time."""
    value = value.strip()
    if not _DIGITS.fullmatch(value):
        return duration_ms(value) or parse_retry_after(value, now_ms)
    number = float(value)
    if number >= _EPOCH_MS:
        return usable_ms(number - now_ms)
    if number >= _EPOCH_S:
        return usable_ms(number * 1_000.0 - now_ms)
    return usable_ms(number * 1_000.0)
