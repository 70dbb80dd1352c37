"""The net: an attempt that stands still is reported after 5 s, and made to go on."""

from __future__ import annotations

from typing import Any

import pytest
from trunkline_protocol.failure import Code
from trunkline_protocol.frames import Ended, Window
from trunkline_workers.core.effects import Pull, Stalled
from trunkline_workers.core.worker import WorkerCore

from tests.unit.workers.a_worker import (
    ME,
    STOP,
    a_credit,
    a_start,
    control,
    kinds,
    texts,
)
from tests.unit.workers.test_worker import a_core

ASLEEP = {ME: True}
AWAKE = {ME: False}
NONE: dict[Any, bool] = {}


def running(window_chunks: int = 4) -> WorkerCore:
    core = a_core()
    core.on_frame(a_start(window_chunks=window_chunks), 0.0)
    return core


def paused() -> WorkerCore:
    core = running()
    core.on_chunks(*ME, texts(*"abcd"), 0.0)
    assert core.ask_room(*ME) == 0
    return core


def looked(core: WorkerCore, until_s: int, pullers: Any = ASLEEP) -> list[Any]:
    """Look once a second; return what came of the last look, after looks that found nothing."""
    for now_s in range(1, until_s):
        assert core.on_look(pullers, float(now_s)) == []
    return core.on_look(pullers, float(until_s))


def test_a_puller_that_sleeps_on_room_is_reported_and_woken() -> None:
    core = paused()
    core.on_frame(Window(*ME, 9, 1 << 20), 0.0)
    stalled, pull = looked(core, 6)
    assert isinstance(stalled, Stalled)
    assert "its puller sleeps; state running, room 5, sent 4" in stalled.state
    assert pull == Pull(*ME)
    assert core.ask_room(*ME) == 5
    assert looked(core, 20, AWAKE) == []


def test_an_attempt_without_a_puller_is_reported_and_ends() -> None:
    core = running()
    effects = looked(core, 6, pullers=NONE)
    assert kinds(effects) == ["Stalled", "SendLane", "SendControl"]
    (ended,) = control(effects)
    assert isinstance(ended, Ended)
    assert ended.finish["failure"]["code"] == Code.INVARIANT
    assert looked(core, 20, pullers=NONE) == []


@pytest.mark.parametrize("is_credited", [True, False])
def test_what_waits_for_others_is_no_stall(is_credited: bool) -> None:
    """A reader that gives no credit, an adapter that says nothing, a finish behind the credit."""
    core = paused()
    if is_credited:
        core.on_frame(a_credit(4, 4, 512), 0.0)
        assert core.ask_room(*ME) == 4
    assert looked(core, 20, AWAKE if is_credited else ASLEEP) == []
    core.on_chunks(*ME, texts(*"abcd"), 20.0)
    core.on_finish(*ME, STOP, None, 20.0)
    assert looked(core, 20, pullers=NONE) == []


def test_a_stall_counts_from_when_it_is_first_seen() -> None:
    """Room that came and went in between begins the time anew."""
    core = paused()
    core.on_frame(Window(*ME, 9, 1 << 20), 0.0)
    assert looked(core, 5) == []
    core.on_frame(Window(*ME, 4, 1 << 20), 5.0)
    assert core.on_look(ASLEEP, 6.0) == []
    core.on_frame(Window(*ME, 9, 1 << 20), 6.0)
    assert core.on_look(ASLEEP, 7.0) == []
    assert core.on_look(ASLEEP, 11.9) == []
    assert kinds(core.on_look(ASLEEP, 12.0)) == ["Stalled", "Pull"]
