"""The loop that every SSE adapter runs: response bytes → decoder → translator → chunks.

It yields one list per read. It decides what kind of body a 2xx answer has by looking at it, since
providers mislabel both ways. After the provider's finish reason comes a short grace for usage and
`[DONE]`, then a normal end, whether or not the connection closes. A finish reason that
content follows holds no longer: then only the end of the body, or `[DONE]`, ends the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final, Protocol

from trunkline_protocol.chunks import StreamChunk
from trunkline_protocol.failure import Code, LlmError, LlmFailure

from trunkline_workers.core.quiet import Quiet
from trunkline_workers.http import HttpResponse
from trunkline_workers.sse import MAX_EVENT_BYTES, EventTooLargeError, SseDecoder

_BLANK: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_NO_EVENTS: Final = frozenset({b"{", b"[", b"<"})  # first bytes of JSON and of a web page
SHARED_GRACES: Final = 5  # for a finish reason in the payload of content, which proves less
_SHOWN: Final = 200  # bytes of an unusable body that the failure quotes


class ResponseTranslator(Protocol):
    """What the loop needs of a translator; all of it is pure."""

    is_done: bool
    failure: LlmFailure | None
    moves: int

    @property
    def is_finishing(self) -> bool:
        """Return whether the provider has said how the answer ends, and sent no content since."""
        ...

    @property
    def shares_finish(self) -> bool:
        """Return whether the finish reason came together with content."""
        ...

    def feed(self, payloads: Iterable[bytes], /) -> list[StreamChunk]:
        """Take event payloads."""
        ...

    def end(self, pending: bytes | None = None, stray: bytes = b"") -> list[StreamChunk]:
        """Take the end of the body."""
        ...

    def whole(self, body: bytes, /) -> list[StreamChunk]:
        """Take a JSON body that came instead of a stream."""
        ...

    def fail(self, failure: LlmFailure, /) -> list[StreamChunk]:
        """Take a failure of the transport."""
        ...


async def translate_stream(
    response: HttpResponse, translator: ResponseTranslator, grace_s: float
) -> AsyncGenerator[list[StreamChunk]]:
    """Read a 2xx response to its end and yield the chunks of each read.

    The response is not closed here. Time in which nobody asks for the next list counts for no
    limit.

    Args:
        response: with its head received.
        translator: fresh; its `failure` is raised after the last chunks.
        grace_s: seconds for what may follow a finish reason.

    Raises:
        LlmError: the translator's failure.
    """
    reader = _Reader(response, translator, grace_s)
    while not translator.is_done:
        try:
            chunks = await reader.next_chunks()
        except LlmError as exc:
            chunks = translator.fail(exc.failure)
        except EventTooLargeError as exc:
            chunks = translator.fail(LlmFailure(str(exc), Code.MALFORMED_RESPONSE))
        if chunks:
            yield chunks
    if translator.failure is not None:
        raise LlmError(translator.failure)


class _Reader:
    """Reads one response; each step takes one read, and the last one ends the translator."""

    def __init__(
        self, response: HttpResponse, translator: ResponseTranslator, grace_s: float
    ) -> None:
        self._response = response
        self._translator = translator
        self._grace_s = grace_s
        self._decoder = SseDecoder()
        self._has_begun = False
        self._grace_left_s: float | None = None  # for waiting, since the finish reason
        self._quiet = Quiet()

    async def next_chunks(self) -> list[StreamChunk]:
        """Take one read."""
        response, translator = self._response, self._translator
        if not self._has_begun:
            self._has_begun = True
            data: bytes | None = await _first_bytes(response)
            if data and data[:1] in _NO_EVENTS:
                return await _whole(response, translator, data)
        elif translator.is_finishing:
            data = await self._read_within_grace()
        else:
            data = await response.read()
        if not data:
            return _at_end(self._decoder, translator)
        moves = translator.moves
        payloads = self._decoder.feed(data)
        chunks = read_step(lambda: translator.feed(payloads))
        if translator.moves != moves:
            self._grace_left_s = None
            self._quiet.end()
            response.progressed()
        elif text := self._quiet.add(len(data), len(payloads), response.quiet_s):
            raise LlmError(LlmFailure(text, Code.MALFORMED_RESPONSE))
        return chunks

    async def _read_within_grace(self) -> bytes | None:
        """Read what follows a finish reason; keep-alives use the grace up."""
        response, left_s = self._response, self._grace_left_s
        if left_s is None:
            left_s = self._grace_s * (SHARED_GRACES if self._translator.shares_finish else 1)
        start_s = response.clock_s()
        data = await response.read_within(max(left_s, 0.0))
        self._grace_left_s = left_s - (response.clock_s() - start_s)
        return data


def read_step(step: Callable[[], list[StreamChunk]]) -> list[StreamChunk]:
    """Take a step of a translator; a bug in it is a response we could not read, nothing else."""
    try:
        return step()
    except LlmError:
        raise
    except Exception as exc:  # whatever the bug raises: only this stream ends
        text = f"the response could not be read: {exc!r}"
        raise LlmError(LlmFailure(text, Code.MALFORMED_RESPONSE)) from exc


async def _first_bytes(response: HttpResponse) -> bytes:
    """Return the beginning of the body, at least to its first byte that is not blank."""
    first, blank_bytes = b"", 0
    while True:
        data = await response.read()
        first += data
        start = first.removeprefix(_BOM).lstrip(_BLANK)
        if not data or (start and not _BOM.startswith(first)):
            return start if start[:1] in _NO_EVENTS else first
        if not start:  # blank lines before the first event mean nothing
            blank_bytes += len(first)
            first = b""
        if blank_bytes > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"{MAX_EVENT_BYTES} bytes before the first event")


async def _whole(
    response: HttpResponse, translator: ResponseTranslator, first: bytes
) -> list[StreamChunk]:
    """Take a body that is no event stream."""
    body, is_complete = await response.read_all(MAX_EVENT_BYTES, first)
    if not is_complete or body.startswith(b"<"):
        return translator.fail(_unusable(body))
    return read_step(lambda: translator.whole(body))


def _at_end(decoder: SseDecoder, translator: ResponseTranslator) -> list[StreamChunk]:
    """Take the end of the body."""
    pending, stray = decoder.finish(), decoder.stray
    chunks = read_step(lambda: translator.end(pending, stray))
    failure = translator.failure
    if failure is not None and failure.code == Code.STREAM_CLOSED and _was_no_stream(decoder):
        translator.failure = _unusable(stray)
    return chunks


def _was_no_stream(decoder: SseDecoder) -> bool:
    """Tell whether a body had lines, but not one of an event stream."""
    return bool(decoder.stray) and not decoder.has_events and not decoder.comments


def _unusable(body: bytes) -> LlmFailure:
    shown = " ".join(body[:_SHOWN].decode(errors="replace").split())
    kind = "a web page" if body.startswith(b"<") else "no event stream"
    return LlmFailure(f"the provider answered with {kind}: {shown}", Code.MALFORMED_RESPONSE)
