"""Keys planted as canaries, a worker that shouts them, and a search of everything that is left."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trunkline

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.raw_http import Answer, RawServer
from tests.support.timing import until, until_async

pytestmark = pytest.mark.integration
ADAPTER = Path(__file__).parents[1] / "support" / "loud_adapter.py"
# No known prefix of a provider: they are found by value.
CANARIES = {
    "env": "CanaryEnvQ7xW2mZ9pL4vB8",
    "option": "CanaryOptionT5rK1nY6cJ3",
    "header": "CanaryHeaderD8sF2gH7uX0",
    "team": "CanaryTeamM4aE9oI1wR6zV",
    "chat": "CanaryChatN3bG8kP5tS2yC",
}
CONFIG = """\
[broker]
log_format = "json"
log_level = "debug"
log_calls = "all"
traces = "{traces}"

[worker.loud]
adapter = "{adapter}:LoudAdapter"
providers = ["loud"]
env = ["LOUD_API_KEY"]
restart = {{ intensity = 50 }}
[worker.loud.options]
apiKey = "{option}"
[worker.loud.options.headers]
Authorization = "Bearer {header}"
x-team-key = "{team}"

[worker.chat]
adapter = "chat_completions"
providers = ["chat"]
env = ["CHAT_API_KEY"]
options = {{ baseUrl = "{url}/v1", apiKeyEnv = "CHAT_API_KEY" }}
"""


def forms(secret: str) -> Iterator[bytes]:
    """Yield how a secret may be recognized."""
    yield secret[:12].encode()
    yield secret[-10:].encode()
    yield base64.b64encode(secret.encode())[:16]


def found_in(blob: bytes) -> list[str]:
    found = ((name, blob.find(form)) for name, secret in CANARIES.items() for form in forms(secret))
    return [f"{name}: {blob[max(0, at - 60) : at + 30]!r}" for name, at in found if at >= 0]


def files_below(*roots: Path) -> Iterator[tuple[str, bytes]]:
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and path.name != "test.toml":  # the configuration has them
                yield str(path), path.read_bytes()


async def use_everything(broker: BrokerProcess) -> list[str]:
    """Make every kind of call; return what the application was told."""
    told: list[str] = []
    async with trunkline.connect(broker.endpoint) as llm:
        for provider, model in (
            ("loud", "raise"),
            ("loud", "code"),
            ("loud", "finish"),
            ("loud", "log"),
            ("chat", "any"),
            ("loud", "die"),
        ):
            # Not recovered: the second attempt would tell nothing new.
            result = await llm.generate(
                provider=provider, model=model, messages="hello", recovery="none"
            )
            told.append(repr(result))
            try:
                await llm.list_models(provider)
            except trunkline.LlmError as exc:
                told.append(repr(exc) + repr(exc.failure))
        told.append(json.dumps(await llm.query("status", {}), default=str))
    return told


async def test_no_key_leaves_its_worker() -> None:
    """Not by log, failure, status, ledger, trace, command, or file of any kind."""
    echo = b'{"error": {"message": "Incorrect API key provided: Bearer %s"}}'
    body = echo % CANARIES["chat"].encode()
    headers = {"content-type": "application/json", "x-request-id": f"req {CANARIES['chat']}"}
    refusal = Answer([body], 401, headers)
    async with RawServer(refusal) as provider, RawServer(Answer([b"{}"])) as collector:
        with run_directory() as root:
            values = {**CANARIES, "adapter": ADAPTER, "url": provider.url}
            config = CONFIG.format(**values, traces=collector.url)
            environ = {
                "LOUD_API_KEY": CANARIES["env"],
                "CHAT_API_KEY": CANARIES["chat"],
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
            with broker_in(root, config, environ) as broker:
                await asyncio.to_thread(broker.start)
                for pool in ("loud", "chat"):
                    await asyncio.to_thread(broker.until_ready, pool)
                told = await use_everything(broker)
                assert len(told) >= 7
                # The keys were there to be told.
                assert provider.exchanges[0].headers["authorization"].endswith(CANARIES["chat"])
                logs = broker.paths.workers
                await asyncio.to_thread(
                    until,
                    lambda: any("dying with" in p.read_text() for p in logs.glob("*.log")),
                    10.0,
                )
                show = await asyncio.to_thread(
                    subprocess.run,
                    [sys.executable, "-m", "trunkline_broker.cli.main", "config", "show"],
                    env={**os.environ, **environ, "TRUNKLINE_CONFIG": str(broker.config)},
                    capture_output=True,
                    check=False,
                )
                assert b"worker.loud" in show.stdout, show.stderr
                await until_async(lambda: collector.exchanges, 10.0)
                await asyncio.to_thread(broker.stop)
            places = dict(files_below(root))
            places |= {f"told {at}": text.encode() for at, text in enumerate(told)}
            places |= {
                f"trace {at}": exchange.body for at, exchange in enumerate(collector.exchanges)
            }
            places["config show"] = show.stdout + show.stderr
            assert any(name.endswith("usage.sqlite") for name in places)
            assert any("dying with" in blob.decode(errors="replace") for blob in places.values())
            leaks = {name: leaked for name, blob in places.items() if (leaked := found_in(blob))}
            assert not leaks, json.dumps(leaks, indent=1)
