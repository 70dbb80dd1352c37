"""Questions, directory, discovery and events of a runtime, against a real broker and worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trunkline
from trunkline import Code, LlmError, LlmRuntime, LocalProtocolError

from tests.support.broker import BrokerProcess, running_broker
from tests.support.control import CommandError, Control, controlled_broker
from tests.support.timing import SLOW, until_async

pytestmark = pytest.mark.integration

ENTRY = {"provider": "x", "displayName": "X", "settingsNs": "ns", "settingsPath": ["p"]}
SECRET = "sk-do-not-show-this-to-anybody"  # noqa: S105  it is none


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[BrokerProcess, Control]]:
    """Yield one broker with two workers that obey."""
    with controlled_broker(("one", "two")) as (broker, control):
        yield broker, control


@pytest.fixture
def control(world: tuple[BrokerProcess, Control]) -> Iterator[Control]:
    """Yield what commands the workers, with the route `a` in the first."""
    control = world[1]
    control.ask("one", "register", handle="a", adapter="a", providers=["a"])
    yield control
    for pool in ("one", "two"):
        control.ask(pool, "reset")


@pytest.fixture
async def llm(world: tuple[BrokerProcess, Control], control: Control) -> AsyncIterator[LlmRuntime]:
    """Yield a client of that broker."""
    async with trunkline.connect(world[0].endpoint) as runtime:
        yield runtime


def notes(control: Control) -> list[str]:
    """Return what happened in the adapter of the route `a`."""
    return control.ask("one", "seen", adapter="a")["notes"]


async def code_of(question: Any) -> str:
    """Return the code with which a question fails."""
    with pytest.raises(LlmError) as seen:
        await question
    return seen.value.code


async def test_every_question_has_a_timeout_that_reaches_the_adapter(
    llm: LlmRuntime, control: Control
) -> None:
    control.ask("one", "plan", adapter="a", plan={"hangAt": "resolveModel"})
    config = {"provider": "a", "model": "m"}
    for question in (
        llm.resolve_model_info("a", "m", timeout_s=0.2),
        llm.resolve_call_config(config, timeout_s=0.2),
        llm.prepare_call(config, timeout_s=0.2),
    ):
        assert await code_of(question) == Code.TIMEOUT
    await until_async(lambda: notes(control).count("resolveModel was cancelled") == 3)
    for timeout_s in (0, -1, float("nan"), float("inf"), 601):
        with pytest.raises(LocalProtocolError, match="timeout_s"):
            await llm.models(timeout_s=timeout_s)


async def test_cancelling_a_question_reaches_the_adapter(llm: LlmRuntime, control: Control) -> None:
    control.ask("one", "plan", adapter="a", plan={"hangAt": "listModels"})
    asking = asyncio.ensure_future(llm.list_models("a"))
    await until_async(lambda: notes(control) == ["listModels hangs"])
    begun_s = time.monotonic()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until_async(lambda: notes(control)[1:] == ["listModels was cancelled"])
    assert time.monotonic() - begun_s < 1 * SLOW


async def test_closing_ends_questions_and_events(
    world: tuple[BrokerProcess, Control], control: Control
) -> None:
    control.ask("one", "plan", adapter="a", plan={"hangAt": "listModels"})
    async with trunkline.connect(world[0].endpoint) as llm:
        asking = asyncio.ensure_future(llm.list_models("a"))
        updates = llm.adapters_updated()
        waiting = asyncio.ensure_future(anext(updates, "ended"))
        await until_async(lambda: notes(control) == ["listModels hangs"])
    assert await code_of(asking) == Code.ABORTED
    assert await waiting == "ended"


async def test_directory_and_discovery(llm: LlmRuntime, control: Control) -> None:
    """Between pools as within one; an entry keeps what it declares."""
    control.ask("one", "registerDirectory", handle="d", entries=[{**ENTRY, "declared": True}])
    (entry,) = await llm.list_configurable_providers()
    assert entry.to_dict() == {**ENTRY, "declared": True}
    with pytest.raises(CommandError, match="DUPLICATE_DIRECTORY"):
        control.ask("two", "registerDirectory", handle="d", entries=[ENTRY])
    found = [{"id": "m", "name": "M", "contextWindow": 5, "maxTokens": 2}, {"id": "m"}]
    control.ask("two", "registerDiscovery", handle="f", settingsNs="ns", discovered=found)
    with pytest.raises(CommandError, match="DUPLICATE_DISCOVERY"):
        control.ask("one", "registerDiscovery", handle="f", settingsNs="ns", discovered=[])
    with pytest.raises(CommandError, match="INVALID_DISCOVERY"):
        control.ask("one", "registerDiscovery", handle="f", settingsNs="", discovered=[])
    assert await llm.list_model_discovery_namespaces() == ["ns"]
    (model,) = await llm.discover_models("ns", {"provider": "known"})
    assert model.to_dict() == found[0]
    assert await code_of(llm.discover_models("ns", {})) == Code.INVALID_DISCOVERY
    assert await code_of(llm.discover_models("other", {"provider": "x"})) == Code.NO_DISCOVERY


async def test_an_adapter_registers_more_than_its_routes() -> None:
    """In its setup hook: here its directory entry and the discovery of its pool."""
    config = """\
