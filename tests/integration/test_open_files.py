"""A broker with few descriptors: who is refused, who is closed, and that it lives on."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trunkline
from trunkline_broker.open_files import SMALLEST_LIMIT, OpenFiles
from trunkline_protocol import frames

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.raw_peer import RawClient
from tests.support.timing import until_async

pytestmark = pytest.mark.integration

LIMIT = 256
SCRIPTED = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
"""
LIMITED = """\
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def command(root: Path, limit: int) -> list[str]:
    """Return the command of a broker that may open so many files."""
    broker = ["-m", "trunkline_broker", "--config", str(root / "test.toml")]
    return [sys.executable, "-c", LIMITED, str(limit), *broker]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield a broker with `LIMIT` descriptors and one worker."""
    with run_directory() as root, broker_in(root, SCRIPTED, None, command(root, LIMIT)) as small:
        small.start()
        small.until_ready("scripted")
        yield small


async def answer(broker: BrokerProcess) -> str:
    """Make one call."""
    async with trunkline.connect(broker.endpoint, timeout_s=10) as llm:
        return (await llm.generate(provider="scripted", model="m", messages="hello")).text


async def test_clients_beyond_the_limit_are_refused_and_told_why(broker: BrokerProcess) -> None:
    """Commands still get in, and who leaves makes room."""
    assert "open_files_limit_small" in broker.log_text()
    here: list[RawClient] = []
    with contextlib.ExitStack() as stack:
        while len(here) < LIMIT:
            client = stack.enter_context(RawClient(broker.endpoint))
            client.send(frames.Hello((1, 0), client.client, 1, "agent"))
            if isinstance(client.receive(), frames.Refused):
                break
            here.append(client)
            stack.callback(leave, client)
        assert 10 < len(here) < OpenFiles(LIMIT).clients_line // 3
        with pytest.raises(trunkline.BrokerRefusedError, match="limit of open files") as seen:
            await answer(broker)
        assert seen.value.code == "OVERLOADED"
        async with trunkline.connect(broker.endpoint, name="trunkline status") as llm:
            assert len((await llm.query("status"))["clients"]) == len(here) + 1
    assert await answer(broker)


def files_of(pid: int) -> int:
    """Return how many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def leave(client: RawClient) -> None:
    """Take leave and wait until that was read; else the place is kept for whoever comes back."""
    client.send(frames.Bye(), frames.Bye())
    client.receive_kind(frames.Who)


async def closed_so_far(llm: trunkline.LlmRuntime) -> int:
    """Return how many connections the broker has closed because they were too many."""
    counters = (await llm.query("status"))["counters"]
    return int(counters.get("security.connection_over_limit", 0))


@pytest.mark.parametrize("name", ["control", "lane", "workers_control", "workers_lane"])
async def test_a_flood_of_connections_that_say_nothing_ends_nobody(
    broker: BrokerProcess, name: str
) -> None:
    """They are closed as they come; whoever was there goes on, and all is well afterwards."""
    path = str(getattr(broker.paths, name))
    pid, files = broker.pid, OpenFiles(LIMIT)
    async with trunkline.connect(broker.endpoint, timeout_s=10) as llm:
        before = await closed_so_far(llm)
        with contextlib.ExitStack() as flood:
            for _ in range(40):
                burst = [flood.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(10)]
                for each in burst:
                    each.connect(path)
                # As fast as it closes: a faster flood is the race that SECURITY.md tells of.
                await until_async(lambda: files_of(pid) <= files.workers_line)
            said = await llm.generate(provider="scripted", model="m", messages="hello")
            assert said.finish.kind == "stop"
            assert await closed_so_far(llm) - before >= 100
    assert broker.child is not None
    assert broker.child.poll() is None
    assert broker.pid == pid
    assert await answer(broker)


def test_too_small_a_limit_is_refused_at_the_start() -> None:
    with run_directory() as root:
        (root / "test.toml").write_text(SCRIPTED)
        start = command(root, SMALLEST_LIMIT - 1)
        environ = {"TRUNKLINE_RUN_DIR": str(root / "run")}
        ended = subprocess.run(start, env=environ, capture_output=True, check=False, timeout=30)  # noqa: S603
        assert ended.returncode == 1
        assert b"at least 256" in ended.stderr
