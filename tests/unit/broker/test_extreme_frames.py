"""An extreme value in any field of any frame is refused, or harms no document of the broker."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgpack
import pytest
from trunkline_broker.cli import findings
from trunkline_broker.cli.top_view import Window
from trunkline_broker.config import Settings, load
from trunkline_broker.core.effects import AttemptEnded, Effect, Log, NoteLoad
from trunkline_broker.core.events import ClientFrameReceived, WorkerFrameReceived
from trunkline_broker.measured.ledger import entry_of
from trunkline_broker.measured.metrics import Snapshot
from trunkline_broker.measured.tallies import Tallies
from trunkline_protocol import frames
from trunkline_protocol.codec import Direction, decode, encode, pack_body
from trunkline_protocol.failure import RemoteProtocolError

from tests.support.broker_rig import (
    NORMAL,
    Rig,
    RigClient,
    RigWorker,
    a_pool,
    adapters,
    status_of,
)
from tests.support.golden import (
    CALL,
    CLIENT,
    EXAMPLES,
    KEY,
    OTHER_CALL,
    POOL,
    ROUTE,
    directions,
)

Place = tuple[Any, ...]
_msgpack: Any = msgpack  # its types are partly unknown
_EXTREMES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, 1e308, math.nan, math.inf),
    *("", "\0", "\x1b[2J\x1b]0;owned\x07", "half \ud800", "a\nb", "\u202eright", "x" * 257),
    *(b"", b"\xff" * 16, b"\xff" * 17, [], {}, [[[[[1]]]]], {"half \udfff": 2**63}),
)
_FAILURE: Final = {
    "message": "later",
    "code": "RATE_LIMIT",
    "status": 429,
    "providerRetryAfterMs": 5.5,
    "requestId": "r",
}
_ROUTE_LOAD: Final = {"chunks": 1, "tokens": 5, "failed": 0, "ttft": [1, 2], "gaps": [0, 1]}
_FULL: Final[tuple[frames.Frame, ...]] = (
    frames.Ended(
        CALL,
        1,
        5,
        {"kind": "error", "failure": _FAILURE, "extra": "x"},
        dict.fromkeys(("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"), 5),
        {"chunks": 5, "ttftMs": 1.5, "durationMs": 2.5, "model": "m", "requestId": "r"},
    ),
    frames.Heartbeat(
        load={
            "rss": 5,
            "cpuS": 1.5,
            "fds": 3,
            "loopLateMs": 2.5,
            "loopBlocks": 1,
            "debugPrompts": True,
            "counters": {"frames_resent": 3},
            "queues": {"keptBytes": 10, "keptHighWater": 20, "keptBound": 30},
            "routes": {ROUTE: _ROUTE_LOAD},
        }
    ),
    frames.Registrations(
        4,
        ({"adapter": 0, "since": 2, "routes": [{"info": {"id": ROUTE, "name": "A"}}]},),
        (
            {
                "since": 2,
                "entries": [
                    {
                        "provider": "p",
                        "displayName": "P",
                        "settingsNs": "ns",
                        "settingsPath": ["a"],
                    }
                ],
            },
        ),
    ),
    frames.Open(
        OTHER_CALL,
        1,
        KEY,
        ROUTE,
        "m",
        retry_offer={"retryId": "r", "policyKey": "k", "retry": 1, "delayMs": 5.5},
    ),
)
_MUCH: Final = "x" * (10 * 1024 * 1024)
_OF_CLIENTS: Final = Direction.CLIENT_TO_BROKER
_OF_WORKERS: Final = Direction.WORKER_TO_BROKER


def _places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of every value inside of an envelope."""
    entries = cast("Any", value.items() if isinstance(value, dict) else enumerate(value))
    for key, item in entries:
        yield (*at, key)
        if isinstance(item, dict | list):
            yield from _places(item, (*at, key))


def _with(envelope: Any, place: Place, value: Any) -> Any:
    changed = inner = copy.deepcopy(envelope)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def _decoded(parts: list[Any], envelope: Any, way: Direction) -> Any:
    """Return the frame with another envelope; `None` if it is refused."""
    packed = _msgpack.packb(envelope, unicode_errors="surrogatepass")
    try:
        return decode([parts[0], packed, *parts[2:]], way)
    except RemoteProtocolError as refused:
        pack_body({"code": refused.code, "message": str(refused), **refused.about})
        return None


