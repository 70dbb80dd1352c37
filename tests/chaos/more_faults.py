"""Faults of single connections, calls that outlive their agent, and load without any fault.

They are played after those of `faults`, so that a seed strikes those at the same points as ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.support.timing import SLOW

if TYPE_CHECKING:
    from tests.chaos.faults import Fault
    from tests.chaos.proxy import Connection
    from tests.chaos.world import World

_CROWD: Final = 40  # streams of each of two players
# A worker that cannot be heard for its lease of 3 s, less its heartbeat of 1 s, rightly hangs.
_HALF_OPEN_S: Final = 1.8


async def _play_calls(world: World, fault: str) -> None:
    for number in range(4):
        world.open(("near", "far")[number % 2], ("one", "one", "two")[number % 3])
    for number in range(2):
        world.open(("near", "far")[number % 2], "one", is_burst=True)
    await world.until_running()
    world.note_calls(fault)
    world.strike(fault, 0)


async def _break_one(world: World, fault: str, proxy: str) -> None:
    """Break one connection of a link in a manner that is drawn; the others go on."""
    await _play_calls(world, fault)
    links = world.links.proxies[proxy].links
    if not links:
        return  # it was just broken by another fault, and is made anew meanwhile
    manners = (_reset, _reset_at_a_byte, _stall, _half_open)
    await world.random.choice(manners)(world, world.random.choice(links))


async def _reset(world: World, link: Connection) -> None:
    del world
    link.cut()


async def _reset_at_a_byte(world: World, link: Connection) -> None:
    link.cut_after(world.random.randrange(1, 20_000))
    await asyncio.sleep(0.5)
    link.cut()  # a quiet link


async def _stall(world: World, link: Connection) -> None:
    link.flows.clear()
    await asyncio.sleep(world.random.choice((0.3, 1.0, 1.8)))
    link.flows.set()
    if world.random.random() < 0.5:
        link.cut()


async def _half_open(world: World, link: Connection) -> None:
    link.be_half_open()
    await asyncio.sleep(world.random.uniform(0.2, _HALF_OPEN_S))
    link.cut()


async def control_reset(world: World) -> None:
    """One control connection of a client breaks, stalls or is half open."""
    await _break_one(world, "control_reset", "control")


async def lane_reset(world: World) -> None:
    """One lane of a client breaks, stalls or is half open."""
    await _break_one(world, "lane_reset", "lane")


async def worker_control_reset(world: World) -> None:
    """One control connection of a worker breaks, stalls or is half open."""
    await _break_one(world, "worker_control_reset", "workers-control")


async def worker_lane_reset(world: World) -> None:
    """One lane of a worker breaks, stalls or is half open."""
    await _break_one(world, "worker_lane_reset", "workers-lane")


async def detached(world: World) -> None:
    """SIGKILL of an agent with detachable calls; another agent attaches and gets all of each."""
    name = f"leaver{world.episodes}"
    agent = await world.start_agent(name)
    for provider in ("one", "one", "two"):
        world.open(name, provider, detachable=True)
    calls = list(world.calls.values())
    await world.until(lambda: all(call.ticket for call in calls), 30, "no ticket")
    world.strike("detached", agent.child.pid)
    agent.child.kill()
    await asyncio.to_thread(agent.child.wait)
    assert agent.child.stdin is not None
    agent.child.stdin.close()
    del world.agents[name]
    await asyncio.sleep(world.random.choice((0.0, 0.1, 0.5)))
    for number, call in enumerate(calls):
        taker = world.agents[("near", "far")[number % 2]]
        taker.tell(do="attach", id=call.id, ticket=call.ticket, mark=1)
    world.note_calls("detached")


async def crowd(world: World) -> None:
    """Nothing strikes: two players open and end many streams, and rest while they read."""
    world.strike("crowd", 0)
    names = [f"c{world.episodes}-{number}" for number in range(2)]
    for name in names:
        seed = world.random.randrange(1 << 30)
        providers = ["one", "one", "one", "two"]
        more = {"count": _CROWD, "lines": 6, "longs": 16, "providers": providers}
        world.start_player(name, seed, [world.links.direct], **more)
    await asyncio.gather(*(asyncio.to_thread(world.players[n].wait, 200 * SLOW) for n in names))
    await world.end_players(names)


MORE_FAULTS: Final[dict[str, Fault]] = {
    each.__name__: each
    for each in (
        control_reset,
        lane_reset,
        worker_control_reset,
        worker_lane_reset,
        detached,
        crowd,
    )
}
