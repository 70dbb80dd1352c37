"""Extreme values through every field of every frame: the broker lives, answers, and streams go on.

Both sides are real sockets against a real broker with everything on that measures. After each kind
the status, the metrics page in both forms, what `top` shows and the usage ledger are asked for, and
the stream of another client must have gone on. The commands are run at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest
import zmq
from trunkline_protocol import codec, frames
from trunkline_protocol.codec import Direction, encode
from trunkline_protocol.ids import CallId, Epoch, Generation, PoolName, QueryId, StreamKey
from trunkline_protocol.limits import PROTOCOL_MAJOR, PROTOCOL_MINOR
from trunkline_protocol.printable import STEERING

from tests.support import golden
from tests.support.broker import SCRIPTED, BrokerProcess, running_broker
from tests.support.extremes import Variant, arguments, kinds, named, variants
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW
from tests.support.watched_broker import MEASURED, WAIT_S, Watch

pytestmark = pytest.mark.integration
VERSION: Final = (PROTOCOL_MAJOR, PROTOCOL_MINOR)
POOL: Final = PoolName("raw")
AT_ONCE: Final = 100  # calls that are open for a batch of frames about calls
HISTOGRAM: Final = [0] * 14 + [3]
LOAD: Final[dict[str, Any]] = {
    "rss": 5, "fds": 6, "cpuS": 0.5, "loopLateMs": 1, "loopBlocks": 1, "debugPrompts": True,
    "counters": {"resent": 3},
    "queues": {"keptBytes": 1, "keptHighWater": 2, "keptBound": 3},
    "routes": {
        "anthropic": {
            "calls": 1, "chunks": 2, "tokens": 3, "ttft": HISTOGRAM, "ttftS": 0.5,
            "gaps": HISTOGRAM, "gapsS": 0.5,
        }
    },
}  # fmt: skip
FAILURE: Final = {
    "message": "no", "code": "RATE_LIMIT", "status": 429, "providerRetryAfterMs": 5.0,
    "requestId": "req-1",
}  # fmt: skip
ADAPTER: Final = {
    "adapter": 0, "since": 1,
    "routes": [{"info": {"id": "anthropic", "name": "A"}, "policy": golden.POLICY}],
}  # fmt: skip
ENTRY: Final = {
    "provider": "p", "displayName": "P", "settingsNs": "p", "settingsPath": ["a", "b"],
}  # fmt: skip
BROKER_QUESTIONS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("status", {}),
    ("models", {"provider": "anthropic"}),
    ("listProviders", {}),
    ("providerRetryPolicy", {"provider": "anthropic"}),
    ("listConfigurableProviders", {}),
    ("listModelDiscoveryNamespaces", {}),
    ("swap", {"pool": "nobody", "config": "/nowhere", "python": "/nowhere"}),
    ("drain", {"pool": "nobody"}),
    (
        "putAttachment",
        {
            "attachment": golden.IMAGE, "mediaType": "image/png", "bytes": 9, "offset": 0,
            "data": b"x",
        },
    ),
    ("hasAttachments", {"attachments": [golden.IMAGE]}),
)  # fmt: skip


def rich(frame: frames.Frame) -> frames.Frame:
    """Return an example with everything in its maps that the broker reads."""
    match frame:
        case frames.Ended():
            finish = {"kind": "error", "failure": FAILURE}
            usage = {"inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3}
            figures = {
                "chunks": 1,
                "ttftMs": 0.5,
                "durationMs": 1.5,
                "requestId": "r",
                "model": "m",
            }
            return replace(frame, finish=finish, usage=usage, figures=figures)
        case frames.Heartbeat():
            return replace(frame, load=LOAD)
        case frames.Registrations():
            directory = ({"since": 1, "entries": [ENTRY]},)
            return replace(frame, adapters=(ADAPTER,), directory=directory)
        case frames.Register():
            return replace(frame, pool=POOL, generation=Generation(Epoch(5), 1), token=b"")
        case frames.Open():
            offer = {"retryId": "r", "policyKey": "k", "retry": 1, "delayMs": 5}
            return replace(frame, retry_offer=offer, lease=None, attachments=(), seen=False)
        case _:
            return frame


class RawWorker:
    """One connection to the workers' control socket; serves the route of the examples."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.connect(f"ipc://{broker.run_dir}/workers/control")

    def __enter__(self) -> RawWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.send(frames.Bye("done"))
        self._context.destroy(1000)

    def send(self, *sent: frames.Frame) -> None:
        """Send frames."""
        for frame in sent:
            self.socket.send_multipart(encode(frame))

    def receive(self, kind: type[Any]) -> Any:
        """Return the next frame of a kind."""
        while True:
            assert self.socket.poll(WAIT_S * SLOW * 1000), f"no {kind.__name__} for the worker"
            frame = codec.decode(self.socket.recv_multipart(), Direction.BROKER_TO_WORKER)
            if isinstance(frame, kind):
                return frame

    def serve(self) -> None:
        """Register as a worker that no broker started, with the route of the examples."""
        born = Generation(Epoch(0), 0)
        self.send(frames.Register(VERSION, POOL, 0, born, os.getpid(), "serving"))
        self.receive(frames.Registered)
        self.send(frames.Registrations(1, (ADAPTER,)))
        self.receive(frames.Committed)

    def discard(self) -> None:
        """Read what has come, and beat: it lives."""
        self.send(frames.Heartbeat())
        while self.socket.poll(0):
            self.socket.recv_multipart()


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    # A worker that does not name its calls is a defect elsewhere, and fatal; here it is a liar.
    with running_broker(
        MEASURED + SCRIPTED, {**os.environ, "TRUNKLINE_STRICT_LIVENESS": "0"}
    ) as broker:
        broker.until_ready("scripted")
        made = Watch(broker)
        yield made
        made.close()


