"""What the blocking facade hands out: streams, prepared calls, attachments, events.

Each is a thin coat over its asynchronous counterpart, which lives on the portal's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from trunkline_protocol.chunks import StreamChunk, TokenUsage
from trunkline_protocol.content import ContentBlock, ImageAttachment
from trunkline_protocol.finish import FinishReason
from trunkline_protocol.ids import CallId
from trunkline_protocol.messages import Message
from trunkline_protocol.models import LlmModelContext
from trunkline_protocol.options import GenerateOptions, LlmCallConfig, LlmCallConfigAdapterDefaults
from trunkline_protocol.retry_policy import ResolvedRetryPolicy

from trunkline.attachments import Attachments
from trunkline.events import AdapterUpdates
from trunkline.portal import Portal
from trunkline.prepared import PreparedLlmCall
from trunkline.stream import BlockStream, ServedBy, Stream

_EMPTY: Final[Iterator[StreamChunk]] = iter(())


class SyncStream:
    """One model call as a blocking iterator of chunks and as a context manager.

    As `Stream`; `cancel` may be called from any thread. Ctrl-C while it waits cancels the call.
    """

    def __init__(self, portal: Portal, stream: Stream) -> None:
        self.provider = stream.provider
        self.model = stream.model
        self._portal = portal
        self._stream = stream
        # Assigned on the loop only: Ctrl-C may end the thread that asked between two instructions.
        self._chunks = _EMPTY

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamChunk:
        """Return the next chunk; raises as `Stream.__anext__`, `StopIteration` at the end."""
        while True:
            # No signal handler runs between taking a chunk here and returning it, as one may
            # behind a call; and two threads never get the same chunk.
            for chunk in self._chunks:
                return chunk
            if not self._has_read():
                raise StopIteration

    def batches(self) -> Iterator[list[StreamChunk]]:
        """Yield the chunks in lists, as they arrive: the cheapest way to read a fast stream."""
        while batch := self.next_batch():
            yield batch

    def next_batch(self) -> list[StreamChunk]:
        """Return the chunks that are here, at least one; none at the end of the stream."""
        while True:
            batch = [*self._chunks]
            if batch or not self._has_read():
                return batch

    def _has_read(self) -> bool:
        """Wait until chunks are here; return whether there are more."""
        return self._portal.run(self._read, self._stream.cancel)

    async def _read(self) -> bool:
        batch = await self._stream.next_batch()
        # Another thread may have put chunks there meanwhile, and read some.
        self._chunks = iter([*self._chunks, *batch])
        return bool(batch)

    def __enter__(self) -> Self:
        self._portal.run(self._stream.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the stream: cancel it unless it is over, and drop what was not read."""
        self._portal.let_go(self._close)

    async def _close(self) -> None:
        self._chunks = _EMPTY
        await self._stream.aclose()

    def cancel(self) -> None:
        """Stop the provider request; a reader gets one `aborted` finish. Harmless when over."""
        if not self._portal.is_over:
            self._portal.call(self._stream.cancel)

    @property
    def call_id(self) -> CallId:
        """The id of the call, the same in every log."""
        return self._stream.call_id

    @property
    def ticket(self) -> str | None:
        """As `Stream.ticket`."""
        return self._stream.ticket

    @property
    def attempts(self) -> int:
        """Provider attempts begun so far."""
        return self._stream.attempts

    @property
    def finish(self) -> FinishReason | None:
        """Why the stream ended; `None` while it has not."""
        return self._stream.finish

    @property
    def usage(self) -> TokenUsage | None:
        """The token counts, once they have passed."""
        return self._stream.usage

    @property
    def served_by(self) -> ServedBy | None:
        """The worker that serves the call, once the broker has said so."""
        return self._stream.served_by

    @property
    def retry_policy(self) -> ResolvedRetryPolicy | None:
        """The policy captured with the registration that serves the call, once it is known."""
        return self._stream.retry_policy

    def message(self) -> Message:
        """As `Stream.message`."""
        return self._portal.call(self._stream.message)

    def interrupted_blocks(self) -> list[ContentBlock]:
        """As `Stream.interrupted_blocks`."""
        return self._portal.call(self._stream.interrupted_blocks)


