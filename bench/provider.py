"""A chat-completions provider on loopback that costs little itself.

`max_tokens` is the number of chunks of a call and `seed` their pace in milliseconds (0: as fast as
the reader takes them). With a pace each text is the monotonic time at which it was written. Run as
a program it prints its port.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Final

import uvloop

HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
PER_WRITE: Final = 8


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1795973663,
        "model": "mock",
        "system_fingerprint": "fp",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


# Texts alternate, because some readers take a long run of equal chunks for a loop.
PIECES: Final = tuple(_piece(_event({"content": text})) for text in (" hello", " world"))
USAGE: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"mock",'
    b'"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}\n\n'
)
END: Final = _piece(_event({}, "stop") + USAGE + b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            body = await reader.readexactly(int(length[1])) if length else b"{}"
            await _answer(writer, json.loads(body))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _answer(writer: asyncio.StreamWriter, wanted: dict[str, int]) -> None:
    writer.write(HEAD)
    pace_s = (wanted.get("seed") or 0) / 1000
    for number in range(wanted.get("max_tokens") or wanted.get("max_completion_tokens") or 100):
        if pace_s:
            writer.write(_piece(_event({"content": f"{time.monotonic():.6f}"})))
            await asyncio.sleep(pace_s)
            continue
        writer.write(PIECES[number & 1])
        if number % PER_WRITE == 0:
            await writer.drain()
            await asyncio.sleep(0)
    writer.write(END)
    await writer.drain()


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
