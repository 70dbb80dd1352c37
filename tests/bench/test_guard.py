"""Ratios of one run with generous bounds: a change that makes the hot paths a few times slower is
seen, and nothing else is.

CPU is compared, not time: on a busy machine it doubles at most, and for both sides.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.rig import Rig, rig
from bench.running import gateway_us, run_agent

pytestmark = pytest.mark.bench

# Measured on a quiet and on a crowded machine: 0.6 to 0.7, 2.8, and 17 to 24.
AGENT_TO_BARE_LOOP = 2.0
GATEWAY_TO_BARE_LOOP = 7.0
LONELY_FRAME_TO_BARE_LOOP = 60.0
CHUNKS = 20_000


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    with rig() as started:
        yield started


@pytest.fixture(scope="module")
def bare_loop_us(running: Rig) -> float:
    """What httpx over aiohttp and typed decoding pay for a chunk of the same provider."""
    return min(
        run_agent(running, "direct", running.url, "mock", CHUNKS)["cpu_us"] for _ in range(3)
    )


def test_a_chunk_costs_the_agent_less_than_reading_it_from_the_provider(
    running: Rig, bare_loop_us: float
) -> None:
    ours = min(run_agent(running, "trunkline", "mock", "mock", CHUNKS)["cpu_us"] for _ in range(3))
    assert ours <= AGENT_TO_BARE_LOOP * bare_loop_us


def test_worker_and_broker_cost_little_more_than_reading_the_provider(
    running: Rig, bare_loop_us: float
) -> None:
    found: list[float] = []
    for _ in range(3):
        before = running.cpu_s()
        done = run_agent(running, "trunkline", "mock", "mock", CHUNKS)
        found.append(gateway_us(before, running.cpu_s(), done["chunks"]))
    assert min(found) <= GATEWAY_TO_BARE_LOOP * bare_loop_us


def test_a_chunk_in_a_frame_of_its_own_is_not_dear_either(
    running: Rig, bare_loop_us: float
) -> None:
    before = running.cpu_s()
    done = run_agent(running, "trunkline", "burst", "1x3", CHUNKS)
    whole_us = gateway_us(before, running.cpu_s(), done["chunks"]) + done["cpu_us"]
    assert whole_us <= LONELY_FRAME_TO_BARE_LOOP * bare_loop_us
