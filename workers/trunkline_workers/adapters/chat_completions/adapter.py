"""The chat-completions adapter: joins configuration, request, response and translation.

It holds no rule of its own: requests are written by `serialize`, responses read by `translate`, the
bytes and limits are `http`'s and `streaming`'s.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.http_failure import in_band_failure, request_id
from trunkline_protocol.models import (
    LlmConfigurableProvider,
    LlmDiscoveredModel,
    LlmModelContext,
    LlmModelDiscoveryRequest,
    LlmModelInfo,
    LlmModelReasoningInfo,
    LlmReasoningEffortInfo,
    LlmResolvedModelInfo,
    ModelModality,
)
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.config import ChatConfig, read_config
from trunkline_workers.adapters.chat_completions.discovery import (
    fetch_models,
    interrogate,
    known_models,
)
from trunkline_workers.adapters.chat_completions.images import ImageResolver, image_resolver
from trunkline_workers.adapters.chat_completions.profiles import ModelFacts
from trunkline_workers.adapters.chat_completions.serialize import (
    ResolvedImage,
    build_body,
    offered_efforts,
)
from trunkline_workers.adapters.chat_completions.translate import Translator
from trunkline_workers.credentials import bearer, plain
from trunkline_workers.http import HttpRequest
from trunkline_workers.http_adapter import HttpAdapter
from trunkline_workers.images import image_blocks
from trunkline_workers.refusals import refusal
from trunkline_workers.runtime import WorkerRuntime
from trunkline_workers.streaming import translate_stream


class ChatCompletionsAdapter(HttpAdapter):
    """Speaks the chat-completions API with one provider, by a profile."""

    def __init__(
        self,
        config: ChatConfig,
        context: AdapterContext | None = None,
        *,
        resolve_image: ImageResolver | None = None,
    ) -> None:
        """Describe the adapter; `open` connects nothing either, calls do.

        Args:
            config: from `read_config`.
            context: of the worker.
            resolve_image: reads an attachment; without it images are missing attachments.
        """
        super().__init__(context or AdapterContext(name="chat_completions"), config)
        self._config = config
        self._resolve_image = resolve_image

    @classmethod
    def create(cls, context: AdapterContext) -> ChatCompletionsAdapter:
        """Build the adapter from the worker's options."""
        resolve = image_resolver(context.read_attachment)
        return cls(read_config(context.options), context, resolve_image=resolve)

    async def setup(self, runtime: WorkerRuntime) -> None:
        """Declare the routes as configurable and answer drafts; the namespace is the pool's name.

        Raises:
            LlmError: another pool declares a route already.
        """
        entries = [
            LlmConfigurableProvider(
                provider=route,
                display_name=self.provider_info(route).name,
                settings_ns=self._context.name,
                settings_path=("options",),
                declared=route != self._config.profile.route,
            )
            for route in self._routes()
        ]
        await runtime.register_configurable_providers(entries)
        await runtime.register_model_discovery(self._context.name, self.discover_models)

    def _routes(self) -> Sequence[str]:
        return self._context.providers or self.default_providers()

    async def discover_models(
        self, draft: LlmModelDiscoveryRequest
    ) -> Sequence[LlmDiscoveredModel]:
        """Answer for a route of this worker from what is known; ask the draft's endpoint else.

        Raises:
            LlmError: as `discovery.interrogate`.
        """
        models = self._config.profile.models
        if draft.provider in self._routes() and (models or not draft.base_url):
            return known_models(models)
        return await interrogate(self._http, draft, self._config.limits)

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """List the configured models, or those of the provider's own list."""
        profile = self._config.profile
        models: Sequence[ModelFacts] = profile.models
        if profile.lists_models:
            models = await self._fetch_models()
        return [
            LlmModelInfo(
                provider=provider, id=model.id, name=model.name, input_modalities=_modalities(model)
            )
            for model in models
        ]

    async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Resolve a model from the configuration; every model id is accepted."""
        config = self._config
        facts = self._facts(model)
        window = facts.context_window or config.context_window
        efforts = offered_efforts(config.profile.request, config.defaults)
        reasoning = LlmModelReasoningInfo(
            efforts=tuple(LlmReasoningEffortInfo(id=each, name=each.title()) for each in efforts),
            default_effort=config.defaults.reasoning_effort,
        )
        return LlmResolvedModelInfo(
            provider=provider,
            id=model,
            name=facts.name,
            input_modalities=_modalities(facts) if facts in config.profile.models else None,
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
            request = await self._request(options, key)
            async with aclosing(self._exchange(request, options)) as lists:
                async for chunks in lists:
                    yield chunks

    async def _exchange(
        self, request: HttpRequest, options: GenerateOptions
    ) -> AsyncGenerator[list[StreamChunk]]:
        """Send the request and translate its answer."""
        config = self._config
        response = await self._http.send(request, config.limits)
        is_complete = False
        try:
            if not 200 <= response.status < 300:
                raise LlmError(await refusal(response))
            translator = self.new_translator(options, request_id(response.headers))
            lists = translate_stream(response, translator, config.limits.grace_s)
            async with aclosing(lists):
                async for chunks in lists:
                    is_complete = translator.is_done and translator.failure is None
                    yield chunks
        finally:
            await response.close(is_complete=is_complete)

    def new_translator(self, options: GenerateOptions, response_id: str | None) -> Translator:
        """Return the reader of one response.

        Args:
            options: the call.
            response_id: the provider's id of the request, for failures.
        """
        config = self._config
        return Translator(
            config.profile.response,
            partial(in_band_failure, request_id=response_id),
            max_tokens=options.max_tokens,
            context_window=self._facts(options.model).context_window or config.context_window,
            id_prefix=f"call_{secrets.token_hex(6)}_",
        )

    async def _request(self, options: GenerateOptions, key: SecretStr | None) -> HttpRequest:
        config = self._config
        images = await self._images(options)
        try:
            body = _encode(
                build_body(
                    options,
                    config.profile.request,
                    config.defaults,
                    images=images,
                    report=self._context.report,
                )
            )
        except LlmError:
            raise
        except Exception as exc:  # a value no JSON can hold, or a bug: it is not the network
            text = f"the request could not be built: {exc!r}"
            raise LlmError(LlmFailure(text, Code.INVALID_REQUEST)) from exc
        headers = {
            **plain(config.headers),
            "content-type": "application/json",
            "accept": "text/event-stream",
            **self._auth(key),
        }
        return HttpRequest("POST", f"{config.base_url}/chat/completions", headers, body)

    def _auth(self, key: SecretStr | None) -> dict[str, str]:
        header = self._config.key_header
        if key is None or header.lower() == "authorization":
            return bearer(key)
        return {header: key.get_secret_value()}

    async def _images(self, options: GenerateOptions) -> dict[str, ResolvedImage]:
        """Resolve the images of a request, if the provider takes any."""
        resolve = self._resolve_image
        if resolve is None or self._config.profile.request.images == "none":
            return {}
        return {
            block.attachment.attachment_id: await resolve(block) for block in image_blocks(options)
        }

    def _facts(self, model: str) -> ModelFacts:
        known = (facts for facts in self._config.profile.models if facts.id == model)
        return next(known, ModelFacts(id=model, name=model))

    async def _fetch_models(self) -> list[ModelFacts]:
        """Ask the provider for its models."""
        config = self._config
        async with self._key() as key:
            headers = {**plain(config.headers), **self._auth(key)}
            return await fetch_models(self._http, config.base_url, headers, config.limits)


def _modalities(model: ModelFacts) -> tuple[ModelModality, ...]:
    return ("text", "image") if model.images else ("text",)


def _encode(body: Mapping[str, object]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate in a text: JSON can say it, UTF-8 can't
        return json.dumps(body).encode()
