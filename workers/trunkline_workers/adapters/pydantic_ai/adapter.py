"""The pydantic_ai adapter: joins configuration, the library, our HTTP client and translation.

The library writes requests and reads responses; one call is one request of it, made by our own
client through the hook in `transport`. Retries, limits, attribution and the closing of connections
are therefore the same as in every other HTTP adapter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.models import (
    LlmModelContext,
    LlmModelInfo,
    LlmModelReasoningInfo,
    LlmReasoningEffortInfo,
    LlmResolvedModelInfo,
    ModelModality,
)
from trunkline_protocol.options import GenerateOptions

from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.pydantic_ai.config import AdapterConfig, ModelFacts, read_config
from trunkline_workers.adapters.pydantic_ai.events import SdkEvents
from trunkline_workers.adapters.pydantic_ai.exchange import Exchange, current_exchange
from trunkline_workers.adapters.pydantic_ai.failures import cut_short, failure_of
from trunkline_workers.adapters.pydantic_ai.models import Models, missing
from trunkline_workers.adapters.pydantic_ai.replay import ReplayScope
from trunkline_workers.adapters.pydantic_ai.request import (
    LibraryRequest,
    build_request,
    check_body,
    offered_efforts,
)
from trunkline_workers.adapters.pydantic_ai.shapes import SHAPES, check_shape
from trunkline_workers.adapters.pydantic_ai.translate import PartTranslator, usage_chunks
from trunkline_workers.credentials import plain
from trunkline_workers.http_adapter import HttpAdapter
from trunkline_workers.images import image_blocks


class _UnusableReplayError(LlmError):
    """The library could not write the request, in which there is replay state.

    It looks into that more closely than is checked before; and no state may fail a request.
    """


class PydanticAiAdapter(HttpAdapter):
    """Speaks to one provider through pydantic-ai, by a profile."""

    def __init__(self, config: AdapterConfig, context: AdapterContext | None = None) -> None:
        """Describe the adapter; `open` loads the library, calls connect.

        Args:
            config: from `read_config`.
            context: of the worker.
        """
        super().__init__(context or AdapterContext(name="pydantic_ai"), config)
        self._config = config
        self._models = Models(config, self._context.environ)

    @classmethod
    def create(cls, context: AdapterContext) -> PydanticAiAdapter:
        """Build the adapter from the worker's options.

        Raises:
            ValueError: an option is wrong; the text names it.
            ImportError: the library is not installed for this provider.
        """
        config = read_config(context.options, context.environ)
        if text := missing(config.profile):
            raise ImportError(text)
        return cls(config, context)

    async def open(self) -> None:
        """Load the library and make the HTTP client ready.

        Raises:
            LlmError: the library is not installed for this provider.
        """
        try:
            await asyncio.to_thread(self._models.load)
        except ImportError as exc:
            text = (
                f"{exc}; install it into this worker's interpreter: pip install"
                f" 'pydantic-ai-slim[{self._config.profile.extra}]'"
            )
            raise LlmError.of(text, Code.INVALID_ADAPTER) from exc
        await super().open()

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """List the configured models, or those that the library knows."""
        models = self._config.models or tuple(
            ModelFacts(each, each) for each in self._models.known()
        )
        return [LlmModelInfo(provider=provider, id=each.id, name=each.name) for each in models]

    async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Resolve a model from the configuration and the library; every model id is accepted."""
        config = self._config
        known = (each for each in config.models if each.id == model)
        facts = next(known, ModelFacts(model, model))
        library_model = self._models.get(model)
        window = facts.context_window or library_model.profile.get("context_window")
        efforts = offered_efforts(library_model, config)
        modalities: tuple[ModelModality, ...] = ("text",)
        if library_model.profile.get("supports_image_input", True):
            modalities = ("text", "image")
        default = config.default_effort if config.default_effort in efforts else None
        reasoning = LlmModelReasoningInfo(
            efforts=tuple(LlmReasoningEffortInfo(id=each, name=each.title()) for each in efforts),
            default_effort=default,
        )
        return LlmResolvedModelInfo(
            provider=provider,
            id=model,
            name=facts.name,
            input_modalities=modalities,
            context=None if window is None else LlmModelContext(context_window=window),
            default_max_tokens=facts.max_tokens or config.default_max_tokens,
            reasoning=reasoning if efforts else None,
        )

    async def stream(self, options: GenerateOptions) -> AsyncGenerator[list[StreamChunk]]:
        """Stream one model call.

        Raises:
            LlmError: before any I/O for a request that can't be made, or whatever ended the
                stream; no key is in its text.
        """
        async with self._key() as key:
            model = self._models.get(options.model, key)
            request = await self._request(options, model)
            try:
                async with aclosing(self._exchange(options, model, request)) as lists:
                    async for chunks in lists:
                        yield chunks
            except _UnusableReplayError as exc:
                self._context.report(f"replay state of no message used: {exc.failure.message}")
            else:
                return
            plain_request = await self._request(options, model, with_replay=False)
            async with aclosing(self._exchange(options, model, plain_request)) as lists:
                async for chunks in lists:
                    yield chunks

    async def _request(
        self, options: GenerateOptions, model: Any, *, with_replay: bool = True
    ) -> LibraryRequest:
        read = self._context.read_attachment
        images: dict[str, bytes] = {}
        if model.profile.get("supports_image_input", True):
            for block in image_blocks(options):
                name = block.attachment.attachment_id
                images[name] = await read(name)
        try:
            report = self._context.report
            return build_request(
                options, model, self._config, images, report, with_replay=with_replay
            )
        except LlmError:
            raise
        except Exception as exc:  # of many types: the library checks what it is given
            if with_replay:
                return await self._request(options, model, with_replay=False)
            text = f"the request could not be built: {exc!r}"
            raise LlmError.of(text, Code.INVALID_REQUEST) from exc

    async def _exchange(
        self, options: GenerateOptions, model: Any, request: LibraryRequest
    ) -> AsyncGenerator[list[StreamChunk]]:
        """Send the request and translate its answer.

        Raises:
            _UnusableReplayError: nothing was sent; it may be the replay state that can't be used.
            LlmError: whatever ended the stream.
        """
        config = self._config
        exchange = Exchange(self._http, config.limits, check_body(options), plain(config.headers))
        shape = SHAPES.get(config.profile.extra)
        if shape is not None:
            exchange.events = SdkEvents(partial(check_shape, shape=shape))
        scope = ReplayScope(config.name, model.system, config.profile.signatures_are_base64)
        translator = PartTranslator(interleaves=config.profile.interleaves, scope=scope)
        response: Any = None
        try:
            async with _opened(model, request, exchange) as response:
                exchange.has_finish = lambda: response.finish_reason is not None
                async for event in response:
                    chunks = translator.take(event)
                    if chunks:
                        exchange.progressed(is_content=event.event_kind != "part_end")
                        yield chunks
                yield translator.finish(_Whole(response))
        except Exception as exc:  # of many types: the library's, the SDK's, pydantic's
            # What was counted so far was paid for.
            if response is not None and (counts := usage_chunks(response.usage)):
                yield counts
            failure = _failure(exc, exchange)
            if request.has_replay and exchange.requests == 0:
                raise _UnusableReplayError(failure) from exc
            raise LlmError(failure) from exc
        finally:
            await exchange.close()


def _failure(raised: Exception, exchange: Exchange) -> LlmFailure:
    if not isinstance(raised, LlmError):
        return failure_of(raised, exchange)
    failure = raised.failure
    return cut_short(failure, exchange) if failure.code == Code.STREAM_CLOSED else failure


@asynccontextmanager
async def _opened(model: Any, request: LibraryRequest, exchange: Exchange) -> AsyncGenerator[Any]:
    """Open the library's stream with its one request on our exchange."""
    token = current_exchange.set(exchange)
    stream = model.request_stream(request.messages, request.settings, request.parameters)
    try:
        response = await stream.__aenter__()
    finally:
        current_exchange.reset(token)
    try:
        yield response
    finally:
        # Whatever ended the reading: the library only closes what is closed already by us.
        await exchange.close()
        await stream.__aexit__(None, None, None)


class _Whole:
    """The library's view of a response that has ended."""

    def __init__(self, response: Any) -> None:
        whole = response.get()
        self.parts = whole.parts
        self.usage = whole.usage
        self.finish_reason = whole.finish_reason
        self.provider_details = whole.provider_details
        self.model_name = whole.model_name
        self.provider_url = whole.provider_url
        self.provider_response_id = whole.provider_response_id
        self.canonical_system = whole.canonical_system
