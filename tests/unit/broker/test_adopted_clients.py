"""A new broker and the clients of the old one: who comes back, who died, what is theirs."""

from __future__ import annotations

from trunkline_broker.core.effects import WatchClient
from trunkline_broker.core.events import ClientExited
from trunkline_protocol import frames
from trunkline_protocol.ids import ClientId, LeaseId

from tests.support.broker_rig import NORMAL, Rig, RigClient, a_pool, held, only, restated
from tests.unit.broker.an_old_broker import KEY, OLD, OLDER, a_client, alive, an_old_worker

LEASE = LeaseId(b"L" * 16)
TICKET = b"ticket" * 2


def a_claim(client: RigClient) -> frames.HeldClient:
    """Return what a worker says of a client's process."""
    return frames.HeldClient(client.id, client.pid or 0)


def test_calls_of_clients_that_do_not_come_back_are_cancelled() -> None:
    """After the orphan timeout; a client that comes in time keeps them."""
    rig = Rig(alive=(alive(),))
    worker, client, back = an_old_worker(rig), a_client(rig), a_client(rig)
    lost, kept = client.an_open(), back.an_open()
    worker.register("serving", calls=(held(lost, client), held(kept, back)))
    worker.ready("p")
    rig.live(20.0, worker)
    back.hello()
    back.say(restated(kept))
    rig.live(11.0, worker)
    assert {frame.call for frame in worker.got(frames.Cancel)} == {lost.call}
    assert rig.hub.calls.get(kept.call) is not None


def test_a_client_that_died_with_the_older_broker_is_dead_at_once() -> None:
    """Its worker knows the process, and the kernel that it is gone: calls and leases end."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    opened = client.an_open()
    worker.register(
        "serving",
        calls=(held(opened, client),),
        leases=(LEASE,),
        lease_holders=(frames.HeldLease(LEASE, client.id),),
        clients=(a_claim(client),),
    )
    assert rig.of(WatchClient) == [WatchClient(client.pid or 0)]
    rig.tell(ClientExited(client.pid or 0))  # what watching a dead process leads to
    assert only(worker.got(frames.Cancel)).call == opened.call
    assert only(worker.got(frames.Query)).op == "releaseCall"
    assert len(rig.hub.clients) == 0
    rig.check()


def test_a_client_that_stands_still_is_waited_for_as_long_as_its_process_lives() -> None:
    """One whose process nobody knows is not; one that never wakes up is not for ever."""
    rig = Rig(alive=(alive(),))
    worker, still, unknown, never = (an_old_worker(rig), *(a_client(rig) for _ in range(3)))
    kept, lost, late = still.an_open(), unknown.an_open(), never.an_open()
    worker.register(
        "serving",
        calls=(held(kept, still), held(lost, unknown), held(late, never)),
        clients=(a_claim(still), a_claim(never)),
    )
    worker.ready("p")
    rig.live(29.0, worker)
    assert len(rig.hub.calls) == 3
    rig.live(2.0, worker)
    assert {frame.call for frame in worker.got(frames.Cancel)} == {lost.call}
    rig.live(100.0, worker)
    still.hello()
    still.say(restated(kept))
    assert only(still.got(frames.Accepted)).call == kept.call
    rig.live(500.0, worker)
    assert [client.id for client in rig.hub.clients] == [still.id]


def test_leases_are_taken_over() -> None:
    """A prepared call of the older broker can be dispatched, for a while."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    worker.register("serving", leases=(LEASE,))
    worker.ready("p")
    client.hello()
    client.open(lease=LEASE)
    assert only(worker.got(frames.Start)).lease == LEASE
    rig.check()


def test_leases_go_with_their_client_also_after_a_restart() -> None:
    """With one that came back and then dies, at once; with one that never comes, after a while."""
    rig = Rig(alive=(alive(),))
    worker, client, never = an_old_worker(rig), a_client(rig), a_client(rig)
    other = LeaseId(b"O" * 16)
    holders = (frames.HeldLease(LEASE, client.id), frames.HeldLease(other, never.id))
    worker.register("serving", leases=(LEASE, other), lease_holders=holders)
    worker.ready("p")
    client.hello()
    client.die()
    assert only(worker.got(frames.Query)).op == "releaseCall"
    assert set(rig.hub.leases) == {other}
    rig.live(31.0, worker)
    assert rig.hub.leases == {}
    assert len(rig.hub.clients) == 0


def test_a_worker_does_not_fill_the_table_of_clients_with_holders_of_leases() -> None:
    """Whose a lease is, is lost beyond the bound; the lease is not."""
    rig = Rig(alive=(alive(),), max_clients=2)
    worker = an_old_worker(rig)
    names = [LeaseId(bytes([number]) * 16) for number in range(5)]
    holders = tuple(frames.HeldLease(each, ClientId(bytes(each))) for each in names)
    worker.register("serving", leases=tuple(names), lease_holders=holders)
    assert len(rig.hub.clients) == 2
    assert len(rig.hub.leases) == 5


