"""One agent process that reads streams and prints what it cost, as one line of JSON.

Ways: `trunkline ROUTE MODEL`, `openai URL MODEL`, `direct URL MODEL` (an HTTP client and nothing
else). CPU is that of the whole process, all threads, from the first call to the last chunk; one
warming call is not counted. With `--late` each text is the time at which it was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop

Call = Callable[[int, int], Awaitable[tuple[int, float]]]
"""(chunks, pace in ms) → (chunks seen, seconds to the first one)."""
Late = list[float] | None
"""Takes the seconds from the sending of each text to here; `None`: nobody asks."""


def cpu_s() -> float:
    """Return the CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@asynccontextmanager
async def trunkline_way(route: str, model: str, late: Late) -> AsyncGenerator[Call]:
    """Read through the broker. A route of the burst adapter takes the count in the model."""
    import trunkline

    async with trunkline.connect() as llm:
        message = {"role": "user", "content": "hi"}

        async def call(count: int, pace_ms: int) -> tuple[int, float]:
            options = {
                "provider": f"{route}{pace_ms or ''}",
                "model": f"{count}x{model}" if model[:1].isdigit() else model,
                "messages": [message],
                "max_tokens": count,
            }
            start_s, first_s, seen = time.perf_counter(), 0.0, 0
            async for chunk in llm.stream(options):
                if chunk.__class__ is trunkline.TextDelta:
                    if not seen:
                        first_s = time.perf_counter() - start_s
                    if late is not None:
                        late.append(time.monotonic() - float(chunk.text))
                    seen += 1
                elif isinstance(chunk, trunkline.Finish) and chunk.reason.failure is not None:
                    raise trunkline.LlmError(chunk.reason.failure)
            return seen, first_s

        yield call


@asynccontextmanager
async def openai_way(url: str, model: str, late: Late) -> AsyncGenerator[Call]:
    """Read the provider itself with the official SDK."""
    import openai

    async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:

        async def call(count: int, pace_ms: int) -> tuple[int, float]:
            start_s, first_s, seen = time.perf_counter(), 0.0, 0
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                max_tokens=count,
                seed=pace_ms,
            )
            async for chunk in stream:
                if chunk.choices and (text := chunk.choices[0].delta.content):
                    if not seen:
                        first_s = time.perf_counter() - start_s
                    if late is not None:
                        late.append(time.monotonic() - float(text))
                    seen += 1
            return seen, first_s

        yield call


@asynccontextmanager
async def direct_way(url: str, model: str, late: Late) -> AsyncGenerator[Call]:
    """Read the provider itself: httpx over aiohttp and typed decoding, the least that reads it."""
    import httpx_aiohttp
    import msgspec

    delta = msgspec.defstruct("Delta", [("content", str | None, None)])
    choice = msgspec.defstruct("Choice", [("delta", delta | None, None)])
    event_type = msgspec.defstruct("Event", [("choices", list[choice] | None, None)])
    decode = msgspec.json.Decoder(event_type).decode

    async with httpx_aiohttp.HttpxAiohttpClient(timeout=60) as client:

        async def call(count: int, pace_ms: int) -> tuple[int, float]:
            start_s, first_s, seen, rest = time.perf_counter(), 0.0, 0, b""
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "hi"}],
                "stream": True,
                "max_tokens": count,
                "seed": pace_ms,
            }
            async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
                async for part in response.aiter_bytes():
                    *events, rest = (rest + part).split(b"\n\n")
                    for event in events:
                        if event != b"data: [DONE]":
                            found = decode(event[6:]).choices
                            if found and found[0].delta and (text := found[0].delta.content):
                                if not seen:
                                    first_s = time.perf_counter() - start_s
                                if late is not None:
                                    late.append(time.monotonic() - float(text))
                                seen += 1
            return seen, first_s

        yield call


WAYS: dict[str, Callable[[str, str, Late], Any]] = {
    "trunkline": trunkline_way,
    "openai": openai_way,
    "direct": direct_way,
}


async def measured(args: argparse.Namespace) -> dict[str, object]:
    """Make the calls and return the figures."""
    late: Late = [] if args.late else None
    async with WAYS[args.way](args.target, args.model, late) as call:
        await call(min(args.chunks, 20), args.pace)
        if late is not None:
            late.clear()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        seen, firsts = 0, []
        before_s, start_s = cpu_s(), time.perf_counter()
        for _ in range(args.rounds):
            done = await asyncio.gather(
                *[call(args.chunks, args.pace) for _ in range(args.streams)]
            )
            seen += sum(count for count, _ in done)
            firsts += [first_s for _, first_s in done]
        took_s, used_s = time.perf_counter() - start_s, cpu_s() - before_s
    wanted = args.chunks * args.rounds * args.streams
    return {
        "chunks": seen,
        "wanted": wanted,
        "chunks_per_s": seen / took_s,
        "cpu_us": used_s / seen * 1e6,
        "first_ms": sorted(first_s * 1000 for first_s in firsts),
        "late_ms": sorted(late_s * 1000 for late_s in late or ()),
    }


def main() -> None:
    """Read the arguments, wait for a line, print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("target")
    parser.add_argument("model", nargs="?", default="mock")
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pace", type=int, default=0, help="milliseconds; a route of its own")
    parser.add_argument("--late", action="store_true", help="texts are times")
    sys.stdout.write(json.dumps(uvloop.run(measured(parser.parse_args()))) + "\n")


if __name__ == "__main__":
    main()
