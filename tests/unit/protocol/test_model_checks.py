"""Judging what adapters say about models."""

from __future__ import annotations

import pytest
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmError
from trunkline_protocol.model_checks import (
    check_directory,
    check_discovery_request,
    check_model_info,
    check_model_list,
    distinct_models,
    prepare_call_config,
    resolve_call_config,
)
from trunkline_protocol.models import (
    LlmDiscoveredModel,
    LlmModelDiscoveryRequest,
    LlmModelInfo,
    LlmResolvedModelInfo,
)
from trunkline_protocol.options import LlmCallConfig, LlmCallConfigAdapterDefaults

BASE: dict[str, object] = {"provider": "p", "id": "m", "name": "M"}
EFFORTS = [{"id": "low", "name": "L", "budget": 1}, {"id": "high", "name": "H", "description": "d"}]
CONFIG = LlmCallConfig(provider="p", model="m")


def info(**more: object) -> LlmResolvedModelInfo:
    return check_model_info("p", "m", {**BASE, **more})


def code_of(caught: pytest.ExceptionInfo[LlmError]) -> str:
    return caught.value.code


def test_a_checked_model_has_its_declared_fields_alone() -> None:
    checked = info(
        description="d",
        inputModalities=["text"],
        context={"contextWindow": 10, "more": 1},
        defaultMaxTokens=5,
        reasoning={"efforts": EFFORTS, "defaultEffort": "low", "more": 1},
        extra=1,
    )
    assert checked.to_dict() == {
        **BASE,
        "description": "d",
        "inputModalities": ["text"],
        "context": {"contextWindow": 10},
        "defaultMaxTokens": 5,
        "reasoning": {
            "efforts": [
                {"id": "low", "name": "L"},
                {"id": "high", "name": "H", "description": "d"},
            ],
            "defaultEffort": "low",
        },
    }
    assert check_model_info("p", "m", checked) == checked


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"provider": "other"}, Code.INVALID_MODEL_INFO),
        ({"id": 1}, Code.INVALID_MODEL_INFO),
        ({"name": ""}, Code.INVALID_MODEL_INFO),
        ({"description": None}, Code.INVALID_MODEL_INFO),
        ({"inputModalities": ["smell"]}, Code.INVALID_MODEL_INFO),
        ({"context": None}, Code.INVALID_MODEL_CONTEXT),
        ({"context": {"contextWindow": 0}, "defaultMaxTokens": 0}, Code.INVALID_MODEL_CONTEXT),
        ({"context": {"contextWindow": 2**53}}, Code.INVALID_MODEL_CONTEXT),
        ({"defaultMaxTokens": True, "reasoning": 5}, Code.INVALID_MODEL_MAX_TOKENS),
        ({"defaultMaxTokens": None}, Code.INVALID_MODEL_MAX_TOKENS),
        ({"reasoning": 5}, Code.INVALID_MODEL_REASONING),
        ({"reasoning": {"efforts": []}}, Code.INVALID_MODEL_REASONING),
        ({"reasoning": {"efforts": [5]}}, Code.INVALID_MODEL_REASONING),
        ({"reasoning": {"efforts": [{"id": [], "name": "L"}]}}, Code.INVALID_MODEL_REASONING),
        ({"reasoning": {"efforts": [EFFORTS[0]] * 2}}, Code.INVALID_MODEL_REASONING),
        ({"reasoning": {"efforts": EFFORTS, "defaultEffort": "x"}}, Code.INVALID_MODEL_REASONING),
    ],
)
def test_the_first_thing_that_is_wrong_decides_the_code(
    change: dict[str, object], code: str
) -> None:
    with pytest.raises(LlmError) as caught:
        info(**change)
    assert code_of(caught) == code


def test_a_catalog_is_checked_as_a_whole() -> None:
    model = LlmModelInfo(provider="p", id="m", name="M")
    other = {"provider": "p", "id": "n", "name": "M", "contextWindow": 5}
    checked = check_model_list("p", [model, other])
    assert [each.to_dict() for each in checked] == [BASE, {**BASE, "id": "n"}]
    assert check_model_list("p", []) == ()


