"""One world of a chaos run: a broker, its workers, its agents, the proxies between them.

It starts and ends processes and knows what ought to come of every call; which fault strikes when is
in `faults.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from trunkline_broker.paths import RunPaths
from trunkline_workers.adapters.scripted.content import sha256, whole

from tests.chaos import inside
from tests.chaos.book import Book
from tests.chaos.breaks import VARIABLE
from tests.chaos.links import Links, make_links
from tests.chaos.player import Orders
from tests.chaos.watcher import Watcher
from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.processes import open_files, with_environment
from tests.support.raw_peer import RawClient
from tests.support.timing import SLOW, NotSoonEnoughError, until_answered, until_async

CHUNK_CHARS: Final = 40
WORLD_VARIABLE: Final = "CHAOS_WORLD"
_LEAVE_S: Final = 90.0  # what a player reads, and what others left behind for it
END_S: Final = 20.0  # longest time a call may take; then it counts as lost
_CONFIG: Final = """\
[broker]
orphan_timeout_s = 30
drain_s = 3
{links}[worker.one]
adapter = "{adapter}"
providers = ["one"]
replicas = 2
env = ["{world}", "{broken}", "{shown}", "PYTHONPATH"]
restart = {{ intensity = 1000, period_s = 60, initial_delay_s = 0.05, max_delay_s = 0.2 }}
[worker.one.options]
journal = "{journal}"
[worker.two]
adapter = "{adapter}"
providers = ["two"]
concurrency = 3
env = ["{world}", "{broken}", "{shown}", "PYTHONPATH"]
restart = {{ intensity = 1000, period_s = 60, initial_delay_s = 0.05, max_delay_s = 0.2 }}
[worker.two.options]
journal = "{journal}"
"""


@dataclass(slots=True)
class Call:
    """One call and what is known of it.

    Attributes:
        want: "whole", "error", "aborted", or "gone" with its agent.
        worker: process that plays it.
    """

    id: str
    agent: str
    provider: str
    seed: int
    chunks: int
    want: str = "whole"
    worker: int | None = None
    is_marked: bool = False
    is_over: bool = False
    ticket: str = ""

    def sha(self, chars: int | None = None) -> str:
        """Return the SHA-256 of its text, or of the first so many characters."""
        return sha256(whole(self.chunks, CHUNK_CHARS, self.seed)[:chars])


@dataclass(slots=True)
class AgentProcess:
    """One agent and the pipe to it."""

    name: str
    child: subprocess.Popen[bytes]
    client: bytes = b""

    def tell(self, **order: Any) -> None:
        """Give it an order."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        self.child.stdin.flush()


