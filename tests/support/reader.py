"""An agent process that reads as fast, or as little, as a test wants.

`python -m tests.support.reader ENDPOINT ORDERS`, where ORDERS is a JSON list of
`{"script", "stop_after"}`: each stream reads that many chunks, then nothing until a line comes on
stdin. It prints `ready` when every stream has stopped or ended, and at the end one JSON line:
`[{"chunks", "finish"}]` in the order of the orders.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import trunkline

TextDelta, Finish = trunkline.TextDelta, trunkline.Finish


class Reader:
    """The streams of one run."""

    def __init__(self, llm: trunkline.LlmRuntime, orders: list[dict[str, Any]]) -> None:
        self._llm = llm
        self._orders = orders
        self._waiting = len(orders)
        self._all_there = asyncio.Event()
        self._go_on = asyncio.Event()

    async def run(self) -> None:
        """Read all streams as ordered."""
        async with asyncio.TaskGroup() as tasks:
            read = [tasks.create_task(self._read(order)) for order in self._orders]
            await self._all_there.wait()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.readline)
            self._go_on.set()
        sys.stdout.write(json.dumps([task.result() for task in read]) + "\n")

    def _arrived(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._all_there.set()

    async def _read(self, order: dict[str, Any]) -> dict[str, Any]:
        messages = json.dumps({"script": order["script"]})
        stop_after = order.get("stop_after")
        chunks, finish = 0, ""
        stream = self._llm.stream(provider="scripted", model="any", messages=messages)
        async for batch in stream.batches():
            chunks += sum(chunk.__class__ is TextDelta for chunk in batch)
            last = batch[-1]
            if isinstance(last, Finish):
                finish = last.reason.kind
            if stop_after is not None and chunks >= stop_after:
                stop_after = None
                self._arrived()
                await self._go_on.wait()
        if order.get("stop_after") is None:
            self._arrived()
        return {"chunks": chunks, "finish": finish}


async def main(endpoint: str, orders: str) -> None:
    """Connect and read."""
    async with trunkline.connect(endpoint, timeout_s=15) as llm:
        await Reader(llm, json.loads(orders)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
