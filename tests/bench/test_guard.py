"""Ratios of one run with generous bounds: a change that makes the hot paths a few times slower is
seen, and nothing else is.

CPU is compared, not time: on a busy machine it doubles at most, and for both sides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bench.rig import Rig as BenchRig
from bench.rig import rig
from bench.running import gateway_us, run_agent
from tests.support.broker_rig import Rig, a_pool, done

pytestmark = pytest.mark.bench

# Measured on a quiet and on a crowded machine: 0.6 to 0.7, 2.8, and 17 to 24.
AGENT_TO_BARE_LOOP = 2.0
GATEWAY_TO_BARE_LOOP = 7.0
LONELY_FRAME_TO_BARE_LOOP = 60.0
CHUNKS = 20_000
# Measured: 0.98 to 1.05; 1.55 and 2.11 if an OPEN counts the clients and calls that there are.
FLAT = 1.35
CALLS = 100
ROUNDS = 20


@pytest.fixture(scope="module")
def running() -> Iterator[BenchRig]:
    with rig() as started:
        yield started


@pytest.fixture(scope="module")
def bare_loop_us(running: BenchRig) -> float:
    """What httpx over aiohttp and typed decoding pay for a chunk of the same provider."""
    return min(
        run_agent(running, "direct", running.url, "mock", CHUNKS)["cpu_us"] for _ in range(3)
    )


def test_a_chunk_costs_the_agent_less_than_reading_it_from_the_provider(
    running: BenchRig, bare_loop_us: float
) -> None:
    ours = min(run_agent(running, "trunkline", "mock", "mock", CHUNKS)["cpu_us"] for _ in range(3))
    assert ours <= AGENT_TO_BARE_LOOP * bare_loop_us


def test_worker_and_broker_cost_little_more_than_reading_the_provider(
    running: BenchRig, bare_loop_us: float
) -> None:
    found: list[float] = []
    for _ in range(3):
        before = running.cpu_s()
        done = run_agent(running, "trunkline", "mock", "mock", CHUNKS)
        found.append(gateway_us(before, running.cpu_s(), done["chunks"]))
    assert min(found) <= GATEWAY_TO_BARE_LOOP * bare_loop_us


def test_a_chunk_in_a_frame_of_its_own_is_not_dear_either(
    running: BenchRig, bare_loop_us: float
) -> None:
    before = running.cpu_s()
    done = run_agent(running, "trunkline", "burst", "1x3", CHUNKS)
    whole_us = gateway_us(before, running.cpu_s(), done["chunks"]) + done["cpu_us"]
    assert whole_us <= LONELY_FRAME_TO_BARE_LOOP * bare_loop_us


class Core:
    """A broker's core among so many clients, routes and open calls."""

    def __init__(self, clients: int, routes: int, open_calls: int) -> None:
        most = ROUNDS * CALLS + open_calls
        self._routes = tuple(f"r{number}" for number in range(routes))
        rig = Rig(
            a_pool("p", providers=self._routes),
            max_calls=most,
            max_calls_per_client=most,
            max_calls_per_worker=most,
        )
        self._worker = rig.a_worker(*self._routes)
        self._clients = [rig.a_client() for _ in range(clients)]
        for number in range(open_calls):
            self._clients[number % clients].open(self._routes[0])

    def calls_s(self) -> float:
        """Return the CPU seconds of codec and core for some calls."""
        begun_s = time.process_time()
        for number in range(CALLS):
            client = self._clients[number % len(self._clients)]
            opened = client.open(self._routes[number % len(self._routes)])
            self._worker.end(opened)
            client.say(done(opened))
        return time.process_time() - begun_s


@pytest.mark.parametrize("more", [(2000, 1, 0), (1, 200, 0), (1, 1, 4000)])
def test_a_call_costs_the_core_no_more_when_there_is_more(more: tuple[int, int, int]) -> None:
    lonely, crowded = Core(1, 1, 0), Core(*more)
    took = [(lonely.calls_s(), crowded.calls_s()) for _ in range(ROUNDS)]
    least, most = (min(times) for times in zip(*took, strict=True))
    assert most <= FLAT * least