@dataclass(slots=True)
class World:
    """Everything that runs, and the calls of the episode that is played."""

    number: int
    book: Book
    random: Random
    broker: BrokerProcess
    links: Links
    name: str
    journal: Path
    root: Path
    agents: dict[str, AgentProcess] = field(default_factory=dict[str, AgentProcess])
    players: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set[int])
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    episodes: int = 0
    fault: str = "end"
    journal_at: int = 0
    read_count: int = 0

    # --- agents --------------------------------------------------------------------------------

    async def start_agent(self, name: str, *, is_proxied: bool = False) -> AgentProcess:
        """Start an agent and wait until it is connected."""
        endpoint = self.links.proxies["control"].endpoint if is_proxied else self.links.direct
        command = [sys.executable, "-m", "tests.chaos.agent", endpoint, str(self.book.path), name]
        with (self.broker.run_dir / "agents.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: ASYNC220, S603  our own program, started in ms
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.broker.environ,
            )
        agent = self.agents[name] = AgentProcess(name, child)
        self.pids.add(child.pid)
        await self.until(lambda: bool(agent.client), 20, f"agent {name} does not connect")
        return agent

    async def end_agents(self) -> None:
        """Have every agent leave; what they leave behind is in their own notes."""
        for agent in self.agents.values():
            with contextlib.suppress(BrokenPipeError):
                agent.tell(do="leave")
        for agent in self.agents.values():
            try:
                await asyncio.to_thread(agent.child.wait, 20 * SLOW)
            except subprocess.TimeoutExpired:
                self.leak("process", f"agent {agent.name} does not leave")
                agent.child.kill()
                await asyncio.to_thread(agent.child.wait)
            assert agent.child.stdin is not None
            agent.child.stdin.close()

    # --- players -------------------------------------------------------------------------------

    def start_player(self, name: str, seed: int, endpoints: list[str], **more: Any) -> None:
        """Start a player in this world; it plays whatever strikes, until `end_players`."""
        board = self.root / "board"
        orders = Orders(endpoints, str(self.book.path), name, seed, self.number, board=str(board))
        command = [sys.executable, "-m", "tests.chaos.player", json.dumps(asdict(orders) | more)]
        with (self.broker.run_dir / "agents.log").open("ab") as log:
            self.players[name] = subprocess.Popen(  # noqa: S603  our own program
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=self.broker.environ
            )
        self.pids.add(self.players[name].pid)

    async def end_players(self, names: Iterable[str] | None = None) -> None:
        """Have players finish what they read; one that does not, or that failed, is noted."""
        children = {name: self.players[name] for name in names or list(self.players)}
        for child in children.values():
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
        for name, child in children.items():
            try:
                code = await asyncio.to_thread(child.wait, _LEAVE_S * SLOW)
            except subprocess.TimeoutExpired:
                self.leak("process", f"player {name} does not leave")
                child.kill()
                code = await asyncio.to_thread(child.wait)
            if code:
                self.leak("exit", f"player {name} ended with {code}: {self._agents_log()}")
            del self.players[name]

    def _agents_log(self) -> str:
        return (self.broker.run_dir / "agents.log").read_text(errors="replace")[-2_000:]

    # --- calls ---------------------------------------------------------------------------------

    def open(self, agent: str, provider: str, *, is_burst: bool = False, **more: Any) -> Call:
        """Have an agent open a call; it runs long enough to be struck."""
        random = self.random
        chunks = random.randrange(15_000, 25_000) if is_burst else random.randrange(80, 160)
        mark = random.randrange(1, 40)
        call_id = f"{self.number}-{self.episodes}-{len(self.calls)}"
        call = Call(call_id, agent, provider, random.randrange(1 << 30), chunks)
        script: dict[str, Any] = {"chunks": chunks, "seed": call.seed, "chunk_chars": CHUNK_CHARS}
        # A burst fills its window in some 30 ms and lasts about a second.
        pace = {"batch": 64, "pace_ms": 3} if is_burst else {"pace_ms": random.choice((8, 10, 12))}
        script |= pace
        self.calls[call_id] = call
        order = {"id": call_id, "provider": provider, "script": script, "mark": mark, **more}
        self.agents[agent].tell(do="open", **order)
        return call

    async def until_running(self) -> None:
        """Wait until every call has passed its mark: its stream runs."""
        await self.until(lambda: all(c.is_marked for c in self.calls.values()), 30, "no mark")

    async def until_over(self) -> None:
        """Wait for the end of every call; one that does not come is in nobody's notes."""
        with contextlib.suppress(AssertionError):
            await self.until(
                lambda: all(c.is_over or c.want == "gone" for c in self.calls.values()), END_S
            )

    def note_calls(self, fault: str) -> None:
        """Write down what is expected of the calls of this episode."""
        for call in self.calls.values():
            self.note_call(fault, call)

    def note_call(self, fault: str, call: Call) -> None:
        """Write down what is expected of one call."""
        episode = f"{self.number}-{self.episodes}"
        facts = {"want": call.want, "sha": call.sha(), "chunks": call.chunks}
        self.book.note("call", id=call.id, e=episode, fault=fault, **facts)

    def strike(self, fault: str, pid: int) -> None:
        """Write down that a fault strikes now."""
        episode = f"{self.number}-{self.episodes}"
        self.book.note("fault", e=episode, w=self.number, fault=fault, pid=pid)

    def leak(self, what: str, text: str) -> None:
        """Write down that something was left over."""
        self.book.note("leak", w=self.number, fault=self.fault, what=what, text=text)

    # --- facts ---------------------------------------------------------------------------------

    async def until(self, fact: Callable[[], bool], timeout_s: float, what: str = "") -> None:
        """Wait for a fact, taking in what all processes note meanwhile."""

        def looked() -> bool:
            self.take_news()
            return fact()

        await until_async(looked, timeout_s, what)

    def take_news(self) -> None:
        """Read what agents and workers have noted."""
        for line in self.book.news():
            self._take(line)
        for line in self._journal_news():
            session = str(line["sessionId"])
            kind = "start" if line["event"] == "start" else "stop"
            if session in self.calls or kind == "start":  # nobody asks when a player's ended
                how = line["event"]
                self.book.note(kind, id=session, pid=line["pid"], t=line["atS"], how=how)
            call = self.calls.get(session)
            if call is not None and kind == "start":
                call.worker = line["pid"]

    def _take(self, line: Mapping[str, Any]) -> None:
        if line["k"] == "agent":
            agent = self.agents.get(line["name"])
            if agent is not None and agent.child.pid == line["pid"]:
                agent.client = bytes.fromhex(line["client"])
            return
        self.read_count += line["k"] == "read"
        call = self.calls.get(line.get("id", ""))
        if call is None:
            return
        if line["k"] == "mark":
            call.is_marked = True
        elif line["k"] == "ticket":
            call.ticket = line["ticket"]
        elif line["k"] == "end":
            call.is_over = call.is_marked = True
            self.book.note("prefix", id=call.id, sha=call.sha(line["chars"]))

    def _journal_news(self) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        with self.journal.open("rb") as file:
            file.seek(self.journal_at)
            data = file.read()
        whole_lines = data[: data.rfind(b"\n") + 1]
        self.journal_at += len(whole_lines)
        return [json.loads(line) for line in whole_lines.splitlines()]

    # --- questions -----------------------------------------------------------------------------

    async def ask(self, op: str, argument: object = None, timeout_s: float = 30.0) -> Any:
        """Put a query to the broker on a connection of its own."""

        def asked() -> Any:
            with RawClient(self.broker.endpoint) as client:
                client.hello(20)
                return client.query(op, argument, timeout_s)

        return await asyncio.to_thread(asked)

    async def until_serving(self) -> None:
        """Wait until every slot is served, so that the next fault finds everything in place."""
        for pool in ("one", "two"):
            await asyncio.to_thread(self.broker.until_ready, pool, 30.0)

    async def until_all_back(self) -> None:
        """Wait until every agent is connected to this broker."""
        await until_async(lambda: len(self._connected()) == len(self.agents), 10)

    def _connected(self) -> list[str]:
        clients = self.broker.status()["clients"]
        return [entry["name"] for entry in clients if entry["name"] in self.agents]

    async def workers_of(self, pool: str) -> list[int]:
        """Return the serving workers of a pool."""
        document = await self.ask("status")
        (found,) = [entry for entry in document["pools"] if entry["name"] == pool]
        return [slot["pid"] for slot in found["slots"] if slot["pid"]]


