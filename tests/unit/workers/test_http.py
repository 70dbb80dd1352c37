"""The pure parts of what HTTP adapters share: clocks, redaction, failure mapping, keys."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import httpx
import pytest
from trunkline_protocol.failure import LlmError
from trunkline_protocol.redact import MASK, redact
from trunkline_protocol.secret import SecretStr
from trunkline_workers.clocks import StreamClocks, StreamLimits
from trunkline_workers.credentials import KeySource
from trunkline_workers.transport_failure import transport_failure

LIMITS = StreamLimits(first_byte_s=10, idle_s=5, progress_s=12, total_s=40)


def test_the_first_byte_limit_spans_head_and_body() -> None:
    """The head alone does not restart it."""
    clocks = StreamClocks(LIMITS)
    assert clocks.arm(100.0) == 110.0
    clocks.disarm(104.0, has_bytes=False)
    assert clocks.arm(200.0) == 206.0
    assert (clocks.limit, clocks.limit_s) == ("first-byte", 10)


def test_idle_restarts_with_every_read() -> None:
    """After the first byte each read has the whole idle limit."""
    clocks = StreamClocks(LIMITS)
    for now_s in (0.0, 4.0):
        clocks.arm(now_s)
        clocks.disarm(now_s + 4.0, has_bytes=True)
        clocks.progressed()
    assert clocks.arm(8.0) == 13.0
    assert clocks.limit == "idle"


def test_reads_without_content_use_up_the_progress_limit() -> None:
    """Keep-alives restart idle, not progress; content restarts both."""
    clocks = StreamClocks(LIMITS)
    for now_s in (0.0, 4.0):
        clocks.arm(now_s)
        clocks.disarm(now_s + 4.0, has_bytes=True)
    assert clocks.arm(8.0) == 12.0
    assert clocks.limit == "progress"
    clocks.disarm(9.0, has_bytes=True)
    clocks.progressed()
    assert clocks.arm(9.0) == 14.0


def test_time_in_which_nobody_reads_counts_for_nothing() -> None:
    """A reader may pause for an hour between two reads."""
    clocks = StreamClocks(LIMITS)
    for now_s in range(0, 36_000, 3_600):
        clocks.arm(now_s)
        clocks.disarm(now_s + 1.0, has_bytes=True)
        clocks.progressed()
    assert clocks.arm(36_000.0) == 36_005.0


def test_the_total_limit_counts_all_waiting() -> None:
    """It is reached whatever came in between."""
    clocks = StreamClocks(LIMITS)
    for now_s in range(0, 36, 4):
        clocks.arm(now_s)
        clocks.disarm(now_s + 4.0, has_bytes=True)
        clocks.progressed()
    assert clocks.arm(36.0) == 40.0
    assert (clocks.limit, clocks.limit_s) == ("total", 40)


KEY = "qz-AAAABBBBCCCCDDDD1234/+"


@pytest.mark.parametrize(
    "text",
    [
        f"bad key {KEY}.",
        f"bad key {KEY[:9]}...",
        "url ?key=qz-AAAABBBBCCCCDDDD1234%2F%2B&x=1",
        "basic cXotQUFBQUJCQkJDQ0NDRERERDEyMzQvKw==",
        "auth Bearer abcdef123456 was refused",
        "key sk-proj-abcdefghijkl is wrong",
        "https://h/v1?key=AIzaTESTTESTTEST",
    ],
)
def test_keys_are_taken_out(text: str) -> None:
    """Ours by value, in every spelling; others by their looks."""
    shown = redact(text, [KEY])
    assert MASK in shown
    for secret in (KEY[:5], "%2F%2B", "cXotQ", "abcdef", "AIzaTEST"):
        assert secret not in shown


def test_text_without_keys_is_unchanged() -> None:
    """Redaction costs no information."""
    text = "rate limit of 30 requests per minute; see https://host/docs?page=2"
    assert redact(text, [KEY, "", "abc"]) == text


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (httpx.ConnectTimeout("x"), "TIMEOUT"),
        (httpx.ReadTimeout("x"), "TIMEOUT"),
        (httpx.PoolTimeout("x"), "TRANSPORT"),
        (httpx.ConnectError("x"), "TRANSPORT"),
        (httpx.ReadError(""), "TRANSPORT"),
        (httpx.RemoteProtocolError("x"), "TRANSPORT"),
        (httpx.DecodingError("x"), "MALFORMED_RESPONSE"),
        (httpx.UnsupportedProtocol("x"), "INVALID_REQUEST"),
        (httpx.InvalidURL("x"), "INVALID_REQUEST"),
        (ConnectionResetError("x"), "TRANSPORT"),
        (RuntimeError("x"), "TRANSPORT"),
    ],
)
def test_transport_failures(exc: Exception, code: str) -> None:
    """Each kind of trouble has its code."""
    assert transport_failure(exc).code == code


def test_a_connection_that_broke_is_no_timeout() -> None:
    """httpx-aiohttp reports it as ConnectTimeout; the cause tells."""
    broken = httpx.ConnectTimeout("gone")
    broken.__cause__ = aiohttp.ServerDisconnectedError()
    assert transport_failure(broken).code == "TRANSPORT"
    late = httpx.ConnectTimeout("late")
    late.__cause__ = aiohttp.ConnectionTimeoutError()
    assert "timed out" in transport_failure(late).message


async def _code(source: KeySource) -> str:
    with pytest.raises(LlmError) as caught:
        await source.read()
    return caught.value.code


async def test_keys_are_read_anew_for_every_call(tmp_path: Path) -> None:
    """A file that is replaced gives the new key; blanks around it do not matter."""
    path = tmp_path / "key"
    source = KeySource(owner="w", file=str(path))
    assert await _code(source) == "MISSING_CREDENTIAL"
    path.write_text("first\n")
    assert await source.read() == SecretStr("first")
    path.write_text("  second  ")
    assert await source.read() == SecretStr("second")
    path.write_text("a b")
    assert await _code(source) == "INVALID_CREDENTIAL"


async def test_keys_of_the_environment() -> None:
    """Missing and optional keys, and what the error says."""
    told: list[str] = []
    source = KeySource(owner="w", variable="K", environ={"K": " k "}, conceal=told.append)
    assert await source.read() == SecretStr("k")
    assert told == ["k"]
    assert await KeySource(owner="w", variable="K", required=False).read() is None
    blank = KeySource(owner="w", variable="K", required=False, environ={"K": " "})
    assert await blank.read() is None
    assert (
        await _code(KeySource(owner="w", variable="K", environ={"K": ""})) == "INVALID_CREDENTIAL"
    )
    with pytest.raises(LlmError, match=r"variable K.*`env` list"):
        await KeySource(owner="w", variable="K").read()
    with pytest.raises(LlmError, match="apiKeyEnv or apiKeyFile"):
        await KeySource(owner="w").read()
