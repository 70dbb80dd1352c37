"""What a worker answers: catalogs, models, prepared calls and their leases, discovery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.frames import Query
from trunkline_protocol.ids import LeaseId, QueryId
from trunkline_protocol.models import (
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmModelInfo,
)
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.core.leases import LEASE_FOR_S, Leases
from trunkline_workers.queries import PreparedCall, Queries
from trunkline_workers.runtime import WorkerRuntime

from tests.support.calls import a_request
from tests.unit.workers.test_runtime import a_ready_runtime

EFFORTS = {"efforts": [{"id": "low", "name": "L"}], "defaultEffort": "low"}
MODELS = {
    "m": {
        "defaultMaxTokens": 7,
        "reasoning": EFFORTS,
        "context": {"contextWindow": 9},
        "inputModalities": ["text"],
    }
}
CONFIG = {"provider": "route", "model": "m"}


class Fixture:
    """Queries over one adapter for `route`, with a clock by hand."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self.now_s = 0.0
        self.leases: Leases[PreparedCall] = Leases()
        self.drawn = 0
        self.queries = Queries(
            runtime, self.leases, self._draw, lambda: self.now_s, lambda text: text
        )

    def _draw(self) -> LeaseId:
        self.drawn += 1
        return LeaseId(self.drawn.to_bytes(16, "big"))

    async def ask(self, op: str, argument: Any = None, **fields: Any) -> Any:
        body = b"" if argument is None else pack_body(argument)
        query = Query(QueryId(b"q" * 16), op, fields.pop("provider", "route"), body=body, **fields)
        reply = await self.queries.answer(query)
        if reply.failure is not None:
            return reply.failure["code"]
        return unpack_body(reply.body)


async def a_fixture(adapter: ScriptedAdapter | None = None) -> Fixture:
    runtime, _ = await a_ready_runtime()
    await runtime.register_adapter(["route"], adapter or ScriptedAdapter({"models": MODELS}))
    return Fixture(runtime)


async def test_the_catalog_is_checked() -> None:
    fixture = await a_fixture()
    assert [model["id"] for model in await fixture.ask("listModels")] == ["scripted", "m"]

    class Odd(ScriptedAdapter):
        async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
            return [LlmModelInfo(provider="other", id="x", name="X")]

    odd = await a_fixture(Odd())
    assert await odd.ask("listModels") == Code.INVALID_CATALOG


async def test_models_and_configs_are_resolved() -> None:
    fixture = await a_fixture()
    info = await fixture.ask("resolveModelInfo", {"model": "m"})
    assert info["context"] == {"contextWindow": 9}
    config = await fixture.ask("resolveCallConfig", {**CONFIG, "temperature": 0})
    assert config == {**CONFIG, "temperature": 0, "maxTokens": 7, "reasoningEffort": "low"}
    odd = {**CONFIG, "reasoningEffort": "high"}
    assert await fixture.ask("resolveCallConfig", odd) == Code.UNSUPPORTED_REASONING_EFFORT


async def test_a_prepared_call_is_dispatched_once_with_its_own_config() -> None:
    fixture = await a_fixture()
    prepared = await fixture.ask("prepareCall", CONFIG)
    assert prepared["config"] == {**CONFIG, "maxTokens": 7, "reasoningEffort": "low"}
    assert prepared["adapterDefaults"] == {"maxTokens": True, "reasoningEffort": True}
    assert (prepared["context"], prepared["inputModalities"]) == ({"contextWindow": 9}, ["text"])
    assert prepared["retryPolicy"]["mode"] == "normal"
    assert prepared["leaseMs"] == LEASE_FOR_S * 1000
    request = a_request(provider="route", max_tokens=7, reasoning_effort="low")
    held = fixture.queries.take(prepared["lease"], request)
    assert held.config.max_tokens == 7
    with pytest.raises(LlmError, match="was used") as caught:
        fixture.queries.take(prepared["lease"], request)
    assert caught.value.code == Code.INVALID_PREPARED_CALL


async def test_a_request_with_another_config_is_refused_and_uses_the_call_up() -> None:
    fixture = await a_fixture()
    prepared = await fixture.ask("prepareCall", CONFIG)
    with pytest.raises(LlmError) as caught:
        fixture.queries.take(prepared["lease"], a_request(provider="route"))
    assert caught.value.code == Code.INVALID_PREPARED_CALL
    assert fixture.leases.ids() == ()


async def test_extra_config_keys_do_not_stand_in_the_way() -> None:
    fixture = await a_fixture(ScriptedAdapter())
    prepared = await fixture.ask("prepareCall", {**CONFIG, "extra": 1})
    assert prepared["config"]["extra"] == 1
    assert fixture.queries.take(prepared["lease"], a_request(provider="route"))


async def test_a_lease_that_has_run_out_is_a_clear_error() -> None:
    fixture = await a_fixture(ScriptedAdapter())
    prepared = await fixture.ask("prepareCall", CONFIG)
    fixture.now_s = LEASE_FOR_S + 1
    with pytest.raises(LlmError, match="run out"):
        fixture.queries.take(prepared["lease"], a_request(provider="route"))


