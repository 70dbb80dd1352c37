"""The table of a call: every change of state, and what is remembered afterwards."""

from __future__ import annotations

import itertools

import pytest
from trunkline_broker.core.calls import Call, Calls, CallState
from trunkline_broker.core.retry import Backoff
from trunkline_protocol import frames
from trunkline_protocol.ids import ClientId, Epoch, Generation
from trunkline_protocol.retry_policy import DEFAULT_RETRY_POLICY

from tests.support.broker_rig import Rig, RigClient, held

WORKER = Generation(Epoch(1), 1)
BACKOFF = Backoff("id", "normal", "key", 1, 5, 100.0, {"message": "", "code": "SERVER"})
CLIENT = ClientId(b"c" * 16)


def an_open(**fields: object) -> frames.Open:
    return RigClient(Rig(), 1).an_open(**fields)


def a_call(state: CallState) -> Call:
    """Return a call brought to a state by legal steps."""
    call = Call.opened(an_open(), CLIENT)
    if state is not CallState.QUEUED:
        call.run(WORKER, DEFAULT_RETRY_POLICY, {})
    if state is CallState.BACKOFF:
        call.back_off(BACKOFF)
    elif state is CallState.ENDED:
        call.end(None, 1.0)
    assert call.state is state
    return call


STEPS = {
    "queue": lambda call: call.queue(an_open(attempt=1), "full"),
    "run": lambda call: call.run(WORKER, DEFAULT_RETRY_POLICY, {}),
    "rebind": lambda call: call.rebind(held(an_open(), RigClient(Rig(), 1)), WORKER),
    "end": lambda call: call.end(None, 2.0),
    "back_off": lambda call: call.back_off(BACKOFF),
    "re_offer": lambda call: call.re_offer(BACKOFF),
}
LEGAL = {
    (CallState.QUEUED, "queue"): CallState.QUEUED,
    (CallState.QUEUED, "run"): CallState.RUNNING,
    (CallState.QUEUED, "rebind"): CallState.RUNNING,
    (CallState.QUEUED, "re_offer"): CallState.BACKOFF,
    (CallState.RUNNING, "end"): CallState.ENDED,
    (CallState.RUNNING, "back_off"): CallState.BACKOFF,
    (CallState.BACKOFF, "queue"): CallState.QUEUED,
}


@pytest.mark.parametrize(("state", "step"), list(itertools.product(CallState, STEPS)))
def test_every_pair_of_state_and_step(state: CallState, step: str) -> None:
    """A step is either in the table or a defect of ours."""
    call = a_call(state)
    after = LEGAL.get((state, step))
    if after is None:
        with pytest.raises(AssertionError):
            STEPS[step](call)
        assert call.state is state
    else:
        STEPS[step](call)
        assert call.state is after


def test_the_next_attempt_has_a_new_key_and_no_lease() -> None:
    """What belongs to one attempt only does not stay."""
    call = a_call(CallState.BACKOFF)
    assert (call.attempt, call.retries, call.tail) == (1, 1, (0, WORKER))
    frame = an_open(attempt=1)
    call.queue(frame, "full")
    assert call.stream_key == frame.stream_key
    assert call.lease is None
    assert call.backoff is None
    assert call.waiting is frame


def test_the_number_of_an_attempt_is_the_number_of_retries() -> None:
    """A budget does not start over when another broker takes a call over."""
    client = RigClient(Rig(), 1)
    assert Call.opened(an_open(attempt=3), CLIENT).retries == 3
    call = Call.held(held(an_open(attempt=2), client), WORKER, 1.0)
    assert (call.retries, call.client, call.is_rebound) == (2, client.id, True)
    call.back_off(BACKOFF)


def test_states_keep_their_invariants() -> None:
    """A defect of ours ends the process instead of a call."""
    queued = a_call(CallState.QUEUED)
    queued.waiting = None
    with pytest.raises(AssertionError):
        queued.run(WORKER, DEFAULT_RETRY_POLICY, {})
    running = a_call(CallState.RUNNING)
    running.worker = None
    with pytest.raises(AssertionError):
        running.back_off(BACKOFF)


def test_calls_that_are_over_are_remembered_up_to_a_bound() -> None:
    """The oldest memory makes room; a lost call is not remembered, it may be opened again."""
    calls = Calls(past_bound=2)
    held_calls = [Call.opened(an_open(), CLIENT) for _ in range(4)]
    for number, call in enumerate(held_calls):
        call.id = type(call.id)(number.to_bytes(16, "big"))
        calls.add(call)
    assert len(calls) == 4
    assert list(calls) == held_calls
    failed = frames.Failed(held_calls[0].id, 0, {})
    calls.forget(held_calls[0], failed)
    past = calls.past(held_calls[0].id)
    assert past is not None
    assert (past.failed, past.client, past.attempt) == (failed, CLIENT, 0)
    calls.forget(held_calls[1])
    calls.forget(held_calls[2], remember=False)
    assert calls.past(held_calls[2].id) is None
    calls.forget(held_calls[3])
    assert calls.past(held_calls[0].id) is None
    assert calls.get(held_calls[3].id) is None
