"""The faults: each strikes a world in which calls run, and says what must come of them.

Every function is one episode: open calls, wait until they run, strike, mend, wait for the ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import zmq

from tests.chaos.more_faults import MORE_FAULTS
from tests.chaos.world import World, until_idle
from tests.support.processes import is_alive
from tests.support.timing import until_async

# Around 1.2 s a client has asked again and not yet changed its lane: all comes twice.
_STALLS_S: Final = (0.5, 1.15, 1.3, 2.2)
Fault = Callable[[World], Awaitable[None]]


async def play(world: World, name: str) -> None:
    """Play one episode of a fault."""
    world.episodes += 1
    world.fault = name
    world.calls.clear()
    await (FAULTS | MORE_FAULTS)[name](world)
    await world.until_over()
    await world.until_serving()
    if not world.players:  # theirs are looked for when they have left
        await until_idle(world)
    world.take_news()


def _open(world: World, count: int = 4, bursts: int = 0) -> None:
    """Open calls of both agents on both routes; the second route lets three run at once."""
    for number in range(count):
        agent, provider = ("near", "far")[number % 2], ("one", "one", "two")[number % 3]
        world.open(agent, provider)
    for number in range(bursts):
        world.open(("near", "far")[number % 2], "one", is_burst=True)


async def _struck(world: World, fault: str, pid: int = 0) -> None:
    """Wait until all run; write down what is expected, and that the fault strikes now."""
    await world.until_running()
    world.note_calls(fault)
    world.strike(fault, pid)


# --- the broker ---------------------------------------------------------------------------------


async def broker_kill(world: World) -> None:
    """SIGKILL; a new broker within five seconds. Two calls wait in a queue meanwhile."""
    _open(world, 5, bursts=1)
    await _struck(world, "broker_kill", world.broker.pid)
    world.broker.signal(signal.SIGKILL)
    await asyncio.to_thread(world.broker.wait)
    await asyncio.sleep(world.random.choice((0.0, 0.1, 0.5, 1.0, 3.0)))
    late = world.open("near", "one")
    world.open("far", "two")
    await asyncio.to_thread(world.broker.start)
    await world.until(lambda: late.is_marked, 30)
    for call in list(world.calls.values())[-2:]:
        world.note_call("broker_kill", call)


async def broker_stop(world: World) -> None:
    """SIGSTOP for some seconds, then SIGCONT: nothing ends."""
    _open(world, 5, bursts=1)
    await _struck(world, "broker_stop", world.broker.pid)
    world.broker.signal(signal.SIGSTOP)
    await asyncio.sleep(world.random.choice((0.3, 1.0, 2.0, 4.5)))
    world.broker.signal(signal.SIGCONT)


async def broker_restart(world: World) -> None:
    """SIGUSR2: it exits at once and touches no worker; the next one takes over."""
    _open(world, 5, bursts=1)
    await _struck(world, "broker_restart", world.broker.pid)
    world.broker.signal(signal.SIGUSR2)
    code = await asyncio.to_thread(world.broker.wait)
    if code:
        world.leak("exit", f"SIGUSR2 ended the broker with {code}")
    await asyncio.to_thread(world.broker.start)


# --- workers ------------------------------------------------------------------------------------


async def _strike_worker(world: World, fault: str, number: signal.Signals) -> int:
    """Signal one replica of the first route: its calls must end, the others not."""
    _open(world, 5)
    await world.until_running()
    await world.until(lambda: all(c.worker for c in world.calls.values()), 5)
    victim = world.random.choice([c.worker for c in world.calls.values() if c.provider == "one"])
    assert victim is not None
    for call in world.calls.values():
        if call.worker == victim and not call.is_over:
            call.want = "error"
    world.note_calls(fault)
    world.strike(fault, victim)
    os.kill(victim, number)
    return victim


async def worker_kill(world: World) -> None:
    """SIGKILL of a worker: its calls end in `TRANSPORT` at once."""
    await _strike_worker(world, "worker_kill", signal.SIGKILL)


async def worker_stop(world: World) -> None:
    """SIGSTOP of a worker past its lease: as if it had died."""
    victim = await _strike_worker(world, "worker_stop", signal.SIGSTOP)
    await until_async(lambda: not is_alive(victim), 10)


async def swap(world: World) -> None:
    """Hot swap of every replica: nothing ends."""
    _open(world, 5, bursts=1)
    await _struck(world, "swap", (await world.workers_of("one"))[0])
    await world.ask("swap", {"pool": "one"})
    world.open("near", "one")
    await world.until_running()
    world.note_call("swap", list(world.calls.values())[-1])


# --- clients ------------------------------------------------------------------------------------


async def client_kill(world: World) -> None:
    """SIGKILL of an agent: the requests of its calls are cancelled, nobody else's."""
    name = f"victim{world.episodes}"
    agent = await world.start_agent(name)
    _open(world, 2)
    for provider in ("one", "one", "two"):
        world.open(name, provider).want = "gone"
    await _struck(world, "client_kill", agent.child.pid)
    agent.child.kill()
    await asyncio.to_thread(agent.child.wait)
    assert agent.child.stdin is not None
    agent.child.stdin.close()
    del world.agents[name]


