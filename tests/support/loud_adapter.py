"""An adapter that tells everybody its secrets, in every way in which careless code does."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any, NoReturn, Self, cast

from trunkline_protocol.chunks import Finish, FinishReason, StreamChunk
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext, LlmAdapter


class LoudAdapter(LlmAdapter):
    """What it says depends on the model that is asked for."""

    def __init__(self, said: str) -> None:
        self._said = said

    @classmethod
    def create(cls, context: AdapterContext) -> Self:
        headers = cast("Mapping[str, Any]", context.options["headers"])
        secrets = [
            context.environ["LOUD_API_KEY"],
            str(context.options["apiKey"]),
            *map(str, headers.values()),
        ]
        return cls(" ".join(secrets))

    async def stream(self, options: GenerateOptions) -> AsyncIterator[StreamChunk]:
        said = self._said
        match options.model:
            case "raise":
                raise ValueError(f"401: bad credentials {said}")
            case "code":
                raise LlmError(LlmFailure(said, f"BAD {said}", request_id=said))
            case "finish":
                failure = LlmFailure(f"no: {said}", "AUTH", 401, request_id=said[:60])
                yield Finish(FinishReason("error", failure=failure))
            case "log":
                print(said)  # noqa: T201
                logging.getLogger("loud").error("used %s", said)
                try:
                    _fail(said)
                except RuntimeError:
                    traceback.print_exc()
                thread = threading.Thread(target=_fail, args=(said,))
                thread.start()
                thread.join()
                yield Finish(FinishReason("stop"))
            case _:
                sys.stderr.write(f"dying with {said}\n")
                sys.stderr.flush()
                os.abort()


def _fail(said: str) -> NoReturn:
    raise RuntimeError(said)
