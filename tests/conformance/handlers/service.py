"""`service`, as far as its rules are pure: a registry of one level, no process and no socket."""

from __future__ import annotations

from typing import Any

from trunkline_protocol.adapter_request import adapter_options
from trunkline_protocol.chunks import BlockStart, Finish, StreamChunk, TextDelta
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmError
from trunkline_protocol.finish import failed_finish
from trunkline_protocol.model_checks import (
    check_discovery_request,
    check_model_info,
    check_model_list,
    distinct_models,
    prepare_call_config,
    resolve_call_config,
)
from trunkline_protocol.models import LlmModelDiscoveryRequest, LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions, LlmCallConfig

from tests.conformance.handlers.small_files import is_deep_frozen
from tests.conformance.handlers.thrown import thrown

_ROUTE = "route"
_MODEL = "model"
# What the scripted adapter of these vectors emits before it fails.
_SCRIPT: tuple[StreamChunk, ...] = (BlockStart(0, "text"), TextDelta(0, "hi"))


def _checked_info(given: dict[str, Any]) -> LlmResolvedModelInfo:
    return check_model_info(_ROUTE, _MODEL, given["resolved"])


def _resolve_model_info(given: dict[str, Any]) -> object:
    return {"info": _checked_info(given).to_dict()}


def _list_models(given: dict[str, Any]) -> object:
    return {"models": [model.to_dict() for model in check_model_list(_ROUTE, given["models"])]}


def _config(given: dict[str, Any]) -> LlmCallConfig:
    config = LlmCallConfig.from_dict(given["config"])
    if config.provider != _ROUTE:
        raise LlmError.of("no such route", Code.NO_ADAPTER)
    return config


def _resolve_call_config(given: dict[str, Any]) -> object:
    config = _config(given)
    resolved = resolve_call_config(config, _checked_info(given))
    return {"config": resolved.to_dict(), "sameObject": resolved is config}


def _prepare_call(given: dict[str, Any]) -> object:
    config, info = _config(given), _checked_info(given)
    prepared, defaults = prepare_call_config(config, info)
    result: dict[str, object] = {
        "config": prepared.to_dict(),
        "adapterDefaults": defaults.to_dict(),
        "frozen": is_deep_frozen(prepared),
    }
    if info.context is not None:
        result["context"] = info.context.to_dict()
    if info.input_modalities is not None:
        result["inputModalities"] = list(info.input_modalities)
    return result


def _discover_models(given: dict[str, Any]) -> object:
    if given["settingsNs"] != given["registered"]:
        raise LlmError.of("no such namespace", Code.NO_DISCOVERY)
    check_discovery_request(LlmModelDiscoveryRequest.from_dict(given["request"]))
    return {"models": [model.to_dict() for model in distinct_models(given["discovered"])]}


def _finished(raised: object, *, was_cancelled: bool) -> dict[str, object]:
    return Finish(failed_finish(raised, was_cancelled=was_cancelled)).to_dict()


def _adapter_request(given: dict[str, Any]) -> object:
    routes = {
        provider: name
        for name, providers in given["adapters"].items()
        if name not in given["disposeBefore"]
        for provider in providers
    }
    name = routes.get(given["target"])
    if name is None:
        error = LlmError.of("no such route", Code.NO_ADAPTER)
        return {"adapter": None, "chunks": [_finished(error, was_cancelled=False)]}
    options = GenerateOptions.from_dict(
        {"provider": given["target"], "model": _MODEL, "messages": given["messages"]}
    )
    owned = {provider for provider, owner in routes.items() if owner == name}
    seen = adapter_options(options, owned, given.get("inputModalities"))
    pairs = zip(options.messages, seen.messages, strict=True)
    return {
        "adapter": name,
        "sameRequest": seen is options,
        "sameMessages": [old is new for old, new in pairs],
        "messages": [message.to_dict() for message in seen.messages],
    }


def _stream_failure(given: dict[str, Any]) -> object:
    if given["at"] == "selection":
        raised: object = LlmError.of("no such route", Code.NO_ADAPTER)
    else:
        raised = thrown(given["thrown"])
    before = [chunk.to_dict() for chunk in _SCRIPT[: given.get("afterChunks", 0)]]
    return {"chunks": [*before, _finished(raised, was_cancelled=given["signalAborted"])]}


_OPERATIONS = {
    "resolveModelInfo": _resolve_model_info,
    "listModels": _list_models,
    "resolveCallConfig": _resolve_call_config,
    "prepareCall": _prepare_call,
    "discoverModels": _discover_models,
    "adapterRequest": _adapter_request,
    "streamFailure": _stream_failure,
}


def run_service(given: dict[str, Any]) -> object:
    try:
        return _OPERATIONS[given["op"]](given)
    except LlmError as exc:
        return {"error": {"code": exc.code}}


HANDLERS = {"service": run_service}
