"""The patterns in which a player reads its streams: what applications do and plain tests do not.

A pattern is a coroutine function that takes a `Player`. It opens streams, and each of them is noted
when it begins (`play`, with what must come) and when it is over (`read`, with what came).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import trunkline

    from tests.chaos.player import Play, Player

Pattern = Callable[["Player"], Awaitable[None]]
_SHORT_CALLS: Final = 15
_TICKET_S: Final = 20.0  # a call may be over soon after it was left, and is forgotten 30 s later


async def long_beside_short(player: Player) -> None:
    """Read a long stream with pauses; open many short calls after 440 to 620 of its chunks."""
    random = player.random
    play = player.new("long", chunks=random.randrange(1_100, 2_600), batch=random.choice((8, 64)))
    at, pauses = random.randrange(440, 620), player.pauses(play.chunks)

    async def opened() -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_SHORT_CALLS):
                tasks.create_task(short(player))

    async with asyncio.TaskGroup() as tasks:
        await player.read(
            play,
            player.stream(play),
            rests=pauses | {at: player.pause_s()},
            acts={at: lambda: tasks.create_task(opened())},
        )


async def short(player: Player) -> None:
    """Read a short stream to its end."""
    play = player.new("short", chunks=player.random.randrange(1, 60))
    await player.read(play, player.stream(play))


async def slow_reader(player: Player) -> None:
    """Read a fast stream that is longer than its window, with several pauses."""
    play = player.new("slow", chunks=player.random.randrange(1_100, 4_000), batch=64)
    await player.read(play, player.stream(play), rests=player.pauses(play.chunks, 4))


async def cancelled(player: Player) -> None:
    """Cancel a stream somewhere, perhaps before its first chunk."""
    random = player.random
    play = player.new("cancel", "aborted", chunks=random.randrange(200, 1_500), pace_ms=1)
    stream = player.stream(play)
    at = random.choice((0, 1, random.randrange(2, 200)))
    if at == 0:
        stream = await stream.__aenter__()
        stream.cancel()
    await player.read(play, stream, acts={at: stream.cancel} if at else {})


async def failing(player: Player) -> None:
    """Read a stream that its provider breaks off with an error."""
    chunks = player.random.randrange(1, 300)
    error = {"raise": {"code": "UNKNOWN", "message": "as the script says"}}
    play = player.new("error", "error", chunks=chunks, at={chunks + 1: error}, longer=50)
    await player.read(play, player.stream(play))


async def retried(player: Player) -> None:
    """Generate a whole message, as `generate` does it."""
    play = player.new("generate", chunks=player.random.randrange(20, 400), batch=8)
    await player.generate(play)


async def prepared(player: Player) -> None:
    """Prepare a call, and dispatch it or give it back."""
    await player.prepare(is_used=player.random.random() < 0.8)


async def handed_over(player: Player) -> None:
    """Leave a detachable call behind, and attach to it from this process or another one."""
    random = player.random
    play = player.new("detach", "left", chunks=random.randrange(300, 1_500), pace_ms=2, batch=4)
    at = random.randrange(0, 200)
    async with player.own_runtime() as llm:
        stream = player.stream(play, llm, detachable=True)
        if random.random() < 0.3:  # taken away from a reader who goes on reading
            reading = asyncio.ensure_future(player.take(play, stream))
            await player.take_away(play, stream, reading)
            return
        text, _ = await player.take(play, stream, leaves_at=at)
        ticket = await player.ticket_of(stream)
    rest, finishes = await player.take(play, stream)  # what was here already, and the end
    play.first = kind_of(finishes)
    player.note_read(play, text + rest, finishes)
    if ticket is None:
        return
    await asyncio.sleep(random.choice((0.0, 0.05, 0.4)))
    if player.board is not None and random.random() < 0.5:
        player.board.put(play, ticket)
        return
    await player.attach(play, ticket)


async def taken_over(player: Player) -> None:
    """Attach to a call that another process has left behind, if there is one."""
    taken = None if player.board is None else player.board.take()
    if taken is None:
        await short(player)
        return
    play, ticket = taken
    await player.attach(play, ticket)


PATTERNS: Final[Mapping[Pattern, int]] = {
    long_beside_short: 4,
    short: 4,
    slow_reader: 2,
    cancelled: 2,
    failing: 1,
    retried: 1,
    prepared: 2,
    handed_over: 2,
    taken_over: 2,
}


def kind_of(finishes: list[trunkline.FinishReason]) -> str:
    """Return the kind of the finish that a reader has got; empty if it has got none."""
    return finishes[0].kind if finishes else ""


class Board:
    """A directory in which agents leave tickets for each other; each is taken once."""

    def __init__(self, directory: Path, mine: str) -> None:
        self._directory = directory
        self._mine = mine

    def put(self, play: Play, ticket: str) -> None:
        """Leave a ticket."""
        path = self._directory / f"{play.id}.new"
        play.left_s = time.monotonic()
        path.write_text(f"{play.to_json()}\n{ticket}")
        path.rename(path.with_suffix(".ticket"))

    def take(self) -> tuple[Play, str] | None:
        """Take a ticket of anybody, the oldest first."""
        from tests.chaos.player import Play

        for path in sorted(self._directory.glob("*.ticket")):
            mine = path.with_suffix(f".{self._mine}")
            with contextlib.suppress(FileNotFoundError):  # another agent was faster
                path.rename(mine)
                text, ticket = mine.read_text().split("\n")
                mine.unlink()
                play = Play.from_json(text)
                if time.monotonic() - play.left_s < _TICKET_S:
                    return play, ticket
        return None
