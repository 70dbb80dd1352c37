"""A worker's link, a client and the broker fail together: each order, and each frame lost once.

The joined cores of `tests.support.joined` play one call of each kind. Whatever happens in whatever
order, every reader comes to an end, no text is wrong, and neither broker nor worker keeps anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any, Final, TypeVar
from zlib import crc32

import pytest
from hypothesis import settings
from trunkline_protocol import frames
from trunkline_protocol.codec import Direction

from tests.support.joined.client import ClientShell, Reader
from tests.support.joined.history import History
from tests.support.joined.worker import Play

T = TypeVar("T")
LONG: Final = Play(400, 8, 0.02)  # some 1 s
SHORT: Final = Play(3, 8, 0.0)
PAST_ITS_WINDOW: Final = Play(1600, 64, 0.02)  # stops at chunk 1,024 if nobody reads or detaches
# `make test` plays one gap or strike of each row, `make test-random` plays all of them.
PLAYS_ALL: Final = settings().max_examples > 100
GAPS_S: Final = (0.0, 0.004, 0.3)
KINDS: Final = ("plain", "detachable", "recovered", "ended")
Strike = Callable[[History, ClientShell], None]


def worker_link(history: History, client: ClientShell) -> None:
    del client
    for worker in history.world.workers:
        history.world.cut_worker(worker, 0.05)


def client_link(history: History, client: ClientShell) -> None:
    history.world.cut_client(client, 0.05)


def client_dies(history: History, client: ClientShell) -> None:
    if client.is_alive:
        history.world.kill_client(client)


def broker_dies(history: History, client: ClientShell) -> None:
    del client
    history.world.kill_broker(0.05)


def taken_over(history: History, client: ClientShell) -> None:
    """Another client attaches to the call, if it is detachable."""
    reader = client.every_reader[0]
    served = reader.stream.served_by
    if served is not None and served.token is not None:
        other = history.world.clients[1]
        other.attach("wide", reader.stream.call, served.token, reader.play)


STRIKES: Final[tuple[Strike, ...]] = (
    worker_link,
    client_link,
    client_dies,
    broker_dies,
    taken_over,
)


def begun(kind: str, seed: int = 1) -> tuple[History, ClientShell, Reader]:
    """Return a history in which a call of some kind runs, or keeps its tail."""
    history = History(seed, has_faults=False)
    world = history.world
    # A frame is lost here without its connection, which no socket does: the broker repairs that.
    world.spec = replace(world.spec, is_liveness_strict=False)
    world.hub.spec = world.spec
    client, _ = world.a_client(), world.a_client()
    history.clock.run(history.clock.now_s + 0.5)
    play = {"ended": SHORT, "detachable": PAST_ITS_WINDOW}.get(kind, LONG)
    play = replace(play, failures=int(kind == "recovered"))
    recovery = "policy" if kind == "recovered" else "none"
    reader = client.open("wide", play, detachable=kind == "detachable", recovery=recovery)
    if kind == "ended":
        reader.pauses[1] = 2.0
    return history, client, reader


def judged(history: History) -> list[str]:
    """Return what is wrong in the end: within two minutes of the last event nothing is held."""
    clock = history.clock
    clock.run(clock.now_s + 120.0, history._is_quiet)
    problems = [*history.world.problems, *history._unfinished()]
    if problems:
        return problems
    clock.run(clock.now_s + 60.0)
    for reader in history._readers():
        if len(reader.finishes) != 1:
            problems.append(f"{len(reader.finishes)} finishes")
        elif not reader.play.text().startswith(reader.text):
            problems.append(f"wrong text: {reader.text[:80]}")
        elif reader.finishes[0].reason.kind == "stop" and reader.text != reader.play.text():
            problems.append(f"{len(reader.text)} characters of {len(reader.play.text())}")
    return [*problems, *history.world.problems, *history._left_over()]


def chosen(rows: Sequence[T], *by: str) -> Sequence[T]:
    """Return all rows, or the one that the names of a test choose, the same at each run."""
    return rows if PLAYS_ALL else (rows[crc32("/".join(by).encode()) % len(rows)],)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "order",
    list(permutations(STRIKES, 3)),
    ids=lambda order: "-".join(each.__name__ for each in order),
)
def test_three_events_in_every_order(order: tuple[Strike, ...], kind: str) -> None:
    """At once, within one exchange of frames, or one after the other."""
    for gap_s in chosen(GAPS_S, kind, *(each.__name__ for each in order)):
        history, client, _ = begun(kind)
        for number, strike in enumerate(order):
            history.clock.after(0.2 + number * gap_s, partial(strike, history, client))
        history.clock.run(history.clock.now_s + 0.21 + 3 * gap_s)
        assert judged(history) == [], gap_s


# --- each frame lost once -----------------------------------------------------------------------


def _kinds(*frame_types: Any) -> list[str]:
    return [frame.KIND.decode() for frame in frame_types]


LOST: Final = [
    *((Direction.CLIENT_TO_BROKER.value, kind) for kind in _kinds(
        frames.Open, frames.Credit, frames.Resume, frames.Restate, frames.Cancel, frames.Done,
        frames.Attach, frames.Probe, frames.Hello,
    )),
    *((Direction.BROKER_TO_CLIENT.value, kind) for kind in _kinds(
        frames.Welcome, frames.Accepted, frames.Queued, frames.Window, frames.Sent, frames.Ended,
        frames.Failed, frames.Lost, frames.Retry, frames.RetryStarted, frames.Snapshot,
    )),
    *((Direction.WORKER_TO_BROKER.value, kind) for kind in _kinds(
        frames.Register, frames.Registrations, frames.Heartbeat, frames.Ended, frames.Snapshot,
    )),
    *((Direction.BROKER_TO_WORKER.value, kind) for kind in _kinds(
        frames.Registered, frames.Committed, frames.Role, frames.Start, frames.Window,
        frames.Credit, frames.Resume, frames.Cancel, frames.Done, frames.Attach, frames.Heartbeat,
    )),
]  # fmt: skip


class LoseOnce:
    """Loses the first frame of a kind on its way."""

    def __init__(self, way: str, kind: str) -> None:
        self.way, self.kind, self.left = way, kind, 1

    def __call__(self, way: str, frame: object, party: object) -> bool:
        del party
        kind = getattr(frame, "KIND", b"").decode()
        is_lost = (way, kind) == (self.way, self.kind) and self.left > 0
        self.left -= is_lost
        return is_lost


def nothing_else(history: History, client: ClientShell) -> None:
    del history, client


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("way", "lost"), LOST, ids=lambda each: str(each).replace(" ", "-"))
def test_each_frame_lost_once(way: str, lost: str, kind: str) -> None:
    """Alone, or behind a single event: the obligation is repeated from state."""
    for strike in chosen((nothing_else, *STRIKES), way, lost, kind):
        history, client, reader = begun(kind)
        if strike is nothing_else:
            history.world.lose = LoseOnce(way, lost)
        history.clock.run(history.clock.now_s + 0.2)
        if strike is not nothing_else:
            history.world.lose = LoseOnce(way, lost)
            strike(history, client)
        if lost == "CANCEL":
            history.clock.after(0.1, partial(client.cancel, reader))
        history.clock.run(history.clock.now_s + 1.0)
        assert judged(history) == [], strike.__name__
