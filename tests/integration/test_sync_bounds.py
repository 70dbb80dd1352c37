"""The blocking facade never hangs: forks, signals, missing descriptors, the end of the program.

Each program runs in a process of its own with a bound; what it prints is compared.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import BrokerProcess
from tests.support.control import Control, controlled_broker
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
BOUND_S = 60 * SLOW
HANGING = {"chunks": [{"type": "text-delta", "index": 0, "text": "one"}], "hangAt": "next"}


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield one broker with one worker that obeys."""
    with controlled_broker(("one",)) as (broker, control):
        yield broker, control


@pytest.fixture
def control(world: tuple[BrokerProcess, Control]) -> Iterator[Control]:
    """Yield what commands the worker, with the route `a`."""
    control = world[1]
    control.ask("one", "register", handle="a", adapter="a", providers=["a"])
    yield control
    control.ask("one", "reset")


def start(endpoint: str, name: str, argument: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own program
        [sys.executable, "-m", "tests.support.sync_programs", name, endpoint, argument],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def ended(child: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Return exit code and lines of a program; one that does not end fails the test."""
    try:
        out, err = child.communicate(timeout=BOUND_S)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        pytest.fail(f"it hangs; it has said {out!r} {err[-2000:]!r}")
    assert not child.returncode, err
    return child.returncode, out.splitlines()


def run(endpoint: str, name: str, argument: str = "") -> tuple[int, list[str]]:
    return ended(start(endpoint, name, argument))


@pytest.mark.parametrize("free", [0, 1, 2, 3, 5, 8, 11, 13, 14, 16, 20])
def test_connecting_without_descriptors_is_told(
    world: tuple[BrokerProcess, Control], control: Control, free: int
) -> None:
    """Never a hang, and never an abort of the process by libzmq."""
    code, lines = run(world[0].endpoint, "descriptors", str(free))
    assert code == 0
    assert len(lines) == 1
    assert lines[0] == "connected ['a']" or lines[0].startswith("told cannot ")
    assert lines[0].startswith("told") or free >= 11
    assert lines[0].startswith("connected") or free <= 16


def test_a_lane_without_a_descriptor_is_made_later(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    assert run(world[0].endpoint, "lane_without_descriptor") == (
        0,
        ["unopened", "chunks 4"],
    )


def test_fifty_forked_children_of_busy_threads_are_told(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    """And the parent's threads and its open stream go on."""
    code, lines = run(world[0].endpoint, "forks", "50")
    assert code == 0
    assert lines[0] == "codes [0] failures []"
    assert lines[1].startswith("stream ")
    assert lines[1].endswith(" 4 models ['a']")


def test_a_forked_child_ends_as_programs_do(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    assert run(world[0].endpoint, "fork_and_exit") == (0, ["parent 4 ['a']"])


def test_a_forked_child_connects_for_itself(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    assert run(world[0].endpoint, "fork_and_connect") == (0, ["child [0] parent 4 ['a']"])


@pytest.mark.parametrize("what", ["query", "stream"])
def test_a_signal_handler_closes_the_runtime(
    world: tuple[BrokerProcess, Control], control: Control, what: str
) -> None:
    """Ten times, since only some instructions hold what the handler needs."""
    for _ in range(10):
        child = start(world[0].endpoint, "close_by_signal", what)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        code, lines = ended(child)
        assert code == 0
        assert lines[-1] == "closed"
        assert "closed" in lines[0] or "ABORTED" in lines[0]


def test_a_signal_handler_asks_every_millisecond(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    assert run(world[0].endpoint, "calls_by_signal", "3") == (0, ["handled True streams True"])


def test_an_interrupt_at_any_instruction_hangs_nothing(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    assert run(world[0].endpoint, "interrupts", "3") == (
        0,
        ["interrupted True whole True", "models ['a']"],
    )


@pytest.mark.parametrize("name", ["exit_with_streams", "exit_with_listener"])
def test_a_program_ends_with_everything_open(
    world: tuple[BrokerProcess, Control], control: Control, name: str
) -> None:
    control.ask("one", "plan", adapter="a", plan=HANGING)
    assert run(world[0].endpoint, name) == (0, ["leaving"])


def test_every_wait_ends_with_the_runtimes_thread(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    control.ask("one", "plan", adapter="a", plan=HANGING)
    code, lines = run(world[0].endpoint, "thread_dies")
    assert code == 0
    assert lines == ["told this runtime's thread has ended by SystemExit"] * 2 + ["closed"]
