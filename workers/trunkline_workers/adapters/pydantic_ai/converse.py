"""Amazon Bedrock's Converse API: the library and botocore write it, our own client speaks it.

boto3 would send the request in a thread, on a socket of its own, where neither attribution nor
limits nor the close on cancel are in our hands. So botocore goes no further than its `before-send`
event: what it has written up to there is signed, sent by the exchange of the call, and the frames
of the answer (`vnd.amazon.eventstream`) are taken apart by botocore's own buffer and parser.

Of the library this overrides `_open_stream` and `_get_event_iterator` and calls `_messages_create`
and `_map_chunk`, which are not its public names; recorded frames guard them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

import yarl
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.http_failure import in_band_failure

from trunkline_workers.adapters.pydantic_ai.exchange import OWN_HEADERS, Exchange, current_exchange
from trunkline_workers.adapters.pydantic_ai.frames import Frames

_OPERATION: Final = "ConverseStream"
_SERVICE: Final = "bedrock"  # the name that SigV4 signs for; the host says bedrock-runtime
# Exceptions of a stream, in the words that the shared law knows; the others are the server's.
_TYPES: Final[Mapping[str, str]] = {
    "validationException": "invalid_request_error",
    "modelTimeoutException": "timeout_error",
}
_NO_CREDENTIALS: Final = (
    "no AWS credentials: a key in AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY; name them in the `env` list of the worker's section"
)
_prepared: Final[ContextVar[list[Any]]] = ContextVar("_prepared")

Sign = Callable[[str, str, dict[str, str], bytes], dict[str, str]]
"""Method, URL, headers and body in; the headers with the signature in them out."""


class Scribe:
    """What the library takes for boto3's client: it writes and signs requests and sends none.

    Args:
        client: of boto3, that signs nothing itself.
        sign: adds the signature; may block.
    """

    def __init__(self, client: Any, sign: Sign) -> None:
        self.meta = client.meta
        self._client = client
        self._sign = sign

    def converse_stream(self, **fields: Any) -> dict[str, Any]:
        """Return the request, ready to be sent, instead of an answer; called in a thread.

        Raises:
            Exception: botocore's, for a request that can't be written.
            LlmError: `MISSING_CREDENTIAL`.
        """
        found: list[Any] = []
        token = _prepared.set(found)
        try:
            self._client.converse_stream(**fields)
        finally:
            _prepared.reset(token)
        (request,) = found
        given: dict[str, Any] = dict(request.headers.items())
        headers = {name: _text(v) for name, v in given.items() if name.lower() not in OWN_HEADERS}
        body: bytes = request.body
        # As it will stand on the wire: aiohttp writes URLs in its own form (`:` for `%3A`), and the
        # signature covers the path.
        url = str(yarl.URL(request.url))
        signed = self._sign(request.method, url, headers, body)
        return {"send": (request.method, url, signed, body)}


def new_client(part: Callable[[str], Any], base_url: str, region: str) -> Any:
    """Return a client of boto3 that answers every request with nothing; blocks for a while.

    Args:
        part: returns `module:name` of an installed package.
        base_url: of the API.
        region: of AWS.
    """
    config = part("botocore.config:Config")(
        signature_version=part("botocore:UNSIGNED"), retries={"total_max_attempts": 1}
    )
    response = part("botocore.awsrequest:AWSResponse")

    def take(request: Any, **_: object) -> Any:
        _prepared.get().append(request)
        return response(request.url, 200, {}, _Nothing())

    client = part("boto3:Session")(region_name=region).client(
        "bedrock-runtime", endpoint_url=base_url, config=config
    )
    client.meta.events.register(f"before-send.bedrock-runtime.{_OPERATION}", take)
    return client


def bearer(key: str) -> Sign:
    """Sign with a key of Bedrock."""

    def sign(method: str, url: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        del method, url, body
        return {**headers, "Authorization": f"Bearer {key}"}

    return sign


def signature_v4(part: Callable[[str], Any], region: str, environ: Mapping[str, str]) -> Sign:
    """Sign with an access key of the environment, or with what botocore finds by itself.

    Args:
        part: returns `module:name` of an installed package.
        region: of AWS.
        environ: of the worker.
    """
    request_class = part("botocore.awsrequest:AWSRequest")
    auth = part("botocore.auth:SigV4Auth")
    key, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        token = environ.get("AWS_SESSION_TOKEN")
        found = part("botocore.credentials:Credentials")(key, secret, token or None)
    else:
        found = None
    session = part("botocore.session:Session")()  # keeps what it has found

    def sign(method: str, url: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        credentials = found or session.get_credentials()
        if credentials is None:
            raise LlmError.of(_NO_CREDENTIALS, Code.MISSING_CREDENTIAL)
        request = request_class(method=method, url=url, headers=headers, data=body)
        auth(credentials.get_frozen_credentials(), _SERVICE, region).add_auth(request)
        return {name: _text(value) for name, value in request.headers.items()}

    return sign


def converse_class(part: Callable[[str], Any]) -> Any:
    """Return the library's model of this API, with our client under it."""
    model = part("pydantic_ai.models.bedrock:BedrockConverseModel")
    streamed = _streamed_class(part)

    class Converse(model):
        """The model."""

        @asynccontextmanager
        async def _open_stream(
            self, messages: Any, settings: Any, parameters: Any
        ) -> AsyncGenerator[Any]:
            written = await self._messages_create(messages, True, settings, parameters)
            exchange = current_exchange.get()
            head = await exchange.send(*written["send"])
            if head.body is not None and exchange.failure is not None:
                raise LlmError(exchange.failure)
            response = streamed(
                model_request_parameters=parameters,
                _model_name=self.model_name,
                _model_profile=self.profile,
                _event_stream=_Events(part, exchange, self.client.meta.service_model),
                _provider_name=self._provider.name,
                _model_id_namespace=self._provider.model_id_namespace,
                _provider_url=self.base_url,
                _provider_response_id=exchange.request_id,
            )
            response.canonical_system = self._canonical_system_stamp
            try:
                yield response
            finally:
                await response.close_stream()

    return Converse


