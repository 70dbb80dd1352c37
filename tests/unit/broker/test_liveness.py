"""Leases of workers."""

from __future__ import annotations

from trunkline_broker.core.liveness import CATCH_UP_S, extend, is_late, lease_ends_s
from trunkline_broker.core.workers import Worker
from trunkline_protocol.ids import Epoch, Generation

from tests.support.broker_rig import a_pool


def test_a_lease_ends_after_the_last_frame_and_is_extended_by_lateness() -> None:
    """Time in which nothing could be heard does not count."""
    worker = Worker(Generation(Epoch(1), 1), a_pool(), 0, b"", 0.0)
    worker.heard_s = 5.0
    assert lease_ends_s(worker, 3.0) == 8.0
    extend(worker, 10.0)
    assert lease_ends_s(worker, 3.0) == 18.0 + CATCH_UP_S


def test_half_a_second_is_late() -> None:
    """ARCHITECTURE 5."""
    assert not is_late(0.5)
    assert is_late(0.51)
