"""One agent process of a chaos run: opens the calls it is told to, and notes what it received.

`python -m tests.chaos.agent ENDPOINT FILE NAME`; orders come as JSON lines on stdin:
`{"do": "open", "id", "script", "mark", "cancel", "detachable"}`, `{"do": "attach", "id", "ticket",
"mark"}` and `{"do": "leave"}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import trunkline

from tests.chaos.book import Book
from tests.chaos.breaks import break_client
from tests.chaos.watched import Watch
from tests.support.timing import until_async


class Agent:
    """Its calls and its notes."""

    def __init__(self, llm: trunkline.LlmRuntime, book: Book, name: str) -> None:
        self._llm = llm
        self._book = book
        self._watch = Watch(book, name)

    async def obey(self, name: str) -> None:
        """Take orders until told to leave."""
        shell = self._llm._shell
        self._book.note("agent", name=name, pid=os.getpid(), client=shell._client_id.hex())
        reader = asyncio.StreamReader(limit=1 << 20)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        watching = asyncio.ensure_future(self._watch.run())
        async with asyncio.TaskGroup() as calls:
            while line := await reader.readline():
                order = json.loads(line)
                if order["do"] == "leave":
                    break
                calls.create_task(self._call(order))
        watching.cancel()
        await asyncio.wait([watching])
        mux = shell.mux
        await until_async(lambda: not mux.open_count, 15)
        self._book.note("left", name=name, counters=dict(self._llm.counters))

    async def _call(self, order: dict[str, Any]) -> None:
        call, mark, cancel = order["id"], order["mark"], order.get("cancel")
        text: list[str] = []
        chunks, gap_s, last_s = 0, 0.0, time.monotonic()
        finishes: list[trunkline.FinishReason] = []
        stream = self._stream(order)
        watched = self._watch.begin(call)
        watched.stream = stream
        if cancel == 0:
            stream = await stream.__aenter__()
            await self._cancel(stream, call)
        async for batch in stream.batches():
            watched.chunks += len(batch)
            now_s = time.monotonic()
            gap_s, last_s = max(gap_s, now_s - last_s), now_s
            for chunk in batch:
                if isinstance(chunk, trunkline.TextDelta):
                    text.append(chunk.text)
                    chunks += 1
                elif isinstance(chunk, trunkline.Finish):
                    finishes.append(chunk.reason)
            if chunks >= mark:
                mark = 1 << 60
                self._book.note("mark", id=call)
            if cancel is not None and chunks >= cancel:
                cancel = None
                await self._cancel(stream, call)
            if order.get("detachable") and stream.ticket is not None:
                order["detachable"] = False
                self._book.note("ticket", id=call, ticket=stream.ticket)
        self._watch.end(call)
        for reason in finishes or [None]:
            self._note_end(call, reason, "".join(text), chunks, gap_s)

    def _stream(self, order: dict[str, Any]) -> trunkline.Stream:
        if order["do"] == "attach":
            return self._llm.attach(order["ticket"])
        return self._llm.stream(
            provider=order["provider"],
            model="any",
            messages=json.dumps({"script": order["script"]}),
            session_id=order["id"],
            detachable=order.get("detachable", False),
        )

    async def _cancel(self, stream: trunkline.Stream, call: str) -> None:
        self._book.note("cancel", id=call)
        stream.cancel()

    def _note_end(
        self, call: str, reason: trunkline.FinishReason | None, text: str, chunks: int, gap_s: float
    ) -> None:
        failure = reason.failure if reason is not None else None
        self._book.note(
            "end",
            id=call,
            pid=os.getpid(),
            finish=reason.kind if reason is not None else None,
            code=failure.code if failure is not None else None,
            message=failure.message if failure is not None else None,
            sha=hashlib.sha256(text.encode()).hexdigest(),
            chars=len(text),
            chunks=chunks,
            gap=gap_s,
        )


async def main(endpoint: str, file: str, name: str) -> None:
    """Run one agent."""
    book = Book(Path(file))
    async with trunkline.connect(endpoint, name=name, timeout_s=15) as llm:
        await Agent(llm, book, name).obey(name)
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    book.note("closed", name=name, tasks=len(tasks))
    book.close()


if __name__ == "__main__":
    break_client()
    asyncio.run(main(*sys.argv[1:4]))
