"""A loop in a thread: what goes in comes out, whatever it is, and closing leaves nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from trunkline.portal import Portal
from trunkline_protocol.failure import LocalProtocolError

SOON_S = 10.0


@pytest.fixture
def portal() -> Iterator[Portal]:
    """Yield a portal."""
    made = Portal()
    yield made
    made.close()


async def named() -> str:
    return threading.current_thread().name


def test_jobs_run_on_the_loop_and_hand_back_what_comes(portal: Portal) -> None:
    async def wrong() -> None:
        raise ZeroDivisionError

    assert portal.run(named) == "trunkline"
    assert portal.call(lambda: threading.current_thread().name) == "trunkline"
    with pytest.raises(ZeroDivisionError):
        portal.run(wrong)
    with pytest.raises(ZeroDivisionError):
        portal.call(lambda: 1 // 0)


def test_it_is_used_from_within_another_loop(portal: Portal) -> None:
    async def inside() -> str:
        return portal.run(named)

    assert asyncio.run(inside()) == "trunkline"


def test_its_own_thread_is_told(portal: Portal) -> None:
    with pytest.raises(LocalProtocolError, match="own thread"):
        portal.call(lambda: portal.run(named))


def test_blocking_code_runs_beside_the_loop(portal: Portal) -> None:
    async def outside(job: Any) -> Any:
        return await asyncio.wait_for(portal.in_thread(job), SOON_S)

    name = portal.run(lambda: outside(lambda: threading.current_thread().name))
    assert name.startswith("trunkline-listener")
    with pytest.raises(ZeroDivisionError):
        portal.run(lambda: outside(lambda: 1 // 0))


def test_a_stop_iteration_does_not_hang(portal: Portal) -> None:
    """No future can carry one: whoever awaits it would wait for ever."""

    def stopping() -> None:
        raise StopIteration

    async def outside() -> None:
        await asyncio.wait_for(portal.in_thread(stopping), SOON_S)

    with pytest.raises(RuntimeError, match="StopIteration"):
        portal.run(outside)


def test_closing_ends_what_waits_and_is_harmless_twice(portal: Portal) -> None:
    waits, raised = threading.Event(), list[BaseException]()

    async def waiting() -> None:
        waits.set()
        await asyncio.Event().wait()

    def blocked() -> None:
        try:
            portal.run(waiting)
        except LocalProtocolError as exc:
            raised.append(exc)

    thread = threading.Thread(target=blocked)
    thread.start()
    assert waits.wait(SOON_S)
    assert not portal.is_over
    portal.close()
    portal.close()
    thread.join(SOON_S)
    assert [str(each) for each in raised] == ["this runtime was closed meanwhile"]
    assert portal.is_over
    with pytest.raises(LocalProtocolError, match="closed"):
        portal.run(named)


def test_what_is_handed_in_while_it_closes_ends() -> None:
    """In its result or in being told; never in waiting, and in no other error."""
    for _ in range(20):
        portal, outcomes = Portal(), list[object]()

        def busy(portal: Portal = portal, outcomes: list[object] = outcomes) -> None:
            try:
                while True:
                    portal.run(named)
            except BaseException as exc:  # noqa: BLE001  whatever it is, it is looked at
                outcomes.append(type(exc))

        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        portal.run(named)
        portal.close()
        for thread in threads:
            thread.join(SOON_S)
        assert outcomes == [LocalProtocolError] * 3


def test_a_loop_that_can_not_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends; the constructor raises what it raised."""

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
    monkeypatch.setattr(asyncio.events, "new_event_loop", no_loop)
    with pytest.raises(OSError, match="Too many"):
        Portal()


def test_a_loop_that_stands_still_ends_the_wait(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names where it stands."""
    monkeypatch.setattr("trunkline.portal._LOOK_S", 0.01)
    gate, raised = threading.Event(), list[str]()

    def blocked() -> None:
        try:
            portal.call(lambda: gate.wait(SOON_S))
        except LocalProtocolError as exc:
            raised.append(str(exc))

    thread = threading.Thread(target=blocked)
    thread.start()
    thread.join(SOON_S)
    gate.set()
    assert "answered nothing" in raised[0]
    assert "threading.py" in raised[0]
    assert portal.run(named) == "trunkline"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_job_that_would_end_the_loop_ends_alone(
    portal: Portal, error: type[BaseException]
) -> None:
    async def wrong() -> None:
        raise error

    with pytest.raises(error):
        portal.run(wrong)
    assert portal.run(named) == "trunkline"


def test_a_dead_loop_ends_every_wait() -> None:
    portal = Portal()
    waits, raised = threading.Event(), list[BaseException]()

    async def waiting() -> None:
        waits.set()
        await asyncio.Event().wait()

    def blocked() -> None:
        try:
            portal.run(waiting)
        except LocalProtocolError as exc:
            raised.append(exc)

    async def dying() -> None:
        def die() -> None:
            raise SystemExit

        asyncio.get_running_loop().call_soon(die)

    thread = threading.Thread(target=blocked)
    thread.start()
    assert waits.wait(SOON_S)
    portal.run(dying)
    thread.join(SOON_S)
    assert [str(each) for each in raised] == ["this runtime's thread has ended by SystemExit"]
    with pytest.raises(LocalProtocolError, match="SystemExit"):
        portal.run(named)
    portal.let_go(named)  # nothing is left to be let go of
    portal.close()


def test_closing_on_its_own_thread_changes_nothing(portal: Portal) -> None:
    with pytest.raises(LocalProtocolError, match="own thread"):
        portal.call(portal.close)
    assert portal.run(named) == "trunkline"


def test_what_is_let_go_of_on_the_loops_thread_is_only_started(portal: Portal) -> None:
    done = threading.Event()

    async def job() -> None:
        done.set()

    portal.call(lambda: portal.let_go(job))
    assert done.wait(SOON_S)
    done.clear()
    portal.let_go(job)
    assert done.is_set()