@pytest.mark.parametrize(
    "model",
    [
        BASE,
        {**BASE, "provider": "q", "id": "n"},
        {**BASE, "id": ""},
        {**BASE, "id": "n", "name": 1},
        {**BASE, "id": "n", "inputModalities": "text"},
        5,
    ],
    ids=["twice", "foreign", "no-id", "name", "modalities", "number"],
)
def test_one_bad_entry_spoils_the_catalog(model: dict[str, object]) -> None:
    with pytest.raises(LlmError) as caught:
        check_model_list("p", [BASE, model])
    assert code_of(caught) == Code.INVALID_CATALOG


def test_defaults_are_filled_in_and_named() -> None:
    model = info(defaultMaxTokens=7, reasoning={"efforts": EFFORTS, "defaultEffort": "high"})
    config, defaults = prepare_call_config(CONFIG, model)
    assert config == LlmCallConfig(provider="p", model="m", max_tokens=7, reasoning_effort="high")
    assert defaults == LlmCallConfigAdapterDefaults(reasoning_effort=True, max_tokens=True)
    explicit = LlmCallConfig(provider="p", model="m", max_tokens=0, reasoning_effort="low")
    assert resolve_call_config(explicit, model) is explicit
    assert prepare_call_config(explicit, model)[1].to_dict() == {}


def test_nothing_to_fill_in_gives_the_same_config() -> None:
    assert resolve_call_config(CONFIG, info()) is CONFIG
    assert resolve_call_config(CONFIG, info(reasoning={"efforts": EFFORTS})) is CONFIG


@pytest.mark.parametrize("effort", ["", "High", "ultra"])
def test_an_effort_that_is_not_offered_is_refused(effort: str) -> None:
    config = LlmCallConfig(provider="p", model="m", reasoning_effort=effort)
    for model in (info(), info(reasoning={"efforts": EFFORTS})):
        with pytest.raises(LlmError) as caught:
            resolve_call_config(config, model)
        assert code_of(caught) == Code.UNSUPPORTED_REASONING_EFFORT


def test_a_discovery_needs_a_route_or_an_endpoint() -> None:
    check_discovery_request(LlmModelDiscoveryRequest(provider="p"))
    check_discovery_request(LlmModelDiscoveryRequest(base_url="https://x.test"))
    with pytest.raises(LlmError) as caught:
        check_discovery_request(LlmModelDiscoveryRequest(provider="", base_url=""))
    assert code_of(caught) == Code.INVALID_DISCOVERY


def test_discovered_models_are_distinct_and_keep_their_order() -> None:
    found = distinct_models(
        [
            {"id": "z", "owned_by": "x"},
            {"id": 5},
            {},
            {"id": "a", "name": "1"},
            {"id": "z", "name": "2"},
        ]
    )
    assert [each.to_dict() for each in found] == [{"id": "z"}, {"id": "a", "name": "1"}]
    model = LlmDiscoveredModel(id="m", max_tokens=1.5)
    assert distinct_models([model]) == (model,)


ENTRY: dict[str, object] = {
    "provider": "x",
    "displayName": "X",
    "settingsNs": "n",
    "settingsPath": ["a"],
    "declared": True,
}


def test_a_directory_is_checked_in_order() -> None:
    (checked,) = check_directory([{**ENTRY, "more": 1}])
    assert checked.to_dict() == ENTRY
    assert check_directory([], may_be_empty=True) == ()


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], Code.INVALID_DIRECTORY),
        ([ENTRY, {**ENTRY, "provider": ""}], Code.INVALID_DIRECTORY),
        ([{**ENTRY, "displayName": ""}], Code.INVALID_DIRECTORY),
        ([{**ENTRY, "settingsNs": 5}], Code.INVALID_DIRECTORY),
        ([{**ENTRY, "settingsPath": "a"}], Code.INVALID_DIRECTORY),
        ([{**ENTRY, "settingsPath": ["a", ""]}], Code.INVALID_DIRECTORY),
        ([{**ENTRY, "declared": "yes"}], Code.INVALID_DIRECTORY),
        ([ENTRY, ENTRY], Code.DUPLICATE_DIRECTORY),
        ([{**ENTRY, "provider": "taken"}, {}], Code.DUPLICATE_DIRECTORY),
    ],
)
def test_the_first_wrong_entry_decides(entries: list[dict[str, object]], code: str) -> None:
    with pytest.raises(LlmError) as caught:
        check_directory(entries, {"taken"})
    assert code_of(caught) == code
