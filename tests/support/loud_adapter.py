"""An adapter that tells everybody its secrets, in every way in which careless code does."""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self, cast
from urllib.parse import quote

from trunkline_protocol.chunks import Finish, FinishReason, StreamChunk
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext, LlmAdapter


class LoudAdapter(LlmAdapter):
    """What it says depends on the model that is asked for."""

    def __init__(self, secrets: list[str]) -> None:
        self._secrets = secrets
        self._said = " ".join(secrets)

    @classmethod
    def create(cls, context: AdapterContext) -> Self:
        headers = cast("Mapping[str, Any]", context.options["headers"])
        from_file = Path(str(context.options["apiKeyFile"])).read_text()
        context.conceal(from_file)
        return cls(
            [
                context.environ["LOUD_API_KEY"],
                str(context.options["apiKey"]),
                *map(str, headers.values()),
                from_file,
            ]
        )

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
            case "ways":
                ways = [way for secret in self._secrets for way in ways_of_writing(secret)]
                print(*ways, sep="\n")  # noqa: T201
                yield Finish(FinishReason("error", failure=LlmFailure(" ".join(ways), "AUTH")))
            case "log":
                self._log()
                yield Finish(FinishReason("stop"))
            case "native":
                os.write(2, f"\nnative code dies with {said}\n".encode())
                os.abort()
            case _:
                sys.stderr.write(f"dying with {said}\n")
                sys.stderr.flush()
                os.abort()

    def _log(self) -> None:
        said = self._said
        print(said)  # noqa: T201
        for secret in self._secrets:
            half = len(secret) // 2
            print("x" * 65_530, end=" ")  # noqa: T201  longer than a line may be
            sys.stdout.write(secret[:half])
            sys.stdout.flush()
            sys.stdout.write(secret[half:] + "\n")
        logging.getLogger("loud").error("used %s", said)
        warnings.warn(said, stacklevel=1)
        try:
            _fail(said)
        except RuntimeError:
            traceback.print_exc()
        thread = threading.Thread(target=_fail, args=(said,))
        thread.start()
        thread.join()


def ways_of_writing(secret: str) -> list[str]:
    """Return what a header, a URL, a dump and a quoted dump make of a secret."""
    return [
        f"Authorization: Basic {base64.b64encode(f'user:{secret}'.encode()).decode()}",
        f"Proxy-Authorization: {base64.urlsafe_b64encode(secret.encode()).decode()}",
        f"GET /v1/models?key={quote(secret, safe='')}&n=1",
        json.dumps({"headers": {"authorization": f"Bearer {secret}"}}),
        json.dumps(secret).replace("/", "\\/"),
        repr({"x-api-key": secret}),
    ]


def _fail(said: str) -> NoReturn:
    raise RuntimeError(said)
