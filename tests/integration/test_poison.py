"""A request that crashes its worker, beside calls that do not, with real processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import trunkline
from trunkline import Code, LlmRuntime

from tests.support.broker import BrokerProcess, running_broker
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration
CONFIG: Final = """\
[worker.scripted]
adapter = "scripted"
providers = ["scripted"]
replicas = {replicas}
restart = {{ intensity = 5, period_s = 60, initial_delay_s = 0.05, max_delay_s = 0.2 }}
"""
POISON: Final = {"steps": [{"sleep_ms": 200}, {"exit": 139}]}


@pytest.fixture(params=[1, 2])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with running_broker(CONFIG.format(replicas=request.param)) as process:
        process.until_ready("scripted")
        yield process


async def generate(llm: LlmRuntime, script: dict[str, Any]) -> str:
    """Return how a call ended: the kind of its finish, or the code of its failure."""
    messages = json.dumps({"script": script})
    async with asyncio.timeout(90 * SLOW):
        result = await llm.generate(provider="scripted", model="any", messages=messages)
    failure = result.finish.failure
    return result.finish.kind if failure is None else failure.code


def restarts(broker: BrokerProcess) -> int:
    (pool,) = broker.status()["pools"]
    return sum(slot["restarts"] for slot in pool["slots"])


async def test_innocents_beside_a_request_that_crashes_its_worker(broker: BrokerProcess) -> None:
    """Two workers die, the request ends with its reason, twenty calls beside it end well."""
    async with trunkline.connect(broker.endpoint) as llm:
        async with asyncio.TaskGroup() as tasks:
            ones = [
                tasks.create_task(generate(llm, {"chunks": 60, "pace_ms": 25, "seed": number}))
                for number in range(20)
            ]
            await asyncio.sleep(0.3 * SLOW)
            poison = tasks.create_task(generate(llm, POISON))
        assert poison.result() == Code.CRASHES_WORKER
        assert [one.result() for one in ones] == ["stop"] * 20
        assert restarts(broker) == 2
        # The same request again, by another agent too, costs no further worker.
        async with trunkline.connect(broker.endpoint) as other:
            for each in (llm, other):
                assert await generate(each, POISON) == Code.CRASHES_WORKER
        assert restarts(broker) == 2
        await until_async(lambda: broker.status()["calls"]["open"] == 0, 10, "a call is left")
