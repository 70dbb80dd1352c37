"""`deploy/kubernetes/base` as processes: workers of their own over TCP and CURVE."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
import trunkline

from tests.support.cluster import Cluster, WorkerPod, a_cluster, pod_of, until_ready
from tests.support.timing import SLOW, until, until_async

pytestmark = pytest.mark.integration
PIECES = 20_000  # far more than a window
STREAM = json.dumps({"script": {"chunks": PIECES, "batch": 50}})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a broker with the two workers of the manifest."""
    with a_cluster() as made:
        pods = [made.start_worker(), made.start_worker()]
        for pod in pods:
            until_ready(pod)
        yield made


class Reading:
    """A stream whose reader waits in the middle, and so does the worker."""

    def __init__(self, llm: trunkline.LlmRuntime) -> None:
        self.stream = llm.stream(provider="scripted", model="m", messages=STREAM)
        self.pieces = 0

    async def begun(self) -> None:
        await self._read(100)

    async def assert_whole(self) -> None:
        await asyncio.wait_for(self._read(PIECES + 1), 20 * SLOW)
        assert self.stream.finish is not None
        assert self.stream.finish.kind == "stop", self.stream.finish
        assert self.pieces == PIECES

    async def _read(self, until_pieces: int) -> None:
        async for chunk in self.stream:
            self.pieces += isinstance(chunk, trunkline.TextDelta)
            if self.pieces == until_pieces:
                return


def busy(cluster: Cluster) -> list[WorkerPod]:
    """Return the pods in which calls run."""
    pools = cluster.broker.status()["pools"]
    running = {slot["pid"]: slot["inFlight"] for pool in pools for slot in pool["slots"]}
    return [pod for pod in cluster.pods if running.get(pod.child.pid)]


async def test_a_rollout_of_workers_costs_no_stream(cluster: Cluster) -> None:
    """The new one is ready, the old one is told to stop: it ends its streams, then itself."""
    async with trunkline.connect(cluster.address, keys=cluster.agent) as llm:
        reading = Reading(llm)
        await reading.begun()
        (old,) = await asyncio.to_thread(busy, cluster)
        new = await asyncio.to_thread(cluster.start_worker)
        assert not new.probe("readinessProbe")
        await asyncio.to_thread(until_ready, new)
        old.child.send_signal(signal.SIGTERM)
        await until_async(lambda: (old.tmp / "health").read_text().startswith("draining\n"), 5)
        assert not old.probe("readinessProbe")
        assert old.probe("livenessProbe")
        for _ in range(4):
            result = await llm.generate(provider="scripted", model="m", messages="hello")
            assert result.failure is None
        # None of the four went there, and the new one is rid of them.
        await asyncio.to_thread(until, lambda: busy(cluster) == [old])
        await reading.assert_whole()
        assert await asyncio.to_thread(old.child.wait, 15 * SLOW) == 0


async def test_another_pod_of_the_broker_costs_no_stream(cluster: Cluster) -> None:
    """Its volumes are empty: workers and agents tell it what runs."""
    async with trunkline.connect(cluster.address, keys=cluster.agent) as llm:
        reading = Reading(llm)
        await reading.begun()
        await asyncio.to_thread(cluster.replace_broker)
        await reading.assert_whole()
        result = await llm.generate(provider="scripted", model="m", messages="hello")
        assert result.failure is None


def test_the_probes_of_the_broker_are_answered_and_leave_no_trace(cluster: Cluster) -> None:
    """Kubernetes asks every few seconds: nothing is logged or counted for that."""
    before = cluster.broker.log_text()
    (container,) = pod_of("broker.yaml")["containers"]
    page = cluster.broker.status()["measures"]["metrics"].replace("/metrics", "/healthz")
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[kind]["httpGet"] == {"path": "/healthz", "port": "metrics"}
        with urllib.request.urlopen(page, timeout=5 * SLOW) as answer:  # noqa: S310  http, loopback
            assert answer.status == 200
    assert cluster.broker.log_text() == before


def test_a_worker_whose_loop_is_stuck_is_not_alive(cluster: Cluster) -> None:
    """A stopped process stands for it; nobody else could end it."""
    pod = cluster.start_worker()
    until_ready(pod)
    assert pod.probe("startupProbe")
    pod.child.send_signal(signal.SIGSTOP)
    until(lambda: not pod.probe("livenessProbe", patience_s=1), 10)
    pod.child.kill()
    pod.child.wait()
