"""The load of a soak: players that stream, and an operator who swaps, reloads, kills and looks.

It starts processes and counts what their streams came to. What grows is judged elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import trunkline

from tests.chaos.book import Book
from tests.chaos.check import judge_play
from tests.chaos.player import Orders
from tests.support.broker import BrokerProcess
from tests.support.images import a_png
from tests.support.timing import SLOW, until_async

# Seconds between two deeds of the operator, on average.
DEEDS_S: Final = {"scrape": 15, "image": 20, "swap": 180, "reload": 240, "kill": 300}
_IMAGE_BYTES: Final = 20_000


@dataclass(slots=True)
class Load:
    """Everything that loads the broker.

    Attributes:
        players: processes by name.
        done: how often each thing was done, and what came of the streams.
        wrong: descriptions of streams and deeds that went wrong.
    """

    broker: BrokerProcess
    book: Book
    random: Random
    metrics_port: int
    players: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    _plays: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    _strikes: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    _playing: set[str] = field(default_factory=set[str])
    _images: int = 0

    # --- players -------------------------------------------------------------------------------

    def start_player(self, name: str, orders: Orders) -> None:
        """Start a player; it plays until `stop_players`."""
        command = [sys.executable, "-m", "tests.chaos.player", json.dumps(asdict(orders))]
        with (self.broker.run_dir.parent / f"{name}.log").open("ab") as log:
            self.players[name] = subprocess.Popen(  # noqa: S603  our own program
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.broker.environ
            )

    async def until_playing(self) -> None:
        """Wait until every player is connected; only then may it be asked for its state."""

        def are_there() -> bool:
            self.take_news()
            return self._playing >= self.players.keys()

        await until_async(are_there, 60, "a player does not connect")

    def check_players(self) -> None:
        """Make sure that every player lives.

        Raises:
            AssertionError: one has ended; its log says why.
        """
        ended = [name for name, child in self.players.items() if child.poll() is not None]
        assert not ended, f"{', '.join(ended)} ended"

    async def stop_players(self) -> None:
        """Have every player finish its streams, and judge the last ones."""
        for child in self.players.values():
            assert child.stdin is not None
            child.stdin.close()
        for name, child in self.players.items():
            try:
                code = await asyncio.to_thread(child.wait, 90 * SLOW)
            except subprocess.TimeoutExpired:
                child.kill()
                code = await asyncio.to_thread(child.wait)
            if code:
                self.wrong.append(f"player {name} ended with {code}")
        self.take_news()
        self.wrong += [f"stream {each} was never read" for each in self._plays]

    def take_news(self) -> None:
        """Judge the streams that ended since the last time."""
        for line in self.book.news():
            match line["k"]:
                case "player":
                    self._playing.add(line["name"])
                case "play":
                    self._plays[line["id"]] = line
                case "read":
                    self._judge(line)
                case "stuck":
                    self.done["stuck"] += 1
                    self.wrong.append(f"stuck: {line}")
                case _:
                    pass

    def _judge(self, read: Mapping[str, Any]) -> None:
        play = self._plays.pop(read["id"], None)
        verdict = "doubled" if play is None else judge_play(play, [read], 0, self._strikes)
        self.done["streams"] += 1
        self.done["chars"] += read["chars"]
        self.done["struck"] += not verdict and read["code"] == "TRANSPORT"
        if verdict:
            self.done[verdict] += 1
            self.wrong.append(f"{verdict}: {play} {read}")

    # --- the operator --------------------------------------------------------------------------

    async def operate(self) -> None:
        """Do all deeds, each at its own pace, until cancelled."""
        deeds: dict[str, Callable[[trunkline.LlmRuntime], Any]] = {
            "scrape": self._scrape,
            "image": self._put_image,
            "swap": self._swap,
            "reload": self._reload,
            "kill": self._kill,
        }
        async with (
            trunkline.connect(self.broker.endpoint, name="operator") as llm,
            asyncio.TaskGroup() as tasks,
        ):
            for name, deed in deeds.items():
                tasks.create_task(self._repeat(name, deed, llm))

    async def _repeat(self, name: str, deed: Callable[..., Any], llm: Any) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * DEEDS_S[name])
            try:
                await deed(llm)
            except (trunkline.LlmError, OSError, AssertionError) as exc:
                self.wrong.append(f"{name}: {type(exc).__name__}: {exc}")
            self.done[name] += 1

    async def _scrape(self, llm: trunkline.LlmRuntime) -> None:
        del llm
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics_port)
        try:
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")
            page = await asyncio.wait_for(reader.read(), 20 * SLOW)
        finally:
            writer.close()
        assert page.startswith(b"HTTP/1.1 200"), page[:80]
        self.done["scrapedBytes"] = len(page)

    async def _put_image(self, llm: trunkline.LlmRuntime) -> None:
        """Store an image and name it in a call; every fourth one is stored already."""
        self._images += 1
        number = self._images - self._images % 4
        image = await llm.attachments.put(a_png(8 + number % 500, 8 + number // 500, _IMAGE_BYTES))
        block = {"type": "image", "attachment": image.to_dict()}
        message = {"role": "user", "content": [{"type": "text", "text": "look"}, block]}
        result = await llm.generate(provider="steady", model="any", messages=[message])
        assert result.failure is None, result.failure

    async def _swap(self, llm: trunkline.LlmRuntime) -> None:
        await llm.query("swap", {"pool": "restless"}, timeout_s=60 * SLOW)

    async def _reload(self, llm: trunkline.LlmRuntime) -> None:
        """Change a key of one pool in the configuration, and have it read again."""
        await asyncio.to_thread(_change, self.broker.config)
        argument = {"config": str(self.broker.config)}
        await llm.query("reload", argument, timeout_s=60 * SLOW)

    async def _kill(self, llm: trunkline.LlmRuntime) -> None:
        """Kill a worker of the restless pool; streams that it plays may fail."""
        document = await llm.query("status", {}, timeout_s=20 * SLOW)
        pids = pids_of(document, "restless")
        if not pids:
            return
        self._strikes = [*self._strikes[-50:], (monotonic(), "worker_kill")]
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(list(pids.values())), signal.SIGKILL)


def _change(config: Path) -> None:
    """Change a key of one pool in a configuration, and the next time change it back."""
    text = config.read_text()
    old, new = ("900", "901") if "queue_size = 900" in text else ("901", "900")
    config.write_text(text.replace(f"queue_size = {old}", f"queue_size = {new}"))


def pids_of(document: Mapping[str, Any], pool: str) -> dict[str, int]:
    """Return the serving workers of a pool by slot, from the status document."""
    return {
        f"{entry['name']}.{slot['slot']}": slot["pid"]
        for entry in document["pools"]
        if entry["name"] == pool
        for slot in entry["slots"]
        if slot["pid"]
    }


async def until_serving(broker: BrokerProcess) -> None:
    """Wait until both pools serve."""
    for pool in ("steady", "restless"):
        await asyncio.to_thread(broker.until_ready, pool, 60.0)


async def until_idle(broker: BrokerProcess) -> None:
    """Wait until no call is open.

    Raises:
        NotSoonEnoughError: some are, a while after the last player has left.
    """

    def is_idle() -> bool:
        return broker.status()["calls"]["open"] == 0

    await until_async(is_idle, 45, "calls are open after the last player has left")