@pytest.fixture(autouse=True)
def _lives(watch: Watch) -> Iterator[None]:
    """Name the test that ends the broker, and fail those behind it at once."""
    watch.lives()
    yield
    watch.lives()


def end_pauses(client: RawClient) -> None:
    """End the pause that an extreme wish of a provider in an earlier report has begun."""
    query = QueryId(os.urandom(16))
    client.send(frames.Query(query, "reload"))
    answer = client.receive(WAIT_S)
    while not (isinstance(answer, frames.Reply) and answer.query == query):
        answer = client.receive(WAIT_S)


def opened(client: RawClient, worker: RawWorker, count: int) -> list[dict[bytes, bytes]]:
    """Open calls that the worker runs; return their ids by those of the examples."""
    found: list[dict[bytes, bytes]] = []
    if count:
        end_pauses(client)
    for _ in range(count):
        call, key = os.urandom(16), os.urandom(8)
        # Each another request: one on which workers die again and again is barred.
        body = codec.pack_body({"provider": "anthropic", "model": "m", "messages": [call]})
        client.send(frames.Open(CallId(call), 0, StreamKey(key), golden.ROUTE, "m", body=body))
        ids = {golden.CALL: call, golden.KEY: key, golden.CLIENT: client.client}
        found.append({**ids, golden.QUERY: os.urandom(16)})
    for _ in range(count):
        worker.receive(frames.Start)
    return found


def batches(found: Sequence[Variant]) -> Iterator[Sequence[Variant]]:
    """Yield the variants in groups of as many as calls are open at once."""
    for at in range(0, len(found), AT_ONCE):
        yield found[at : at + AT_ONCE]


def discard(client: RawClient) -> None:
    while client.socket.poll(0):
        client.socket.recv_multipart()


def name_of(frame: frames.Frame) -> str:
    return type(frame).__name__


