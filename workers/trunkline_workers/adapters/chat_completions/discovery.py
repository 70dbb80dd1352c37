"""Which models an endpoint has: reading `GET /models`, and answering drafts of configurations.

The credential of a draft is used for its one request and kept nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast
from urllib.parse import urlsplit

import msgspec
from trunkline_protocol.api_key import usable_api_key
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.models import LlmDiscoveredModel, LlmModelDiscoveryRequest
from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapters.chat_completions.profiles import ModelFacts
from trunkline_workers.clocks import StreamLimits
from trunkline_workers.http import HttpClient, HttpRequest
from trunkline_workers.refusals import refusal, without_key

_MODELS_BODY_BYTES: Final = 8 * 1024 * 1024  # OpenRouter's list has about 1 MB
_PROTOCOLS: Final = frozenset({"openai-completions", "chat-completions", "openai"})


async def fetch_models(
    http: HttpClient, url: str, headers: Mapping[str, str], limits: StreamLimits
) -> list[ModelFacts]:
    """Ask an endpoint for its models.

    Raises:
        LlmError: it refuses, does not answer, or answers with what is no list of models.
    """
    response = await http.send(HttpRequest("GET", f"{url}/models", headers), limits)
    try:
        if not 200 <= response.status < 300:
            raise LlmError(await refusal(response))
        body, is_complete = await response.read_all(_MODELS_BODY_BYTES)
    finally:
        await response.close()
    return read_models(body if is_complete else b"")


def read_models(body: bytes) -> list[ModelFacts]:
    """Read a provider's list of models; entries without an id are left out.

    Raises:
        LlmError: `MALFORMED_RESPONSE`.
    """
    try:
        value: object = msgspec.json.decode(body)
    except (ValueError, RecursionError) as exc:
        text = "the provider's list of models is no JSON"
        raise LlmError(LlmFailure(text, Code.MALFORMED_RESPONSE)) from exc
    entries = cast("dict[str, object]", value).get("data") if isinstance(value, dict) else value
    found: dict[str, ModelFacts] = {}
    for entry in cast("list[object]", entries) if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            fields = cast("dict[str, object]", entry)
            model_id, name = fields.get("id"), fields.get("name")
            if isinstance(model_id, str) and model_id:
                shown = name if isinstance(name, str) and name else model_id
                found.setdefault(model_id, ModelFacts(id=model_id, name=shown))
    return list(found.values())


def known_models(models: Sequence[ModelFacts]) -> list[LlmDiscoveredModel]:
    """Return what is known of models without asking anybody."""
    return [
        LlmDiscoveredModel(
            id=model.id,
            name=model.name,
            context_window=model.context_window,
            max_tokens=model.max_tokens,
        )
        for model in models
    ]


async def interrogate(
    http: HttpClient, draft: LlmModelDiscoveryRequest, limits: StreamLimits
) -> list[LlmDiscoveredModel]:
    """Ask the endpoint of a draft, with the draft's own credential.

    Raises:
        LlmError: `INVALID_DISCOVERY`: no usable endpoint; `UNSUPPORTED`: another protocol;
            `INVALID_CREDENTIAL`; and those of `fetch_models`, without the key in them.
    """
    url = (draft.base_url or "").rstrip("/")
    if urlsplit(url).scheme not in {"http", "https"}:
        raise LlmError.of("baseURL: an http or https URL is required", Code.INVALID_DISCOVERY)
    if draft.api and draft.api not in _PROTOCOLS:
        raise LlmError.of(f"api: one of {', '.join(sorted(_PROTOCOLS))}", Code.UNSUPPORTED)
    headers: dict[str, str] = {}
    key = draft.api_key or None
    if key is not None:
        key = usable_api_key(key, "model discovery", "the draft")
        headers["authorization"] = f"Bearer {key}"
    try:
        models = await fetch_models(http, url, headers, limits)
    except LlmError as exc:
        raise without_key(exc, SecretStr(key) if key is not None else None) from None
    # Of these only an id and perhaps a name were disclosed.
    return [LlmDiscoveredModel(id=model.id, name=_disclosed(model)) for model in models]


def _disclosed(model: ModelFacts) -> str | None:
    return None if model.name == model.id else model.name
