"""Reports of workers are bounded where they enter: names, codes, counts, figures, wishes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from trunkline_broker.core.effects import AttemptEnded, NoteLoad
from trunkline_broker.core.events import ConfigReplaced
from trunkline_broker.core.load_report import read_load
from trunkline_protocol import frames
from trunkline_protocol.codec import pack_body
from trunkline_protocol.limits import MAX_COUNT, MAX_PAUSE_S
from trunkline_protocol.printable import is_printable

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, only, status_of

HALF = "half \ud800"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"
NUMBERS: tuple[Any, ...] = (2**63, 2**64 - 1, 1e308, math.inf, -math.inf, math.nan, -1, -0.5, True)
TEXTS = (HALF, ESCAPE, "\0", "a\nb", "\u202e", "x" * 10_000)


def a_rig() -> tuple[Rig, RigClient, RigWorker]:
    rig = Rig(a_pool())
    worker = rig.a_worker(policy=NORMAL)
    return rig, rig.a_client(), worker


def check_status(rig: Rig) -> None:
    """The status document has a form in MessagePack and JSON, and only legal names of routes."""
    document = status_of(rig)
    pack_body(document)
    json.dumps(document, allow_nan=False)
    for row in document["routes"]:
        assert is_printable(row["provider"])
        assert 0 <= row.get("pausedMs", 0) <= MAX_PAUSE_S * 1000


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("code", ["RATE_LIMIT", "AUTH"])
def test_texts_of_a_report_are_one_line_and_codes_have_their_form(text: str, code: str) -> None:
    """Whatever stands in kind, code, message, model or request id."""
    rig, client, worker = a_rig()
    opened = client.open(model="")
    failure = {"code": text, "message": text + code}
    finish = {"kind": text, "failure": failure}
    worker.say(frames.Ended(opened.call, 0, 1, finish, None, {"model": text, "requestId": text}))
    ended = only(rig.of(AttemptEnded))
    assert ended.code == "UNKNOWN"
    assert ended.figures is not None
    for shown in (ended.kind, ended.message, ended.model, *ended.figures.values()):
        assert is_printable(shown)
    assert len(ended.kind) <= 64
    assert len(ended.model) <= 256
    check_status(rig)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_a_report_that_are_none_are_left_out(number: Any) -> None:
    """Counts of tokens and chunks, and times."""
    rig, client, worker = a_rig()
    opened = client.open()
    usage = {"inputTokens": number, "outputTokens": 3, "made up": 5}
    figures = {"chunks": number, "ttftMs": number, "durationMs": 2.5}
    worker.say(frames.Ended(opened.call, 0, 1, {"kind": "stop"}, usage, figures))
    ended = only(rig.of(AttemptEnded))
    assert ended.usage == {"outputTokens": 3}
    assert ended.figures == {"durationMs": 2.5}
    check_status(rig)


BINS = [0] * 14 + [3]
GOOD_ROUTE: dict[str, Any] = {"calls": 1, "chunks": 2, "ttftS": 0.5, "ttft": BINS, "gaps": BINS}
GOOD_LOAD: dict[str, Any] = {
    "rss": 5,
    "cpuS": 1.5,
    "debugPrompts": True,
    "counters": {"resent": 3},
    "queues": {"keptBytes": 1},
    "routes": {"p": GOOD_ROUTE},
}


def test_a_load_keeps_what_has_its_form() -> None:
    """Figures, flags and tables; the rest is missing, whatever it is."""
    assert read_load(GOOD_LOAD) == GOOD_LOAD
    wrong: list[Any] = [*NUMBERS, *TEXTS, None, [], [1], {}, {"a": {}}, b"x"]
    for bad in wrong:
        made = {**dict.fromkeys(GOOD_LOAD, bad), "new": bad}
        read = read_load(made)
        assert set(read) <= {"debugPrompts"} if bad is True else set(read) <= set(GOOD_LOAD)
        assert read.get("routes", {}) in ({}, {"a": {}})
        routes = {"routes": {"p": dict.fromkeys(GOOD_ROUTE, bad), "q": bad}}
        assert read_load(routes)["routes"].get("p") == {}
    for bins in (BINS[1:], [*BINS, 1], [*BINS[1:], math.nan], [*BINS[1:], True]):
        assert read_load({"routes": {"p": {"ttft": bins}}}) == {"routes": {"p": {}}}
    wide = read_load({str(at): at for at in range(5000)} | {HALF: 5})
    assert len(wide) == 512
    assert all(map(is_printable, read_load({HALF: 5, ESCAPE: 5})))
    assert read_load({"rss": MAX_COUNT, "fds": MAX_COUNT + 1}) == {"rss": MAX_COUNT}


@pytest.mark.parametrize("number", NUMBERS)
def test_a_heartbeat_with_extreme_figures_harms_no_document(number: Any) -> None:
    """Neither the status nor what the counters are told."""
    rig, _, worker = a_rig()
    worker.beat(load={"rss": number, "loopBlocks": number, "loopLateMs": number, HALF: HALF})
    note = only(rig.of(NoteLoad))
    assert set(note.load) <= {"rss", "loopBlocks", "loopLateMs"} | set(read_load({HALF: number}))
    check_status(rig)


@pytest.mark.parametrize("where", ["id", "name"])
@pytest.mark.parametrize("text", [*TEXTS, "", 5, None, "x" * 257])
def test_a_route_without_a_legal_name_is_refused(text: Any, where: str) -> None:
    """The worker is told why, and may register again."""
    rig = Rig(a_pool(providers=()))
    worker = rig.spawn(only(rig.spawned()))
    worker.register()
    info = {"id": "r", "name": "n", where: text}
    worker.commit(({"adapter": 1, "routes": ({"info": info},)},))
    (answer,) = worker.got(frames.Refused)
    assert answer.code == "INVALID_ADAPTER"
    assert "printable" in answer.message
    assert rig.hub.registry.routes.get("r") is None
    check_status(rig)
    worker.commit(({"adapter": 1, "routes": ({"info": {"id": "r", "name": "n"}},)},))
    assert rig.hub.registry.routes.get("r") is not None


@pytest.mark.parametrize("wished_ms", [10_000_000_000_000_000_000_000, 1e300, 31_536_000_000])
@pytest.mark.parametrize("how", ["swap", "reload", "wait"])
def test_a_wish_closes_a_route_for_an_hour_at_most(wished_ms: float, how: str) -> None:
    """The client is told the wish; a swap, a reload or the hour opens the route again."""
    rig, client, worker = a_rig()
    opened = client.open()
    worker.end_with(opened, "RATE_LIMIT", providerRetryAfterMs=float(wished_ms))
    check_status(rig)
    (row,) = status_of(rig)["routes"]
    assert row["state"] == "paused"
    client.open()
    assert client.failure()["code"] == "RATE_LIMIT"
    if how == "swap":
        client.query("swap", {"pool": "p"})
        worker = rig.a_worker(spawn=only(rig.spawned()))
    elif how == "reload":
        rig.tell(ConfigReplaced(rig.spec.pools))
    else:
        rig.live(MAX_PAUSE_S + 1, worker)
    (row,) = status_of(rig)["routes"]
    assert row["state"] == "serving"
    client.open()
    assert worker.got(frames.Start)
