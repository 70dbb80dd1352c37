"""How long it takes to start: the library, the command, a broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import zmq
from trunkline_protocol.codec import encode
from trunkline_protocol.frames import Hello
from trunkline_protocol.ids import CLIENT_ID_BYTES, ClientId

from bench.result import Result, Row, shown, versus
from bench.rig import ROOT, Rig

SDK: Final = "import openai"
_CALL: Final = """
import asyncio, trunkline
async def main():
    async with trunkline.connect() as llm:
        async for chunk in llm.stream(provider="mock", model="mock", messages="hi", max_tokens=1):
            pass
asyncio.run(main())
"""
_SDK_CALL: Final = """
import asyncio, openai
async def main():
    async with openai.AsyncOpenAI(api_key="none", base_url="{url}") as client:
        messages = [{{"role": "user", "content": "hi"}}]
        async for chunk in await client.chat.completions.create(
            model="mock", messages=messages, stream=True, max_tokens=1
        ):
            pass
asyncio.run(main())
"""
_IDLE: Final = '[worker.scripted]\nadapter = "scripted"\n'
_UP_S: Final = 30.0


def start(rig: Rig, rounds: int, times: int) -> Result:
    """Measure imports, `--help` and a broker's first answer, all in the same rounds.

    What an import puts off has to be paid in the first call; so a whole process with one call is
    measured too.
    """
    ways = {
        SDK: ("-c", SDK),
        "import trunkline": ("-c", "import trunkline"),
        "import trunkline, connect": ("-c", "import trunkline; trunkline.connect"),
        "trunkline --help": ("-m", "trunkline_broker.cli.main", "--help"),
        "zmq, asyncio, pydantic": ("-c", "import zmq, asyncio, pydantic"),
        "a call": ("-c", _CALL),
        "a call of the SDK": ("-c", _SDK_CALL.format(url=rig.url)),
    }
    for arguments in ways.values():  # so that all have their bytecode, as installed packages do
        _run_ms(rig, arguments)
    _up_ms()
    took: dict[str, list[float]] = {name: [] for name in ways}
    up: list[float] = []
    for _ in range(rounds * times):
        for name, arguments in ways.items():
            took[name].append(_run_ms(rig, arguments))
        up.append(_up_ms())
    sdk = took[SDK]

    def row(name: str, ours: list[float], most: float) -> Row:
        limit = (f"<= {most:g}", lambda ratio: ratio <= most)
        return versus(name, ours, "{:.0f} ms", (SDK, sdk), limit)

    return Result(
        [
            row("import trunkline", took["import trunkline"], 0.3),
            row("the same and its first use", took["import trunkline, connect"], 0.3),
            row("trunkline --help", took["trunkline --help"], 0.5),
            row("trunkline up answers HELLO", up, 1.0),
            versus(
                "a process that makes one call, from its start to its end",
                took["a call"],
                "{:.0f} ms",
                ("openai SDK", took["a call of the SDK"]),
                ("", lambda _: True),
            ),
            shown("what any client of ZeroMQ imports", took["zmq, asyncio, pydantic"], "{:.0f} ms"),
        ]
    )


def _environ(**more: str) -> dict[str, str]:
    """Return the environment of a process that may keep its bytecode."""
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return mine | more


def _run_ms(rig: Rig, arguments: tuple[str, ...]) -> float:
    environ = _environ(**rig.environ)
    command = [sys.executable, *arguments]
    start_s = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start_s) * 1000


def _up_ms() -> float:
    """Start a broker and return the milliseconds until it has answered a client."""
    with tempfile.TemporaryDirectory(prefix="tl-start-") as name:
        config = Path(name, "trunkline.toml")
        config.write_text(_IDLE)
        control = Path(name, "run", "control")
        start_s = time.perf_counter()
        broker = subprocess.Popen(
            [sys.executable, "-m", "trunkline_broker.cli.main", "up", "--config", str(config)],
            env=_environ(TRUNKLINE_RUN_DIR=str(control.parent)),
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        try:
            _greet(f"ipc://{control}")
            return (time.perf_counter() - start_s) * 1000
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait()


def _greet(endpoint: str) -> None:
    """Say HELLO, before there is anybody to hear it, and wait for the answer.

    Raises:
        TimeoutError: nobody answered.
    """
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.RECONNECT_IVL, 1)
    socket.linger = 0
    socket.connect(endpoint)
    client = ClientId(os.urandom(CLIENT_ID_BYTES))
    try:
        socket.send_multipart(encode(Hello((1, 0), client, os.getpid(), "bench")))
        if not socket.poll(_UP_S * 1000):
            raise TimeoutError("no broker answered")
    finally:
        socket.close()
        context.term()
