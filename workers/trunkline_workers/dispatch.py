"""From a `START` to the adapter's open stream: the checks before the first pull."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from trunkline_protocol.attachments import claims_in
from trunkline_protocol.codec import unpack_body
from trunkline_protocol.content import ImageAttachment
from trunkline_protocol.failure import Code, LlmError, RemoteProtocolError
from trunkline_protocol.frames import Start
from trunkline_protocol.options import GenerateOptions

from trunkline_workers import foreign
from trunkline_workers.boundary import fitted_options, options_for_adapter
from trunkline_workers.queries import Queries, no_adapter
from trunkline_workers.runtime import WorkerRuntime
from trunkline_workers.tracing import note_request

Ensure = Callable[[Sequence[ImageAttachment]], Awaitable[None]]


class Dispatcher:
    """Chooses the adapter of an attempt and opens its stream.

    Args:
        runtime: finds adapters.
        queries: gives out prepared calls.
        ensure: makes sure that these attachments can be read and are what is said of them.
    """

    def __init__(self, runtime: WorkerRuntime, queries: Queries, ensure: Ensure) -> None:
        self._runtime = runtime
        self._queries = queries
        self._ensure = ensure

    async def open_stream(self, start: Start) -> Any:
        """Return the adapter's stream for an attempt.

        Raises:
            LlmError: `INVALID_REQUEST`, `NO_ADAPTER`, `INVALID_PREPARED_CALL`,
                `ATTACHMENT_MISSING`, `INVALID_ATTACHMENT` and those of
                `boundary.options_for_adapter`, or what the adapter raises.
        """
        options = request_of(start)
        if start.lease is not None:
            prepared = self._queries.take(start.lease, options)
            adapter = prepared.adapter
            owned = self._runtime.owned_providers(adapter) | {options.provider}
            fitted = fitted_options(options, prepared.config, owned, prepared.info)
            complete = await self._complete(fitted)
            return foreign.call(lambda: adapter.stream(complete))
        # Captured before anything is awaited: resolution and dispatch belong to one registration.
        adapter = self._runtime.registry.owner(start.provider)
        if adapter is None:
            raise no_adapter(start.provider)
        owned = self._runtime.owned_providers(adapter)
        fitted = await options_for_adapter(adapter, owned, options)
        complete = await self._complete(fitted)
        return foreign.call(lambda: adapter.stream(complete))

    async def _complete(self, options: GenerateOptions) -> GenerateOptions:
        """Return the request once everything it names is at hand."""
        note_request(options)
        claims = claims_in(options.messages)
        if claims:
            await self._ensure(claims)
        return options


def request_of(start: Start) -> GenerateOptions:
    """Read the body of a `START`.

    Raises:
        LlmError: `INVALID_REQUEST`: it is no request, or one for another route.
    """
    try:
        # What is no map fails as one without any of its fields.
        body = cast("dict[str, object]", unpack_body(start.body) or {})
        options = GenerateOptions.from_dict(body)
    except (RemoteProtocolError, TypeError, ValueError) as exc:
        raise LlmError.of(f"the request is malformed: {exc}", Code.INVALID_REQUEST) from exc
    if options.provider != start.provider or options.model != start.model:
        raise LlmError.of("the request names another route or model", Code.INVALID_REQUEST)
    return options
