"""A stream that stands still is told, with the state of client, broker and worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.book import Book
from tests.chaos.world import a_world
from tests.support.timing import until_async

pytestmark = pytest.mark.chaos
SCRIPT: dict[str, Any] = {"chunks": 8, "chunk_chars": 40, "at": {"5": {"stall": True}}}


async def test_a_stream_that_stands_still_is_told_with_all_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the stream; the client's, the broker's and the worker's view of it follow."""
    monkeypatch.setenv("CHAOS_STUCK_S", "1")
    book = Book(tmp_path / "chaos.jsonl")
    lines: list[dict[str, Any]] = []

    def has_state() -> bool:
        lines.extend(book.news())
        return any(line["k"] == "state" for line in lines)

    async with a_world(0, book, 1, "") as world:
        world.agents["near"].tell(do="open", id="still", provider="one", script=SCRIPT, mark=1)
        await until_async(has_state, 30, "the watcher notes no state")
    book.close()
    (stuck,) = [line for line in lines if line["k"] == "stuck"]
    (state,) = [line for line in lines if line["k"] == "state"]
    assert (stuck["id"], stuck["chunks"]) == ("still", 5)
    (seen,) = stuck["state"]
    assert (seen["call"], seen["expected"], seen["is_over"]) == (stuck["call"], 5, False)
    attempts = [each for worker in state["shown"]["workers"].values() for each in worker]
    assert [(each["call"], each["sent"]) for each in attempts] == [(stuck["call"], 5)]
    assert state["shown"]["broker"]["calls"]["running"] == 1
