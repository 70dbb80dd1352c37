"""Restart intensity and period, and what a slot and a pool say of themselves."""

from __future__ import annotations

from trunkline_broker.core.specs import RestartSpec
from trunkline_broker.core.supervision import Pool, Pools, Slot, SlotState
from trunkline_protocol.ids import Epoch, Generation, PoolName

from tests.support.broker_rig import a_pool

RULE = RestartSpec(intensity=3, period_s=10.0, initial_delay_s=1.0, max_delay_s=3.0)
WORKER = Generation(Epoch(1), 1)


def test_the_delay_grows_and_the_slot_gives_up() -> None:
    """More than `intensity` exits within the period are too many."""
    slot = Slot(PoolName("p"), 0)
    assert [slot.on_exit(RULE, now) for now in (0.0, 1.0, 2.0, 3.0)] == [1.0, 2.0, 3.0, None]


def test_the_window_slides() -> None:
    """Exits older than the period do not count."""
    slot = Slot(PoolName("p"), 0)
    assert [slot.on_exit(RULE, now) for now in (0.0, 10.0, 20.0, 30.0)] == [1.0] * 4
    slot.on_exit(RULE, 31.0)
    slot.revive()
    assert slot.on_exit(RULE, 32.0) == 1.0


def test_a_slot_says_what_it_does() -> None:
    """Serving before down, down before starting."""
    slot = Slot(PoolName("p"), 0)
    assert slot.state is SlotState.BACKOFF
    slot.standby = WORKER
    assert slot.state is SlotState.STARTING
    slot.standby, slot.coming = None, WORKER
    assert slot.state is SlotState.STARTING
    slot.down_reason = "broken"
    assert slot.state is SlotState.DOWN
    slot.serving = WORKER
    assert slot.state is SlotState.SERVING


def test_a_pool_is_down_when_all_its_slots_are() -> None:
    """One slot that may start again keeps its routes."""
    pool = Pool(a_pool("p", replicas=2))
    assert pool.down_reason() == ""
    assert not pool.may_still_start()
    pool.slot(0).down_reason = "broken"
    assert pool.slot(1) is pool.slot(1)
    assert pool.down_reason() == ""
    assert pool.may_still_start()
    pool.slot(1).down_reason = "too"
    assert pool.down_reason() == "broken"
    assert not pool.may_still_start()


def test_manual_workers_get_numbers_beyond_the_configured_slots() -> None:
    """They never take a place that the configuration fills."""
    pool = Pool(a_pool("p", replicas=2))
    assert pool.free_number() == 2
    pool.slot(2)
    assert pool.free_number() == 3
    assert Pool(a_pool("m"), is_configured=False).free_number() == 0


def test_pools_by_name() -> None:
    """In the order of the configuration."""
    pools = Pools()
    first, second = pools.add(a_pool("b")), pools.add(a_pool("a"), is_configured=False)
    assert list(pools) == [first, second]
    assert pools.get(PoolName("a")) is second
    pools.remove(PoolName("a"))
    assert pools.get(PoolName("a")) is None