@contextlib.asynccontextmanager
async def a_world(
    number: int, book: Book, seed: int, broken: str, *, is_tcp: bool = False
) -> AsyncIterator[World]:
    """Yield a world with two agents, one of them behind a proxy; afterwards nothing of it runs."""
    name = f"{os.getpid()}-{number}"
    with run_directory() as root, contextlib.ExitStack() as stack:
        proxies = root / "p"
        proxies.mkdir(mode=0o700)
        shown = root / "inside"
        for directory in (shown, root / "board"):
            directory.mkdir()
        links = make_links(proxies, RunPaths(root / "run"), is_tcp=is_tcp)
        config = _config(root, links)
        environ = {
            WORLD_VARIABLE: name,
            VARIABLE: broken,
            **inside.environ(shown),
            "CHAOS_PROXIES": json.dumps(links.told()),
        }
        command = [sys.executable, "-m", "tests.chaos.broker", "--config", str(root / "test.toml")]
        broker = stack.enter_context(broker_in(root, config, environ, command))
        world = World(
            number,
            book,
            Random(f"{seed}/{number}"),  # noqa: S311  no secret
            broker,
            links,
            name,
            root / "journal",
            root,
        )
        watcher = Watcher(number, book.path, broker, shown)
        watching = asyncio.ensure_future(
            watcher.run(lambda line: line.get("pid") in world.pids),
        )
        for proxy in links.proxies.values():
            await proxy.start()
        try:
            await asyncio.to_thread(broker.start)
            await world.until_serving()
            await world.start_agent("near")
            await world.start_agent("far", is_proxied=True)
            yield world
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            for child in (*(a.child for a in world.agents.values()), *world.players.values()):
                child.kill()
                child.wait()
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    child.stdin.close()
            await asyncio.to_thread(stack.close)
            for proxy in links.proxies.values():
                await proxy.close()


