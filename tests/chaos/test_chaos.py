"""One strike of every fault, and proof that the checker sees what it is there to see."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import Plan, run
from tests.chaos.faults import FAULTS
from tests.chaos.more_faults import MORE_FAULTS

pytestmark = pytest.mark.chaos
CHECK = Path(__file__).with_name("check.py")
Lines = list[dict[str, Any]]


def judged(path: Path) -> subprocess.CompletedProcess[str]:
    """Run the checker as its users do."""
    command = [sys.executable, "-I", str(CHECK), str(path)]
    return subprocess.run(  # noqa: S603  our own program
        command, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play one strike of every fault in four worlds at once, one of them over TCP."""
    path = tmp_path_factory.mktemp("chaos") / "chaos.jsonl"
    asyncio.run(run(path, Plan(seed=7, faults=(*FAULTS, *MORE_FAULTS), strikes=1, worlds=3)))
    return path


def test_every_call_ends_once_with_its_content(book: Path) -> None:
    """Whatever strikes: nothing lost, doubled, failed or left over."""
    verdict = judged(book)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_a_world_has_the_same_faults_whatever_is_played_after_them() -> None:
    """A seed strikes the older faults of a world in the same order as ever."""
    old = Plan(4242, tuple(FAULTS), 10, 3, has_tcp=False).shares()
    new = Plan(4242, (*FAULTS, *MORE_FAULTS), 10, 3).shares()
    assert [share[: len(before)] for share, before in zip(new, old, strict=False)] == old


def _first(lines: Lines, kind: str, **wanted: Any) -> dict[str, Any]:
    return next(line for line in lines if line["k"] == kind and wanted.items() <= line.items())


def _lose_an_end(lines: Lines) -> None:
    lines.remove(_first(lines, "end"))


def _repeat_an_end(lines: Lines) -> None:
    lines.append(_first(lines, "end"))


def _ask_twice(lines: Lines) -> None:
    lines.append(_first(lines, "start"))


def _change_content(lines: Lines) -> None:
    _first(lines, "end", finish="stop")["sha"] = "0"


def _change_a_prefix(lines: Lines) -> None:
    _first(lines, "end", code="TRANSPORT")["sha"] = "0"


def _fail_one(lines: Lines) -> None:
    _first(lines, "end", finish="stop")["finish"] = "error"


def _go_on_after_death(lines: Lines) -> None:
    gone = {line["id"] for line in lines if line["k"] == "call" and line["want"] == "gone"}
    lines[:] = [line for line in lines if line["k"] != "stop" or line["id"] not in gone]


def _notice_late(lines: Lines) -> None:
    _first(lines, "end", code="TRANSPORT")["t"] += 60


def _be_silent(lines: Lines) -> None:
    call = _first(lines, "call", fault="second_holder", want="whole")
    _first(lines, "end", id=call["id"])["gap"] = 60


def _leak(lines: Lines) -> None:
    lines.append({"k": "leak", "fault": "end", "what": "process", "text": "1 lives"})


def _leave_a_task(lines: Lines) -> None:
    _first(lines, "closed")["tasks"] = 1


def _break_off(lines: Lines) -> None:
    lines.remove(_first(lines, "end_of_world"))


def _skip_a_fault(lines: Lines) -> None:
    lines.remove(_first(lines, "fault", fault="swap"))
    lines[:] = [line for line in lines if line.get("fault") != "swap"]


def _lose_a_stream(lines: Lines) -> None:
    lines.remove(_first(lines, "read"))


def _read_twice(lines: Lines) -> None:
    lines.append(_first(lines, "read"))


def _play_twice(lines: Lines) -> None:
    play = _first(lines, "play", want="whole", pattern="short")
    lines.append({"k": "start", "id": play["id"], "t": play["t"]})


def _lose_a_letter(lines: Lines) -> None:
    play = _first(lines, "play", want="whole", pattern="short")
    _first(lines, "read", id=play["id"])["sha"] = "0"


def _break_off_a_stream(lines: Lines) -> None:
    play = _first(lines, "play", want="whole", pattern="short")
    read = _first(lines, "read", id=play["id"])
    read.update(finish="error", code="UNSTRUCK")


def _stand_still(lines: Lines) -> None:
    lines.append({"k": "stuck", "id": "0-x-1", "chunks": 1024, "silent": 10.2})


def _demand_more(lines: Lines) -> None:
    _first(lines, "run")["least"] = 2


DISTORTIONS: list[Callable[[Lines], None]] = [
    _lose_an_end,
    _repeat_an_end,
    _ask_twice,
    _change_content,
    _change_a_prefix,
    _fail_one,
    _go_on_after_death,
    _notice_late,
    _be_silent,
    _leak,
    _leave_a_task,
    _break_off,
    _skip_a_fault,
    _lose_a_stream,
    _read_twice,
    _play_twice,
    _lose_a_letter,
    _break_off_a_stream,
    _stand_still,
    _demand_more,
]


@pytest.mark.parametrize("distort", DISTORTIONS)
def test_the_checker_notices(distort: Callable[[Lines], None], book: Path, tmp_path: Path) -> None:
    """A file with one fact changed is red."""
    lines = [json.loads(line) for line in book.read_text().splitlines()]
    distort(lines)
    changed = tmp_path / "changed.jsonl"
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert judged(changed).returncode == 1
