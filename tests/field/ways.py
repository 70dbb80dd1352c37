"""The two ways in which a case is called: the adapter in this process, or a whole broker.

The broker is one process with real workers for all cases of a file. Each case has a route of its
own, since a provider that says "wait" pauses its route for everybody.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trunkline
from trunkline_protocol.chunks import Finish, StreamChunk
from trunkline_protocol.failure import LlmError, LlmFailure
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.cases import Replay
from tests.field.expectation import Outcome
from tests.support.broker import BrokerProcess, broker_process
from tests.support.calls import a_request, fast_options
from tests.support.raw_http import Answer, Exchange, RawServer

KEY_NAME: Final = "FIELD_API_KEY"
# The key of the worker, and what a provider in a report echoes when it refuses it.
KEY: Final = "sk-test-AAAABBBBCCCCDDDD1234"
ROUTES_PER_POOL: Final = 200
ANSWER: Final = Answer(
    (
        b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    )
)


class Way(Protocol):
    """Calls a provider that gives one answer."""

    name: str

    async def call(self, replay: Replay) -> tuple[Outcome, list[Exchange]]:
        """Make the call of a case; return what came out and what the provider saw."""
        ...


@dataclass(frozen=True)
class AdapterWay:
    """The adapter in this process, with further options if wanted."""

    name: str = "adapter"
    changes: Mapping[str, Any] = field(default_factory=dict)

    async def call(self, replay: Replay) -> tuple[Outcome, list[Exchange]]:
        """Make the call of a case; return what came out and what the provider saw."""
        async with RawServer(replay.answer) as server:
            options = _options(server.url, {**replay.options, **self.changes}, [replay])
            adapter = ChatCompletionsAdapter.create(
                AdapterContext(name="field", options=options, environ={KEY_NAME: KEY})
            )
            await adapter.open()
            chunks: list[StreamChunk] = []
            failure = None
            start = time.monotonic()
            try:
                async for some in adapter.stream(_request(replay, "custom")):
                    chunks += some
            except LlmError as exc:
                failure = exc.failure
            finally:
                seconds = time.monotonic() - start
                await adapter.close()
            return Outcome(chunks, failure or _failure(chunks), seconds), server.exchanges


class FieldServer(RawServer):
    """A provider for many cases at a time: the model of a request chooses the answer."""

    def __init__(self, replays: Sequence[Replay]) -> None:
        super().__init__(ANSWER)
        self._replays = {model_of(replay): replay for replay in replays}
        self._seen: dict[str, list[Exchange]] = {}

    def take(self, exchange: Exchange) -> Answer:
        """Note a request and choose its answer."""
        replay = self._replays.get(model := json.loads(exchange.body).get("model"))
        if replay is None:
            return super().take(exchange)
        self._seen.setdefault(model, []).append(exchange)
        return replay.answer

    def seen(self, replay: Replay) -> list[Exchange]:
        """Return the requests of a case."""
        return self._seen.get(model_of(replay), [])


class BrokerWay:
    """Client, broker and worker process."""

    def __init__(
        self,
        runtime: trunkline.LlmRuntime,
        broker: BrokerProcess,
        server: FieldServer,
        routes: Mapping[str, str],
    ) -> None:
        self.name = "broker"
        self.runtime = runtime
        self.broker = broker
        self.server = server
        self.free_route = "free-0"  # no case of the file uses it
        self.still_route = "still-0"  # only measurements use it
        self._routes = routes

    async def call(self, replay: Replay) -> tuple[Outcome, list[Exchange]]:
        """Make the call of a case; return what came out and what the provider saw."""
        if self.broker.child is None or self.broker.child.poll() is not None:
            raise RuntimeError("the broker has ended; see its log")
        start = time.monotonic()
        async with self.runtime.stream(_request(replay, self._routes[replay.name])) as stream:
            chunks = [chunk async for chunk in stream]
        outcome = Outcome(chunks, _failure(chunks), time.monotonic() - start)
        return outcome, self.server.seen(replay)

    def leaks(self) -> list[str]:
        """Return the files of broker and workers that show the key."""
        logs = [self.broker.run_dir / "stderr", *(self.broker.run_dir / "workers").glob("*.log")]
        return [
            f"{path.name} shows the key" for path in logs if KEY[:12] in path.read_text("utf-8")
        ]


@asynccontextmanager
async def broker_way(replays: Sequence[Replay]) -> AsyncGenerator[BrokerWay]:
    """Start a broker that has a route for every case, and a client of it."""
    async with FieldServer(replays) as server:
        pools, routes = _pools(server.url, replays)
        environ = {KEY_NAME: KEY}
        async with (
            broker_process("\n".join(pools.values()), environ) as broker,
            trunkline.connect(broker.endpoint, timeout_s=10) as runtime,
        ):
            for pool in pools:
                await asyncio.to_thread(broker.until_ready, pool)
            yield BrokerWay(runtime, broker, server, routes)


def _pools(url: str, replays: Sequence[Replay]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the configuration of each pool, and the route of each case."""
    groups: dict[str, list[Replay]] = {}
    for replay in replays:
        same = [key for key in groups if key.startswith(json.dumps(replay.options) + "#")]
        if not same or len(groups[same[-1]]) >= ROUTES_PER_POOL:
            same.append(f"{json.dumps(replay.options)}#{len(groups)}")
        groups.setdefault(same[-1], []).append(replay)
    groups = groups or {"{}#0": []}
    pools: dict[str, str] = {}
    routes: dict[str, str] = {}
    for number, members in enumerate(groups.values()):
        names = {replay.name: f"field-{number}-{at}" for at, replay in enumerate(members)}
        routes |= names
        options = _options(url, members[0].options if members else {}, members)
        pools[f"field{number}"] = (
            f"[worker.field{number}]\n"
            'adapter = "chat_completions"\n'
            f"providers = {toml([*names.values(), f'free-{number}', f'still-{number}'])}\n"
            f"env = {toml([KEY_NAME])}\n"
            f"options = {toml(options)}\n"
        )
    return pools, routes


def _options(url: str, changes: Mapping[str, Any], replays: Sequence[Replay]) -> dict[str, Any]:
    """Return the options of a worker that serves some cases."""
    models = [
        {"id": model_of(replay), "contextWindow": replay.context_window}
        for replay in replays
        if replay.context_window is not None
    ]
    return fast_options(
        url, apiKeyEnv=KEY_NAME, **({"models": models} if models else {}), **changes
    )


def model_of(replay: Replay) -> str:
    """Return the model that a case asks for: no other case has it."""
    return f"case {replay.name}"


def _request(replay: Replay, route: str) -> GenerateOptions:
    return a_request(provider=route, model=model_of(replay), max_tokens=replay.max_tokens)


def _failure(chunks: Sequence[StreamChunk]) -> LlmFailure | None:
    last = chunks[-1] if chunks else None
    return last.reason.failure if isinstance(last, Finish) else None


def toml(value: Any) -> str:
    """Write a value in TOML, tables in line; texts are escaped as in JSON, which TOML reads."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {toml(item)}" for key, item in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
