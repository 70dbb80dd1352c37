"""Answers to the questions that a worker answers (SPEC 7), and the prepared calls they lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar, cast

from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.failure import Code, LlmError, LlmFailure, RemoteProtocolError
from trunkline_protocol.frames import Query, Reply
from trunkline_protocol.ids import LeaseId
from trunkline_protocol.limits import MAX_BODY_BYTES
from trunkline_protocol.model_checks import (
    check_discovery_request,
    check_model_list,
    distinct_models,
    prepare_call_config,
)
from trunkline_protocol.models import LlmModelDiscoveryRequest, LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions, LlmCallConfig
from trunkline_protocol.redact import redact

from trunkline_workers import foreign
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.boundary import (
    Redact,
    call_config,
    cleaned,
    finish_of,
    resolve_model,
)
from trunkline_workers.core.leases import Leases
from trunkline_workers.foreign import is_closing, is_ours
from trunkline_workers.host_task import own_task
from trunkline_workers.runtime import WorkerRuntime

T = TypeVar("T")

Argument = Mapping[str, Any]
MAX_MODELS: Final = 16_384  # of one route; the largest gateways list some hundreds
_GONE: Final = "this prepared call was used, was released, or its lease of {:g} s has run out"


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """What one lease holds: the adapter and the config that were resolved together."""

    adapter: LlmAdapter
    config: LlmCallConfig
    info: LlmResolvedModelInfo


class Queries:
    """Answers one query at a time per task; keeps the leases.

    Args:
        runtime: finds adapters and discovery.
        leases: holds prepared calls.
        draw_lease: draws a fresh random lease id.
        clock: monotonic seconds.
        clean: takes secrets out of failure texts.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        leases: Leases[PreparedCall],
        draw_lease: Callable[[], LeaseId],
        clock: Callable[[], float],
        clean: Redact,
    ) -> None:
        self._runtime = runtime
        self._leases = leases
        self._draw_lease = draw_lease
        self._clock = clock
        self._clean = clean
        self._ops: Mapping[str, Callable[[Query, Argument], Awaitable[object]]] = {
            "listModels": self._list_models,
            "resolveModelInfo": self._resolve_model_info,
            "resolveCallConfig": self._resolve_call_config,
            "prepareCall": self._prepare_call,
            "renewCall": self._renew_call,
            "releaseCall": self._release_call,
            "discoverModels": self._discover_models,
        }

    async def answer(self, query: Query) -> Reply:
        """Return the reply to a query; whatever goes wrong is a failure in it.

        Raises:
            asyncio.CancelledError: the host has stopped this task, and with it the adapter's part.
        """
        task = own_task()
        try:
            body = pack_body(await self._answered(query))
        # Adapter code runs inside; a cancellation of its own may also arrive at an await of ours.
        except BaseException as exc:
            if is_ours(exc, task) or is_closing(exc, task):
                raise
            failure = finish_of(exc, self._clean).reason.failure
            return failed(query, failure or LlmFailure(query.op, Code.UNKNOWN))
        if len(body) > MAX_BODY_BYTES:
            return failed(query, LlmFailure(f"{query.op}: answer too large", Code.OVERLOADED))
        return Reply(query.query, None, body)

    def take(self, lease: LeaseId, options: GenerateOptions) -> PreparedCall:
        """Give out the prepared call of a lease, once.

        Raises:
            LlmError: `INVALID_PREPARED_CALL`: used, released or run out, or the request does not
                carry the prepared config.
        """
        prepared = self._leases.take(lease, self._clock())
        if prepared is None:
            raise LlmError.of(_GONE.format(self._leases.for_s), Code.INVALID_PREPARED_CALL)
        if call_config(options).to_dict() != _declared(prepared.config):
            raise LlmError.of(
                "the request does not carry the config of its prepared call",
                Code.INVALID_PREPARED_CALL,
            )
        return prepared

    async def _answered(self, query: Query) -> object:
        op = self._ops.get(query.op)
        if op is None:
            raise LlmError.of(f"a worker does not answer {query.op!r}", Code.UNSUPPORTED)
        try:
            argument = unpack_body(query.body)
        except RemoteProtocolError as exc:
            raise LlmError.of(f"{query.op}: {exc}", Code.INVALID_REQUEST) from exc
        if argument is not None and not isinstance(argument, dict):
            raise LlmError.of(f"{query.op}: the argument must be a map", Code.INVALID_REQUEST)
        return await op(query, cast("Argument", argument or {}))

    async def _list_models(self, query: Query, argument: Argument) -> object:
        del argument
        adapter = self._adapter(query.provider)
        models = await foreign.await_(lambda: adapter.list_models(query.provider))
        # The list and its entries are objects of the adapter: reading them runs more of its code.
        checked = foreign.call(lambda: check_model_list(query.provider, _first(models)))
        return [model.to_dict() for model in checked]

    async def _resolve_model_info(self, query: Query, argument: Argument) -> object:
        adapter = self._adapter(query.provider)
        info = await resolve_model(adapter, query.provider, _text(argument, "model"))
        return info.to_dict()

    async def _resolve_call_config(self, query: Query, argument: Argument) -> object:
        config = _config(query, argument)
        adapter = self._adapter(config.provider)
        info = await resolve_model(adapter, config.provider, config.model)
        return prepare_call_config(config, info)[0].to_dict()

    async def _prepare_call(self, query: Query, argument: Argument) -> object:
        config = _config(query, argument)
        # Captured before anything is awaited: config and dispatch belong to one registration.
        adapter = self._adapter(config.provider)
        route = self._runtime.registry.route(config.provider)
        info = await resolve_model(adapter, config.provider, config.model)
        config, defaults = prepare_call_config(config, info)
        lease = self._draw_lease()
        held = PreparedCall(adapter, config, info)
        whose = (query.client, query.query, query.client_pid)
        if not self._leases.grant(lease, held, self._clock(), *whose):
            raise LlmError.of("too many prepared calls are waiting", Code.OVERLOADED)
        modalities = info.input_modalities
        return {
            "lease": lease,
            "config": config.to_dict(),
            "retryPolicy": None if route is None else route.policy,
            "context": None if info.context is None else info.context.to_dict(),
            "inputModalities": None if modalities is None else list(modalities),
            "adapterDefaults": defaults.to_dict(),
            "leaseMs": int(self._leases.for_s * 1000),
        }

    async def _renew_call(self, query: Query, argument: Argument) -> object:
        lease = _lease(query, argument)
        if not self._leases.renew(lease, self._clock()):
            raise LlmError.of(_GONE.format(self._leases.for_s), Code.INVALID_PREPARED_CALL)
        return {"lease": lease, "leaseMs": int(self._leases.for_s * 1000)}

    async def _release_call(self, query: Query, argument: Argument) -> object:
        self._leases.release(_lease(query, argument))
        return None

    async def _discover_models(self, query: Query, argument: Argument) -> object:
        del query
        settings_ns = _text(argument, "settingsNs")
        discover = self._runtime.discoverer(settings_ns)
        if discover is None:
            raise LlmError.of(f"nobody discovers models for {settings_ns!r}", Code.NO_DISCOVERY)
        request = argument.get("request")
        if not isinstance(request, dict):
            raise LlmError.of("discoverModels: request must be a map", Code.INVALID_DISCOVERY)
        try:
            draft = LlmModelDiscoveryRequest.from_dict(cast("dict[str, object]", request))
        except ValueError as exc:
            raise LlmError.of(f"discoverModels: {exc}", Code.INVALID_DISCOVERY) from exc
        check_discovery_request(draft)
        try:
            discovered = await foreign.await_(discover, draft)
            models = foreign.call(lambda: distinct_models(_first(discovered)))
        # An endpoint may echo the key that it refuses, and adapters may quote the endpoint.
        except LlmError as exc:
            key = draft.api_key
            if not key:
                raise
            raise LlmError(cleaned(exc.failure, lambda text: redact(text, [key]))) from None
        return [model.to_dict() for model in models]

    def _adapter(self, provider: str) -> LlmAdapter:
        adapter = self._runtime.registry.owner(provider)
        if adapter is None:
            raise no_adapter(provider)
        return adapter