@pytest.mark.parametrize("frame", kinds(Direction.CLIENT_TO_BROKER), ids=name_of)
def test_frames_of_clients(watch: Watch, frame: frames.Frame) -> None:
    """Each about a call that runs, from a client that was greeted."""
    found = list(variants(rich(frame)))
    for batch in batches(found):
        with RawClient(watch.broker.endpoint) as client, RawWorker(watch.broker) as worker:
            client.hello()
            worker.serve()
            is_new = isinstance(frame, frames.Open | frames.Hello | frames.Bye)
            calls = opened(client, worker, 0 if is_new else len(batch))
            for at, variant in enumerate(batch):
                fresh = {golden.CALL: os.urandom(16), golden.KEY: os.urandom(8)}
                client.send_bytes(named(variant.parts, calls[at] if calls else fresh))
                if isinstance(frame, frames.Hello | frames.Bye):
                    client.hello()
                discard(client)
            worker.discard()
    watch.look(f"{name_of(frame)} of a client, such as {found[-1].where}")


@pytest.mark.parametrize("frame", kinds(Direction.WORKER_TO_BROKER), ids=name_of)
def test_frames_of_workers(watch: Watch, frame: frames.Frame) -> None:
    """Each about a call that runs in it, from a worker that serves; `REGISTER` from a new one."""
    found = list(variants(rich(frame)))
    for batch in batches(found):
        with RawClient(watch.broker.endpoint) as client, RawWorker(watch.broker) as worker:
            client.hello()
            is_new = isinstance(frame, frames.Register)
            if not is_new:
                worker.serve()
            is_about_calls = isinstance(frame, frames.Ended | frames.Snapshot | frames.Heartbeat)
            calls = opened(client, worker, len(batch) if is_about_calls else 0)
            for at, variant in enumerate(batch):
                worker.socket.send_multipart(named(variant.parts, calls[at] if calls else {}))
                discard(client)
            worker.discard()
    watch.look(f"{name_of(frame)} of a worker, such as {found[-1].where}")


@pytest.mark.parametrize(("op", "argument"), BROKER_QUESTIONS, ids=lambda given: str(given)[:16])
def test_questions_to_the_broker(watch: Watch, op: str, argument: dict[str, Any]) -> None:
    """Each gets one answer, whatever its argument is."""
    found = list(arguments(op, argument))
    with RawClient(watch.broker.endpoint) as client, RawWorker(watch.broker) as worker:
        client.hello()
        worker.serve()
        waiting: dict[bytes, str] = {}
        for variant in found:
            query = os.urandom(16)
            waiting[query] = variant.where
            client.send_bytes(named(variant.parts, {golden.QUERY: query}))
            while len(waiting) > 50 or (variant is found[-1] and waiting):
                answer = client.receive(WAIT_S)
                if isinstance(answer, frames.Reply | frames.Refused) and answer.query:
                    waiting.pop(answer.query, None)
    watch.look(f"questions {op}")


def test_commands_after_all_that(watch: Watch) -> None:
    """They end without a traceback, and nothing of what they write steers a terminal."""
    run_dir = str(watch.broker.run_dir)
    environ = {**watch.broker.environ, "TRUNKLINE_RUN_DIR": run_dir, "PYTHONIOENCODING": "ascii"}
    for command in (
        "status", "status --json", "usage --by client,provider,model", "usage --json", "providers",
        "providers --json", "doctor", "logs broker -n 200", "config show --json",
    ):  # fmt: skip
        made = subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-m", "trunkline_broker.cli.entry", *command.split()],
            env=environ,
            cwd=run_dir,
            capture_output=True,
            timeout=60 * SLOW,
            check=False,
        )
        text = (made.stdout + made.stderr).decode("ascii")
        assert "Traceback" not in text, f"{command}: {text[-3000:]}"
        assert not STEERING.search(text), command
        if "--json" in command and not made.returncode:
            json.loads(made.stdout)
    for line in watch.broker.log_text().splitlines():
        json.loads(line)
    watch.look("all commands")
    status = watch.broker.status()
    assert status["refused"]["BAD_FRAME"] > 1000, status["refused"]
    assert status["counters"]["calls_ended"] > 100, status["counters"]
