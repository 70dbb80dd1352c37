"""The shell without sockets: answers, observers and defects that meet their reader a turn late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from trunkline.core.effects import Answered, RetryNotice, RetryOffered, Suspected, Wake
from trunkline.shell import STRICT_VARIABLE, Shell
from trunkline_protocol.codec import pack_body
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.ids import CallId

from tests.unit.client.a_mux import a_mux
from tests.unit.client.a_stream import CALL, SERVER

LEASE = b"l" * 16
NOTICE = RetryNotice("r", "p", "normal", "k", 1, 3, 0.0, SERVER, 1)


def a_shell() -> Shell:
    """Return a shell that seems connected."""
    shell = Shell("ipc:///tmp/nobody", "test")
    shell._loop = asyncio.get_running_loop()
    shell.mux = a_mux()
    return shell


@pytest.mark.parametrize(
    ("op", "answer", "failure", "released"),
    [
        ("prepareCall", pack_body({"lease": LEASE}), None, 1),
        ("prepareCall", pack_body({"lease": 5}), None, 0),
        ("prepareCall", b"\xc1", None, 0),
        ("prepareCall", b"", LlmFailure("no", "NO_ADAPTER"), 0),
        ("models", pack_body({"lease": LEASE}), None, 0),
    ],
)
async def test_a_prepared_call_that_nobody_reads_is_given_back(
    op: str, answer: bytes, failure: LlmFailure | None, released: int
) -> None:
    """The answer and the cancellation of its reader come in the same turn."""
    shell = a_shell()
    asking = asyncio.ensure_future(shell.ask(op, "r", b"", 5.0))
    await asyncio.sleep(0)
    (query,) = shell._answers
    shell.mux._questions._waiting.pop(query)
    shell.perform([Answered(query, answer, failure)])
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [one.query.op for one in shell.mux._questions._waiting.values()] == (
        ["releaseCall"] * released
    )
    assert shell._answers == {}


async def test_a_cancelled_question_is_called_off() -> None:
    shell = a_shell()
    asking = asyncio.ensure_future(shell.ask("models", "", b"", 5.0))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert shell.mux.question_count == 0


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, GeneratorExit])
async def test_whatever_an_observer_raises_the_rest_is_done(error: type[BaseException]) -> None:
    """Its stream is woken, its next deadline set."""
    shell = a_shell()

    def observer(_: object) -> None:
        raise error

    shell.observe(CALL, observer)
    waiter = shell.wait_for(CALL)
    shell.perform([RetryOffered(CALL, NOTICE), Wake(CALL)])
    assert waiter.done()


async def test_an_exit_in_an_observer_comes_a_turn_later() -> None:
    """What the runtime was about to do is done before."""
    shell = a_shell()
    raised: list[Any] = []

    def observer(_: object) -> None:
        raise SystemExit(3)

    shell.observe(CALL, observer)
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon
    later: list[Any] = []
    loop.call_soon = lambda *args, **_: later.append(args)  # type: ignore[method-assign,assignment]
    try:
        shell.perform([RetryOffered(CALL, NOTICE)])
    finally:
        loop.call_soon = call_soon  # type: ignore[method-assign]
    for function, *args in later:
        try:
            function(*args)
        except SystemExit as exc:
            raised.append(exc.code)
    assert raised == [3]


@pytest.mark.parametrize("is_strict", [False, True])
async def test_a_call_that_is_never_answered_fails_tests_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_strict: bool
) -> None:
    """Everywhere it is logged and counted."""
    monkeypatch.setenv(STRICT_VARIABLE, "1" if is_strict else "0")
    shell = a_shell()
    waiter = shell.wait_for(CallId(b"w" * 16))
    shell.perform([Suspected(CALL, "open, attempt 0")])
    assert shell.counters["suspected_calls"] == 1
    assert "open, attempt 0" in caplog.text
    assert waiter.done() is is_strict
    if is_strict:
        with pytest.raises(AssertionError, match="open, attempt 0"):
            shell.wait_for(CALL)
