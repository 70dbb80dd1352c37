"""Requests and worker options for tests of HTTP adapters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from trunkline_protocol.content import TextBlock
from trunkline_protocol.messages import UserMessageSource, create_user_message
from trunkline_protocol.options import GenerateOptions


def a_request(text: str = "hello", **options: Any) -> GenerateOptions:
    """Return a request of one user message."""
    message = create_user_message([TextBlock(text=text)], UserMessageSource())
    return GenerateOptions(
        provider=options.pop("provider", "custom"),
        model=options.pop("model", "m"),
        messages=options.pop("messages", (message,)),
        **options,
    )


def fast_options(url: str, **changes: Any) -> dict[str, Any]:
    """Return options of a chat-completions worker whose limits are short enough for a test."""
    return {
        "profile": "custom",
        "baseUrl": f"{url}/v1",
        "connectTimeoutMs": 2_000,
        "firstByteTimeoutMs": 1_500,
        "streamIdleTimeoutMs": 800,
        "progressTimeoutMs": 1_600,
        "finishGraceMs": 300,
        "trustEnv": False,
        **changes,
    }


async def until(fact: Callable[[], bool | Awaitable[bool]], timeout_s: float = 5.0) -> None:
    """Wait until a fact that can only be asked for holds."""
    async with asyncio.timeout(timeout_s):
        while True:
            answer = fact()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


def text_event(text: str, finish: str | None = None) -> bytes:
    """Return one event of a stream as bytes."""
    delta = {"content": text} if text else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


DONE_EVENT = b"data: [DONE]\n\n"
