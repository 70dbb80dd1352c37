"""The code of this worker, an adapter class or a plugin, as one thing to open and close."""

from __future__ import annotations

from trunkline_protocol.failure import Code, LlmError

from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.loader import Close, Entry
from trunkline_workers.runtime import WorkerRuntime


class Plugin:
    """Opens what the loader found and registers its routes.

    Args:
        entry: an adapter class, or an async function that registers what it likes.
        context: the worker's configuration.
        runtime: where it registers.

    Raises:
        ValueError: the adapter does not accept its options.
    """

    def __init__(self, entry: Entry, context: AdapterContext, runtime: WorkerRuntime) -> None:
        self._entry = entry
        self._context = context
        self._runtime = runtime
        self._adapter = None if entry.adapter is None else entry.adapter.create(context)
        self._close: Close | None = None

    async def open(self) -> None:
        """Acquire what the code needs and register its routes, as yet with this process only.

        Raises:
            Exception: whatever the code raises: it cannot serve.
        """
        if self._adapter is not None:
            await self._adapter.open()
            self._close = self._adapter.close
            await self._runtime.register_adapter(self._routes(self._adapter), self._adapter)
            await self._adapter.setup(self._runtime)
        elif self._entry.setup is not None:
            self._close = await self._entry.setup(self._runtime, self._context)

    async def close(self) -> None:
        """Release what `open` acquired; does nothing if it did not get that far."""
        close, self._close = self._close, None
        if close is not None:
            await close()

    def _routes(self, adapter: LlmAdapter) -> tuple[str, ...]:
        routes = self._context.providers or tuple(adapter.default_providers())
        if not routes:
            raise LlmError.of(
                "the configuration names no providers and the adapter has none of its own",
                Code.INVALID_ADAPTER,
            )
        return routes
