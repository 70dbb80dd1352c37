"""An adapter that costs nothing itself: the lane and the broker are measured, no provider."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, StreamChunk, TextDelta, Usage
from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import LlmAdapter

# The array [1, 0, text] of this text is 40 bytes of MessagePack.
TEXT: Final = " measured " * 3 + "chunk"
ROUTE: Final = "burst"

Items = AsyncIterator[StreamChunk | list[StreamChunk]]


class BurstAdapter(LlmAdapter):
    """Serves models by the shape of their name.

    `COUNTxPER_TURN`: that many chunks, so many in each turn of the loop. `COUNTxPER_TURNxTURNS`:
    so many turns apart, which keeps them in frames of their own. `COUNTxPER_TURNxTURNSxLENGTH`:
    texts of that length. `paced-COUNT-MS`: the time of each chunk, at that pace. `idle`: one chunk,
    and then nothing for ever.
    """

    def default_providers(self) -> Sequence[str]:
        """Name the one route."""
        return (ROUTE,)

    async def stream(self, options: GenerateOptions) -> Items:
        """Emit the chunks."""
        yield BlockStart(0, "text")
        if options.model == "idle":
            yield TextDelta(0, TEXT)
            await asyncio.Event().wait()
        kind, *numbers = options.model.replace("x", "-").split("-")
        if kind == "paced":
            async for item in _paced(*map(int, numbers)):
                yield item
        else:
            async for item in _burst(*map(int, (kind, *numbers))):
                yield item
        yield BlockEnd(0, {"type": "text", "text": ""})
        yield Usage(TokenUsage(1, 1))
        yield Finish(FinishReason("stop"))


async def _burst(count: int, per_turn: int, turns: int = 1, length: int = len(TEXT)) -> Items:
    text = (TEXT * (length // len(TEXT) + 1))[:length]
    delta = TextDelta(0, text)
    item: StreamChunk | list[StreamChunk] = delta if per_turn == 1 else [delta] * per_turn
    for _ in range(count // per_turn):
        yield item
        for _ in range(turns):
            await asyncio.sleep(0)


async def _paced(count: int, pace_ms: int) -> Items:
    for _ in range(count):
        yield TextDelta(0, f"{time.monotonic():.6f}")
        await asyncio.sleep(pace_ms / 1000)
