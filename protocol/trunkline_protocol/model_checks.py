"""Judging what adapters say about models, and what a call makes of it. Pure; raises `LlmError`.

Values come from code of other people or from another process, so nothing is trusted: every result
is rebuilt from checked fields, and keys that are not declared are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeGuard, TypeVar, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmError
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelContext,
    LlmModelDiscoveryRequest,
    LlmModelInfo,
    LlmModelReasoningInfo,
    LlmReasoningEffortInfo,
    LlmResolvedModelInfo,
)
from trunkline_protocol.options import LlmCallConfig, LlmCallConfigAdapterDefaults
from trunkline_protocol.wire_model import WireModel

_MAX_SAFE_INTEGER: Final = 9_007_199_254_740_991
_Model = TypeVar("_Model", bound=WireModel)

Described = Mapping[str, object] | WireModel


def _fields(value: object) -> Mapping[str, object]:
    """Return a value as its camelCase map; what is neither map nor model is an empty one."""
    if isinstance(value, WireModel):
        return value.to_dict()
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _entries(value: object) -> Sequence[object]:
    """Return the items of a list; what is no list has none."""
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value != ""


def _is_positive_integer(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= _MAX_SAFE_INTEGER


def _has_text(fields: Mapping[str, object], key: str) -> bool:
    """Tell whether an optional key is absent or holds text."""
    return key not in fields or isinstance(fields[key], str)


def check_model_list(provider: str, models: Iterable[Described]) -> tuple[LlmModelInfo, ...]:
    """Check the catalog of one route.

    Raises:
        LlmError: `INVALID_CATALOG`; one bad entry spoils all.
    """
    seen: set[object] = set()
    checked: list[LlmModelInfo] = []
    for model in models:
        fields = _fields(model)
        if fields.get("provider") != provider or not _is_model(fields) or fields["id"] in seen:
            raise LlmError.of(
                f'adapter returned an invalid catalog for provider "{provider}"',
                Code.INVALID_CATALOG,
            )
        seen.add(fields["id"])
        checked.append(_rebuilt(LlmModelInfo, fields, Code.INVALID_CATALOG))
    return tuple(checked)


def _is_model(fields: Mapping[str, object]) -> bool:
    return (
        _is_name(fields.get("id"))
        and _is_name(fields.get("name"))
        and _has_text(fields, "description")
    )


def _rebuilt(model: type[_Model], fields: Mapping[str, object], code: str) -> _Model:
    """Build a model from its declared fields alone."""
    declared = {info.alias or name for name, info in model.model_fields.items()}
    try:
        return model.from_dict({key: fields[key] for key in fields if key in declared})
    except ValueError as exc:
        raise LlmError.of(f"{model.__name__}: {exc}", code) from exc


def check_model_info(provider: str, model: str, resolved: Described) -> LlmResolvedModelInfo:
    """Check what an adapter resolved for one exact model.

    Raises:
        LlmError: `INVALID_MODEL_INFO`, `INVALID_MODEL_CONTEXT`, `INVALID_MODEL_MAX_TOKENS` or
            `INVALID_MODEL_REASONING`, the first that applies in this order.
    """
    fields = _fields(resolved)
    where = f'for provider "{provider}" model "{model}"'
    if (fields.get("provider"), fields.get("id")) != (provider, model) or not _is_model(fields):
        raise LlmError.of(f"adapter returned invalid metadata {where}", Code.INVALID_MODEL_INFO)
    context = _context(fields, where)
    max_tokens = fields.get("defaultMaxTokens")
    if "defaultMaxTokens" in fields and not _is_positive_integer(max_tokens):
        raise LlmError.of(
            f"adapter returned an invalid default maxTokens {where}", Code.INVALID_MODEL_MAX_TOKENS
        )
    base = _rebuilt(LlmModelInfo, fields, Code.INVALID_MODEL_INFO)
    return LlmResolvedModelInfo(
        provider=provider,
        id=model,
        name=base.name,
        description=base.description,
        input_modalities=base.input_modalities,
        context=context,
        default_max_tokens=cast("int | None", max_tokens),
        reasoning=_reasoning(fields, where),
    )


def _context(fields: Mapping[str, object], where: str) -> LlmModelContext | None:
    if "context" not in fields:
        return None
    window = _fields(fields["context"]).get("contextWindow")
    if not _is_positive_integer(window):
        raise LlmError.of(
            f"adapter returned an invalid context window {where}", Code.INVALID_MODEL_CONTEXT
        )
    return LlmModelContext(context_window=window)


def _reasoning(fields: Mapping[str, object], where: str) -> LlmModelReasoningInfo | None:
    if "reasoning" not in fields:
        return None
    reasoning = _fields(fields["reasoning"])
    efforts = [_fields(each) for each in _entries(reasoning.get("efforts"))]
    ids = [effort.get("id") for effort in efforts]
    default = reasoning.get("defaultEffort")
    if (
        not efforts
        or not all(_is_model(effort) for effort in efforts)
        or len(set(ids)) != len(ids)
        or ("defaultEffort" in reasoning and default not in ids)
    ):
        raise LlmError.of(
            f"adapter returned invalid reasoning metadata {where}", Code.INVALID_MODEL_REASONING
        )
    rebuilt = [_rebuilt(LlmReasoningEffortInfo, e, Code.INVALID_MODEL_REASONING) for e in efforts]
    return LlmModelReasoningInfo(efforts=tuple(rebuilt), default_effort=cast("str | None", default))


def resolve_call_config(config: LlmCallConfig, info: LlmResolvedModelInfo) -> LlmCallConfig:
    """Check a config against its model and fill in what the adapter has defaults for.

    Returns:
        The same object if nothing was filled in; nothing is ever clamped or renamed.

    Raises:
        LlmError: `UNSUPPORTED_REASONING_EFFORT`.
    """
    return prepare_call_config(config, info)[0]


def prepare_call_config(
    config: LlmCallConfig, info: LlmResolvedModelInfo
) -> tuple[LlmCallConfig, LlmCallConfigAdapterDefaults]:
    """Do as `resolve_call_config`, and say which fields the adapter supplied.

    Raises:
        LlmError: `UNSUPPORTED_REASONING_EFFORT`.
    """
    reasoning = info.reasoning
    offered = [] if reasoning is None else [effort.id for effort in reasoning.efforts]
    if config.reasoning_effort is not None and config.reasoning_effort not in offered:
        raise LlmError.of(
            f'provider "{config.provider}" model "{config.model}" does not offer reasoning effort '
            f'"{config.reasoning_effort}"',
            Code.UNSUPPORTED_REASONING_EFFORT,
        )
    filled: dict[str, object] = {}
    if config.max_tokens is None and info.default_max_tokens is not None:
        filled["max_tokens"] = info.default_max_tokens
    if (
        config.reasoning_effort is None
        and reasoning is not None
        and reasoning.default_effort is not None
    ):
        filled["reasoning_effort"] = reasoning.default_effort
    defaults = LlmCallConfigAdapterDefaults(
        reasoning_effort=True if "reasoning_effort" in filled else None,
        max_tokens=True if "max_tokens" in filled else None,
    )
    return (config.model_copy(update=filled) if filled else config), defaults


def check_discovery_request(request: LlmModelDiscoveryRequest) -> None:
    """Check that a request names what to ask.

    Raises:
        LlmError: `INVALID_DISCOVERY`, neither a provider nor an endpoint.
    """
    if not request.provider and not request.base_url:
        raise LlmError.of("a model discovery needs a provider or a baseURL", Code.INVALID_DISCOVERY)


def distinct_models(discovered: Iterable[Described]) -> tuple[LlmDiscoveredModel, ...]:
    """Return what an endpoint reported: in its order, without the nameless, the first of each id.

    Candidates, not a catalog: values are passed on as they were disclosed.
    """
    found: dict[str, LlmDiscoveredModel] = {}
    for each in discovered:
        fields = _fields(each)
        model_id = fields.get("id")
        if _is_name(model_id) and model_id not in found:
            found[model_id] = _rebuilt(LlmDiscoveredModel, fields, Code.INVALID_DISCOVERY)
    return tuple(found.values())


def check_directory(
    entries: Sequence[Described], taken: Collection[str] = (), *, may_be_empty: bool = False
) -> tuple[LlmConfigurableProvider, ...]:
    """Check a directory registration as a whole.

    Args:
        entries: all of them, in order.
        taken: providers that other registrations declare.
        may_be_empty: a replacement may withdraw everything, a first registration may not.

    Raises:
        LlmError: `INVALID_DIRECTORY` or `DUPLICATE_DIRECTORY`, for the first entry that is wrong.
    """
    if not entries and not may_be_empty:
        raise LlmError.of("a directory needs at least one entry", Code.INVALID_DIRECTORY)
    checked: dict[str, LlmConfigurableProvider] = {}
    for number, entry in enumerate(entries):
        provider = _directory_entry(_fields(entry), number)
        if provider.provider in checked or provider.provider in taken:
            raise LlmError.of(
                f'provider "{provider.provider}" is declared already', Code.DUPLICATE_DIRECTORY
            )
        checked[provider.provider] = provider
    return tuple(checked.values())


def _directory_entry(fields: Mapping[str, object], number: int) -> LlmConfigurableProvider:
    path = fields.get("settingsPath")
    is_path = isinstance(path, list | tuple) and all(
        _is_name(part) for part in cast("list[object]", path)
    )
    names = (fields.get(key) for key in ("provider", "displayName", "settingsNs"))
    if not is_path or not all(_is_name(name) for name in names):
        raise LlmError.of(
            f"directory entry {number}: provider, displayName, settingsNs and every part of "
            "settingsPath must be text and not empty",
            Code.INVALID_DIRECTORY,
        )
    return _rebuilt(LlmConfigurableProvider, fields, Code.INVALID_DIRECTORY)
