"""The hook in the library's HTTP clients: their requests go out through ours.

The SDKs under the library use two packages of one interface, `httpx` and `httpx2`; the classes are
made for the one that is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from trunkline_workers.adapters.pydantic_ai.exchange import Exchange, current_exchange


def bridged_client(package: Any) -> Any:
    """Return an `AsyncClient` of a package whose requests are made by the current exchange.

    Args:
        package: the module `httpx` or `httpx2`; its types are not ours to import.
    """

    class Body(package.AsyncByteStream):
        """The body of an exchange."""

        def __init__(self, exchange: Exchange) -> None:
            self._exchange = exchange

        async def __aiter__(self) -> AsyncIterator[bytes]:
            while data := await self._exchange.read():
                yield data

        async def aclose(self) -> None:
            await self._exchange.close()

    class Transport(package.AsyncBaseTransport):
        """Hands each request to the exchange that opened it."""

        async def handle_async_request(self, request: Any) -> Any:
            exchange = current_exchange.get()
            body = await request.aread()
            head = await exchange.send(
                request.method, str(request.url), dict(request.headers.items()), body
            )
            if head.body is not None:
                return package.Response(head.status, headers=head.headers, content=head.body)
            return package.Response(head.status, headers=head.headers, stream=Body(exchange))

    # The limits are the exchange's; the ones of the package would also count a slow reader.
    return package.AsyncClient(transport=Transport(), timeout=None, trust_env=False)