def _a_busy_broker() -> tuple[Rig, RigClient, RigWorker]:
    """Return a broker with the call of the examples, which runs."""
    rig = Rig(a_pool(POOL, providers=(ROUTE,)), is_liveness_strict=False)
    worker = rig.a_worker(ROUTE, policy=NORMAL)
    client = rig.a_client(client=CLIENT)
    client.open(ROUTE, call=CALL, attempt=1, stream_key=KEY)
    assert worker.got(frames.Start)
    return rig, client, worker


def _told(frame: Any, way: Direction) -> tuple[Rig, list[Effect]]:
    rig, client, worker = _a_busy_broker()
    if way is _OF_CLIENTS:
        effects = rig.tell(ClientFrameReceived(client.peer, frame, client.pid))
    else:
        effects = rig.tell(WorkerFrameReceived(worker.peer, frame, worker.pid))
    return rig, effects + rig.wait(1.5)


class _Readers:
    """Everything that reads what the core tells: status, metrics, ledger, log, top and doctor."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tallies = Tallies()

    def read(self, rig: Rig, effects: list[Effect]) -> dict[str, Any]:
        for effect in effects:
            if isinstance(effect, AttemptEnded):
                self.tallies.on_attempt(effect)
                entry_of(effect, 0)
            elif isinstance(effect, NoteLoad):
                self.tallies.on_load(effect)
            elif isinstance(effect, Log):
                json.dumps(dict(effect.fields), default=str, allow_nan=False)
        document = {**status_of(rig), "pid": 1, "uptimeS": 1.0}
        pack_body(document)
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        text.encode()
        assert "\\u001b" not in text
        window = Window()
        window.add(document, 1.0)
        repr(window.add(document, 2.0)).encode("utf-8", "strict")
        list(findings.broker(self.settings, document))
        return document

    def scrape(self, document: dict[str, Any]) -> None:
        page = Snapshot(self.tallies, document).page("").body
        assert b"nan" not in page.lower()
        assert b"\x1b" not in page


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> _Readers:
    home: Path = tmp_path_factory.mktemp("home")
    return _Readers(load(None, {"HOME": str(home), "PATH": "", "TRUNKLINE_RUN_DIR": str(home)}))


def _cases() -> Iterator[Any]:
    for number, example in enumerate((*EXAMPLES, *_FULL)):
        for way in directions(example):
            if way in {_OF_CLIENTS, _OF_WORKERS}:
                yield pytest.param(example, way, id=f"{type(example).__name__}-{way.name}-{number}")


@pytest.mark.parametrize(("example", "way"), list(_cases()))
def test_an_extreme_value_in_any_field(example: Any, way: Direction, readers: _Readers) -> None:
    """Each document is made after each frame that the broker accepts."""
    parts: list[Any] = list(encode(example))
    envelope = _msgpack.unpackb(parts[1], strict_map_key=False)
    places = list(_places(envelope))
    for place in places:
        document: dict[str, Any] | None = None
        for value in _EXTREMES:
            frame = _decoded(parts, _with(envelope, place, value), way)
            if frame is not None:
                document = readers.read(*_told(frame, way))
        if document is not None:
            readers.scrape(document)
    for place in places:
        assert _decoded(parts, _with(envelope, place, _MUCH), way) is None
    assert places


@pytest.mark.parametrize("op", ["swap", "stop", "restart", "reload", "drain", "putAttachment"])
@pytest.mark.parametrize(
    "key", ["pool", "path", "config", "drainS", "force", "attachment", "bytes"]
)
def test_an_extreme_value_in_an_argument(op: str, key: str, readers: _Readers) -> None:
    """A query is answered, or an effect of it is under way, and the broker goes on."""
    for value in _EXTREMES:
        rig, client, _ = _a_busy_broker()
        client.query(op, {key: value})
        readers.read(rig, rig.effects)


def test_a_policy_fits_into_every_frame_that_carries_it() -> None:
    """The most codes of the most letters are confirmed and retried; one more is refused."""
    codes = [f"{at:03}".ljust(64, '"') for at in range(100)]
    policy = {**NORMAL, "retryableCodes": codes, "made up": "x" * 100_000}
    rig = Rig(a_pool())
    worker = rig.a_worker(policy=policy)
    client = rig.a_client()
    opened = client.open(recovery="policy")
    (accepted,) = client.got(frames.Accepted)
    assert "made up" not in accepted.policy
    worker.end_with(opened, codes[0])
    (retry,) = client.got(frames.Retry)  # the rig has decoded it as a client does
    assert codes[1].replace('"', '\\"') in retry.policy_key
    worker.commit(adapters("p", policy={**policy, "retryableCodes": [*codes, "one more"]}))
    (refused,) = worker.got(frames.Refused)
    assert "at most 100 codes" in refused.message
