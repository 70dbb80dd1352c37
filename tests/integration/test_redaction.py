"""Keys planted as canaries, workers that shout them, and a search of everything that is left.

The keys are other ones in each run, since every process of the machine is looked at.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import sys
import traceback
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
import trunkline

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.images import a_png
from tests.support.loud_adapter import ways_of_writing
from tests.support.raw_http import Answer, RawServer
from tests.support.timing import until_async

pytestmark = pytest.mark.integration
ADAPTER = Path(__file__).parents[1] / "support" / "loud_adapter.py"
KNOWN = ("env", "option", "header", "team", "file", "chat")
CONFIG = """\
[broker]
log_format = "json"
log_level = "debug"
log_calls = "all"
traces = "{traces}"
metrics = "127.0.0.1:0"

[worker.loud]
adapter = "{adapter}:LoudAdapter"
providers = ["loud"]
env = ["LOUD_API_KEY"]
restart = {{ intensity = 50 }}
[worker.loud.options]
apiKey = {option}
apiKeyFile = "{token_file}"
[worker.loud.options.headers]
Authorization = {header}
x-team-key = {team}

[worker.native]
adapter = "{adapter}:LoudAdapter"
providers = ["native"]
env = ["LOUD_API_KEY"]
restart = {{ intensity = 50 }}
[worker.native.options]
apiKey = {option}
apiKeyFile = "{token_file}"
headers = {{ Authorization = {header}, x-team-key = {team} }}

