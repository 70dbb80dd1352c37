"""`PreparedLlmCall`: one call whose config and adapter registration were resolved together.

The worker that resolved it holds it by a lease. It is dispatched once, by that very worker, also
when a newer one has taken over the route meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, Self, cast

from trunkline_protocol.failure import Code, LlmError, LocalProtocolError, RemoteProtocolError
from trunkline_protocol.ids import LEASE_ID_BYTES, LeaseId
from trunkline_protocol.options import (
    GenerateOptions,
    LlmCallConfig,
    LlmCallConfigAdapterDefaults,
    call_config_equals,
)
from trunkline_protocol.record import record
from trunkline_protocol.retry_policy import ResolvedRetryPolicy, policy_from_dict

from trunkline import request
from trunkline.stream import Stream

if TYPE_CHECKING:
    from trunkline_protocol.models import LlmModelContext

_RELEASE_TIMEOUT_S: Final = 5.0
_CONFIG_FIELDS: Final = tuple(LlmCallConfig.model_fields)


class Preparer(Protocol):
    """What a prepared call needs of its runtime."""

    async def query(self, op: str, argument: object = None, *, timeout_s: float = ...) -> Any:
        """Put one question."""
        ...


@record
class Resolved:
    """The answer to `prepareCall`.

    Attributes:
        lease: names the prepared call at its worker.
        lease_s: how long it was granted.
    """

    config: LlmCallConfig
    retry_policy: ResolvedRetryPolicy
    context: LlmModelContext | None
    input_modalities: tuple[str, ...] | None
    adapter_defaults: LlmCallConfigAdapterDefaults
    lease: LeaseId
    lease_s: float


Dispatch = Callable[[GenerateOptions, LeaseId, Callable[[GenerateOptions], None]], Stream]
"""Makes the stream; the check is run on the request that leaves the listeners."""


class PreparedLlmCall:
    """A call to be dispatched once; made by `LlmRuntime.prepare_call`.

    As a context manager it gives the lease back when it was not used.

    Attributes:
        config: frozen, with the adapter's defaults filled in.
        retry_policy: captured with the registration.
        context: capacity of the model, if known.
        input_modalities: what the model takes, if known.
        adapter_defaults: which fields of `config` the adapter supplied.
    """

    def __init__(self, preparer: Preparer, resolved: Resolved, dispatch: Dispatch) -> None:
        self.config = resolved.config
        self.retry_policy = resolved.retry_policy
        self.context = resolved.context
        self.input_modalities = resolved.input_modalities
        self.adapter_defaults = resolved.adapter_defaults
        self._preparer = preparer
        self._dispatch = dispatch
        self._lease = resolved.lease
        self._lease_s = resolved.lease_s
        self._until_s = monotonic() + resolved.lease_s
        self._is_used = False  # nobody may dispatch it (again)
        self._is_sent = False  # the worker does not hold it for us any more

    @property
    def expires_in_s(self) -> float:
        """How long the worker still holds the call, in seconds; 0 when that is over."""
        return max(0.0, self._until_s - monotonic())

    def stream(
        self, options: GenerateOptions | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> Stream:
        """Return the call as a stream, once.

        Args:
            options: the request; its call config must be `config`.
            **fields: of `GenerateOptions`, without `options`; those of `config` may be left out.

        Raises:
            LlmError: `INVALID_PREPARED_CALL`: dispatched or released before, or the request does
                not carry `config`. Also raised while reading, if a listener changed the request.
            LocalProtocolError: as `LlmRuntime.stream`.

        A lease that has run out meanwhile ends the stream in `error`, `INVALID_PREPARED_CALL`.
        """
        if options is None:
            given = {name: getattr(self.config, name) for name in _CONFIG_FIELDS}
            fields = {**given, **fields}
        asked = request.options_from(options, fields)
        self._check(asked)
        if self._is_used:
            _fail("this prepared call was dispatched or released before")
        self._is_used = True
        return self._dispatch(asked, self._lease, self._check_dispatch)

    def _check(self, options: GenerateOptions) -> None:
        if not call_config_equals(options.call_config(), self.config):
            _fail("the request does not carry the config of its prepared call")

    def _check_dispatch(self, options: GenerateOptions) -> None:
        """Judge the request as the listeners left it; it goes out once."""
        self._check(options)
        if self._is_sent:
            _fail("a listener dispatched this prepared call twice")
        self._is_sent = True

    async def renew(self, *, timeout_s: float = _RELEASE_TIMEOUT_S) -> None:
        """Have the worker hold the call for a whole lease again.

        Raises:
            LlmError: `INVALID_PREPARED_CALL`: it was used, was released or has run out; `TIMEOUT`;
                `TRANSPORT`: its worker has ended.
        """
        if self._is_used:
            _fail("this prepared call was dispatched or released before")
        op = "renewCall"
        try:
            answer = await self._preparer.query(op, {"lease": self._lease}, timeout_s=timeout_s)
        except LlmError as exc:
            if exc.code != Code.INVALID_PREPARED_CALL:
                raise
            _fail(
                "this prepared call is not held any more: it was used or released, or its lease"
                f" of {self._lease_s:g} s has run out"
            )
        self._lease_s = _lease_s(_map(op, answer), op)
        self._until_s = monotonic() + self._lease_s

    async def release(self, *, timeout_s: float = _RELEASE_TIMEOUT_S) -> None:
        """Give the lease back without dispatching; after a dispatch it changes nothing.

        Raises:
            LlmError: `TIMEOUT`; the lease then runs out by itself.
        """
        if self._is_sent:
            return
        self._is_used = self._is_sent = True
        try:
            await self._preparer.query("releaseCall", {"lease": self._lease}, timeout_s=timeout_s)
        except LlmError as exc:
            if exc.code not in {Code.INVALID_PREPARED_CALL, Code.TRANSPORT}:  # gone: as wished
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except LocalProtocolError:
            pass  # the runtime is closed: the lease runs out
        except LlmError:
            if exc_type is None:  # what the context raises is not hidden by a late answer
                raise


async def prepare(
    ask: Callable[[str, object, str], Awaitable[Any]], config: LlmCallConfig
) -> Resolved:
    """Ask the worker of a route to prepare a call.

    Raises:
        RemoteProtocolError: the answer is malformed.
    """
    from trunkline_protocol.models import LlmModelContext  # see `queries`

    op = "prepareCall"
    answer = _map(op, await ask(op, config.to_dict(), config.provider))
    lease, modalities = answer.get("lease"), answer.get("inputModalities")
    if not isinstance(lease, bytes) or len(lease) != LEASE_ID_BYTES:
        raise RemoteProtocolError(f"{op}: the answer has no lease")
    context = answer.get("context")
    try:
        return Resolved(
            LlmCallConfig.from_dict(_map(op, answer.get("config"))),
            policy_from_dict(_map(op, answer.get("retryPolicy"))),
            None if context is None else LlmModelContext.from_dict(_map(op, context)),
            None if modalities is None else _texts(op, modalities),
            LlmCallConfigAdapterDefaults.from_dict(_map(op, answer.get("adapterDefaults"))),
            LeaseId(lease),
            _lease_s(answer, op),
        )
    except ValueError as exc:
        raise RemoteProtocolError(f"{op}: {exc}") from None  # one text says it all


def _map(op: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{op}: the answer is malformed")
    return cast("Mapping[str, Any]", value)


def _texts(op: str, value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, str) for item in items):
        raise RemoteProtocolError(f"{op}: the answer is malformed")
    return tuple(cast("list[str]", items))


def _lease_s(answer: Mapping[str, Any], op: str) -> float:
    lease_ms = answer.get("leaseMs")
    if type(lease_ms) not in {int, float}:
        raise RemoteProtocolError(f"{op}: the answer has no leaseMs")
    return float(cast("float", lease_ms)) / 1000


def _fail(message: str) -> NoReturn:
    raise LlmError.of(message, Code.INVALID_PREPARED_CALL)
