"""One agent: a process of its own that holds a conversation of several turns.

It tells what happens to it as lines of JSON on standard output. It goes on beyond its turns until
it reads `enough`, so that tokens flow as long as the stage needs them. It imports `trunkline` only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any, Final

import trunkline

REPORT_EVERY_S: Final = 0.1
MAX_TURNS: Final = 12  # of the small model's context
FOLLOW_UPS: Final = ("Go on with it.", "And what happened then?", "Tell me more about that.")


def tell(event: str, **facts: object) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


async def turn(llm: trunkline.LlmRuntime, number: int, options: dict[str, Any]) -> Any:
    """Stream one response and return it as a message."""
    start_s, told_s, first_s, chunks, text = time.monotonic(), 0.0, 0.0, 0, ""
    tell("turn", turn=number)
    async with llm.stream(options) as stream:
        async for chunk in stream:
            if not trunkline.is_token_delta(chunk):
                continue
            now_s = time.monotonic()
            first_s = first_s or now_s - start_s
            chunks += 1
            text += getattr(chunk, "text", "")
            if now_s - told_s > REPORT_EVERY_S:
                told_s = now_s
                served = stream.served_by
                generation = None if served is None else list(served.generation)
                tell("chunks", turn=number, chunks=chunks, text=text[-80:], generation=generation)
        finish, usage = stream.finish, stream.usage
        assert finish is not None
        tell(
            "finish",
            turn=number,
            chunks=chunks,
            kind=finish.kind,
            failure=None if finish.failure is None else finish.failure.to_dict(),
            tokens=None if usage is None else usage.output_tokens,
            firstMs=round(first_s * 1000, 1),
            seconds=round(time.monotonic() - start_s, 3),
        )
        return stream.message()


async def converse(args: argparse.Namespace) -> None:
    """Hold the conversation."""
    heard = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    async with trunkline.connect(name=f"agent {args.name}") as llm:
        tell("connected")
        said: list[Any] = [args.topic]
        for number in range(1, MAX_TURNS + 1):
            wanted = {
                "provider": args.provider,
                "model": args.model,
                "messages": said,
                "max_tokens": args.max_tokens,
            }
            said += [await turn(llm, number, wanted), FOLLOW_UPS[number % len(FOLLOW_UPS)]]
            if number >= args.turns and heard.done():
                break
        tell("left", counters=dict(llm.counters))
    await heard


def main() -> None:
    """Read the arguments and talk."""
    parser = argparse.ArgumentParser()
    for name in ("--name", "--topic", "--provider", "--model"):
        parser.add_argument(name, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, required=True)
    asyncio.run(converse(parser.parse_args()))


if __name__ == "__main__":
    main()
