"""What adapters of HTTP APIs have in common: one client, one key, the route of a profile.

It knows neither requests nor answers; those are each adapter's own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from trunkline_protocol.failure import LlmError
from trunkline_protocol.models import LlmProviderInfo
from trunkline_protocol.retry_policy import ResolvedRetryPolicy
from trunkline_protocol.secret import SecretStr

from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.credentials import KeySource
from trunkline_workers.http import ClientOptions, HttpClient
from trunkline_workers.refusals import without_key


class HttpProfile(Protocol):
    """What such an adapter knows of its provider."""

    @property
    def route(self) -> str:
        """The route that is registered where no other is named."""
        ...

    @property
    def name(self) -> str:
        """The provider's, for people."""
        ...

    @property
    def needs_key(self) -> bool:
        """Whether a call without a key is refused."""
        ...


class HttpConfig(Protocol):
    """What of an adapter's configuration is the same for all."""

    @property
    def profile(self) -> HttpProfile:
        """The provider."""
        ...

    @property
    def key_env(self) -> str:
        """The variable of the key, empty for none."""
        ...

    @property
    def key_file(self) -> str:
        """The file of the key, empty for none."""
        ...

    @property
    def client(self) -> ClientOptions:
        """How to connect."""
        ...

    @property
    def retry_policy(self) -> ResolvedRetryPolicy | None:
        """Captured with the routes; `None`: the normal defaults."""
        ...


class HttpAdapter(LlmAdapter):
    """An adapter whose calls are requests of one HTTP client with one key.

    Args:
        context: of the worker.
        config: the adapter's own.
    """

    def __init__(self, context: AdapterContext, config: HttpConfig) -> None:
        self._context = context
        self._shared = config
        self._http = HttpClient(config.client)
        self._keys = KeySource(
            owner=context.name,
            variable=config.key_env,
            file=config.key_file,
            required=config.profile.needs_key,
            environ=context.environ,
            conceal=context.conceal,
        )

    @property
    def connections_in_use(self) -> int:
        """Connections that calls hold at this moment."""
        return self._http.in_use

    def default_providers(self) -> Sequence[str]:
        """Name the route of the profile."""
        return (self._shared.profile.route,)

    async def open(self) -> None:
        """Make the HTTP client ready."""
        await self._http.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    def provider_info(self, provider: str) -> LlmProviderInfo:
        """Describe a route; only the profile's own has the profile's name."""
        profile = self._shared.profile
        name = profile.name if provider == profile.route else provider
        return LlmProviderInfo(id=provider, name=name)

    def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy | None:
        """Return the configured policy."""
        del provider
        return self._shared.retry_policy

    @asynccontextmanager
    async def _key(self) -> AsyncGenerator[SecretStr | None]:
        """Read the key; a failure that leaves the block has no key in its text.

        Raises:
            LlmError: `MISSING_CREDENTIAL`, or what the block raised.
        """
        key: SecretStr | None = None
        try:
            key = await self._keys.read()
            yield key
        except LlmError as exc:
            raise without_key(exc, key) from None
