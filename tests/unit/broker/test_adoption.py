"""A new broker takes over what the old one's workers and clients hold."""

from __future__ import annotations

import pytest
from trunkline_broker.core.effects import Adopt, Forget, NoteUnseen
from trunkline_broker.core.specs import AliveWorker
from trunkline_protocol import frames
from trunkline_protocol.ids import Generation
from trunkline_protocol.secret import SecretBytes

from tests.support.broker_rig import Rig, RigWorker, a_pool, done, held, only, restated
from tests.unit.broker.an_old_broker import OLD, OLDER, TOKEN, a_client, alive, an_old_worker


def out_of_sight(generation: Generation = OLD) -> AliveWorker:
    """Return a hint at a worker on another host."""
    return alive(generation, "m", pid=None, token=SecretBytes(b""), is_manual=True)


def a_far_worker(rig: Rig, generation: Generation = OLD) -> RigWorker:
    worker = RigWorker(rig, "m", 0, generation)
    worker.pid = None
    return worker


def test_a_living_worker_is_adopted_and_not_replaced() -> None:
    """It serves as soon as it has said its registrations again."""
    rig = Rig(alive=(alive(),))
    assert rig.spawned() == []
    adopt = only(rig.of(Adopt))
    assert (adopt.generation, adopt.pid, adopt.token.get_secret_value()) == (
        OLD,
        70_000,
        TOKEN,
    )
    worker = an_old_worker(rig)
    worker.register("serving")
    assert only(worker.got(frames.Registered)).generation == OLD
    assert rig.hub.is_settling
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"
    assert not rig.hub.is_settling
    rig.wait(1.0)
    assert rig.spawned() == []
    assert rig.a_client().open()
    assert worker.got(frames.Start)


def test_a_worker_that_can_not_prove_itself_is_refused() -> None:
    """The token of the hint file is the proof."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("serving", token=b"no")
    assert only(worker.got(frames.Refused)).code == "BAD_TOKEN"


def test_other_slots_are_filled_at_once() -> None:
    """Only slots whose worker lives wait."""
    rig = Rig(a_pool(replicas=2), a_pool("q"), alive=(alive(),))
    assert [(spawn.pool, spawn.slot) for spawn in rig.spawned()] == [("p", 1), ("q", 0)]


def test_a_dead_worker_of_the_hint_file_is_replaced_when_all_is_known() -> None:
    """Its exit ends the settling."""
    rig = Rig(alive=(alive(),))
    an_old_worker(rig).exit("unknown status")
    assert not rig.hub.is_settling
    assert rig.spawned()


def test_a_silent_worker_is_killed_after_the_settle_time() -> None:
    """And replaced at once."""
    rig = Rig(alive=(alive(),))
    rig.wait(5.0)
    assert rig.signals() == [(OLD, "KILL")]
    assert rig.spawned()
    an_old_worker(rig).exit("signal 9")
    rig.wait(1.0)
    assert rig.spawned() == []


def test_a_worker_that_registered_but_is_not_ready_gets_its_start_time() -> None:
    """It is not killed for being slow to say its registrations."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("serving")
    rig.wait(5.0)
    assert rig.signals() == []
    assert rig.spawned() == []
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"


@pytest.mark.parametrize("order", ["higher first", "lower first"])
def test_the_higher_of_two_serving_workers_is_waited_for(order: str) -> None:
    """The lower one serves only if the higher one dies."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    lower, higher = an_old_worker(rig, OLDER), an_old_worker(rig, OLD)
    for worker in (lower, higher) if order == "lower first" else (higher, lower):
        worker.register("serving")
    lower.ready("p")
    assert only(lower.got(frames.Role)).role == "draining"
    higher.exit()
    rig.wait(1.0)
    assert rig.spawned()


def test_a_lower_serving_worker_serves_where_the_higher_one_died() -> None:
    """Before it was ready."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    lower, higher = an_old_worker(rig, OLDER), an_old_worker(rig, OLD)
    lower.register("serving")
    higher.register("serving")
    higher.exit()
    lower.ready("p")
    assert only(lower.got(frames.Role)).role == "serving"
    rig.wait(1.0)
    assert rig.spawned() == []


@pytest.mark.parametrize("order", ["old first", "new first"])
def test_the_highest_serving_generation_wins_a_slot(order: str) -> None:
    """The other one drains."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    workers = [an_old_worker(rig, OLDER), an_old_worker(rig, OLD)]
    for worker in workers if order == "old first" else reversed(workers):
        worker.register("serving")
        worker.ready("p")
    rig.a_client().open()
    assert workers[1].got(frames.Start)
    assert rig.hub.workers.get(OLDER) is not None
    state = rig.hub.workers.get(OLDER)
    assert state is not None
    assert state.state.value == "stopping"


def test_a_draining_worker_goes_on_draining() -> None:
    """It keeps its calls, gets no new ones and leaves when they are over."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, draining = an_old_worker(rig), an_old_worker(rig, OLDER)
    client = a_client(rig)
    opened = client.an_open()
    draining.register("draining", calls=(held(opened, client),))
    assert only(draining.got(frames.Role)).role == "draining"
    serving.register("serving")
    serving.ready("p")
    draining.ready("p")
    client.hello()
    client.say(restated(opened))
    draining.end(opened)
    client.say(done(opened))
    assert draining.got(frames.Bye)
    client.open()
    assert serving.got(frames.Start)


