"""`WorkerRuntime`: all or nothing, in force only once committed; the pinned registry scripts."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from trunkline_protocol.failure import LlmError
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmProviderInfo,
)
from trunkline_protocol.retry_policy import AlwaysRetryPolicy, ResolvedRetryPolicy
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.core.link import RegistrationSet
from trunkline_workers.runtime import WorkerRuntime


class Broker:
    """Commits everything, or refuses with a code; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[RegistrationSet] = []
        self.refusal: LlmError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def submit(self, wanted: RegistrationSet) -> LlmError | None:
        self.asked.append(wanted)
        await self.gate.wait()
        return self.refusal


def spawn(
    change: Coroutine[Any, Any, LlmError | None],
) -> asyncio.Task[LlmError | None]:
    return asyncio.get_running_loop().create_task(change)


def a_runtime() -> tuple[WorkerRuntime, Broker]:
    broker = Broker()
    return WorkerRuntime(broker.submit, spawn), broker


async def a_ready_runtime() -> tuple[WorkerRuntime, Broker]:
    runtime, broker = a_runtime()
    await runtime.publish()
    return runtime, broker


def providers(runtime: WorkerRuntime) -> list[str]:
    return [route.provider for item in runtime.registry.adapters for route in item.routes]


async def refused(change: Coroutine[Any, Any, object]) -> str:
    with pytest.raises(LlmError) as caught:
        await change
    return caught.value.code


class Described(ScriptedAdapter):
    """An adapter whose provider info and policy are given."""

    def __init__(self, info: Any = None, policy: Any = None) -> None:
        super().__init__()
        self.info = info
        self.policy = policy

    def provider_info(self, provider: str) -> LlmProviderInfo:
        if isinstance(self.info, Exception):
            raise self.info
        return self.info if self.info is not None else super().provider_info(provider)

    def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy | None:
        return self.policy


async def test_before_ready_changes_are_collected_and_published_as_one() -> None:
    runtime, broker = a_runtime()
    await runtime.register_adapter(["a"], ScriptedAdapter())
    await runtime.register_adapter(["b"], ScriptedAdapter())
    assert broker.asked == []
    await runtime.publish()
    (asked,) = broker.asked
    assert len(asked.adapters) == 2


async def test_a_refusal_of_the_broker_leaves_everything_as_it_was() -> None:
    runtime, broker = await a_ready_runtime()
    handle = await runtime.register_adapter(["a"], ScriptedAdapter())
    broker.refusal = LlmError.of("taken", "DUPLICATE_ADAPTER")
    assert await refused(runtime.register_adapter(["b"], ScriptedAdapter())) == "DUPLICATE_ADAPTER"
    assert await refused(handle.replace(["b"])) == "DUPLICATE_ADAPTER"
    assert providers(runtime) == ["a"]


async def test_replace_and_dispose_of_a_handle() -> None:
    runtime, broker = await a_ready_runtime()
    adapter = ScriptedAdapter()
    handle = await runtime.register_adapter(["a"], adapter)
    await handle.replace(["b", "c"])
    assert providers(runtime) == ["b", "c"]
    assert runtime.owned_providers(adapter) == {"b", "c"}
    await handle.replace([])
    assert providers(runtime) == []
    await handle.dispose()
    asked = len(broker.asked)
    await handle.dispose()
    assert len(broker.asked) == asked
    assert await refused(handle.replace([])) == "REGISTRATION_DISPOSED"


