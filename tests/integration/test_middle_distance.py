"""An agent on another host, which is a network namespace here, and the link to it that fails."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from trunkline_broker.key_files import add_peer, make_server
from trunkline_workers.adapters.scripted.content import sha256, whole

from tests.support.broker import BrokerProcess, broker_in, run_directory
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration
HERE: Final = "10.213.77.1"
THERE: Final = "10.213.77.2"
DROP_S: Final = 5.0
ORPHANED_S: Final = 8.0
NOTICED_S: Final = 10.0
CHUNKS: Final = 300
CONFIG: Final = f"""\
[broker]
tcp_clients = "{HERE}:0"
tcp_clients_lane = "{HERE}:0"
keys_dir = "keys"
orphan_timeout_s = {ORPHANED_S}
[worker.scripted]
adapter = "scripted"
"""
AGENT: Final = """\
import asyncio, hashlib, json, sys, trunkline
async def main():
    text = ""
    async with trunkline.connect(sys.argv[1], keys=sys.argv[2]) as llm:
        stream = llm.stream(provider="scripted", model="any", messages=sys.argv[3])
        async for chunk in stream:
            if isinstance(chunk, trunkline.TextDelta):
                text += chunk.text
                print("chunk", flush=True)
        failure = stream.finish.failure
        print(json.dumps({
            "kind": stream.finish.kind,
            "code": failure and failure.code,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        }), flush=True)
asyncio.run(main())
"""


def ip(*arguments: str) -> None:
    """Run `ip`."""
    found = shutil.which("ip")
    if found is None:
        raise FileNotFoundError("there is no ip program")
    subprocess.run([found, *arguments], check=True, capture_output=True)  # noqa: S603  fixed words


@dataclass(slots=True)
class Distance:
    """A broker here, and a namespace there."""

    broker: BrokerProcess
    namespace: str
    link: str
    key_file: Path

    def agent(self) -> subprocess.Popen[str]:
        """Start an agent there; it says each chunk, and at last what it has got."""
        endpoint = self.broker.status()["endpoints"]["tcp"]["control"]
        request = json.dumps({"script": {"chunks": CHUNKS, "pace_ms": 10, "seed": 3}})
        there = ["ip", "netns", "exec", self.namespace]
        command = [*there, sys.executable, "-c", AGENT, endpoint, str(self.key_file), request]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own

    def set_link(self, state: str) -> None:
        """Let the link be up or down."""
        ip("link", "set", self.link, state)


@pytest.fixture(scope="module")
def distance() -> Iterator[Distance]:
    """Yield both, joined by a pair of virtual interfaces."""
    number = os.getpid()
    namespace, link, other = f"tl-{number}", f"tla{number}", f"tlb{number}"
    try:
        ip("netns", "add", namespace)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"no network namespace can be made here: {exc}")
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", other, "netns", namespace)
        ip("address", "add", f"{HERE}/30", "dev", link)
        ip("-n", namespace, "address", "add", f"{THERE}/30", "dev", other)
        ip("link", "set", link, "up")
        ip("-n", namespace, "link", "set", other, "up")
        with run_directory() as root:
            make_server(root / "keys")
            add_peer(root / "keys", "clients", "far", root / "far")
            with broker_in(root, CONFIG) as broker:
                broker.start()
                broker.until_ready("scripted")
                yield Distance(broker, namespace, link, root / "far")
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no link to a network namespace can be made here: {exc.stderr!r}")
    finally:
        ip("netns", "del", namespace)


async def _struck(distance: Distance, down_s: float | None) -> dict[str, Any]:
    """Drop the link in the middle of a stream, for a time or for good; return what arrived."""
    with distance.agent() as agent:
        assert agent.stdout is not None
        for _ in range(20):
            assert await asyncio.to_thread(agent.stdout.readline) == "chunk\n"
        distance.set_link("down")
        try:
            if down_s is not None:
                await asyncio.sleep(down_s)  # the fault itself: nothing can be waited for
                distance.set_link("up")
            rest = await asyncio.wait_for(asyncio.to_thread(agent.stdout.read), 40 * SLOW)
        finally:
            distance.set_link("up")
            agent.kill()
    return json.loads(rest.splitlines()[-1])


async def test_a_stream_survives_five_seconds_without_a_link(distance: Distance) -> None:
    """It goes on by itself, to the letter."""
    got = await _struck(distance, DROP_S)
    assert got == {"kind": "stop", "code": None, "sha256": sha256(whole(CHUNKS, 40, 3))}


@pytest.mark.skipif(os.environ.get("SCALE", "1") == "1", reason="takes 20 s; SCALE=5 runs it")
async def test_a_link_that_stays_away_ends_the_stream_clearly(distance: Distance) -> None:
    """Once the connection is seen to be dead (10 s) and `orphan_timeout` is over."""
    began_s = time.monotonic()
    got = await _struck(distance, None)
    assert (got["kind"], got["code"]) == ("error", "TRANSPORT")
    assert time.monotonic() - began_s < (NOTICED_S + ORPHANED_S + 10) * SLOW
