"""The code of this worker, an adapter class or a plugin, as one thing to open and close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from trunkline_protocol.failure import Code, LlmError

from trunkline_workers import foreign
from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.foreign import class_name
from trunkline_workers.loader import Close, Entry
from trunkline_workers.runtime import WorkerRuntime


class Plugin:
    """Opens what the loader found and registers its routes.

    Args:
        entry: an adapter class, or an async function that registers what it likes.
        context: the worker's configuration.
        runtime: where it registers.

    Raises:
        BaseException: whatever the constructor of the adapter raises; `ValueError` where it does
            not accept its options.
    """

    def __init__(self, entry: Entry, context: AdapterContext, runtime: WorkerRuntime) -> None:
        self._entry = entry
        self._context = context
        self._runtime = runtime
        self._adapter: LlmAdapter | None = None
        if entry.adapter is not None:
            self._adapter = _created(entry.adapter, context)
        self._close: Close | None = None

    async def open(self) -> None:
        """Acquire what the code needs and register its routes, as yet with this process only.

        Raises:
            LlmError: whatever the code raises: it cannot serve.
            asyncio.CancelledError: the host has stopped this task.
        """
        if self._adapter is not None:
            adapter, runtime = self._adapter, self._runtime
            # Functions of our own around the methods: looking one up may run adapter code too.
            await foreign.await_(lambda: adapter.open())  # noqa: PLW0108
            self._close = lambda: adapter.close()  # noqa: PLW0108
            await runtime.register_adapter(self._routes(adapter), adapter)
            await foreign.await_(lambda: adapter.setup(runtime))
        elif self._entry.setup is not None:
            close = await foreign.await_(self._entry.setup, self._runtime, self._context)
            if close is not None and not callable(close):
                text = f"setup must return an async function or None, not {class_name(close)}"
                raise LlmError.of(text, Code.INVALID_ADAPTER)
            self._close = close

    async def close(self) -> None:
        """Release what `open` acquired; does nothing if it did not get that far.

        Raises:
            LlmError: whatever the code raises.
            asyncio.CancelledError: the host has stopped this task.
        """
        close, self._close = self._close, None
        if close is not None:
            await foreign.await_(close)

    def _routes(self, adapter: LlmAdapter) -> Sequence[str]:
        routes = self._context.providers
        if not routes:
            routes = foreign.call(lambda: adapter.default_providers())  # noqa: PLW0108
        if not routes:
            raise LlmError.of(
                "the configuration names no providers and the adapter has none of its own",
                Code.INVALID_ADAPTER,
            )
        return routes


def _created(adapter: type[LlmAdapter], context: AdapterContext) -> LlmAdapter:
    """Make the adapter; what its constructor raises is for `python -m trunkline_workers`."""
    made = cast("object", adapter.create(context))
    if not isinstance(made, LlmAdapter):
        raise TypeError(f"create() returned {class_name(made)}, which is not an LlmAdapter")
    return made
