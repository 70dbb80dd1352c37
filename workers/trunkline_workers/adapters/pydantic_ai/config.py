"""The options of a pydantic_ai worker: a profile, and what the configuration changes of it.

Pure. Every wrong option is a `ValueError` that names the key and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from trunkline_protocol.retry_policy import ResolvedRetryPolicy
from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapters.pydantic_ai.profiles import PROFILES, Profile
from trunkline_workers.clocks import StreamLimits
from trunkline_workers.http import ClientOptions
from trunkline_workers.http_options import (
    check_base_url,
    read_client,
    read_limits,
    read_retry_policy,
)
from trunkline_workers.options_reader import OptionsReader

EFFORTS: Final = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
_COMMON_EFFORTS: Final = ("low", "medium", "high")
_REGION: Final = "{region}"  # in the base URL of a profile
_REGION_VARIABLES: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_USUAL_REGION: Final = "us-east-1"
_REGION_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the configuration says of one model."""

    id: str
    name: str
    context_window: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Everything a pydantic_ai adapter is configured with.

    Attributes:
        name: of the profile.
        profile: the provider.
        base_url: without a slash at the end.
        region: of AWS; empty where the profile has none.
        key_env: variable of the key.
        key_file: file of the key, empty for none.
        headers: added to every request.
        settings: of the library, for every request.
        models: advertised instead of the library's list.
        efforts: offered for models that think.
        default_effort: of calls that ask for none.
        default_max_tokens: output limit of calls that set none.
        limits: on waiting.
        client: how to connect.
        retry_policy: captured with the routes, or `None` for the normal defaults.
    """

    name: str
    profile: Profile
    base_url: str
    region: str
    key_env: str
    key_file: str
    headers: Mapping[str, SecretStr]
    settings: Mapping[str, object]
    models: tuple[ModelFacts, ...]
    efforts: tuple[str, ...]
    default_effort: str | None
    default_max_tokens: int | None
    limits: StreamLimits
    client: ClientOptions
    retry_policy: ResolvedRetryPolicy | None


def read_config(
    options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> AdapterConfig:
    """Read the options table.

    Args:
        options: of the worker.
        environ: of the worker; may name the region of AWS.

    Raises:
        ValueError: an option is unknown or wrong; the text names it.
    """
    reader = OptionsReader(options)
    name = reader.choice("profile", PROFILES)
    if name is None:
        raise reader.fail("profile", f"required, one of {', '.join(PROFILES)}")
    profile = PROFILES[name]
    efforts = _efforts(reader)
    region = _region(reader, profile, environ or {})
    base_url = reader.text("baseUrl", profile.base_url.replace(_REGION, region)) or ""
    config = AdapterConfig(
        name=name,
        profile=profile,
        base_url=base_url.rstrip("/"),
        region=region,
        key_env=reader.text("apiKeyEnv", profile.key_env) or "",
        key_file=reader.text("apiKeyFile") or "",
        headers=reader.secrets("headers"),
        settings={**profile.settings, **reader.table("modelSettings")},
        models=tuple(_model(item, n) for n, item in enumerate(reader.tables("models"))),
        efforts=efforts,
        default_effort=reader.choice("reasoningEffort", efforts),
        default_max_tokens=reader.count("defaultMaxTokens"),
        limits=read_limits(reader),
        client=read_client(reader),
        retry_policy=read_retry_policy(reader),
    )
    reader.finish()
    check_base_url(reader, config.base_url)
    return config


def _region(reader: OptionsReader, profile: Profile, environ: Mapping[str, str]) -> str:
    given = reader.text("region")
    if _REGION not in profile.base_url:
        if given is not None:
            raise reader.fail("region", "only Amazon Bedrock has regions")
        return ""
    named = (given, *(environ.get(name) for name in _REGION_VARIABLES), _USUAL_REGION)
    region = next(filter(None, named))
    if not _REGION_NAME.fullmatch(region):
        raise reader.fail("region", f"{region!r} is none; such as {_USUAL_REGION}")
    return region


def _efforts(reader: OptionsReader) -> tuple[str, ...]:
    raw = reader.raw("efforts")
    if raw is None:
        return _COMMON_EFFORTS
    items = cast("list[object]", raw) if isinstance(raw, list | tuple) else [None]
    if not all(isinstance(item, str) and item in EFFORTS for item in items):
        raise reader.fail("efforts", f"a list is required, of {', '.join(EFFORTS)}")
    return tuple(cast("list[str]", items))


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
    )
    reader.finish()
    return model
