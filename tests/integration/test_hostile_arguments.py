"""Values of every wrong kind in every public function: an error of ours, at once, and no harm."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import trunkline
from trunkline import GenerateOptions, LlmError, LlmRuntime, LocalProtocolError

from tests.support.broker import SCRIPTED, BrokerProcess, running_broker
from tests.support.images import a_png
from tests.support.timing import SLOW

pytestmark = pytest.mark.integration

AT_ONCE_S = 5.0 * SLOW


def _deep() -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(300):
        inner = {"x": inner}
    return inner


def _cycle() -> dict[str, Any]:
    outer: dict[str, Any] = {}
    outer["self"] = outer
    return outer


HOSTILE: tuple[Any, ...] = (
    None, 0, -1, 1.5, True, math.nan, math.inf, 2**70, b"x", "", " ", "x" * 5000, "\0", "\ud800",
    "\U0001f600" * 200, [], {}, ["a"], {"a": 1}, {1: 2}, {b"x": 2}, {"\ud800": 1}, (1,), set(),
    object(), _deep(), _cycle(), lambda: 0,
)  # fmt: skip


def _value(at: int) -> Any:
    return HOSTILE[at]


BASE: dict[str, Any] = {"provider": "scripted", "model": "demo", "messages": "hi"}
IMAGE = {"attachmentId": "sha256:" + "0" * 64, "mediaType": "image/png", "bytes": 1,
         "width": 1, "height": 1}  # fmt: skip


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """Yield one broker with one scripted worker."""
    with running_broker(SCRIPTED) as running:
        running.until_ready("scripted")
        yield running


@pytest.fixture
async def llm(broker: BrokerProcess) -> AsyncIterator[LlmRuntime]:
    """Yield a client of that broker."""
    async with trunkline.connect(broker.endpoint) as runtime:
        yield runtime


async def settled(job: Callable[[], Any], *also: type[Exception]) -> Exception | None:
    """Do something wrong; it returns or raises one of our errors, and soon."""
    try:
        outcome = job()
        if inspect.isawaitable(outcome):
            await asyncio.wait_for(outcome, AT_ONCE_S)
    except (LlmError, LocalProtocolError, *also) as exc:
        return exc
    return None


def _questions(llm: LlmRuntime, value: Any) -> Iterator[Callable[[], Any]]:
    draft, here = {"baseURL": "http://127.0.0.1:1"}, "scripted"
    yield lambda: llm.list_models(value)
    yield lambda: llm.resolve_model_info(here, value)
    yield lambda: llm.resolve_model_info(value, "m")
    yield lambda: llm.provider_retry_policy(value)
    yield lambda: llm.discover_models(value, draft)
    yield lambda: llm.discover_models("ns", value)
    yield lambda: llm.models(timeout_s=value)
    yield lambda: llm.query(value)
    yield lambda: llm.query("status", value)
    yield lambda: llm.query("listModels", provider=value)
    yield lambda: llm.resolve_call_config(value)
    yield lambda: llm.prepare_call(value)
    for key in ("provider", "baseURL", "api", "apiKey", "other"):
        yield lambda key=key: llm.discover_models("ns", {key: value})
    for key in (*GenerateOptions.model_fields, "maxTokens", "other"):
        config = {"provider": here, "model": "demo", key: value}
        yield lambda config=config: llm.resolve_call_config(config)
        yield lambda config=config: llm.prepare_call(config)


def _requests(value: Any) -> Iterator[dict[str, Any]]:
    def block(fields: Any) -> dict[str, Any]:
        return {**BASE, "messages": [{"role": "user", "content": [fields]}]}

    for key in (*GenerateOptions.model_fields, "other", "signal"):
        yield {**BASE, key: value}
    yield {**BASE, "messages": [value]}
    for key in ("id", "role", "content", "source", "other"):
        yield {**BASE, "messages": [{"role": "user", "content": "x", key: value}]}
    yield block(value)
    yield block({"type": "image", "attachment": value})
    for key in (*IMAGE, "name"):
        yield block({"type": "image", "attachment": {**IMAGE, key: value}})
    for key in ("type", "text", "toolCallId", "content", "other"):
        yield block({"type": "text", "text": "x", key: value})
        yield block({"type": "tool-result", "toolCallId": "c", "content": [], key: value})
    yield {**BASE, "tools": [value]}
    for key in ("name", "description", "parameters"):
        tool = {"name": "a", "description": "b", "parameters": {}, key: value}
        yield {**BASE, "tools": [tool]}


@pytest.mark.parametrize("at", range(len(HOSTILE)))
async def test_questions_and_requests(llm: LlmRuntime, at: int) -> None:
    value = _value(at)
    for job in _questions(llm, value):
        await settled(job)
    await settled(lambda: llm.generate(value))
    for request in _requests(value):
        await settled(lambda request=request: llm.generate(request))
    assert await llm.models() == ["scripted"]


@pytest.mark.parametrize("at", range(len(HOSTILE)))
async def test_what_would_never_end_or_be_wrong_later_is_refused_now(
    llm: LlmRuntime, at: int
) -> None:
    """A broker drops a frame that it can't read; so nothing wrong may get into one."""
    value = _value(at)
    refused: list[Callable[[], Any]] = [
        lambda: llm.use(value, lambda _, next_: next_()),
        lambda: llm.attachments.put(value),
        lambda: trunkline.mark_agent_loop_request(value),
        lambda: llm.attach(value),
    ]
    if not callable(_value(at)):
        refused += [
            lambda: llm.use("llm/stream", value),
            lambda: llm.use("llm/generate", value),
            lambda: llm.on_adapters_updated(value),
        ]
    if value is not True:
        refused.append(lambda: llm.stream(**BASE, detachable=value))
    for ask in (llm.stream, llm.stream_blocks, llm.generate):
        refused.append(lambda ask=ask: ask(**BASE, recovery=value))
        if value is not None and not callable(_value(at)):
            refused.append(lambda ask=ask: ask(**BASE, on_retry=value))
    for job in refused:
        assert await settled(job) is not None, inspect.getsource(job)
    await settled(lambda: llm.attachments.put(a_png(1, 1), value))
    await settled(lambda: llm.attachments.put(a_png(1, 1), None, value))
    await settled(lambda: llm.attachments.put_file(value), OSError)
    assert (await llm.generate(**BASE)).finish.kind == "stop"


@pytest.mark.parametrize("at", range(len(HOSTILE)))
async def test_connecting(broker: BrokerProcess, at: int) -> None:
    value = _value(at)
    await settled(lambda: trunkline.connect(value))
    await settled(lambda: trunkline.connect_sync(value))
    await settled(lambda: trunkline.connect(broker.endpoint, name=value))
    await settled(lambda: trunkline.connect("tcp://127.0.0.1:1", keys=value))
    if not (isinstance(value, int | float) and 0 < value < 86_400) or value is True:
        with pytest.raises(LocalProtocolError, match="timeout_s"):
            trunkline.connect(broker.endpoint, timeout_s=value)
