"""One agent process that plays patterns by itself, and compares each stream letter by letter.

`python -m tests.chaos.player JSON`, see `Orders`. It ends when it has played `count` streams, or
when its stdin closes. What it expects and what it receives goes into the book, one line each.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final, Self

import trunkline
from trunkline_workers.adapters.scripted.content import whole

from tests.chaos import inside
from tests.chaos.book import Book
from tests.chaos.breaks import break_client
from tests.chaos.patterns import PATTERNS, Board, kind_of, long_beside_short
from tests.chaos.watched import Watch
from tests.support.timing import SLOW, NotSoonEnoughError, until_async

CHUNK_CHARS: Final = 40
_GIVE_UP_S: Final = 60.0 * SLOW  # a stuck stream was told long before; the player goes on
_TICKET_WAIT_S: Final = 15.0
_CONNECT_S: Final = 15.0 * SLOW


@dataclass(slots=True)
class Orders:
    """What a player does.

    Attributes:
        endpoints: where its runtimes connect, in turn.
        book: file for its notes.
        world: number of the world it lives in.
        count: streams to play; 0: until stdin closes.
        lines: patterns at once.
        rest_s: mean pause of each line between two patterns.
        board: directory for tickets; empty: none.
        keys: key file for `tcp://`; empty: none.
        longs: weight of the pattern of a long stream beside many short ones.
    """

    endpoints: list[str]
    book: str
    name: str
    seed: int
    world: int = 0
    count: int = 0
    lines: int = 4
    rest_s: float = 0.0
    board: str = ""
    keys: str = ""
    providers: list[str] = field(default_factory=lambda: ["one"])
    longs: int = PATTERNS[long_beside_short]


@dataclass(slots=True)
class Play:
    """One stream to be read, and what must come of it.

    Attributes:
        want: "whole", "error", "aborted", or "left" for a reader who leaves its call behind.
        chunks: text pieces that come if nothing strikes.
        opened_s: monotonic time of its first `play` line.
        left_s: when its reader left it behind.
        first: the finish that this first reader has got; a call that it has got whole is over.
    """

    id: str
    kind: str
    want: str
    provider: str
    chunks: int
    seed: int
    script: dict[str, Any]
    opened_s: float = 0.0
    left_s: float = 0.0
    first: str = ""

    @property
    def text(self) -> str:
        """The text that comes if nothing strikes."""
        return whole(self.chunks, CHUNK_CHARS, self.seed)

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read it back."""
        return cls(**json.loads(line))


Taken = tuple[str, list[trunkline.FinishReason]]
"""The text that a reader has got, and the finishes."""


