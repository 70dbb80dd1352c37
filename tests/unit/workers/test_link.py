"""Greeting, registrations, roles and the orphan timeout of a worker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trunkline_protocol.frames import (
    Committed,
    HeldAttachment,
    Refused,
    Register,
    Registered,
    Registrations,
    Role,
)
from trunkline_protocol.ids import CallId, Epoch, Generation, PoolName
from trunkline_protocol.secret import SecretBytes
from trunkline_workers.core.effects import (
    ConnectLane,
    Count,
    Exit,
    OpenAdapter,
    Resolve,
    UseAttachments,
)
from trunkline_workers.core.link import (
    EXIT_ORPHANED,
    EXIT_REFUSED,
    BrokerLink,
    RegistrationSet,
    WorkerIdentity,
)

from tests.unit.workers.a_worker import control, kinds

BORN = Generation(Epoch(7), 3)
ROUTES = RegistrationSet(({"adapter": 0, "routes": []},))


def a_link(*, is_standby: bool = False, orphan_timeout_s: float = 30.0) -> BrokerLink:
    identity = WorkerIdentity(PoolName("p"), 1, BORN, 99, SecretBytes(b"secret"), is_standby)
    return BrokerLink(identity, 0.0, orphan_timeout_s)


def registered(epoch: int = 7, orphan_timeout_ms: int = 0) -> Registered:
    return Registered(Epoch(epoch), "ipc://lane", BORN, orphan_timeout_ms)


def a_ready_link() -> BrokerLink:
    link = a_link()
    link.register()
    link.on_registered(registered())
    request, _ = link.ask(ROUTES)
    link.on_committed(Committed(request))
    return link


def test_the_greeting_says_who_speaks_and_proves_it() -> None:
    (frame,) = control(a_link(is_standby=True).register())
    assert isinstance(frame, Register)
    assert (frame.pool, frame.slot, frame.generation, frame.pid) == ("p", 1, BORN, 99)
    assert (frame.role, frame.token) == ("standby", b"secret")


def test_the_first_answer_connects_the_lane_and_opens_the_adapter_once() -> None:
    link = a_link()
    link.register()
    assert link.on_registered(registered()) == [ConnectLane("ipc://lane"), OpenAdapter()]
    assert link.is_registered
    assert link.on_registered(registered()) == [ConnectLane("ipc://lane")]


def test_a_worker_started_by_hand_takes_the_generation_it_is_given() -> None:
    link = BrokerLink(WorkerIdentity(PoolName("p"), 0, Generation(Epoch(0), 0), 1), 0.0)
    link.on_registered(registered())
    assert link.identity.generation == BORN
    assert control(link.register())[0].generation == BORN


def test_a_new_epoch_gets_the_registrations_again() -> None:
    link = a_ready_link()
    link.register()
    effects = link.on_registered(registered(epoch=8))
    assert kinds(effects) == ["ConnectLane", "SendControl"]
    (frame,) = control(effects)
    assert isinstance(frame, Registrations)
    assert frame.adapters == ROUTES.adapters


def test_an_undecided_request_is_repeated_rather_than_the_old_set() -> None:
    link = a_ready_link()
    wanted = RegistrationSet((), (), ("ns",))
    request, effects = link.ask(wanted)
    assert control(effects)[0].discovery == ("ns",)
    link.register()
    (frame,) = control(link.on_registered(registered(epoch=8)))
    assert (frame.request, frame.discovery) == (request, ("ns",))


def test_a_request_while_no_broker_listens_is_sent_with_the_next_greeting() -> None:
    link = a_ready_link()
    link.register()
    request, effects = link.ask(ROUTES)
    assert effects == []
    assert control(link.on_registered(registered()))[0].request == request


def test_requests_are_decided_once() -> None:
    link = a_ready_link()
    request, _ = link.ask(ROUTES)
    assert link.on_committed(Committed(request - 1)) == []
    assert link.on_committed(Committed(request)) == [Resolve(request)]
    assert link.on_committed(Committed(request)) == []


def test_a_refused_request_leaves_the_old_set_in_force() -> None:
    link = a_ready_link()
    request, _ = link.ask(RegistrationSet(()))
    refused = Refused("DUPLICATE_ADAPTER", "taken", request=request)
    assert link.on_refused(refused) == [Resolve(request, "DUPLICATE_ADAPTER", "taken")]
    assert link.on_refused(refused) == []
    link.register()
    assert control(link.on_registered(registered()))[0].adapters == ROUTES.adapters


def test_two_undecided_requests_are_our_own_mistake() -> None:
    link = a_ready_link()
    link.ask(ROUTES)
    with pytest.raises(AssertionError):
        link.ask(ROUTES)


def test_a_grant_that_a_new_broker_takes_back_ends_the_worker() -> None:
    link = a_ready_link()
    (effect,) = link.on_refused(Refused("DUPLICATE_ADAPTER", "taken", request=1))
    assert isinstance(effect, Exit)
    assert effect.code == EXIT_REFUSED


@pytest.mark.parametrize("code", ["VERSION", "BAD_TOKEN", "UNKNOWN_POOL", "SUPERSEDED"])
def test_a_refused_greeting_ends_the_worker(code: str) -> None:
    (effect,) = a_link().on_refused(Refused(code, "no"))
    assert isinstance(effect, Exit)
    assert effect.code == EXIT_REFUSED
    assert code in effect.reason


def test_other_refusals_are_counted() -> None:
    assert a_link().on_refused(Refused("BAD_FRAME", "no")) == [Count("refused_BAD_FRAME")]


def test_who_asks_for_a_greeting_unless_one_is_under_way() -> None:
    link = a_ready_link()
    assert link.on_who()
    link.register()
    assert not link.on_who()


def test_the_role_is_what_the_broker_says_and_is_told_to_the_next_one() -> None:
    link = a_ready_link()
    assert link.on_role(Role("draining")) == []
    assert control(link.register())[0].role == "draining"


def test_a_worker_without_a_broker_leaves_after_the_orphan_timeout() -> None:
    link = a_link(orphan_timeout_s=10.0)
    link.on_word(5.0)
    assert link.on_tick(15.0, 0.0) == []
    (effect,) = link.on_tick(15.1, 0.0)
    assert isinstance(effect, Exit)
    assert effect.code == EXIT_ORPHANED


def test_the_broker_may_set_the_orphan_timeout() -> None:
    link = a_link(orphan_timeout_s=10.0)
    link.on_registered(registered(orphan_timeout_ms=1000))
    assert link.on_tick(1.1, 0.0) != []


def test_time_in_which_this_process_did_not_run_is_not_silence() -> None:
    link = a_link(orphan_timeout_s=10.0)
    assert link.on_tick(100.0, 99.0) == []
    assert link.on_tick(109.0, 0.4) == []
    assert link.on_tick(109.1, 0.4) != []


def test_the_directory_of_attachments_comes_with_every_answer() -> None:
    """A later broker may have another one; one that keeps none names none."""
    link = a_link()
    answer = replace(registered(), attachments_dir="/store")
    assert UseAttachments("/store") in link.on_registered(answer)
    assert UseAttachments("/other") in link.on_registered(replace(answer, attachments_dir="/other"))
    assert kinds(link.on_registered(registered())) == ["ConnectLane"]


def test_the_greeting_names_the_attachments_of_what_is_held() -> None:
    held = (HeldAttachment(CallId(bytes(16)), "sha256:x"),)
    (frame,) = control(a_link().register((), (), held))
    assert frame.attachments == held


def test_routes_that_were_given_back_stay_so() -> None:
    """On a connection that was made anew too; and nothing is registered any more."""
    link = a_ready_link()
    assert control(link.withdraw()) == [Registrations(2, ())]
    link.on_role(Role("serving"))  # the answer to it
    (frame,) = control(link.register())
    assert isinstance(frame, Register)
    assert frame.role == "draining"
    assert control(link.on_registered(registered())) == [Registrations(2, ())]
    request, effects = link.ask(ROUTES)
    assert effects == [Resolve(request, "STOPPING", "this worker is about to leave")]


def test_another_broker_learns_the_policies_of_what_a_leaving_worker_holds() -> None:
    """Its role says that no call shall come; its registrations say how its calls are retried."""
    link = a_ready_link()
    link.withdraw()
    link.register()
    assert control(link.on_registered(registered(epoch=8))) == [Registrations(1, *ROUTES)]


def test_giving_back_waits_for_a_broker() -> None:
    link = a_ready_link()
    link.register()
    assert link.withdraw() == []
    assert control(link.on_registered(registered())) == [Registrations(2, ())]


def test_an_undecided_request_is_repeated_and_a_decided_one_is_not() -> None:
    link = a_link()
    link.register()
    link.on_registered(registered())
    request, _ = link.ask(ROUTES)
    asked: list[float] = []
    for now_s in range(20):
        link.on_word(float(now_s))
        frames = control(link.on_tick(float(now_s), 0.0))
        assert frames in ([], [Registrations(request, ROUTES.adapters)])
        asked += [now_s] * len(frames)
    assert asked == [5, 10, 15]
    link.on_committed(Committed(request))
    assert link.on_tick(20.0, 0.0) == []


def test_a_worker_that_gives_its_routes_back_ends_the_wait_for_a_request() -> None:
    link = a_link()
    link.register()
    link.on_registered(registered())
    request, _ = link.ask(ROUTES)
    resolved = link.withdraw()[0]
    assert isinstance(resolved, Resolve)
    assert (resolved.request, resolved.code) == (request, "STOPPING")
    assert link.on_committed(Committed(request)) == []
