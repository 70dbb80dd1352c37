"""The options of a chat-completions worker: a profile, and what the configuration changes of it.

Pure. Every wrong option is a `ValueError` that names the key and what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from trunkline_protocol.retry_policy import ResolvedRetryPolicy
from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapters.chat_completions.profiles import (
    PROFILES,
    ImageForm,
    InlineThinking,
    ModelFacts,
    Profile,
)
from trunkline_workers.adapters.chat_completions.serialize import RequestDefaults, offered_efforts
from trunkline_workers.clocks import StreamLimits
from trunkline_workers.http import ClientOptions
from trunkline_workers.http_options import (
    check_base_url,
    read_client,
    read_limits,
    read_retry_policy,
)
from trunkline_workers.options_reader import OptionsReader

_INLINE: Final = ("off", "tags", "prefilled")
_IMAGES: Final = ("none", "data-url", "file")


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """Everything a chat-completions adapter is configured with.

    Attributes:
        profile: with the options' changes applied.
        base_url: without a slash at the end.
        key_env: variable of the key, empty for none.
        key_file: file of the key, empty for none.
        key_header: header that carries the key.
        headers: added to every request.
        defaults: of requests.
        limits: on waiting.
        client: how to connect.
        context_window: of models that say nothing else, in tokens.
        default_max_tokens: output limit of calls that set none.
        retry_policy: captured with the routes, or `None` for the normal defaults.
    """

    profile: Profile
    base_url: str
    key_env: str
    key_file: str
    key_header: str
    headers: Mapping[str, SecretStr]
    defaults: RequestDefaults
    limits: StreamLimits
    client: ClientOptions
    context_window: int | None
    default_max_tokens: int | None
    retry_policy: ResolvedRetryPolicy | None


def read_config(options: Mapping[str, object]) -> ChatConfig:
    """Read the options table.

    Raises:
        ValueError: an option is unknown or wrong; the text names it.
    """
    reader = OptionsReader(options)
    name = reader.choice("profile", PROFILES, "custom") or "custom"
    profile = _profile(reader, PROFILES[name])
    config = ChatConfig(
        profile=profile,
        base_url=(reader.text("baseUrl", profile.base_url) or "").rstrip("/"),
        key_env=reader.text("apiKeyEnv", profile.key_env) or "",
        key_file=reader.text("apiKeyFile") or "",
        key_header=reader.text("apiKeyHeader", "authorization") or "",
        headers=reader.secrets("headers"),
        defaults=_defaults(reader, profile),
        limits=read_limits(reader),
        client=read_client(reader),
        context_window=reader.count("contextWindow"),
        default_max_tokens=reader.count("defaultMaxTokens"),
        retry_policy=read_retry_policy(reader),
    )
    reader.finish()
    check_base_url(reader, config.base_url)  # after unknown keys, which a misspelt one is
    return config


def _profile(reader: OptionsReader, profile: Profile) -> Profile:
    """Apply the options that replace single values of a profile."""
    response, request = profile.response, profile.request
    response = replace(
        response,
        lenient=reader.flag("lenient", default=response.lenient),
        repairs_tool_calls=reader.flag("repairToolCalls", default=response.repairs_tool_calls),
        inline_thinking=cast(
            "InlineThinking", reader.choice("inlineThinking", _INLINE, response.inline_thinking)
        ),
    )
    reasoning_field = reader.raw("reasoningField")
    if reasoning_field is not None and not isinstance(reasoning_field, str):
        raise reader.fail("reasoningField", "a text is required; empty: send no reasoning back")
    request = replace(
        request,
        efforts=_efforts(reader, request.efforts),
        reasoning_field=request.reasoning_field if reasoning_field is None else reasoning_field,
        max_tokens_field=reader.text("maxTokensField", request.max_tokens_field) or "",
        max_stop=reader.count("maxStop", request.max_stop),
        images=cast("ImageForm", reader.choice("images", _IMAGES, request.images)),
        stream_usage=reader.flag("streamUsage", default=request.stream_usage),
        system_role=reader.choice("systemRole", ("system", "developer"), request.system_role) or "",
    )
    if not request.reasoning_field:
        request = replace(request, reasoning_field=None)
    models = [_model(item, position) for position, item in enumerate(reader.tables("models"))]
    return replace(
        profile,
        response=response,
        request=request,
        needs_key=reader.flag("requireKey", default=profile.needs_key),
        models=tuple(models) or profile.models,
        lists_models=reader.flag("listModels", default=profile.lists_models and not models),
    )


def _efforts(
    reader: OptionsReader, known: Mapping[str, Mapping[str, object]]
) -> Mapping[str, Mapping[str, object]]:
    """Read `efforts`: what each effort id adds to the body."""
    table = reader.table("efforts")
    if not all(isinstance(fields, Mapping) for fields in table.values()):
        raise reader.fail("efforts", "a table of tables is required: body fields per effort")
    return cast("Mapping[str, Mapping[str, object]]", table) or known


def _model(item: Mapping[str, object], position: int) -> ModelFacts:
    reader = OptionsReader(item, prefix=f"models[{position}].")
    model_id = reader.text("id")
    if model_id is None:
        raise reader.fail("id", "required")
    model = ModelFacts(
        id=model_id,
        name=reader.text("name", model_id) or model_id,
        context_window=reader.count("contextWindow"),
        max_tokens=reader.count("maxTokens"),
        images=reader.flag("images", default=False),
    )
    reader.finish()
    return model


def _defaults(reader: OptionsReader, profile: Profile) -> RequestDefaults:
    rules = profile.request
    defaults = RequestDefaults(
        reasoning_effort=reader.text("reasoningEffort"),
        thinking=reader.text("thinking"),
        extra_body=reader.table("extraBody"),
    )
    if defaults.thinking is not None and defaults.thinking not in rules.thinking:
        some = ", ".join(rules.thinking) or "nothing: this profile has no such switch"
        raise reader.fail("thinking", f"allowed: {some}")
    effort, offered = defaults.reasoning_effort, offered_efforts(rules, defaults)
    if effort is not None and effort not in offered:
        some = ", ".join(offered) or "nothing: this profile has no efforts"
        raise reader.fail("reasoningEffort", f"allowed: {some}")
    return defaults