def test_a_question_about_a_lease_waits_for_the_worker_that_may_hold_it() -> None:
    """While settling nobody can say that there is no such prepared call."""
    rig = Rig(alive=(alive(),))
    worker, client = an_old_worker(rig), a_client(rig)
    client.hello()
    renew = client.query("renewCall", {"lease": LEASE})
    assert client.got(frames.Reply) == []
    worker.register("serving", leases=(LEASE,))
    worker.ready("p", policy=NORMAL)
    assert only(worker.got(frames.Query)).query == renew.query


def test_a_lease_that_the_worker_dropped_is_dropped() -> None:
    """Its own word counts."""
    rig = Rig(alive=(alive(),))
    worker = an_old_worker(rig)
    worker.register("serving", leases=(LEASE,))
    worker.ready("p")
    worker.reconnect(leases=(LEASE,))
    assert LEASE in rig.hub.leases
    worker.reconnect()
    assert rig.hub.leases == {}
    rig.check()


def test_a_detached_call_waits_for_whoever_has_its_token() -> None:
    """However long that takes; to others it is an unknown call, also to whom it was taken from."""
    rig = Rig(alive=(alive(),))
    worker, owner, client = an_old_worker(rig), a_client(rig), a_client(rig)
    opened = owner.an_open()
    owner.hello()
    owner.say(restated(opened))
    entry = held(opened, owner, token=TICKET, is_detached=True)
    worker.register("serving", calls=(entry,))
    assert owner.got(frames.Lost)
    assert worker.got(frames.Window) == []
    worker.ready("p", policy=NORMAL)
    rig.live(60.0, worker)
    assert worker.got(frames.Cancel) == []
    client.hello()
    client.say(frames.Attach(opened.call, b"wrong", KEY))
    assert client.got(frames.Lost)
    client.say(frames.Attach(opened.call, TICKET, KEY))
    assert only(worker.got(frames.Attach)).client == client.id
    rig.check()
    worker.say(frames.Snapshot(opened.call, 0, 5))
    assert client.got(frames.Snapshot)
    client.say(restated(opened))
    assert worker.got(frames.Credit)
    worker.end(opened)
    assert client.got(frames.Ended)
    rig.check()


def test_a_detachable_call_whose_client_does_not_come_back_is_detached() -> None:
    """One that comes back is told its ticket again."""
    rig = Rig(alive=(alive(),))
    worker, gone, back = an_old_worker(rig), a_client(rig), a_client(rig)
    left, kept, unheard = gone.an_open(), back.an_open(), back.an_open(detachable=True)
    back.hello()
    back.say(unheard)
    clients = ((left, gone), (kept, back), (unheard, back))
    worker.register("serving", calls=tuple(held(f, c, token=TICKET) for f, c in clients))
    worker.ready("p", policy=NORMAL)
    accepted = {frame.call: frame.token for frame in back.got(frames.Accepted)}
    assert accepted == {kept.call: TICKET, unheard.call: TICKET}
    rig.live(31.0, worker)
    assert worker.got(frames.Cancel) == []
    assert worker.got(frames.Window)[0] == frames.Window(left.call, 0, 0, 0)
    back.say(frames.Attach(left.call, TICKET, KEY))
    assert only(worker.got(frames.Attach)).call == left.call
    rig.check()


def test_a_worker_of_an_older_version_alone_knows_the_token() -> None:
    """Its SNAPSHOT is the consent."""
    rig = Rig(alive=(alive(),))
    worker, owner, client = an_old_worker(rig), a_client(rig), a_client(rig)
    opened = owner.an_open()
    worker.register("serving", calls=(held(opened, owner),))
    worker.ready("p")
    client.hello()
    client.say(frames.Attach(opened.call, b"token", KEY))
    assert only(worker.got(frames.Attach)).client == client.id
    assert rig.hub.calls.get(opened.call) is not None
    worker.say(frames.Snapshot(opened.call, 0, 5))
    assert client.got(frames.Snapshot)
    client.say(frames.Credit(opened.call, 0, 1, 1, 1))
    assert worker.got(frames.Credit)
    rig.check()


def test_a_client_of_the_old_broker_that_died_with_it() -> None:
    """A second worker's entry for it finds the same absent client."""
    rig = Rig(a_pool(replicas=2), alive=(alive(), alive(OLDER, slot=1)))
    client = a_client(rig)
    for generation in (OLD, OLDER):
        worker = an_old_worker(rig, generation)
        worker.register("serving", calls=(held(client.an_open(), client),))
        worker.ready("p")
    assert rig.hub.clients.get(ClientId(client.id)) is not None
    assert len(rig.hub.clients) == 1