async def test_changes_are_asked_one_at_a_time_in_their_order() -> None:
    runtime, broker = await a_ready_runtime()
    broker.gate.clear()
    first = spawn_any(runtime.register_adapter(["a"], ScriptedAdapter()))
    second = spawn_any(runtime.register_adapter(["a"], ScriptedAdapter()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(broker.asked) == 2  # publish and the first; the second waits
    broker.gate.set()
    await first
    assert await refused(as_coroutine(second)) == "DUPLICATE_ADAPTER"


async def test_a_caller_that_gives_up_does_not_undo_the_request() -> None:
    runtime, broker = await a_ready_runtime()
    broker.gate.clear()
    task = spawn_any(runtime.register_adapter(["a"], ScriptedAdapter()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    broker.gate.set()
    await runtime.register_adapter(["b"], ScriptedAdapter())
    assert providers(runtime) == ["a", "b"]


async def test_info_and_policy_are_captured_at_registration() -> None:
    runtime, broker = await a_ready_runtime()
    adapter = Described(LlmProviderInfo(id="a", name="Ay"), AlwaysRetryPolicy())
    await runtime.register_adapter(["a"], adapter)
    adapter.info = LlmProviderInfo(id="a", name="changed")
    route = runtime.registry.route("a")
    assert route is not None
    assert route.info == {"id": "a", "name": "Ay"}
    assert route.policy["mode"] == "always"
    assert broker.asked[-1].adapters[0]["routes"][0]["policy"]["mode"] == "always"


@pytest.mark.parametrize(
    "info",
    [
        LlmProviderInfo(id="other", name="N"),
        LlmProviderInfo(id="a", name=""),
        {"id": "a", "name": "N"},
        RuntimeError("no"),
    ],
)
async def test_wrong_provider_info_is_an_invalid_adapter(info: Any) -> None:
    runtime, _ = await a_ready_runtime()
    assert await refused(runtime.register_adapter(["a"], Described(info))) == "INVALID_ADAPTER"


async def test_an_adapter_may_refuse_a_route_in_its_own_words() -> None:
    runtime, _ = await a_ready_runtime()
    error = LlmError.of("no key", "MISSING_CREDENTIAL")
    assert await refused(runtime.register_adapter(["a"], Described(error))) == "MISSING_CREDENTIAL"


async def test_directory_and_discovery() -> None:
    runtime, broker = await a_ready_runtime()
    entry = LlmConfigurableProvider(
        provider="x", display_name="X", settings_ns="ns", settings_path=()
    )
    directory = await runtime.register_configurable_providers([entry])
    assert await refused(runtime.register_configurable_providers([])) == "INVALID_DIRECTORY"
    await directory.replace([])
    await directory.dispose()

    async def discover(_: LlmModelDiscoveryRequest) -> list[LlmDiscoveredModel]:
        return []

    offer = await runtime.register_model_discovery("ns", discover)
    assert runtime.discoverer("ns") is discover
    assert broker.asked[-1].discovery == ("ns",)
    await offer.dispose()
    await offer.dispose()
    assert runtime.discoverer("ns") is None


def spawn_any(change: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(change)


async def as_coroutine(task: asyncio.Task[Any]) -> object:
    return await task


# --- the pinned scripts ------------------------------------------------------------------------


def _vectors() -> list[Any]:
    shared = os.environ.get("TRUNKLINE_SHARED")
    root = Path(shared) if shared else Path(__file__).parents[4] / "shared"
    file = root / "vectors" / "registry.json"
    return json.loads(file.read_text()) if file.is_file() else []


class Handles:
    """Plays one script against one runtime."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self.runtime = runtime
        self.adapters: dict[str, LlmAdapter] = {}
        self.handles: dict[str, Any] = {}
        self.events = 0

    async def play(self, step: dict[str, Any]) -> dict[str, Any]:
        before = self.runtime.registry
        try:
            await self._do(step)
            result: dict[str, Any] = {"ok": True}
        except LlmError as exc:
            result = {"error": {"code": exc.code}}
        self.events += self.runtime.registry is not before
        directory = [entry for item in self.runtime.registry.directory for entry in item.entries]
        return {
            "result": result,
            "providers": providers(self.runtime),
            "directory": [f"{entry['provider']}/{entry['displayName']}" for entry in directory],
            "events": self.events,
        }

    async def _do(self, step: dict[str, Any]) -> None:
        name = step["handle"]
        match step["op"]:
            case "register":
                adapter = self._adapter(step)
                self.handles[name] = await self.runtime.register_adapter(step["providers"], adapter)
            case "registerDirectory":
                self.handles[name] = await self.runtime.register_configurable_providers(
                    step["entries"]
                )
            case "replace":
                if name in self.handles:
                    await self.handles[name].replace(step.get("providers", step.get("entries")))
            case "dispose":
                if name in self.handles:
                    await self.handles[name].dispose()
            case op:
                raise AssertionError(op)

    def _adapter(self, step: dict[str, Any]) -> LlmAdapter:
        infos = step.get("info", {})

        class Named(ScriptedAdapter):
            def provider_info(self, provider: str) -> LlmProviderInfo:
                info = infos.get(provider)
                if info is None:
                    return super().provider_info(provider)
                return LlmProviderInfo.from_dict(info)

        return self.adapters.setdefault(step["adapter"], Named())


@pytest.mark.parametrize("case", _vectors(), ids=lambda case: case["id"])
async def test_a_pinned_registry_script(case: dict[str, Any]) -> None:
    runtime, _ = await a_ready_runtime()
    handles = Handles(runtime)
    for step, expected in zip(case["input"], case["expected"], strict=True):
        assert await handles.play(step) == expected, step
