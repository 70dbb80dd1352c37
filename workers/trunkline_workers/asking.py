"""The questions a worker puts to its broker: each asked again until it is answered (SPEC 7.1)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.failure import Code, LlmError, LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.ids import QUERY_ID_BYTES, QueryId
from trunkline_protocol.limits import ATTACHMENT_REPEAT_S, ORPHAN_TIMEOUT_S


class Asker:
    """Pairs answers with questions.

    Args:
        send: sends a query, or loses it where no broker is there.
        repeat_s: asked again after this, since a query may be lost with a broker.
        give_up_s: no answer in this time is a failure.
    """

    def __init__(
        self,
        send: Callable[[Query], None],
        repeat_s: float = ATTACHMENT_REPEAT_S,
        give_up_s: float = ORPHAN_TIMEOUT_S,
    ) -> None:
        self._send = send
        self._repeat_s = repeat_s
        self._give_up_s = give_up_s
        self._open: dict[QueryId, asyncio.Future[Reply]] = {}

    async def ask(self, op: str, argument: object) -> Any:
        """Return the value of the answer; safe to cancel. The question must be one to repeat.

        Raises:
            LlmError: the failure in the answer; `TRANSPORT`: none came, or it can't be read.
        """
        frame = Query(QueryId(os.urandom(QUERY_ID_BYTES)), op, body=pack_body(argument))
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._open[frame.query] = answer
        try:
            async with asyncio.timeout(self._give_up_s):
                reply = await self._answered(frame, answer)
            return _value(reply)
        except TimeoutError:
            text = f"{op}: the broker did not answer in {self._give_up_s:g} s"
            raise LlmError.of(text, Code.TRANSPORT) from None
        except (RemoteProtocolError, ValueError) as exc:
            raise LlmError.of(f"{op}: the answer is malformed: {exc}", Code.TRANSPORT) from exc
        finally:
            del self._open[frame.query]

    def on_reply(self, reply: Reply) -> None:
        """Take an answer; one that nobody waits for is late."""
        answer = self._open.get(reply.query)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    async def _answered(self, frame: Query, answer: asyncio.Future[Reply]) -> Reply:
        while not answer.done():
            self._send(frame)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s):
                    await asyncio.wait((answer,))
        return answer.result()


def _value(reply: Reply) -> Any:
    if reply.failure is not None:
        raise LlmError(LlmFailure.from_dict(reply.failure))
    return unpack_body(reply.body)
