"""Changes are taken as they have piled up, and an end wakes whoever waits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from trunkline_broker.cli.watch_files import Changes, Stop
from trunkline_broker.cli.watch_plan import Watched, WatchPlan

FILES = frozenset({Path("/src/a.py"), Path("/src/b.py")})
PLAN = WatchPlan((Watched("acme", FILES),))


def test_what_came_while_nobody_looked_is_one_batch() -> None:
    """So saves during a swap lead to one more, however many there were."""
    changes = Changes(PLAN, Stop())
    for file in sorted(FILES):
        changes._found.put(frozenset({file}))
    assert changes.take() == FILES
    assert changes._found.empty()


def test_what_keeps_us_from_watching_is_raised() -> None:
    changes = Changes(PLAN, Stop())
    changes._found.put(frozenset({Path("/src/a.py")}))
    changes._found.put(OSError("no more inotify watches"))
    with pytest.raises(OSError, match="no more"):
        changes.take()


def test_the_end_wakes_whoever_waits_for_changes() -> None:
    stop = Stop()
    changes = Changes(WatchPlan(()), stop)
    with changes.coming():
        thread = threading.Thread(target=stop.set)
        thread.start()
        assert changes.take() == frozenset()
        thread.join()
    assert changes.is_set()


def test_whoever_comes_after_the_end_is_told_too() -> None:
    """Once each, and nobody who has left."""
    stop, told = Stop(), list[str]()
    with stop.telling(lambda: told.append("left")):
        pass
    with stop.telling(lambda: told.append("there")):
        stop.set()
    with stop.telling(lambda: told.append("late")):
        assert told == ["there", "late"]