def _first(listed: Iterable[T]) -> Iterable[T]:
    """Return the beginning of what an adapter lists: its iterator may have no end.

    Raises:
        LlmError: `INVALID_CATALOG`: there is more than that.
    """
    entries = list(islice(listed, MAX_MODELS + 1))
    if len(entries) > MAX_MODELS:
        text = f"the adapter lists more than {MAX_MODELS} models"
        raise LlmError.of(text, Code.INVALID_CATALOG)
    return entries


def no_adapter(provider: str) -> LlmError:
    """Return the error of a route that nobody here serves."""
    return LlmError.of(f"no adapter is registered for provider {provider!r}", Code.NO_ADAPTER)


def failed(query: Query, failure: LlmFailure) -> Reply:
    """Return the reply that carries a failure."""
    return Reply(query.query, cleaned(failure, _as_is).to_dict())


def _as_is(text: str) -> str:
    return text


def _text(argument: Argument, key: str) -> str:
    value = argument.get(key)
    if not isinstance(value, str):
        raise LlmError.of(f"{key}: text is required", Code.INVALID_REQUEST)
    return value


def _lease(query: Query, argument: Argument) -> LeaseId:
    lease = argument.get("lease")
    if not isinstance(lease, bytes):
        raise LlmError.of(f"{query.op}: lease is missing", Code.INVALID_REQUEST)
    return LeaseId(lease)


def _config(query: Query, argument: Argument) -> LlmCallConfig:
    try:
        config = LlmCallConfig.from_dict(argument)
    except ValueError as exc:
        raise LlmError.of(f"{query.op}: {exc}", Code.INVALID_REQUEST) from exc
    if query.provider and config.provider != query.provider:
        raise LlmError.of(f"{query.op}: another provider's config", Code.INVALID_REQUEST)
    return config


_FIELDS: Final = tuple(LlmCallConfig.model_fields)


def _declared(config: LlmCallConfig) -> dict[str, object]:
    """Return a config without extra keys, which a request does not carry."""
    fields = {name: getattr(config, name) for name in _FIELDS}
    return LlmCallConfig.model_construct(**fields).to_dict()