def _config(root: Path, links: Links) -> str:
    return _CONFIG.format(
        adapter=f"{Path(__file__).with_name('seen_worker.py')}:SeenAdapter",
        links=links.config,
        world=WORLD_VARIABLE,
        broken=VARIABLE,
        shown=inside.VARIABLE,
        journal=root / "journal",
    )


async def look_for_leftovers(world: World) -> None:
    """After the last episode: nothing is open, nobody holds more than in a fresh start."""
    world.fault = "end"
    await until_idle(world)
    used = await _files(world.broker.pid)
    workers = {pid: await _files(pid) for pid in await world.workers_of("one")}
    world.broker.signal(signal.SIGUSR2)
    await asyncio.to_thread(world.broker.wait)
    await asyncio.to_thread(world.broker.start)
    await world.until_serving()
    await until_idle(world)
    await world.until_all_back()
    fresh = await _files(world.broker.pid, max)  # everybody has to come back first
    if used > fresh + 2:
        world.leak("descriptor", f"broker holds {used}, a fresh one {fresh}")
    await world.ask("swap", {"pool": "one"})
    least = min([await _files(pid) for pid in await world.workers_of("one")])
    for pid, count in workers.items():
        if count > least + 4:
            world.leak("descriptor", f"worker {pid} holds {count}, a fresh one {least}")
    await world.end_agents()
    code = await asyncio.to_thread(world.broker.stop)
    if code:
        world.leak("exit", f"the broker ended with {code}")
    with contextlib.suppress(AssertionError):
        await until_async(lambda: not with_environment(WORLD_VARIABLE, world.name), 10)
    for pid in with_environment(WORLD_VARIABLE, world.name):
        world.leak("process", f"{pid} lives")
    for path in world.broker.paths.sockets:
        if path.exists():
            world.leak("socket", str(path))
    world.take_news()
    world.book.note("end_of_world", w=world.number, rss=0)


async def _files(pid: int, chosen: Callable[[list[int]], int] = min) -> int:
    """Return how many descriptors a process keeps: the least (or most) of a second's looks."""
    counts: list[int] = []
    for _ in range(10):
        counts.append(open_files(pid))
        await asyncio.sleep(0.1)
    return chosen(counts)


async def until_idle(world: World) -> None:
    """Wait until nothing of any call is held; name what is."""
    held: list[str] = []

    async def is_idle() -> bool:
        held[:] = _held(await world.ask("status"))
        return not held

    try:
        await until_answered(is_idle, 10)
    except NotSoonEnoughError:
        world.leak("call", ", ".join(held))


def _held(document: Mapping[str, Any]) -> list[str]:
    held = [f"{document['calls']['open']} calls"] if document["calls"]["open"] else []
    held += [f"leaving {worker['pid']}" for worker in document["leaving"]]
    held += [
        f"queue {queue['name']}: {queue['depth']}"
        for queue in document["queues"]
        if queue["depth"] and not queue["name"].startswith("client ")  # of when it was last quiet
    ]
    for pool in document["pools"]:
        for slot in pool["slots"]:
            load = slot["load"]
            if slot["inFlight"] or slot["held"] or load.get("running") or load.get("tails"):
                held.append(f"worker {slot['pid']} of {pool['name']}")
    return held
