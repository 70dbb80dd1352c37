"""A provider for the scenarios of the contract: a small HTTP server that remembers its calls.

Which reply a request gets is said by the request: a scenario's prompt holds the word
`contract:NAME`, which every API carries somewhere in its body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from trunkline_protocol.options import GenerateOptions

from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.testing.checks import REPLAY, SCENARIOS, TEXT, TOOLS, UNSUPPORTED, Subject

_WORD: Final = re.compile(rb"contract:([a-z]+)")
_STREAM_TYPE: Final = "text/event-stream"
_FOREIGN: Final = {"response": {"v": "no version of anybody"}, "blocks": [{"id": 1}]}


@dataclass(frozen=True, slots=True)
class Reply:
    """What the provider answers to one request.

    Attributes:
        parts: of the body, each written by itself.
        status: HTTP status.
        content_type: of the body.
        is_endless: nothing more comes after the parts, and the connection stays open.
    """

    parts: Sequence[bytes] = ()
    status: int = 200
    content_type: str = _STREAM_TYPE
    is_endless: bool = False


@dataclass(slots=True)
class SeenRequest:
    """One request as it came: line, headers in lower case, body."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class FakeProvider:
    """The server; enter it to start it.

    Attributes:
        replies: by scenario; one that is missing gets the reply of `text`.
        requests: so far.
        open_count: requests that are being served.
        url: `http://127.0.0.1:PORT`, once it runs.
    """

    replies: Mapping[str, Reply]
    requests: list[SeenRequest] = field(default_factory=list[SeenRequest])
    open_count: int = 0
    url: str = ""
    _server: asyncio.Server | None = None
    _serving: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, one request after the other."""
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                self.open_count += 1
                try:
                    await self._answer(request, reader, writer)
                finally:
                    self.open_count -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the adapter has closed the connection: what cancelling does
        finally:
            writer.close()

    async def _answer(
        self, request: SeenRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        named = _WORD.findall(request.body)
        reply = self.replies.get(named[-1].decode() if named else TEXT, self.replies[TEXT])
        head = (
            f"HTTP/1.1 {reply.status} Reply\r\ncontent-type: {reply.content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n"
        )
        writer.write(head.encode())
        for part in reply.parts:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
        if reply.is_endless:
            await reader.read(1)  # returns when the other side closes
            raise ConnectionResetError
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _read_request(reader: asyncio.StreamReader) -> SeenRequest | None:
    """Read one request; `None` at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.decode("latin-1").split("\r\n")
    pairs = (each.split(":", 1) for each in rest if ":" in each)
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, _ = line.split(" ", 2)
    return SeenRequest(method, path, headers, body)


class HttpSubject(Subject):
    """A subject whose provider is a `FakeProvider`."""

    def __init__(
        self,
        adapter: LlmAdapter,
        provider: FakeProvider,
        scenarios: Mapping[str, GenerateOptions],
        **facts: Any,
    ) -> None:
        """Describe the subject; `facts` are those of `Subject`."""
        super().__init__(adapter, scenarios, **facts)
        self._provider = provider

    def open_requests(self) -> int | None:
        """Count the requests that the provider still serves."""
        return self._provider.open_count

    def request_headers(self) -> Sequence[Mapping[str, str]] | None:
        """Return the headers of each request so far."""
        return [request.headers for request in self._provider.requests]


def scenario_requests(
    provider: str,
    model: str,
    *,
    unsupported: Mapping[str, object] | None = None,
    names: Sequence[str] = SCENARIOS,
) -> dict[str, GenerateOptions]:
    """Return a request for each scenario, its prompt naming the scenario.

    Args:
        provider: route.
        model: of the requests.
        unsupported: request fields (camelCase) that this provider cannot honour; without them the
            scenario `unsupported` is left out.
        names: of the scenarios.
    """
    made: dict[str, GenerateOptions] = {}
    for name in names:
        if name == UNSUPPORTED and unsupported is None:
            continue
        fields: dict[str, Any] = {"provider": provider, "model": model}
        fields["messages"] = [_user(f"contract:{name}")]
        if name == TOOLS:
            fields["tools"] = [_TOOL]
        if name == REPLAY:
            fields["messages"] = [_user("Hello."), _answer(provider, model), *fields["messages"]]
        if name == UNSUPPORTED:
            fields.update(unsupported or {})
        made[name] = GenerateOptions.from_dict(fields)
    return made


_TOOL: Final = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def _user(text: str) -> dict[str, object]:
    content = [{"type": "text", "text": text}]
    return {"id": "u", "role": "user", "content": content, "source": {"kind": "user"}}


def _answer(provider: str, model: str) -> dict[str, object]:
    """Return an assistant message whose replay state nobody can use."""
    source = {"kind": "model", "provider": provider, "model": model, "replayState": _FOREIGN}
    content = [{"type": "text", "text": "Hello yourself."}]
    return {"id": "a", "role": "assistant", "content": content, "source": source}