class SyncBlockStream:
    """One model call as completed blocks; entered, left and cancelled like `SyncStream`."""

    def __init__(self, portal: Portal, blocks: BlockStream) -> None:
        self.stream = SyncStream(portal, blocks.stream)
        self._portal = portal
        self._blocks = aiter(blocks)
        self._cancel = blocks.stream.cancel
        self._here: Iterator[ContentBlock] = iter(())  # as `_chunks` of `SyncStream`

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ContentBlock:
        """Return the next block; raises as `BlockStream`, `StopIteration` at the end."""
        while True:
            for block in self._here:
                return block
            if not self._portal.run(self._read, self._cancel):
                raise StopIteration

    async def _read(self) -> bool:
        block = await anext(self._blocks, None)
        if block is not None:
            self._here = iter([*self._here, block])
        return block is not None

    def __enter__(self) -> Self:
        self.stream.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stream.close()

    @property
    def finish(self) -> FinishReason | None:
        """Why the stream ended; `None` while it has not."""
        return self.stream.finish

    @property
    def usage(self) -> TokenUsage | None:
        """The token counts, once they have passed."""
        return self.stream.usage


class SyncPreparedLlmCall:
    """A call to be dispatched once; as `PreparedLlmCall`."""

    def __init__(self, portal: Portal, prepared: PreparedLlmCall) -> None:
        self._portal = portal
        self._prepared = prepared

    @property
    def config(self) -> LlmCallConfig:
        """Frozen, with the adapter's defaults filled in."""
        return self._prepared.config

    @property
    def retry_policy(self) -> ResolvedRetryPolicy:
        """Captured with the registration."""
        return self._prepared.retry_policy

    @property
    def context(self) -> LlmModelContext | None:
        """Capacity of the model, if known."""
        return self._prepared.context

    @property
    def input_modalities(self) -> tuple[str, ...] | None:
        """What the model takes, if known."""
        return self._prepared.input_modalities

    @property
    def adapter_defaults(self) -> LlmCallConfigAdapterDefaults:
        """Which fields of `config` the adapter supplied."""
        return self._prepared.adapter_defaults

    @property
    def expires_in_s(self) -> float:
        """How long the worker still holds the call, in seconds; 0 when that is over."""
        return self._prepared.expires_in_s

    def stream(
        self, options: GenerateOptions | Mapping[str, Any] | None = None, /, **fields: Any
    ) -> SyncStream:
        """As `PreparedLlmCall.stream`."""
        stream = self._portal.call(lambda: self._prepared.stream(options, **fields))
        return SyncStream(self._portal, stream)

    def renew(self, *, timeout_s: float = 5.0) -> None:
        """As `PreparedLlmCall.renew`."""
        self._portal.run(lambda: self._prepared.renew(timeout_s=timeout_s))

    def release(self, *, timeout_s: float = 5.0) -> None:
        """As `PreparedLlmCall.release`."""
        self._portal.run(lambda: self._prepared.release(timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._portal.is_over:
            self.release()


class SyncAdapterUpdates:
    """Blocking iterator over the changes of the provider topology; as `AdapterUpdates`."""

    def __init__(self, portal: Portal, updates: AdapterUpdates) -> None:
        self._portal = portal
        self._updates = updates

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> None:
        """Wait for the next event; `StopIteration` once it is closed."""

        async def pull() -> bool:
            return await anext(self._updates, self) is None

        if not self._portal.run(pull):
            raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, from any thread."""
        if not self._portal.is_over:
            self._portal.call(self._updates.close)


class SyncAttachments:
    """Puts images into the broker's store; as `Attachments`."""

    def __init__(self, portal: Portal, attachments: Callable[[], Attachments]) -> None:
        self._portal = portal
        self._attachments = attachments

    def put(
        self, data: bytes, media_type: str | None = None, name: str | None = None
    ) -> ImageAttachment:
        """As `Attachments.put`."""
        return self._portal.run(lambda: self._attachments().put(data, media_type, name))

    def put_file(
        self, path: str | Path, media_type: str | None = None, name: str | None = None
    ) -> ImageAttachment:
        """As `Attachments.put_file`."""
        return self._portal.run(lambda: self._attachments().put_file(path, media_type, name))