[worker.chat]
adapter = "chat_completions"
providers = ["chat"]
env = ["CHAT_API_KEY"]
options = {{ baseUrl = "{url}/v1", apiKeyEnv = "CHAT_API_KEY" }}
"""
COMMANDS = (
    ("config", "show"),
    ("config", "show", "--json"),
    ("status", "--json"),
    ("doctor",),
    ("usage", "--json"),
)


@dataclass(slots=True)
class Planted:
    """The keys of one run, and every place where something was left."""

    keys: dict[str, str] = field(default_factory=dict[str, str])
    places: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def __post_init__(self) -> None:
        for name in KNOWN:
            # No known prefix of a provider: found by value. With what URLs, JSON and Python escape.
            one, two = secrets.token_hex(5), secrets.token_hex(6)
            self.keys[name] = f'Canary{name}/{one}+"Q\\{two}?~'

    def look_at(self, place: str, blob: bytes | str) -> None:
        """Take something to search, whole."""
        self.places[place] = blob if isinstance(blob, bytes) else blob.encode()

    def look_below(self, root: Path, when: str) -> None:
        """Take every file but those that the keys were planted in."""
        for path in root.rglob("*"):
            # Of a worker that dies in native code the file is not cleaned: SECURITY.md.
            is_source = path.name in {"test.toml", "token"} or path.name.startswith("native-")
            if path.is_file() and not is_source:
                self.look_at(f"{when} {path}", path.read_bytes())

    def leaks(self) -> dict[str, list[str]]:
        """Return what was found, by place."""
        found: dict[str, list[str]] = {}
        for place, blob in self.places.items():
            for name, key in self.keys.items():
                at = next((at for form in forms(key) if (at := blob.find(form)) >= 0), None)
                if at is not None:
                    found.setdefault(place, []).append(
                        f"{name}: {blob[max(0, at - 60) : at + 30]!r}"
                    )
        return found


def forms(key: str) -> Iterator[bytes]:
    """Yield how a key may be recognized: parts of it, in every way of writing it."""
    quoted, escaped = quote(key, safe=""), json.dumps(key)[1:-1]
    for text in (key, quoted, escaped, escaped.replace("/", "\\/"), repr(key)[1:-1]):
        yield from (text[:13].encode(), text[-12:].encode())
    for before in range(3):
        yield base64.b64encode(b"x" * before + key.encode())[8:24]
        yield base64.urlsafe_b64encode(b"x" * before + key.encode())[8:24]


async def use_everything(broker: BrokerProcess, planted: Planted) -> None:
    """Make every kind of call and keep what the application was told."""
    async with trunkline.connect(broker.endpoint) as llm:
        await llm.attachments.put(a_png(4, 4), name="a.png")
        for provider, model in (
            ("loud", "raise"),
            ("loud", "code"),
            ("loud", "finish"),
            ("loud", "ways"),
            ("loud", "log"),
            ("chat", "any"),
            ("chat", "again"),
            ("loud", "die"),
            ("native", "native"),
        ):
            # Not recovered: the second attempt would tell nothing new.
            result = await llm.generate(
                provider=provider, model=model, messages="hello", recovery="none"
            )
            planted.look_at(f"told {provider} {model}", repr(result))
            try:
                await llm.list_models(provider)
            except trunkline.LlmError as exc:
                told = "".join(traceback.format_exception(exc)) + repr(exc) + repr(exc.failure)
                planted.look_at(f"raised {provider} {model}", told)
        status = await llm.query("status", {})
        planted.look_at("status", json.dumps(status, default=str))
        with urllib.request.urlopen(status["measures"]["metrics"]) as page:  # noqa: S310, ASYNC210
            planted.look_at("metrics", page.read())


async def run_commands(planted: Planted, environ: Mapping[str, str]) -> None:
    """Look at what every command shows that may know a key."""

    async def run(command: tuple[str, ...]) -> None:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trunkline_broker.cli.main", *command),
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        shown, _ = await child.communicate()
        assert shown, command
        planted.look_at(" ".join(command), shown)

    for first in range(0, len(COMMANDS), 2):
        await asyncio.gather(*map(run, COMMANDS[first : first + 2]))


def look_at_processes(planted: Planted, broker: BrokerProcess) -> None:
    """Look at arguments and environment of all processes; whoever was given a key may have it."""
    pids = broker.worker_pids()
    given = {
        broker.pid: {"env", "chat"},
        **{pid: {"env"} for pid in (*pids["loud"], *pids["native"])},
        **{pid: {"chat"} for pid in pids["chat"]},
    }
    looked = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            arguments = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        looked += 1
        for name in given.get(int(process.name), ()):
            assert planted.keys[name].encode() in environment, "it was not given what it needs"
            environment = environment.replace(planted.keys[name].encode(), b"")
        planted.look_at(f"{process} {arguments[:60]!r}", arguments + b"\0" + environment)
    assert looked > len(given)


async def test_no_key_leaves_its_worker() -> None:
    """Not by log, failure, status, metrics, ledger, trace, command, process or file of any kind."""
    planted = Planted()
    keys = planted.keys
    echo = {"error": {"message": f"Incorrect API key provided: Bearer {keys['chat']}"}}
    sent = {"error": {"message": "no", "request": " ".join(ways_of_writing(keys["chat"]))}}
    headers = {"content-type": "application/json", "x-request-id": f"req {keys['chat']}"}
    answers = [Answer([json.dumps(each).encode()], 401, headers) for each in (echo, sent, echo)]
    async with RawServer(*answers) as provider, RawServer(Answer([b"{}"])) as collector:
        with run_directory() as root:
            (root / "token").write_text(keys["file"])
            config = CONFIG.format(
                adapter=ADAPTER,
                url=provider.url,
                traces=collector.url,
                token_file=root / "token",
                option=json.dumps(keys["option"]),
                header=json.dumps(f"Bearer {keys['header']}"),
                team=json.dumps(keys["team"]),
            )
            given = {
                "LOUD_API_KEY": keys["env"],
                "CHAT_API_KEY": keys["chat"],
                "OTEL_BSP_SCHEDULE_DELAY": "100",
            }
            with broker_in(root, config, given) as broker:
                await asyncio.to_thread(broker.start)
                for pool in ("loud", "native", "chat"):
                    await asyncio.to_thread(broker.until_ready, pool)
                await asyncio.to_thread(look_at_processes, planted, broker)
                await use_everything(broker, planted)
                # The keys were there to be told.
                assert provider.exchanges[0].headers["authorization"].endswith(keys["chat"])
                for pool in ("loud", "native"):  # both have died meanwhile
                    await asyncio.to_thread(broker.until_ready, pool)
                await asyncio.to_thread(look_at_processes, planted, broker)
                environ = {**os.environ, **given, "TRUNKLINE_CONFIG": str(broker.config)}
                environ["TRUNKLINE_RUN_DIR"] = str(broker.run_dir)
                await run_commands(planted, environ)
                await until_async(lambda: collector.exchanges, 10.0)
                planted.look_below(root, "running")
                await asyncio.to_thread(broker.stop)
            planted.look_below(root, "stopped")
            for at, exchange in enumerate(collector.exchanges):
                planted.look_at(f"trace {at}", repr(exchange.headers).encode() + exchange.body)
    assert_was_looked_at(planted)
    leaks = planted.leaks()
    assert not leaks, json.dumps(leaks, indent=1)


def assert_was_looked_at(planted: Planted) -> None:
    """See that what had to be searched was there."""
    places = "\n".join(planted.places)
    for part in ("usage.sqlite", "sqlite-wal", "alive.json", "/attachments/", "loud-", "stderr"):
        assert part in places, part
    whole = b"\n".join(planted.places.values())
    for text in (b"dying with", b"native code dies", b"[redacted]", b"Traceback", b"[worker.loud]"):
        assert text in whole, text
