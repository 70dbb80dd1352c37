"""A loop that stands still is measured and told."""

from __future__ import annotations

import pytest
from trunkline_workers.stuck import BEAT_S, BLOCKED_S, Lateness, LoopWatch


@pytest.mark.parametrize(("late_s", "blocks"), [(0.0, 0), (BLOCKED_S - 0.01, 0), (BLOCKED_S, 1)])
def test_half_a_second_is_a_block(late_s: float, blocks: int) -> None:
    lateness = Lateness()
    assert lateness.note(late_s, 10.0) == bool(blocks)
    assert lateness.to_dict() == {"loopLateMs": round(late_s * 1000), "loopBlocks": blocks}


def test_the_worst_is_told_for_half_a_minute_at_least_and_forgotten_after_a_minute() -> None:
    """The number of blocks stays."""
    lateness = Lateness()
    lateness.note(0.0, 0.0)
    lateness.note(1.0, 29.0)
    lateness.note(0.1, 31.0)
    assert lateness.to_dict() == {"loopLateMs": 1000, "loopBlocks": 1}
    lateness.note(0.2, 60.0)
    assert lateness.to_dict()["loopLateMs"] == 1000
    lateness.note(0.1, 62.0)
    assert lateness.to_dict() == {"loopLateMs": 200, "loopBlocks": 1}


async def test_the_beat_finds_out_and_arms_again_first() -> None:
    """What is done about a block may take a while itself."""
    now_s = 100.0
    happened: list[float | str] = []
    watch = LoopWatch(lambda: now_s, happened.append, lambda: happened.append("armed"))
    watch.start()
    now_s += BEAT_S + 0.4
    watch._beat()
    now_s += BEAT_S + 2.0
    watch._beat()
    assert happened == ["armed", "armed", "armed", pytest.approx(2.0)]
    watch.stop()
    watch.stop()
    assert watch.lateness.blocks == 1
