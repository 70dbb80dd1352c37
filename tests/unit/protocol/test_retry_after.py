"""When a provider wants to be asked again."""

from __future__ import annotations

import pytest
from trunkline_protocol.retry_after import (
    duration_ms,
    header_delay_ms,
    parse_retry_after,
    rate_limit_reset_ms,
    text_delay_ms,
    usable_ms,
)

NOW_MS = 1_800_000_000_000.0  # Fri, 15 Jan 2027 08:00:00 GMT


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        ("2", 2_000),
        ("007", 7_000),
        (" 1.5 ", 1_500),
        ("2030", 2_030_000),
        ("0", None),
        ("", None),
        ("+5", None),
        ("-5", None),
        ("2, 3", None),
        ("\u00b2", None),
        ("9" * 400, None),
        ("Fri, 15 Jan 2027 08:00:03 GMT", 3_000),
        ("Mon, 15 Jan 2027 08:00:05 GMT", 5_000),
        ("Friday, 15-Jan-27 08:00:03 GMT", 3_000),
        ("Fri Jan 15 08:00:03 2027", 3_000),
        ("Fri Jan  1 08:00:03 2027", None),
        ("2027-01-15T09:00:11+01:00", 11_000),
        ("2027-01-15T08:00:11", 11_000),
        ("Fri, 15 Jan 2027 07:59:59 GMT", None),
        ("Wed, 31 Feb 2027 08:00:05 GMT", None),
        ("Fri, 15 Foo 2027 08:00:03 GMT", None),
        ("tomorrow", None),
    ],
)
def test_retry_after(value: str, delay_ms: float | None) -> None:
    assert parse_retry_after(value, NOW_MS) == delay_ms


@pytest.mark.parametrize(
    ("headers", "delay_ms"),
    [
        ({}, None),
        ({"retry-after-ms": "250", "retry-after": "1"}, 250),
        ({"retry-after-ms": "0", "retry-after": "1"}, 1_000),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1_000),
        ({"retry-after": "1"}, 1_000),
    ],
)
def test_the_finer_header_comes_first(headers: dict[str, str], delay_ms: float | None) -> None:
    assert header_delay_ms(headers, NOW_MS) == delay_ms


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        ("1s", 1_000),
        ("6m0s", 360_000),
        ("1h2m3.5s", 3_723_500),
        ("20ms", 20),
        ("12.5s", 12_500),
        ("0s", None),
        ("5", None),
        ("s", None),
        ("", None),
    ],
)
def test_durations(value: str, delay_ms: float | None) -> None:
    assert duration_ms(value) == delay_ms


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        ("Please retry in 12.5s.", 12_500),
        ("Please retry after 26 seconds.", 26_000),
        ("Please try again in 6ms", 6),
        ("try again in 3 milliseconds", 3),
        ("try again in 2 minutes", 120_000),
        ("try again in 5m", 300_000),
        ("try again later", None),
        ("retry in 0s", None),
    ],
)
def test_delays_in_a_text(text: str, delay_ms: float | None) -> None:
    assert text_delay_ms(text) == delay_ms


@pytest.mark.parametrize(
    ("headers", "delay_ms"),
    [
        ({}, None),
        ({"x-ratelimit-reset": "30"}, 30_000),
        ({"x-ratelimit-reset": "1800000005"}, 5_000),
        ({"x-ratelimit-reset": "1800000005000"}, 5_000),
        ({"x-ratelimit-reset": "7.66s"}, 7_660),
        ({"x-ratelimit-reset": "soon"}, None),
        ({"x-ratelimit-reset-requests": "1s"}, None),
        (
            {
                "x-ratelimit-remaining-requests": "9",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            360_000,
        ),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:09Z",
            },
            9_000,
        ),
        ({"x-ratelimit-remaining-tokens": "0"}, None),
    ],
    ids=[
        "none",
        "s",
        "epoch-s",
        "epoch-ms",
        "text",
        "bad",
        "alone",
        "used-up",
        "anthropic",
        "bare",
    ],
)
def test_reset_headers_count_where_something_is_used_up(
    headers: dict[str, str], delay_ms: float | None
) -> None:
    assert rate_limit_reset_ms(headers, NOW_MS) == delay_ms


def test_usable_delays_are_finite_and_above_zero() -> None:
    assert usable_ms(float("inf")) is None
    assert usable_ms(float("nan")) is None
    assert usable_ms(-1.0) is None
    assert usable_ms(0.25) == 0.25
    assert type(usable_ms(2.0)) is int
    assert usable_ms(1e300) == 1e300


@pytest.mark.parametrize(
    ("date", "delay_ms"),
    [
        ("Fri, 15 Jan 2027 07:00:00 GMT", 3_000),  # the server's clock is an hour behind ours
        ("Fri, 15 Jan 2027 09:00:00 GMT", None),  # an hour ahead: the wish is in its past
        ("yesterday", None),  # no date: by our clock the wish is in the past
    ],
)
def test_a_date_is_measured_from_the_response_and_not_from_our_clock(
    date: str, delay_ms: float | None
) -> None:
    """A `Retry-After` and a reset that are points in time; without a `Date` our clock counts."""
    at = "Fri, 15 Jan 2027 07:00:03 GMT"
    assert header_delay_ms({"retry-after": at, "date": date}, NOW_MS) == delay_ms
    reset = {"x-ratelimit-reset": str(1_800_000_000 - 3_597), "date": date}
    assert rate_limit_reset_ms(reset, NOW_MS) == delay_ms