[worker.gateway]
adapter = "chat_completions"
providers = ["gate"]
options = { baseUrl = "http://127.0.0.1:9/v1", models = [{ id = "big", contextWindow = 100 }] }
"""
    with running_broker(config) as broker:
        broker.until_ready("gateway")
        async with trunkline.connect(broker.endpoint) as llm:
            (entry,) = await llm.list_configurable_providers()
            assert (entry.provider, entry.settings_ns) == ("gate", "gateway")
            assert (entry.settings_path, entry.declared) == (("options",), True)
            assert await llm.list_model_discovery_namespaces() == ["gateway"]
            (model,) = await llm.discover_models("gateway", {"provider": "gate"})
            assert model.to_dict() == {"id": "big", "name": "big", "contextWindow": 100}
            draft = {"baseURL": "http://127.0.0.1:9/v1", "apiKey": SECRET}
            assert await code_of(llm.discover_models("gateway", draft)) == Code.TRANSPORT


async def test_a_credential_travels_to_one_worker_and_is_shown_nowhere(
    world: tuple[BrokerProcess, Control], llm: LlmRuntime, control: Control
) -> None:
    """Not in the status, not in a log, not in the failure of an endpoint that echoes it."""
    control.ask(
        "two", "registerDiscovery", handle="f", settingsNs="ns", failure="AUTH", discovered=[]
    )
    draft = {"baseURL": "http://gateway.example/v1", "apiKey": SECRET}
    with pytest.raises(LlmError) as seen:
        await llm.discover_models("ns", draft)
    assert (seen.value.code, SECRET in str(seen.value)) == ("AUTH", False)
    assert control.ask("two", "drafts") == [draft]
    assert control.ask("one", "drafts") == []
    assert SECRET not in repr(trunkline.LlmModelDiscoveryRequest.from_dict(draft))
    assert SECRET not in str(await llm.status())
    run_dir = world[0].run_dir
    for path in [run_dir / "stderr", *run_dir.rglob("*.log"), *run_dir.rglob("*.json")]:
        assert SECRET not in path.read_text(errors="replace"), path


async def test_an_event_for_each_commit_point(llm: LlmRuntime, control: Control) -> None:
    """A callback is called for each; an iterator merges what was not read; both know no more."""
    calls: list[str] = []

    def failing() -> None:
        calls.append("failing")
        raise ZeroDivisionError

    llm.on_adapters_updated(failing)
    dispose = llm.on_adapters_updated(lambda: calls.append("second"))
    updates = llm.adapters_updated()
    control.ask("one", "replace", handle="a", providers=["a", "b"])
    await llm.models()
    assert await anext(updates) is None
    assert calls == ["failing", "second"]
    dispose()
    dispose()
    with pytest.raises(CommandError, match="INVALID_ADAPTER"):
        control.ask("one", "replace", handle="a", providers=["a", ""])
    for providers in ([], ["a"], ["a", "b"]):
        control.ask("one", "replace", handle="a", providers=providers)
    await llm.models()
    assert calls == ["failing", "second", *["failing"] * 3]
    assert await anext(updates) is None
    waiting = asyncio.ensure_future(anext(updates))
    await llm.models()
    assert not waiting.done()
    with pytest.raises(LocalProtocolError, match="one task"):
        await anext(updates)
    control.ask("one", "dispose", handle="a")
    await waiting
    await updates.aclose()
    assert [update async for update in updates] == []
    with pytest.raises(LocalProtocolError, match="plain function"):
        llm.on_adapters_updated(llm.models)


async def test_a_new_broker_is_a_reason_to_look_again() -> None:
    """What happened while the connection was down was announced to nobody."""
    with running_broker() as broker:
        broker.until_ready("scripted")
        async with trunkline.connect(broker.endpoint) as llm:
            updates = llm.adapters_updated()
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await asyncio.wait_for(anext(updates), 15 * SLOW)
            assert await llm.models() == ["scripted"]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"messages": "x" * (33 * 1024 * 1024)}, r"^messages: "),
        ({"messages": "x", "system": "x" * (33 * 1024 * 1024)}, r"^system: "),
        ({"messages": "x", "model": "m" * 257}, r"^model: "),
        ({"messages": "x", "provider": "p" * 257}, r"^provider: "),
        ({"messages": "x", "temperature": float("nan")}, r"^temperature"),
        ({"messages": "x", "max_tokens": 2**70}, r"^maxTokens: "),
        ({"messages": "x", "purpose": "fun"}, r"^purpose"),
        ({"messages": "x", "tools": [{"name": "t", "parameters": {}}]}, r"^tools.0.description"),
        ({"messages": "x", "tool": 1}, r"^tool: "),
        ({"messages": [{"role": "user", "content": 5}]}, r"^messages.0.content"),
        (
            {"messages": "x", "tools": [{"name": "t", "description": "", "parameters": {1j}}]},
            r"^tools.0: ",
        ),
    ],
)
async def test_what_can_not_be_sent_is_refused_by_field(
    llm: LlmRuntime, control: Control, fields: dict[str, Any], names: str
) -> None:
    """In the client, before anything goes out; the text shows no content."""
    request = {"provider": "a", "model": "m", **fields}
    with pytest.raises(LocalProtocolError, match=names) as seen:
        llm.stream(**request)
    with pytest.raises(LocalProtocolError, match=names):
        await llm.generate(**request)
    assert len(str(seen.value)) < 200
    assert control.ask("one", "seen", adapter="a")["requests"] == []


async def test_a_question_that_can_not_be_sent_is_refused_by_key(llm: LlmRuntime) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    for key, value in (("deep", deep), ("large", "x" * (33 * 1024 * 1024)), ("odd", object())):
        with pytest.raises(LocalProtocolError, match=f"^{key}: "):
            await llm.query("models", {"fine": 1, key: value})
    with pytest.raises(LocalProtocolError, match=r"^models: "):
        await llm.query("models", object())
