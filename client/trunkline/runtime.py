"""`LlmRuntime`: the one object an application holds.

It turns what an application writes into requests and questions; `shell` carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, Self

from trunkline_protocol.attachments import attachments_in, is_attachment_id
from trunkline_protocol.codec import pack_body, unpack_body
from trunkline_protocol.failure import LlmError, LocalProtocolError
from trunkline_protocol.ids import RouteName
from trunkline_protocol.limits import CONNECT_TIMEOUT_S, MAX_LIST_ENTRIES, MAX_NAME_BYTES
from trunkline_protocol.models import LlmModelInfo, LlmProviderInfo, LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions, LlmCallConfig, options_to_wire
from trunkline_protocol.retry_policy import ResolvedRetryPolicy

from trunkline import queries, request
from trunkline.attachments import Attachments
from trunkline.core.stream_state import CallRequest
from trunkline.endpoint import checked_endpoint, default_endpoint
from trunkline.shell import Shell
from trunkline.stream import BlockStream, GenerateResult, RetryObserver, Stream, collect

Recovery = Literal["none", "policy"]
DEFAULT_QUERY_TIMEOUT_S: Final = 30.0


class LlmRuntime:
    """A connection to the broker; made by `trunkline.connect`, used on one event loop.

    Leaving its context ends every open stream in `aborted` and waits until the broker has heard of
    it: a round trip, or 0.25 s if the broker does not answer.

    Attributes:
        endpoint: address of the broker.
        name: how the broker's status calls this client.
    """

    def __init__(self, endpoint: str | None, name: str, timeout_s: float) -> None:
        self.endpoint = default_endpoint() if endpoint is None else checked_endpoint(endpoint)
        self.name = name
        self._timeout_s = timeout_s
        self._shell = Shell(self.endpoint, name)
        self._attachments = Attachments(self)

    # --- life ----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnreachableError: no broker has answered within `timeout_s`.
            BrokerRefusedError: it speaks another major version, or does not accept this client.
            LocalProtocolError: connected before.
        """
        await self._shell.connect(self._timeout_s)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End every stream in `aborted`, every query in an error, and disconnect; idempotent."""
        await self._shell.close()

    @property
    def counters(self) -> Mapping[str, int]:
        """How often something was dropped, refused or repeated, by name; for diagnosis."""
        return self._shell.counters

    # --- calls ---------------------------------------------------------------------------------

    def stream(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "none",
        on_retry: RetryObserver | None = None,
        **fields: Any,
    ) -> Stream:
        """Return one model call as a stream of chunks; nothing is sent before it is read.

        Args:
            options: the request; or give its fields as keyword arguments: `provider`, `model`,
                `messages` (messages, plain maps, or one text), `system`, `tools`, `max_tokens` …
            recovery: "policy" has the broker repeat a failed attempt by the route's policy, as
                long as the application was given no chunk; "none" makes one attempt.
            on_retry: called on the loop when a retry is decided and when it begins.
            **fields: of `GenerateOptions`, without `options`.

        Raises:
            LocalProtocolError: the request is wrong or too large (names the field), or the
                runtime is not usable here. A failing call raises nothing: it is a finish.
        """
        self._shell.check_usable()
        asked = self._request(request.options_from(options, fields), recovery, replayable=False)
        return Stream(self._shell, asked, on_retry)

    async def generate(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "policy",
        on_retry: RetryObserver | None = None,
        **fields: Any,
    ) -> GenerateResult:
        """Make one model call and return it assembled.

        Like `stream`, which it reads to the end, it does not raise when the call fails: the seeds
        make every adapter failure a terminal finish, and `result.finish` carries it.
        `result.raise_for_failure()` turns it into an `LlmError`. Failed attempts are repeated by
        the route's policy. Cancelling the task cancels the provider request.

        Raises:
            LocalProtocolError: as `stream`.
            ValueError: the adapter left a block open that deltas cannot build.
        """
        self._shell.check_usable()
        asked = self._request(request.options_from(options, fields), recovery, replayable=True)
        return await collect(Stream(self._shell, asked, on_retry))

    def stream_blocks(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "none",
        on_retry: RetryObserver | None = None,
        **fields: Any,
    ) -> BlockStream:
        """Return one model call as a stream of completed blocks; arguments as `stream`."""
        return BlockStream(self.stream(options, recovery=recovery, on_retry=on_retry, **fields))

    def _request(
        self, options: GenerateOptions, recovery: Recovery, *, replayable: bool
    ) -> CallRequest:
        for field, name in (("provider", options.provider), ("model", options.model)):
            if len(name) > MAX_NAME_BYTES:
                raise LocalProtocolError(f"{field}: at most {MAX_NAME_BYTES} characters")
        return CallRequest(
            RouteName(options.provider),
            options.model,
            options_to_wire(options),
            recovery=recovery,
            is_replayable=replayable,
            attachments=_attachments(options),
        )

    # --- attachments ---------------------------------------------------------------------------

    @property
    def attachments(self) -> Attachments:
        """Where images go before a message can name them."""
        return self._attachments

    # --- queries -------------------------------------------------------------------------------

    async def query(
        self,
        op: str,
        argument: object = None,
        *,
        provider: str = "",
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> Any:
        """Ask the broker, or the worker of a route, one question (SPEC.md section 7).

        Cancelling the task reaches whoever works on the answer.

        Returns:
            The decoded body of the answer, `None` for an empty one.

        Raises:
            LlmError: the answer is a failure; `TIMEOUT` if none came in time.
            LocalProtocolError: the argument has no MessagePack form, or as `stream`.
            RemoteProtocolError: the answer can't be decoded.
        """
        try:
            body = b"" if argument is None else pack_body(argument)
        except (TypeError, ValueError, OverflowError):
            raise LocalProtocolError(f"{op}: the argument has no MessagePack form") from None
        answered = await self._shell.ask(op, provider, body, timeout_s)
        if answered.failure is not None:
            raise LlmError(answered.failure)
        return unpack_body(answered.body)

    async def list_providers(self) -> list[LlmProviderInfo]:
        """Return the routes with a registered adapter, in registration order."""
        return await queries.list_providers(self)

    async def models(self) -> list[str]:
        """Return the names of the routes with a registered adapter."""
        return await queries.models(self)

    async def list_models(self, provider: str) -> list[LlmModelInfo]:
        """Return the models a route advertises; advisory, never a whitelist.

        Raises:
            LlmError: `NO_ADAPTER`, `INVALID_CATALOG`, `TIMEOUT`, or the adapter's own failure.
        """
        return await queries.list_models(self, provider)

    async def resolve_model_info(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Return everything known of one exact model.

        Raises:
            LlmError: `NO_ADAPTER`, `INVALID_MODEL_*`, `TIMEOUT`, or the adapter's own failure.
        """
        return await queries.resolve_model_info(self, provider, model)

    async def resolve_call_config(self, config: LlmCallConfig | Mapping[str, Any]) -> LlmCallConfig:
        """Return a call config with the adapter's defaults materialized.

        Raises:
            LlmError: `NO_ADAPTER`, `UNSUPPORTED_REASONING_EFFORT`, `INVALID_MODEL_*`, `TIMEOUT`.
        """
        return await queries.resolve_call_config(self, request.config_from(config))

    async def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy:
        """Return the policy captured when a route was registered.

        Raises:
            LlmError: `NO_ADAPTER`.
        """
        return await queries.provider_retry_policy(self, provider)

    async def status(self) -> dict[str, Any]:
        """Return the broker's status document."""
        return await queries.status(self)


def _attachments(options: GenerateOptions) -> tuple[str, ...]:
    """Return the attachments that a request names, for the broker to keep meanwhile.

    A malformed name is none that a broker could hold: the worker will say that it is missing.

    Raises:
        LocalProtocolError: too many.
    """
    named = (each.attachment_id for each in attachments_in(options.messages))
    names = tuple(name for name in named if is_attachment_id(name))
    if len(names) > MAX_LIST_ENTRIES:
        raise LocalProtocolError(f"messages: at most {MAX_LIST_ENTRIES} different images")
    return names


def connect(
    endpoint: str | None = None, *, name: str = "", timeout_s: float = CONNECT_TIMEOUT_S
) -> LlmRuntime:
    """Return a runtime to be used as `async with trunkline.connect() as llm:`.

    Args:
        endpoint: address of the broker, `ipc://` or `tcp://`; by default `TRUNKLINE_ENDPOINT`, or
            the socket in this user's run directory.
        name: shown in the broker's status.
        timeout_s: how long entering waits for a broker.

    Raises:
        LocalProtocolError: an endpoint that can't be one, or a name over 256 characters.
    """
    if len(name) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"name: at most {MAX_NAME_BYTES} characters")
    return LlmRuntime(endpoint, name, timeout_s)
