"""`LlmRuntime`: the one object an application holds.

It turns what an application writes into requests and questions; `shell` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, overload

from trunkline_protocol.attachments import attachments_in, is_attachment_id
from trunkline_protocol.codec import unpack_body
from trunkline_protocol.curve import CurveKeys
from trunkline_protocol.failure import LlmError, LocalProtocolError
from trunkline_protocol.ids import LeaseId, RouteName
from trunkline_protocol.limits import CONNECT_TIMEOUT_S, MAX_LIST_ENTRIES
from trunkline_protocol.options import GenerateOptions, LlmCallConfig, options_to_wire

from trunkline import arguments, request
from trunkline.attachments import Attachments
from trunkline.core.queues import QueueStatistics
from trunkline.core.requests import CallRequest
from trunkline.endpoint import checked_endpoint, default_endpoint, keys_for
from trunkline.events import AdapterUpdates, Observer
from trunkline.listened import ListenedStream
from trunkline.middleware import GenerateListener, StreamListener, Waterfalls
from trunkline.prepared import PreparedLlmCall, prepare
from trunkline.queries import DEFAULT_QUERY_TIMEOUT_S, RuntimeQueries
from trunkline.shell import Shell
from trunkline.stream import BlockStream, GenerateResult, RetryObserver, Stream, collect
from trunkline.ticket import Ticket
from trunkline.trace import current_traceparent

Recovery = Literal["none", "policy"]
Keys = CurveKeys | str | PathLike[str]
MAX_QUERY_TIMEOUT_S: Final = 600.0  # a broker waits no longer
_MAX_CONNECT_TIMEOUT_S: Final = 86_400.0
_RECOVERIES: Final = ("none", "policy")


class LlmRuntime(RuntimeQueries):
    """A connection to the broker; made by `trunkline.connect`, used on one event loop.

    Leaving its context ends every open stream in `aborted` and waits until the broker has heard of
    it: a round trip, or 0.25 s if the broker does not answer.

    Attributes:
        endpoint: address of the broker.
        name: how the broker's status calls this client.
    """

    def __init__(
        self, endpoint: str | None, name: str, timeout_s: float, keys: Keys | None = None
    ) -> None:
        self.endpoint = default_endpoint() if endpoint is None else checked_endpoint(endpoint)
        self.name = name
        self._timeout_s = timeout_s
        self._shell = Shell(self.endpoint, name, keys_for(self.endpoint, keys))
        self._attachments = Attachments(self)
        self._waterfalls = Waterfalls()

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

    def queues(self) -> tuple[QueueStatistics, ...]:
        """Return how full each queue of this runtime is, was, and may be; costs nothing else.

        A reader that does not keep up is seen in `chunks`, a broker that is away in `unsent calls`.
        """
        return self._shell.mux.queues()

    # --- calls ---------------------------------------------------------------------------------

    def stream(
        self,
        options: GenerateOptions | Mapping[str, Any] | None = None,
        /,
        *,
        recovery: Recovery = "none",
        on_retry: RetryObserver | None = None,
        detachable: bool = False,
        **fields: Any,
    ) -> Stream:
        """Return one model call as a stream of chunks; nothing is sent before it is read.

        Args:
            options: the request; or give its fields as keyword arguments: `provider`, `model`,
                `messages` (messages, plain maps, or one text), `system`, `tools`, `max_tokens` …
            recovery: "policy" has the broker repeat a failed attempt by the route's policy, as
                long as the application was given no chunk; "none" makes one attempt.
            on_retry: called on the loop when a retry is decided and when it begins.
            detachable: the call goes on when this client leaves or dies, and whoever has
                `stream.ticket` may `attach` to it. The worker keeps what was said, at most 16 MiB.
            **fields: of `GenerateOptions`, without `options`.

        Raises:
            LocalProtocolError: the request is wrong or too large (names the field), or the
                runtime is not usable here. A failing call raises nothing: it is a finish.
        """
        self._shell.check_usable()
        _check_recovery(recovery, on_retry)
        arguments.flag("detachable", detachable)
        asked = request.options_from(options, fields)

        def dispatch(one: GenerateOptions) -> Stream:
            made = self._request(one, recovery, detachable=detachable)
            return Stream(self._shell, made, on_retry)

        return self._through_listeners(asked, dispatch)

    def attach(self, ticket: str) -> Stream:
        """Return a call that another client began, from its first chunk on.

        What was said before comes in as few chunks as lead to the same blocks. If another client
        still reads the call, its stream ends in `aborted`. A ticket that nobody honours (the call
        is over for more than half a minute, or its worker is gone) is a finish, not an exception.

        Args:
            ticket: `stream.ticket` of a call with `detachable=True`.

        Raises:
            LocalProtocolError: no ticket, or the runtime is not usable here.
        """
        self._shell.check_usable()
        known = Ticket.parse(ticket)
        asked = CallRequest(RouteName(known.provider), known.model, b"", is_detachable=True)
        return Stream(self._shell, asked, ticket=known)

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
        _check_recovery(recovery, on_retry)
        asked = request.options_from(options, fields)

        def dispatch(one: GenerateOptions) -> Stream:
            return Stream(self._shell, self._request(one, recovery, replayable=True), on_retry)

        async def generated(one: GenerateOptions) -> GenerateResult:
            return await collect(self._through_listeners(one, dispatch, is_held=True))

        return await self._waterfalls.around_generate(generated)(asked)

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

    async def prepare_call(
        self,
        config: LlmCallConfig | Mapping[str, Any],
        *,
        timeout_s: float = DEFAULT_QUERY_TIMEOUT_S,
    ) -> PreparedLlmCall:
        """Resolve a call under the registration that will serve it, and have that held for it.

        Args:
            config: provider, model and what the caller sets; a map may have camelCase or
                snake_case keys.
            timeout_s: seconds.

        Raises:
            LlmError: `NO_ADAPTER`, `UNSUPPORTED_REASONING_EFFORT`, `INVALID_MODEL_*`, `OVERLOADED`,
                or the adapter's own failure.
            LocalProtocolError: as `query`.
        """
        asked = request.config_from(config)
        for field, name in (("provider", asked.provider), ("model", asked.model)):
            arguments.name(field, name)

        async def ask(op: str, argument: object, provider: str) -> Any:
            return await self.query(op, argument, provider=provider, timeout_s=timeout_s)

        return PreparedLlmCall(self, await prepare(ask, asked), self._dispatch_prepared)

    def _dispatch_prepared(
        self, options: GenerateOptions, lease: LeaseId, check: Callable[[GenerateOptions], None]
    ) -> Stream:
        self._shell.check_usable()

        def dispatch(one: GenerateOptions) -> Stream:
            check(one)
            return Stream(self._shell, self._request(one, "none", lease=lease))

        return self._through_listeners(options, dispatch)

    def _through_listeners(
        self,
        options: GenerateOptions,
        dispatch: Callable[[GenerateOptions], Stream],
        *,
        is_held: bool = False,
    ) -> Stream:
        if not self._waterfalls.has_stream_listeners:
            return dispatch(options)
        return ListenedStream(self._shell, self._waterfalls, options, dispatch, is_held=is_held)

    def _request(
        self,
        options: GenerateOptions,
        recovery: Recovery,
        *,
        replayable: bool = False,
        lease: LeaseId | None = None,
        detachable: bool = False,
    ) -> CallRequest:
        for field, name in (("provider", options.provider), ("model", options.model)):
            arguments.name(field, name)
        return CallRequest(
            RouteName(options.provider),
            options.model,
            options_to_wire(options),
            recovery=recovery,
            is_replayable=replayable,
            lease=lease,
            attachments=_attachments(options),
            traceparent=current_traceparent(),
            is_detachable=detachable,
        )

    # --- listeners and events ------------------------------------------------------------------

    @overload
    def use(
        self, waterfall: Literal["llm/stream"], listener: StreamListener, /
    ) -> Callable[[], None]: ...
    @overload
    def use(
        self, waterfall: Literal["llm/generate"], listener: GenerateListener, /
    ) -> Callable[[], None]: ...
    def use(self, waterfall: Any, listener: Any, /) -> Callable[[], None]:
        """Put a listener around every call that is made from now on; the first is the outermost.

        An `llm/stream` listener is `def listener(options, next)` and returns an async iterable of
        chunks, mostly as an async generator; an `llm/generate` listener is a coroutine function
        that returns a `GenerateResult`. `next()` goes on with the request, `next(other)` with
        another one: the route is looked up behind all listeners. `generate` passes both waterfalls,
        and in it a stream listener gets the chunks of the attempt that counted, at its end.

        Returns:
            What takes the listener out again; calling it twice is harmless.

        Raises:
            LocalProtocolError: another waterfall, or 64 listeners are there already.
        """
        return self._waterfalls.use(waterfall, listener)

    def on_adapters_updated(self, observer: Observer) -> Callable[[], None]:
        """Have `observer()` called on the loop after each change of the provider topology.

        One call per commit point; also after a reconnection, since events may have been missed
        then. What the observer raises is logged and contained.

        Returns:
            What ends it; calling it twice is harmless.

        Raises:
            LocalProtocolError: a coroutine function, or 1,024 observers are there already.
        """
        return self._shell.events.subscribe(observer)

    def adapters_updated(self) -> AdapterUpdates:
        """Return an async iterator over the changes of the provider topology from now on.

        It yields `None`: ask again for what you show. Changes that were not read yet are one.

        Raises:
            LocalProtocolError: 1,024 iterators are open already.
        """
        return self._shell.events.iterate()

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
            LocalProtocolError: the argument has no MessagePack form, is too large or too deep
                (names the key), a wrong timeout, or the runtime is not usable here.
            RemoteProtocolError: the answer can't be decoded.
        """
        arguments.seconds("timeout_s", timeout_s, MAX_QUERY_TIMEOUT_S)
        arguments.name("op", op)
        arguments.name("provider", provider)
        body = request.packed_argument(op, argument)
        answered = await self._shell.ask(op, provider, body, timeout_s)
        if answered.failure is not None:
            raise LlmError(answered.failure)
        return unpack_body(answered.body)


def _check_recovery(recovery: object, on_retry: object) -> None:
    arguments.choice("recovery", recovery, _RECOVERIES)
    if on_retry is not None:
        arguments.function("on_retry", on_retry)


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
    endpoint: str | None = None,
    *,
    name: str = "",
    timeout_s: float = CONNECT_TIMEOUT_S,
    keys: Keys | None = None,
) -> LlmRuntime:
    """Return a runtime to be used as `async with trunkline.connect() as llm:`.

    Args:
        endpoint: address of the broker, `ipc://` or `tcp://`; by default `TRUNKLINE_ENDPOINT`, or
            the socket in this user's run directory.
        name: shown in the broker's status.
        timeout_s: how long entering waits for a broker.
        keys: for `tcp://`: the file that `trunkline keys client` made, or its content; by default
            the file in `TRUNKLINE_KEYS`.

    Raises:
        LocalProtocolError: an endpoint that can't be one, a name over 256 characters, a wrong
            timeout, or a key file that can't be read.
    """
    arguments.name("name", name)
    arguments.seconds("timeout_s", timeout_s, _MAX_CONNECT_TIMEOUT_S)
    return LlmRuntime(endpoint, name, timeout_s, keys)