class Player:
    """Plays; see the module."""

    def __init__(self, orders: Orders, book: Book) -> None:
        self.orders = orders
        self.random = Random(orders.seed)  # noqa: S311  no secret
        self.board = Board(Path(orders.board), orders.name) if orders.board else None
        self.watch = Watch(book, orders.name)
        self._book = book
        self._count = 0
        self._is_over = False
        self._runtimes: list[trunkline.LlmRuntime] = []

    # --- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Play until all is played, or until stdin closes."""
        async with contextlib.AsyncExitStack() as stack:
            for number in range(len(self.orders.endpoints)):
                self._runtimes.append(await stack.enter_async_context(self.own_runtime(number)))
            self._book.note("player", name=self.orders.name, pid=os.getpid())
            watching = asyncio.ensure_future(self.watch.run())
            ending = asyncio.ensure_future(self._until_closed())
            try:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(self.orders.lines):
                        tasks.create_task(self._line())
                await self._clear_board()
            finally:
                for task in (watching, ending):
                    task.cancel()
                await asyncio.wait([watching, ending])

    async def _until_closed(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        made = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: made, sys.stdin)
        try:
            await reader.read()
            self._is_over = True
        finally:
            transport.close()

    async def _line(self) -> None:
        patterns = list(PATTERNS)
        weights = [self.orders.longs if p is long_beside_short else PATTERNS[p] for p in patterns]
        count, rest_s = self.orders.count, self.orders.rest_s
        while not self._is_over and (count == 0 or self._count < count):
            (pattern,) = self.random.choices(patterns, weights)
            await pattern(self)
            if rest_s:
                await asyncio.sleep(self.random.expovariate(1 / rest_s))

    async def _clear_board(self) -> None:
        """Attach to what others have left behind, so that no call stays."""
        while self.board is not None and (taken := self.board.take()) is not None:
            await self.attach(*taken)

    @contextlib.asynccontextmanager
    async def own_runtime(self, number: int = 0) -> AsyncIterator[trunkline.LlmRuntime]:
        """Yield a connection of its own; leaving it leaves its detachable calls behind."""
        endpoint, keys = self.orders.endpoints[number], self.orders.keys or None
        name = self.orders.name
        async with trunkline.connect(endpoint, name=name, timeout_s=_CONNECT_S, keys=keys) as llm:
            yield llm

    # --- making --------------------------------------------------------------------------------

    def new(
        self, kind: str, want: str = "whole", *, chunks: int, longer: int = 0, **script: Any
    ) -> Play:
        """Return a new stream to play, and note what must come of it."""
        self._count += 1
        random = self.random
        seed, provider = random.randrange(1 << 30), random.choice(self.orders.providers)
        script |= {"chunks": chunks + longer, "seed": seed, "chunk_chars": CHUNK_CHARS}
        play_id = f"{self.orders.world}-{self.orders.name}-{self._count}"
        play = Play(play_id, kind, want, provider, chunks, seed, script, monotonic())
        self._note_play(play)
        return play

    def _note_play(self, play: Play) -> None:
        sha = hashlib.sha256(play.text.encode()).hexdigest()
        facts = {"want": play.want, "pattern": play.kind, "sha": sha, "chars": len(play.text)}
        self._book.note("play", id=play.id, w=self.orders.world, since=play.opened_s, **facts)

    def _fields(self, play: Play) -> dict[str, Any]:
        messages = json.dumps({"script": play.script})
        return {
            "provider": play.provider,
            "model": "any",
            "messages": messages,
            "session_id": play.id,
        }

    def runtime(self) -> trunkline.LlmRuntime:
        """Return one of the runtimes that live as long as the player."""
        return self.random.choice(self._runtimes)

    def stream(
        self, play: Play, llm: trunkline.LlmRuntime | None = None, *, detachable: bool = False
    ) -> trunkline.Stream:
        """Return the stream of a play."""
        return (llm or self.runtime()).stream(**self._fields(play), detachable=detachable)

    def pause_s(self) -> float:
        """Return a reader's pause."""
        return self.random.uniform(0.05, 0.5)

    def pauses(self, chunks: int, most: int = 2) -> dict[int, float]:
        """Return some pauses of a reader, by the number of the chunk before each."""
        count = self.random.randrange(0, most + 1)
        return {self.random.randrange(chunks): self.pause_s() for _ in range(count)}

    # --- reading -------------------------------------------------------------------------------

    async def read(self, play: Play, stream: trunkline.Stream, **how: Any) -> None:
        """Read a stream to its end and note what came; arguments as `take`."""
        self.note_read(play, *await self.take(play, stream, **how))

    async def take(
        self,
        play: Play,
        stream: trunkline.Stream,
        *,
        rests: Mapping[int, float] | None = None,
        acts: Mapping[int, Callable[[], Any]] | None = None,
        leaves_at: int | None = None,
    ) -> Taken:
        """Read a stream and return its text and its finishes; a stuck one is noted and cancelled.

        Args:
            play: what must come.
            stream: what is read.
            rests: pauses in seconds, by the number of text pieces after which they come.
            acts: what is done, likewise.
            leaves_at: pieces after which the reader stops.
        """
        watched = self.watch.begin(play.id)
        watched.stream = stream
        steps = _steps(rests or {}, acts or {})
        text: list[str] = []
        finishes: list[trunkline.FinishReason] = []
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                async for batch in stream.batches():
                    watched.chunks += len(batch)
                    text += [
                        chunk.text for chunk in batch if isinstance(chunk, trunkline.TextDelta)
                    ]
                    finishes += [c.reason for c in batch if isinstance(c, trunkline.Finish)]
                    while steps and steps[0][0] <= len(text):
                        await self._step(steps.pop(0)[1], watched)
                    if leaves_at is not None and len(text) >= leaves_at:
                        break
        except TimeoutError:
            self._note_stuck(play, len(text))
            stream.cancel()
        finally:
            self.watch.end(play.id)
        return "".join(text), finishes

    def _note_stuck(self, play: Play, chunks: int) -> None:
        self._book.note("stuck", id=play.id, pid=os.getpid(), chunks=chunks, silent=_GIVE_UP_S)

    async def _step(self, step: float | Callable[[], Any], watched: Any) -> None:
        if callable(step):
            step()
            return
        watched.rests = True
        await asyncio.sleep(step)
        watched.rests = False

    def note_read(
        self,
        play: Play,
        text: str,
        finishes: Collection[trunkline.FinishReason],
        attempts: int = 1,
    ) -> None:
        """Note what came of a stream."""
        expected = play.text
        for reason in finishes or [None]:
            failure = reason.failure if reason is not None else None
            self._book.note(
                "read",
                id=play.id,
                pid=os.getpid(),
                finish=reason.kind if reason is not None else None,
                code=failure.code if failure is not None else None,
                message=failure.message if failure is not None else None,
                chars=len(text),
                sha=hashlib.sha256(text.encode()).hexdigest(),
                prefix=hashlib.sha256(expected[: len(text)].encode()).hexdigest(),
                attempts=attempts,
                first=play.first,
            )

    async def generate(self, play: Play) -> None:
        """Have the client assemble a message, which may take several attempts."""
        self.watch.begin(play.id)
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                result = await self.runtime().generate(**self._fields(play))
        except TimeoutError:
            self._note_stuck(play, 0)
            return
        finally:
            self.watch.end(play.id)
        self.note_read(play, result.text, [result.finish], result.attempts)

    # --- prepared and detached calls -----------------------------------------------------------

    async def prepare(self, *, is_used: bool) -> None:
        """Prepare a call, and read it or give it back."""
        want = "whole" if is_used else "given back"
        play = self.new("prepare", want, chunks=self.random.randrange(1, 400), batch=4)
        llm, config = self.runtime(), {"provider": play.provider, "model": "any"}
        try:
            call = await llm.prepare_call(config, timeout_s=_CONNECT_S)
            if is_used:
                fields = self._fields(play)
                messages, session = fields["messages"], fields["session_id"]
                await self.read(play, call.stream(messages=messages, session_id=session))
                return
            await call.release(timeout_s=_CONNECT_S)
        except trunkline.LlmError as exc:
            self.note_read(play, "", [trunkline.FinishReason("error", exc.failure)])
            return
        self.note_read(play, "", [])

    async def ticket_of(self, stream: trunkline.Stream) -> str | None:
        """Wait for the ticket of a call; `None` if it is over without one."""
        with contextlib.suppress(NotSoonEnoughError):
            await until_async(lambda: stream.ticket or stream.finish, _TICKET_WAIT_S)
        return stream.ticket

    async def take_away(
        self, play: Play, stream: trunkline.Stream, reading: asyncio.Future[Taken]
    ) -> None:
        """Attach to a call while its first reader still reads, and note what both have got."""
        ticket = await self.ticket_of(stream)
        again = None if ticket is None else self.again(play)
        taken = None
        if ticket is not None and again is not None:
            taken = await self.take(again, self.runtime().attach(ticket))
        first = await reading
        self.note_read(play, *first)
        if again is not None and taken is not None:
            again.first = kind_of(first[1])
            self.note_read(again, *taken)

    def again(self, play: Play) -> Play:
        """Return the same call for another reader, and note what must come of it."""
        fields = {**asdict(play), "id": f"{play.id}/{self.orders.name}", "want": "whole"}
        again = Play(**fields | {"kind": "attach"})
        self._note_play(again)
        return again

    async def attach(self, play: Play, ticket: str) -> None:
        """Attach to a call that was left behind, and read all of it."""
        await self.read(self.again(play), self.runtime().attach(ticket))


def _steps(
    rests: Mapping[int, float], acts: Mapping[int, Callable[[], Any]]
) -> list[tuple[int, float | Callable[[], Any]]]:
    """Return what a reader does, in order of the pieces after which it does it."""
    both: list[tuple[int, float | Callable[[], Any]]] = [*acts.items(), *rests.items()]
    return sorted(both, key=lambda step: step[0])  # stable: it acts, then rests


async def main(orders: Orders) -> None:
    """Run one player."""
    book = Book(Path(orders.book))
    try:
        await Player(orders, book).run()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        book.note("closed", name=orders.name, tasks=len(tasks))
    finally:
        book.close()


if __name__ == "__main__":
    break_client()
    inside.install()
    asyncio.run(main(Orders(**json.loads(sys.argv[1]))))
