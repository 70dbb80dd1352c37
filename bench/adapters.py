"""An adapter that emits text as fast as it is pulled: the lane is measured, no provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from trunkline_protocol.chunks import BlockEnd, BlockStart, Finish, StreamChunk, TextDelta, Usage
from trunkline_protocol.finish import FinishReason, TokenUsage
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import LlmAdapter

# The array [1, 0, text] of this text is 40 bytes of MessagePack.
TEXT: Final = " measured " * 3 + "chunk"
ROUTE: Final = "burst"


class BurstAdapter(LlmAdapter):
    """Serves models named `COUNTxPER_TURN`: that many chunks, so many in each turn of the loop."""

    def default_providers(self) -> Sequence[str]:
        """Name the one route."""
        return (ROUTE,)

    async def stream(
        self, options: GenerateOptions
    ) -> AsyncIterator[StreamChunk | list[StreamChunk]]:
        """Emit the chunks; a turn of the loop between items keeps them apart in frames."""
        count, per_turn = (int(part) for part in options.model.split("x"))
        yield BlockStart(0, "text")
        delta = TextDelta(0, TEXT)
        item: StreamChunk | list[StreamChunk] = delta if per_turn == 1 else [delta] * per_turn
        for _ in range(count // per_turn):
            yield item
            await asyncio.sleep(0)
        yield BlockEnd(0, {"type": "text", "text": TEXT * count})
        yield Usage(TokenUsage(1, count))
        yield Finish(FinishReason("stop"))