def _streamed_class(part: Callable[[str], Any]) -> Any:
    """Return the library's response of this API, read by the exchange."""
    base = part("pydantic_ai.models.bedrock:BedrockStreamedResponse")

    class Streamed(base):
        """The response."""

        async def close_stream(self) -> None:
            await self._event_stream.exchange.close()

        async def _get_event_iterator(self) -> AsyncIterator[Any]:
            self.provider_response_id = self._provider_response_id
            async for event in self._event_stream:
                for each in self._map_chunk(event):
                    yield each

    return Streamed


class _Events:
    """The events of one answer."""

    def __init__(self, part: Callable[[str], Any], exchange: Exchange, service: Any) -> None:
        self.exchange = exchange
        self._buffer = part("botocore.eventstream:EventStreamBuffer")()
        self._parser = part("botocore.parsers:EventStreamJSONParser")()
        self._shape = service.operation_model(_OPERATION).get_event_stream_output()

    async def __aiter__(self) -> AsyncIterator[Any]:
        frames = Frames()
        while data := await self.exchange.read():
            for whole in frames.feed(data):
                self.exchange.count(len(whole), 1)
                self._buffer.add_data(whole)
                for message in self._buffer:
                    if event := self._event(message.to_response_dict()):
                        yield event

    def _event(self, fields: dict[str, Any]) -> Any:
        event = self._parser.parse(fields, self._shape)
        if fields["status_code"] == 200:
            return event
        error = event["Error"]
        named = str(fields["headers"].get(":exception-type") or error["Code"])
        said = {"message": error["Message"], "code": named, "type": _TYPES.get(named)}
        shown = {key: value for key, value in said.items() if value}
        self.exchange.failure = in_band_failure({"error": shown}, self.exchange.request_id)
        raise LlmError(self.exchange.failure)


class _Nothing:
    """The body of an answer that was never asked for."""

    def stream(self, **_: object) -> Iterator[bytes]:
        return iter(())

    def read(self, *_: object) -> bytes:
        return b""

    def close(self) -> None:
        """Close nothing."""


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
