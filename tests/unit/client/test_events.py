"""Observers and iterators of `adapters-updated`, without a broker."""

from __future__ import annotations

import asyncio
import logging

import pytest
from trunkline import events as events_module
from trunkline.events import AdapterEvents
from trunkline_protocol.failure import LocalProtocolError


async def test_observers_hear_each_event_until_they_leave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that raises is logged and contained; one may leave while it is told."""
    events, heard = AdapterEvents(), list[str]()

    def leaving() -> None:
        heard.append("leaving")
        leave()

    def wrong() -> None:
        raise ZeroDivisionError

    leave = events.subscribe(leaving)
    events.subscribe(wrong)
    stay = events.subscribe(lambda: heard.append("staying"))
    with caplog.at_level(logging.ERROR, "trunkline"):
        events.emit()
        events.emit()
    assert heard == ["leaving", "staying", "staying"]
    assert [record.getMessage() for record in caplog.records] == [
        "an adapters-updated observer failed"
    ] * 2
    stay()
    stay()
    events.close()
    events.emit()
    assert len(heard) == 3


async def test_an_iterator_merges_what_was_not_read() -> None:
    events = AdapterEvents()
    updates = events.iterate()
    events.emit()
    events.emit()
    assert await anext(updates, "end") is None
    waiting = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="one task"):
        await anext(updates)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    events.emit()  # the cancelled task has taken nothing with it
    assert await anext(updates, "end") is None
    await updates.aclose()
    assert await anext(updates, "end") == "end"


async def test_closing_ends_iterators_and_keeps_what_was_not_read() -> None:
    events = AdapterEvents()
    read, waiting = events.iterate(), events.iterate()
    task = asyncio.ensure_future(anext(waiting, "end"))
    await asyncio.sleep(0)
    read.put()
    events.close()
    assert await task == "end"
    assert [item async for item in read] == [None]
    async with events.iterate() as late:
        assert [item async for item in late] == []


async def test_bounds_and_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iterator that was closed leaves its place."""
    monkeypatch.setattr(events_module, "MAX_OBSERVERS", 1)
    events = AdapterEvents()

    async def awaiting() -> None:
        await asyncio.sleep(0)

    with pytest.raises(LocalProtocolError, match="plain function"):
        events.subscribe(awaiting)
    with pytest.raises(LocalProtocolError, match="observer"):
        events.subscribe(5)  # type: ignore[arg-type]
    events.subscribe(print)
    with pytest.raises(LocalProtocolError, match="already"):
        events.subscribe(print)
    first = events.iterate()
    with pytest.raises(LocalProtocolError, match="already"):
        events.iterate()
    first.close()
    events.iterate()