def test_a_draining_worker_without_calls_leaves_at_once() -> None:
    """As soon as it has said so."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    draining = an_old_worker(rig, OLDER)
    assert rig.signals() == []
    draining.register("draining")
    assert draining.got(frames.Bye)


def test_a_standby_serves_only_where_nobody_else_does() -> None:
    """Decided when all is known."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, standby = an_old_worker(rig, OLDER), an_old_worker(rig)
    standby.register("standby")
    standby.ready("p")
    assert only(standby.got(frames.Role)).role == "standby"
    serving.register("serving")
    serving.ready("p")
    assert standby.got(frames.Bye)
    rig.a_client().open()
    assert serving.got(frames.Start)

    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, standby = an_old_worker(rig, OLDER), an_old_worker(rig)
    standby.register("standby")
    standby.ready("p")
    serving.exit()
    assert only(standby.got(frames.Role)).role == "serving"
    assert rig.spawned() == []


def test_a_standby_that_comes_too_late_leaves() -> None:
    """The swap it was meant for is forgotten."""
    rig = Rig(alive=(alive(), alive(OLDER)))
    serving, standby = an_old_worker(rig, OLDER), an_old_worker(rig)
    serving.register("serving")
    serving.ready("p")
    rig.live(5.0, serving)
    assert (OLD, "KILL") in rig.signals()
    standby.register("standby")
    assert only(standby.got(frames.Refused)).code == "SUPERSEDED"


def test_a_starting_worker_goes_on_starting() -> None:
    """It serves when it is ready; nothing else is started in its slot."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("starting")
    assert not rig.hub.is_settling
    assert rig.spawned() == []
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"


def test_workers_of_pools_that_are_gone_drain() -> None:
    """They finish what they hold."""
    rig = Rig(alive=(alive(pool="gone"), alive(OLDER, slot=5)))
    for generation, pool in ((OLD, "gone"), (OLDER, "p")):
        worker = an_old_worker(rig, generation, pool)
        worker.register("serving")
        worker.ready(pool)
        assert only(worker.got(frames.Role)).role == "draining"
        assert worker.got(frames.Bye)


def test_a_starting_worker_of_a_pool_that_is_gone_drains_too() -> None:
    """There is no slot for it to start in."""
    rig = Rig(alive=(alive(pool="gone"),))
    worker = an_old_worker(rig, pool="gone")
    worker.register("starting")
    worker.ready("gone")
    assert only(worker.got(frames.Role)).role == "draining"


def test_manual_workers_come_back_by_themselves() -> None:
    """With their pool, whether the hint file names them or not."""
    named = Rig(alive=(alive(pool="m", is_manual=True),))
    unnamed = Rig()
    for rig in (named, unnamed):
        worker = an_old_worker(rig, pool="m")
        worker.register("serving")
        worker.ready("m")
        assert only(worker.got(frames.Role)).role == "serving"
        client = rig.a_client()
        client.open("m")
        assert worker.got(frames.Start)
        worker.exit()
        assert client.got(frames.Event)
        assert [pool.spec.name for pool in rig.hub.pools] == ["p"]


def test_a_worker_out_of_sight_is_waited_for() -> None:
    """A client that is back before it loses nothing."""
    rig = Rig(alive=(out_of_sight(),))
    assert only(rig.of(NoteUnseen)).generation == OLD
    rig.a_worker(spawn=only(rig.spawned()))
    worker, client = a_far_worker(rig), a_client(rig)
    client.hello()
    claimed, unseen = client.an_open("m"), client.an_open("m")
    client.say(restated(claimed))
    assert client.got(frames.Lost) == []
    client.say(unseen)
    assert only(client.got(frames.Queued)).reason == "settling"
    rig.wait(2.0)
    worker.register("serving", calls=(held(claimed, client), held(unseen, client)))
    assert rig.of(NoteUnseen) == []
    worker.ready("m")
    assert worker.got(frames.Start) == []
    assert {frame.call for frame in client.got(frames.Accepted)} == {claimed.call, unseen.call}
    assert not rig.hub.is_settling
    rig.check()
    worker.say(frames.Bye("enough"))
    assert only(rig.of(Forget)).generation == OLD


def test_a_worker_out_of_sight_that_stays_away_leaves_nothing() -> None:
    """After the settle time its pool is gone; one that comes later brings it back."""
    rig = Rig(alive=(out_of_sight(),))
    serving = rig.a_worker(spawn=only(rig.spawned()))
    client = rig.a_client()
    waiting = client.open("m")
    rig.live(6.0, serving)
    assert only(rig.of(Forget)).generation == OLD
    assert rig.signals() == []
    assert not rig.hub.is_settling
    assert [pool.spec.name for pool in rig.hub.pools] == ["p"]
    assert only(client.got(frames.Failed)).call == waiting.call
    worker = a_far_worker(rig)
    worker.register("serving")
    assert only(rig.of(NoteUnseen)).generation == OLD
    worker.ready("m")
    client.open("m")
    assert worker.got(frames.Start)


def test_a_worker_started_by_hand_that_stays_silent_is_not_killed() -> None:
    """Somebody may be looking at it with a debugger; its pool is gone until it is back."""
    rig = Rig(alive=(alive(pool="m", is_manual=True),))
    rig.wait(5.0)
    assert rig.signals() == []
    assert only(rig.of(Forget)).generation == OLD
    assert [pool.spec.name for pool in rig.hub.pools] == ["p"]


def test_a_worker_without_a_hint_wins_its_slot_from_one_that_starts() -> None:
    """But not from one that serves already."""
    rig = Rig()
    started = only(rig.spawned())
    worker = an_old_worker(rig)
    worker.register("serving")
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "serving"
    assert rig.signals() == [(started.generation, "TERM")]

    rig = Rig()
    own = rig.a_worker()
    worker = an_old_worker(rig)
    worker.register("serving")
    worker.ready("p")
    assert only(worker.got(frames.Role)).role == "draining"
    rig.a_client().open()
    assert own.got(frames.Start)
