"""A process of many clients that make short calls, or hold idle streams.

`seconds`: each of CLIENTS connections runs LOOPS calls at a time for so long. `idle`: each opens
LOOPS streams and keeps them until told to end. Both print a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import trunkline
import uvloop

SHORT = "1x1"  # a model of `bench.adapters`: one chunk and the end


def request_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the request; with `--mib` it carries so much history."""
    text = "hi" if not args.mib else "history " * (args.mib * 2**20 // 8)
    messages = [{"role": "user", "content": text}]
    model = "idle" if args.mode == "idle" else SHORT
    return {"provider": args.route, "model": model, "messages": messages}


async def told() -> None:
    """Say that all is ready and wait for a line."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)


async def seconds(clients: list[trunkline.LlmRuntime], args: argparse.Namespace) -> dict[str, Any]:
    """Make calls for a time; return how many ended and how long each took at the median."""
    request, took = request_of(args), list[float]()
    end_s = 0.0

    async def loop(llm: trunkline.LlmRuntime) -> None:
        while time.monotonic() < end_s:
            start_s = time.monotonic()
            async for chunk in llm.stream(request):
                if isinstance(chunk, trunkline.Finish) and chunk.reason.failure is not None:
                    raise trunkline.LlmError(chunk.reason.failure)
            took.append(time.monotonic() - start_s)

    for llm in clients:
        async for _ in llm.stream(request):
            pass
    await told()
    begun_s = time.monotonic()
    end_s = begun_s + args.seconds
    await asyncio.gather(*[loop(llm) for llm in clients for _ in range(args.loops)])
    took.sort()
    return {
        "calls": len(took),
        "seconds": time.monotonic() - begun_s,
        "p50_ms": took[len(took) // 2] * 1000,
    }


async def idle(clients: list[trunkline.LlmRuntime], args: argparse.Namespace) -> dict[str, Any]:
    """Hold streams that have begun and go on for ever."""
    request = request_of(args)
    async with AsyncExitStack() as held:
        for llm in clients:
            for _ in range(args.loops):
                stream = await held.enter_async_context(llm.stream(request))
                await anext(stream)
        await told()
        for llm in clients:
            await llm.aclose()
    return {"streams": len(clients) * args.loops}


async def main() -> None:
    """Connect, and do what is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("seconds", "idle"))
    parser.add_argument("--route", default="burst")
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--mib", type=int, default=0)
    args = parser.parse_args()
    async with AsyncExitStack() as connected:
        clients = [
            await connected.enter_async_context(trunkline.connect()) for _ in range(args.clients)
        ]
        result = await (seconds if args.mode == "seconds" else idle)(clients, args)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    uvloop.run(main())