async def test_a_prepared_call_can_be_released() -> None:
    fixture = await a_fixture(ScriptedAdapter())
    prepared = await fixture.ask("prepareCall", CONFIG)
    assert await fixture.ask("releaseCall", {"lease": prepared["lease"]}) is None
    assert fixture.leases.ids() == ()
    assert await fixture.ask("releaseCall", {}) == Code.INVALID_REQUEST


async def test_a_prepared_call_can_be_renewed() -> None:
    fixture = await a_fixture(ScriptedAdapter())
    prepared = await fixture.ask("prepareCall", CONFIG)
    fixture.now_s = LEASE_FOR_S - 1
    renewed = await fixture.ask("renewCall", {"lease": prepared["lease"]})
    assert renewed == {"lease": prepared["lease"], "leaseMs": LEASE_FOR_S * 1000}
    fixture.now_s = LEASE_FOR_S + 1
    assert fixture.queries.take(prepared["lease"], a_request(provider="route"))
    renewing = fixture.ask("renewCall", {"lease": prepared["lease"]})
    assert await renewing == Code.INVALID_PREPARED_CALL


async def test_a_credential_is_not_in_the_failure_of_its_discovery() -> None:
    runtime, _ = await a_ready_runtime()

    async def discover(request: LlmModelDiscoveryRequest) -> list[LlmDiscoveredModel]:
        raise LlmError.of(f"refused: {request.api_key}", Code.AUTH)

    await runtime.register_model_discovery("ns", discover)
    queries = Fixture(runtime).queries
    for key, text in (("a-plain-secret", "refused: [redacted]"), (None, "refused: None")):
        draft = {"provider": "x"} if key is None else {"provider": "x", "apiKey": key}
        body = pack_body({"settingsNs": "ns", "request": draft})
        reply = await queries.answer(Query(QueryId(bytes(16)), "discoverModels", body=body))
        assert reply.failure is not None
        assert (reply.failure["code"], reply.failure["message"]) == (Code.AUTH, text)


async def test_prepared_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline_workers.core import leases

    monkeypatch.setattr(leases, "MAX_LEASES", 0)
    fixture = await a_fixture()
    assert await fixture.ask("prepareCall", CONFIG) == Code.OVERLOADED


async def test_discovery_answers_for_its_namespace() -> None:
    runtime, _ = await a_ready_runtime()
    asked: list[LlmModelDiscoveryRequest] = []

    async def discover(request: LlmModelDiscoveryRequest) -> list[LlmDiscoveredModel]:
        asked.append(request)
        return [LlmDiscoveredModel(id="a", name="1"), LlmDiscoveredModel(id="a", name="2")]

    await runtime.register_model_discovery("ns", discover)
    fixture = Fixture(runtime)
    draft = {"baseURL": "https://gateway.example/v1", "apiKey": "k"}
    found = await fixture.ask("discoverModels", {"settingsNs": "ns", "request": draft})
    assert found == [{"id": "a", "name": "1"}]
    assert asked[0].api_key == "k"
    for argument, code in (
        ({"settingsNs": "other", "request": draft}, Code.NO_DISCOVERY),
        ({"settingsNs": "ns", "request": {"baseURL": ""}}, Code.INVALID_DISCOVERY),
        ({"settingsNs": "ns", "request": {"baseURL": 5}}, Code.INVALID_DISCOVERY),
        ({"settingsNs": "ns"}, Code.INVALID_DISCOVERY),
        ({}, Code.INVALID_REQUEST),
    ):
        assert await fixture.ask("discoverModels", argument) == code


@pytest.mark.parametrize(
    ("op", "argument", "fields", "code"),
    [
        ("dance", None, {}, Code.UNSUPPORTED),
        ("listModels", None, {"provider": "nobody"}, Code.NO_ADAPTER),
        ("resolveModelInfo", [], {}, Code.INVALID_REQUEST),
        ("resolveModelInfo", {}, {}, Code.INVALID_REQUEST),
        ("resolveCallConfig", {"provider": "route"}, {}, Code.INVALID_REQUEST),
        ("prepareCall", {"provider": "x", "model": "m"}, {}, Code.INVALID_REQUEST),
        ("prepareCall", {"provider": "x", "model": "m"}, {"provider": ""}, Code.NO_ADAPTER),
    ],
)
async def test_wrong_questions_get_a_failure(
    op: str, argument: Any, fields: dict[str, Any], code: str
) -> None:
    assert await (await a_fixture()).ask(op, argument, **fields) == code


async def test_bytes_that_are_no_argument_get_a_failure() -> None:
    fixture = await a_fixture()
    query = Query(QueryId(b"q" * 16), "listModels", "route", body=b"\xc1")
    reply = await fixture.queries.answer(query)
    assert reply.failure is not None
    assert reply.failure["code"] == Code.INVALID_REQUEST


async def test_an_adapter_that_raises_is_a_failure() -> None:
    class Broken(ScriptedAdapter):
        async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
            raise ZeroDivisionError

    assert await (await a_fixture(Broken())).ask("listModels") == Code.UNKNOWN


async def test_an_answer_that_is_too_large_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from trunkline_workers import queries

    monkeypatch.setattr(queries, "MAX_BODY_BYTES", 10)
    assert await (await a_fixture()).ask("listModels") == Code.OVERLOADED
