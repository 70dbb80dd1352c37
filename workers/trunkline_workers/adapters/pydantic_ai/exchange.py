"""One call's one provider request: what the library may send, and what came of it.

The library reads the provider through this, so our own client owns the connection, its limits and
its close, and the facts of a failure are those of the wire, whatever the library makes of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NoReturn

from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.http_failure import request_id

from trunkline_workers.adapters.pydantic_ai.events import SdkEvents, UnreadableEventError
from trunkline_workers.clocks import StreamLimits
from trunkline_workers.core.quiet import Quiet
from trunkline_workers.http import HttpClient, HttpRequest, HttpResponse
from trunkline_workers.refusals import refusal_body, refused
from trunkline_workers.sse import EventTooLargeError
from trunkline_workers.streaming import SHARED_GRACES

_HEAD_BYTES: Final = 64 * 1024  # of a body that is no event stream, kept for its error
_TAIL_BYTES: Final = 64 * 1024  # of any body, kept for an error in its last event
# Ours to set: what the client decodes, how it frames and where it connects.
OWN_HEADERS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)
_FRAMING: Final = frozenset(
    {"connection", "content-encoding", "content-length", "transfer-encoding"}
)


def _never() -> bool:
    return False


@dataclass(slots=True)
class Head:
    """Status and headers for the library; a `body` of `None` is read from the exchange."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(slots=True)
class Exchange:
    """The request of one call.

    Attributes:
        http: the worker's client.
        limits: on waiting.
        check: looks at the body before it goes out; raises `LlmError` to refuse it.
        headers: added to the request.
        events: takes the body apart for the library; `None`: it gets the reads as they come.
        has_finish: whether the provider has said how the answer ends.
        failure: what went wrong on the wire, if anything did.
        requests: how many the library asked for; only the first is made.
        has_ended: the body was read to its end.
    """

    http: HttpClient
    limits: StreamLimits
    check: Callable[[bytes], None]
    headers: Mapping[str, str]
    events: SdkEvents | None = None
    has_finish: Callable[[], bool] = _never
    failure: LlmFailure | None = None
    requests: int = 0
    has_ended: bool = False
    _response: HttpResponse | None = None
    _head: bytearray = field(default_factory=bytearray)
    _reads: deque[bytes] = field(default_factory=deque[bytes])  # the last ones
    _reads_bytes: int = 0
    _quiet: Quiet = field(default_factory=Quiet)
    _is_over: bool = False  # nothing more is read
    _grace_left_s: float | None = None
    _shares_finish: bool = False  # the finish reason came together with content
    _is_early: bool = False  # content came behind the finish reason, which therefore means nothing

    @property
    def is_finishing(self) -> bool:
        """Return whether the provider has said how the answer ends, and sent no content since."""
        return not self._is_early and self.has_finish()

    @property
    def request_id(self) -> str | None:
        """The provider's id of the request."""
        return request_id(self._response.headers) if self._response is not None else None

    @property
    def head(self) -> bytes:
        """The beginning of the body, for a look at what it was."""
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        """What was read last; at least `_TAIL_BYTES` if there was as much."""
        return b"".join(self._reads)

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Head:
        """Make the one request.

        Raises:
            LlmError: it is refused, it could not be made, or it is not the first.
        """
        self.requests += 1
        if self.requests > 1:
            self._refuse_second()
        own = {name: value for name, value in headers.items() if name.lower() not in OWN_HEADERS}
        request = HttpRequest(method, url.partition("#")[0], {**own, **self.headers}, body)
        try:
            self.check(body)
            self._response = response = await self.http.send(request, self.limits)
        except LlmError as exc:
            self.failure = exc.failure
            raise
        shown = {k: v for k, v in response.headers.items() if k not in _FRAMING}
        if 200 <= response.status < 300:
            return Head(response.status, shown)
        content = await refusal_body(response)
        self.failure = refused(response, content)
        await self.close()
        return Head(response.status, shown, content)

    async def read(self) -> bytes:
        """Return the next bytes of the body, `b""` at its end.

        After the provider's finish reason only a short grace is waited for more.

        Raises:
            LlmError: a limit passed or the connection broke; kept in `failure` too.
        """
        response, events = self._response, self.events
        if response is None:
            raise AssertionError("the body is read before the head")
        if events is None:
            return await self._read(response)
        while not (piece := events.take()) and not self._is_over:
            self._put(events, await self._read(response))
        await response.share()  # what an SDK makes of the last piece took its time
        return piece

    def _put(self, events: SdkEvents, data: bytes) -> None:
        """Pass a read on, or the end of the body."""
        try:
            if data:
                self.count(len(data), events.put(data))
            else:
                self._is_over = True
                events.end()
        except (EventTooLargeError, UnreadableEventError) as exc:
            raise self._unreadable(f"the response could not be read: {exc}") from None

    def count(self, size: int, events: int) -> None:
        """Count what is passed on to the library.

        Args:
            size: in bytes.
            events: whole ones.

        Raises:
            LlmError: `MALFORMED_RESPONSE`: too much came without content; kept in `failure` too.
        """
        quiet_s = 0.0 if self._response is None else self._response.quiet_s
        if text := self._quiet.add(size, events, quiet_s):
            raise self._unreadable(text)

    def _unreadable(self, text: str) -> LlmError:
        failure = LlmFailure(text, Code.MALFORMED_RESPONSE, request_id=self.request_id)
        self.failure = failure
        return LlmError(failure)

    async def _read(self, response: HttpResponse) -> bytes:
        try:
            data = await (self._within_grace(response) if self.is_finishing else response.read())
        except LlmError as exc:
            if self.is_finishing and not self._shares_finish:
                return b""
            self.failure = exc.failure
            raise
        if data is None:
            return b""
        if not data:
            self.has_ended = True
        else:
            self._keep(data)
        return data

    def _keep(self, data: bytes) -> None:
        """Keep the beginning and the end of a body."""
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]
        reads = self._reads
        reads.append(data)
        self._reads_bytes += len(data)
        while self._reads_bytes - len(reads[0]) >= _TAIL_BYTES:
            self._reads_bytes -= len(reads.popleft())

    async def _within_grace(self, response: HttpResponse) -> bytes | None:
        start_s = response.clock_s()
        left_s = self._grace_left_s
        if left_s is None:
            left_s = self.limits.grace_s * (SHARED_GRACES if self._shares_finish else 1)
        data = await response.read_within(max(left_s, 0.0))
        self._grace_left_s = left_s - (response.clock_s() - start_s)
        return data

    def progressed(self, *, is_content: bool) -> None:
        """Note that chunks came; `is_content`: more than the end of a block."""
        if is_content:
            self._quiet.end()
            self._is_early = self._is_early or self._grace_left_s is not None
            self._shares_finish = self._shares_finish or self.has_finish()
        if self._response is not None:
            self._response.progressed()

    async def close(self) -> None:
        """Close the connection, or give it back if the body is complete; idempotent.

        It counts as complete once the provider has said how the answer ends: some SDKs stop there.
        """
        if self._response is not None:
            is_complete = self.has_ended or self.is_finishing
            await self._response.close(is_complete=is_complete)

    def _refuse_second(self) -> NoReturn:
        if self.failure is None:
            text = "the library wanted to ask the provider again; one call is one request"
            self.failure = LlmFailure(text, Code.STREAM_CLOSED)
        raise LlmError(self.failure)


current_exchange: Final[ContextVar[Exchange]] = ContextVar("current_exchange")
"""The exchange of the call that is being opened in this context."""
