"""The image's entry point, command and health check, run in namespaces: no engine is needed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trunkline

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.processes import is_alive
from tests.support.raw_peer import RawClient
from tests.support.timing import until

pytestmark = pytest.mark.integration
DOCKERFILE = (Path(__file__).parents[2] / "deploy" / "docker" / "Dockerfile").read_text()
BIN = Path(sys.executable).parent  # what the image has in /opt/trunkline/bin
USER = "10001"
UNSHARE = ["unshare", "--user", f"--map-user={USER}", f"--map-group={USER}"]
UNSHARE += ["--pid", "--fork", "--mount-proc", "--kill-child"]
SLOW_STREAM = json.dumps({"script": {"chunks": 50, "pace_ms": 10}})


def instruction(name: str) -> list[str]:
    """Return the words of the image's one instruction of that name, or of its health check."""
    text = DOCKERFILE.replace("\\\n", " ")
    (found,) = re.findall(rf"^{name} (\[.*\])$", text, re.MULTILINE)
    return json.loads(found)


def health(broker: BrokerProcess) -> int:
    """Run the health check, as the engine does; return its exit code."""
    return subprocess.run(  # noqa: S603  the image's own command
        instruction("HEALTHCHECK .* CMD"), env=broker.environ, capture_output=True, check=False
    ).returncode


@contextmanager
def container() -> Iterator[BrokerProcess]:
    """Yield the entry point with its command, not started, as pid 1 of a namespace."""
    assert f"USER {USER}:{USER}" in DOCKERFILE
    for program in ("unshare", "nsenter", instruction("ENTRYPOINT")[0]):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    if not (BIN / "trunkline").exists():
        pytest.skip("the command is not installed beside this interpreter")
    if subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode:  # noqa: S603
        pytest.skip("no namespaces can be made here")
    with run_directory() as root:
        environ = {
            "TRUNKLINE_CONFIG": str(root / "test.toml"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        command = [*UNSHARE, *instruction("ENTRYPOINT"), *instruction("CMD")]
        with broker_in(root, environ=environ, command=command) as broker:
            yield broker


def until_serving(broker: BrokerProcess) -> None:
    """Wait for its worker; its numbers of processes mean others outside, so none is noted."""
    with RawClient(broker.endpoint) as client:
        client.hello(15.0)
        until(lambda: client.status()["pools"][0]["state"] == "serving", 15.0)


def descendants(pid: int) -> list[int]:
    """Return the processes below one, dead ones that nobody has waited for included."""
    found: list[int] = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


def status_line(pid: int, name: str) -> list[str]:
    """Return the words of one line of `/proc/PID/status`."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1:] for line in text.splitlines() if line.startswith(f"{name}:"))


async def test_a_stop_of_the_container_lets_streams_end_and_leaves_nothing() -> None:
    """`docker stop` is SIGTERM to pid 1; the health check tells the engine what is so."""
    with container() as broker:
        assert health(broker) == 1
        await asyncio.to_thread(broker.start)
        await asyncio.to_thread(until_serving, broker)
        assert health(broker) == 0
        first, *others = descendants(broker.pid)
        assert status_line(first, "NSpid")[-1] == "1"
        assert status_line(first, "Name") == ["tini"]
        assert len(others) == 2  # broker and worker
        async with trunkline.connect(broker.endpoint) as llm:
            stream = llm.stream(provider="scripted", model="m", messages=SLOW_STREAM)
            await anext(stream)
            os.kill(first, signal.SIGTERM)
            chunks = [chunk async for chunk in stream]
            assert stream.finish is not None
            assert stream.finish.kind == "stop"
            assert len(chunks) >= 50
        assert await asyncio.to_thread(broker.wait) == 0
        await asyncio.to_thread(until, lambda: not any(map(is_alive, [first, *others])), 5)
        assert health(broker) == 1


def test_what_an_adapter_leaves_behind_is_reaped_in_the_container() -> None:
    """Its parent is gone, so it falls to pid 1; if nobody waited for it, it would stay for ever."""
    with container() as broker:
        broker.start()
        until_serving(broker)
        first = descendants(broker.pid)[0]
        inside = ["nsenter", "--user", "--pid", "--preserve-credentials", f"--target={first}"]
        script = "exec 3>&1 >/dev/null 2>&1; sleep 0.2 3>&- & sleep 60 3>&- & echo $! >&3"
        left = subprocess.run(  # noqa: S603
            [*inside, "/bin/sh", "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        orphans = [pid for pid in descendants(first) if status_line(pid, "Name") == ["sleep"]]
        long = [pid for pid in orphans if status_line(pid, "NSpid")[-1] == left]
        assert [int(status_line(pid, "PPid")[0]) for pid in long] == [first]
        os.kill(long[0], signal.SIGKILL)
        gone = [Path(f"/proc/{pid}") for pid in orphans]
        until(lambda: not any(path.exists() for path in gone), 5)  # no zombie either
        os.kill(first, signal.SIGTERM)
        assert broker.wait() == 0