async def client_stop(world: World) -> None:
    """SIGSTOP of an agent with streams faster than it: they wait, the others go on."""
    agent = world.agents["near"]
    _open(world, 4)
    for _ in range(2):
        world.open("near", "one", is_burst=True)
    await _struck(world, "client_stop", agent.child.pid)
    os.kill(agent.child.pid, signal.SIGSTOP)
    await asyncio.sleep(world.random.choice((0.5, 1.0, 2.5)))
    os.kill(agent.child.pid, signal.SIGCONT)


async def cancel(world: World) -> None:
    """The application cancels, also before the first chunk: requests end within a second."""
    _open(world, 2)
    await world.until_running()
    for at in (0, 1, world.random.randrange(2, 30)):
        world.open("near", "one", cancel=at).want = "aborted"
    world.note_calls("cancel")
    world.strike("cancel", world.agents["near"].child.pid)


# --- links --------------------------------------------------------------------------------------


async def _cut(world: World, fault: str, proxy: str) -> None:
    """Hold a link back until a window is under way, then break it: what was under way is lost."""
    _open(world, 4, bursts=2)
    await _struck(world, fault)
    link = world.links.proxies[proxy]
    link.stall()
    await asyncio.sleep(world.random.choice((0.02, 0.1, 0.4)))
    assert link.cut()


async def lane_cut(world: World) -> None:
    """The clients' lane connections break with a window in flight."""
    await _cut(world, "lane_cut", "lane")


async def worker_lane_cut(world: World) -> None:
    """The workers' lane connections break with a window in flight."""
    await _cut(world, "worker_lane_cut", "workers-lane")


async def control_cut(world: World) -> None:
    """An agent's control connection breaks."""
    await _cut(world, "control_cut", "control")


async def worker_control_cut(world: World) -> None:
    """The workers' control connections break."""
    await _cut(world, "worker_control_cut", "workers-control")


async def lane_stall(world: World) -> None:
    """The clients' lanes carry nothing for a while: what was asked for again comes twice."""
    _open(world, 4, bursts=2)
    await _struck(world, "lane_stall")
    link = world.links.proxies["lane"]
    link.stall()
    await asyncio.sleep(_STALLS_S[world.episodes % len(_STALLS_S)])
    link.flow()


async def second_holder(world: World) -> None:
    """Another socket takes an agent's lane id, receives what is the agent's, and leaves."""
    _open(world, 4, bursts=1)
    await _struck(world, "second_holder", world.agents["near"].child.pid)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        thief = context.socket(zmq.DEALER)
        thief.setsockopt(zmq.ROUTING_ID, world.agents["near"].client)
        thief.connect(f"ipc://{world.broker.paths.lane}")
        await until_async(lambda: thief.poll(0), 5, "the second holder gets nothing")
        await asyncio.sleep(world.random.choice((0.0, 0.2)))
    finally:
        context.destroy(0)


FAULTS: Final[dict[str, Fault]] = {
    each.__name__: each
    for each in (
        broker_kill,
        broker_stop,
        broker_restart,
        worker_kill,
        worker_stop,
        swap,
        client_kill,
        client_stop,
        cancel,
        lane_cut,
        worker_lane_cut,
        control_cut,
        worker_control_cut,
        lane_stall,
        second_holder,
    )
}
