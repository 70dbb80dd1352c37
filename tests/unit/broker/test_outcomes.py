"""Every frame that asks is answered: each frame of a client in each relation of a call to it.

An answer is a frame that ends the wait, or the worker of the call being asked. Where neither can
be given yet, the client asks again, and a bounded time later there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trunkline_broker.core.effects import SendToClient, SendToWorker
from trunkline_protocol import frames
from trunkline_protocol.ids import StreamKey

from tests.support.broker_rig import NORMAL, Rig, RigClient, RigWorker, a_pool, done, held, restated
from tests.unit.broker.an_old_broker import a_client, alive, an_old_worker

Scene = tuple[Rig, RigClient, RigWorker, frames.Open]

# --- relations of a call to the client that asks ------------------------------------------------


def _a_rig(**pool: object) -> tuple[Rig, RigWorker]:
    rig = Rig(a_pool(**pool))
    return rig, rig.a_worker(policy=NORMAL)


def unknown() -> Scene:
    rig, worker = _a_rig()
    client = rig.a_client()
    return rig, client, worker, client.an_open()


def queued() -> Scene:
    rig, worker = _a_rig(concurrency=1)
    client = rig.a_client()
    client.open()
    return rig, client, worker, client.open()


def running() -> Scene:
    rig, worker = _a_rig()
    client = rig.a_client()
    return rig, client, worker, client.open()


def running_behind_a_broken_link() -> Scene:
    rig, client, worker, opened = running()
    worker.reconnect(calls=(held(opened, client),))
    return rig, client, worker, opened


def cancelled() -> Scene:
    rig, client, worker, opened = running()
    client.say(frames.Cancel(opened.call, 0))
    return rig, client, worker, opened


def finished_on_the_lane() -> Scene:
    rig, client, worker, opened = running()
    client.say(done(opened))
    return rig, client, worker, opened


def ended() -> Scene:
    rig, client, worker, opened = running()
    worker.end(opened)
    return rig, client, worker, opened


def in_backoff() -> Scene:
    rig, worker = _a_rig()
    client = rig.a_client()
    opened = client.open(recovery="policy")
    worker.end_with(opened, "SERVER")
    return rig, client, worker, opened


def offered() -> Scene:
    rig, client, worker, opened = in_backoff()
    rig.live(1.1, worker)
    return rig, client, worker, opened


def over() -> Scene:
    rig, client, worker, opened = ended()
    client.say(done(opened))
    return rig, client, worker, opened


def over_with_a_failure() -> Scene:
    rig, worker = _a_rig()
    client = rig.a_client()
    return rig, client, worker, client.open("nobody")


def of_another() -> Scene:
    rig, owner, worker, opened = running()
    del owner
    return rig, rig.a_client(), worker, opened


def past_of_another() -> Scene:
    rig, owner, worker, opened = over()
    del owner
    return rig, rig.a_client(), worker, opened


def taken_over_while_away() -> Scene:
    """Another client attached to it while this one had no connection."""
    rig, worker = _a_rig()
    client, thief = rig.a_client(), rig.a_client()
    opened = client.open(detachable=True)
    (accepted,) = client.got(frames.Accepted)
    client.disconnect()
    assert accepted.token is not None
    thief.say(frames.Attach(opened.call, accepted.token, StreamKey(b"newkey--")))
    client.reconnect()
    return rig, client, worker, opened


def detached() -> Scene:
    rig, worker = _a_rig()
    client = rig.a_client()
    opened = client.open(detachable=True)
    client.die()
    client.reconnect()
    return rig, client, worker, opened


def detached_and_over() -> Scene:
    rig, client, worker, opened = detached()
    worker.end(opened)
    rig.live(31.0, worker)
    assert len(rig.hub.calls) == 0
    return rig, client, worker, opened


def settling() -> Scene:
    rig = Rig(alive=(alive(),))
    client = a_client(rig)
    client.hello()
    return rig, client, an_old_worker(rig), client.an_open()


def settling_and_queued() -> Scene:
    rig, client, worker, opened = settling()
    client.say(opened)
    return rig, client, worker, opened


def adopted() -> Scene:
    rig, client, worker, opened = settling()
    worker.register("serving", calls=(held(opened, client),))
    return rig, client, worker, opened


def adopted_with_its_end() -> Scene:
    rig, client, worker, opened = settling()
    worker.register("serving", calls=(held(opened, client, is_ended=True),))
    return rig, client, worker, opened


RELATIONS: list[Callable[[], Scene]] = [
    unknown,
    queued,
    running,
    running_behind_a_broken_link,
    cancelled,
    finished_on_the_lane,
    ended,
    in_backoff,
    offered,
    over,
    over_with_a_failure,
    of_another,
    past_of_another,
    taken_over_while_away,
    detached,
    detached_and_over,
    settling,
    settling_and_queued,
    adopted,
    adopted_with_its_end,
]

# --- frames that ask ----------------------------------------------------------------------------


def _again(opened: frames.Open, attempt: int) -> frames.Open:
    values = {name: getattr(opened, name) for name in opened.__slots__}
    return frames.Open(**{**values, "attempt": attempt})


def _restated(opened: frames.Open, attempt: int) -> frames.Restate:
    return restated(_again(opened, attempt))


ASKING: dict[str, Callable[[frames.Open, int], Any]] = {
    "OPEN": _again,
    "CREDIT": lambda opened, attempt: frames.Credit(opened.call, attempt, 3, 2, 20),
    "RESUME": lambda opened, attempt: frames.Resume(opened.call, attempt, 1),
    "RESTATE": _restated,
    "CANCEL": lambda opened, attempt: frames.Cancel(opened.call, attempt),
    "ATTACH": lambda opened, _: frames.Attach(opened.call, b"t" * 16, StreamKey(b"newkey--")),
}


def _is_answer(rig: Rig, client: RigClient, worker: RigWorker, opened: frames.Open) -> bool:
    """Return whether what followed is about the call, to the client or to its worker."""
    sent = [each for each in rig.effects if isinstance(each, SendToClient | SendToWorker)]
    said = [each.frame for each in sent if each.peer in {client.peer, worker.peer}]
    return any(getattr(frame, "call", None) == opened.call for frame in said)


def _may_wait(kind: str, relation: str) -> bool:
    """Return whether an adopted end waits for the policy of its worker, which is on its way."""
    return relation == "adopted_with_its_end" and kind in {"OPEN", "RESTATE"}


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("kind", ASKING)
@pytest.mark.parametrize("relation", RELATIONS, ids=lambda each: each.__name__)
def test_every_frame_that_asks_is_answered(
    relation: Callable[[], Scene], kind: str, attempt: int
) -> None:
    """At once, or at the latest when the broker has settled and the client asks again."""
    rig, client, worker, opened = relation()
    frame = ASKING[kind](opened, attempt)
    is_answered = False
    for _ in range(9):
        client.say(frame)
        is_answered = is_answered or _is_answer(rig, client, worker, opened)
        if is_answered:
            break
        rig.live(1.0, worker)
        is_answered = _is_answer(rig, client, worker, opened)
        if is_answered:
            break
    assert is_answered, rig.hub.calls.get(opened.call)
    rig.check()


@pytest.mark.parametrize("kind", ASKING)
@pytest.mark.parametrize("relation", RELATIONS, ids=lambda each: each.__name__)
def test_no_frame_of_one_client_harms_another(relation: Callable[[], Scene], kind: str) -> None:
    """Whatever a third client says of a call, its state and its owner stay as they were."""
    rig, _, _, opened = relation()
    stranger = rig.a_client()
    call = rig.hub.calls.get(opened.call)
    before = None if call is None else (call.client, call.state, call.worker, call.is_cancelled)
    stranger.say(ASKING[kind](opened, 0))
    after = None if call is None else (call.client, call.state, call.worker, call.is_cancelled)
    assert after == before
    rig.check()


# --- the answers --------------------------------------------------------------------------------


def test_who_lost_a_call_while_away_is_told_that_another_client_has_it() -> None:
    """The FAILED of that moment had no connection to go to."""
    rig, client, _, opened = taken_over_while_away()
    client.say(restated(opened))
    assert client.failure()["code"] == "ABORTED"
    client.say(opened)
    assert client.failure()["code"] == "ABORTED"
    assert rig.count("foreign_call") == 2


def test_an_open_of_a_call_that_is_over_names_why_nothing_starts() -> None:
    """Its own end, a failure as before, another client's, or nobody's."""
    for scene, code in (
        (over, "TRANSPORT"),
        (over_with_a_failure, "NO_ADAPTER"),
        (past_of_another, "ABORTED"),
        (detached_and_over, "TRANSPORT"),
    ):
        _, client, worker, opened = scene()
        client.say(opened)
        assert client.failure()["code"] == code
        assert worker.got(frames.Start) == []


def test_a_call_that_may_still_be_named_is_not_lost() -> None:
    """While the broker settles, of a higher attempt too; afterwards it is."""
    rig, client, worker, opened = settling()
    client.say(ASKING["CREDIT"](opened, 0))
    assert not rig.effects
    worker.register("serving", calls=(held(opened, client),))
    client.say(ASKING["CREDIT"](opened, 1))
    assert client.got(frames.Lost) == []
    worker.ready("p")
    client.say(ASKING["CREDIT"](opened, 1))
    assert client.got(frames.Lost)


# --- frames of workers --------------------------------------------------------------------------

REPORTS: dict[str, Callable[[frames.Open], Any]] = {
    "ENDED": lambda opened: frames.Ended(opened.call, 0, 3, {"kind": "stop"}),
    "SNAPSHOT": lambda opened: frames.Snapshot(opened.call, 0, 3, body=b"\x90"),
}


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_of_a_worker_never_leaves_it_with_a_tail(
    relation: Callable[[], Scene], kind: str
) -> None:
    """What the worker holds is released, or the client has a bounded time to ask for it."""
    rig, client, worker, opened = relation()
    if rig.hub.workers.at(worker.peer) is None:
        worker.say(REPORTS[kind](opened))
        assert worker.got(frames.Who)
        return
    worker.say(REPORTS[kind](opened))
    worker.beat(held=(frames.Holding(opened.call, 0, True),))
    released = [ref for frame in worker.got(frames.Done) for ref in frame.calls]
    call = rig.hub.calls.get(opened.call)
    is_kept = call is not None and (
        (call.worker == worker.generation and call.attempt == 0)
        or call.tail == (0, worker.generation)
    )
    assert is_kept is not (frames.CallRef(opened.call, 0) in released)
    del client
    rig.check()
