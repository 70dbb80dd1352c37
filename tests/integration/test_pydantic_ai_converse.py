"""Bedrock's Converse API on the wire: signatures, frames, exceptions; no request of boto3's own."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, unquote

import pytest
from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.attribution import user_agent
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.pydantic_ai.adapter import PydanticAiAdapter

from tests.support.event_stream import event, exception
from tests.support.library import REASON
from tests.support.raw_http import Answer, Exchange, RawServer
from tests.support.recorded import CONVERSE, SIGNATURE

pytest.importorskip("pydantic_ai", reason=REASON)
pytestmark = pytest.mark.integration

ACCESS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-real-secret"}
REGION = "eu-central-1"
FRAMES = {"content-type": "application/vnd.amazon.eventstream"}


@asynccontextmanager
async def adapter(server: RawServer, **environ: str) -> AsyncIterator[PydanticAiAdapter]:
    options = {
        "profile": CONVERSE.profile,
        "baseUrl": server.url,
        "region": REGION,
        "trustEnv": False,
    }
    made = PydanticAiAdapter.create(AdapterContext("t", options=options, environ=environ))
    await made.open()
    try:
        yield made
    finally:
        await made.close()


async def read(
    made: PydanticAiAdapter, *messages: dict[str, Any], **fields: Any
) -> tuple[BlockAssembler, LlmFailure | None]:
    said = [{"type": "text", "text": "Hello."}]
    first = {"id": "u", "role": "user", "content": said, "source": {"kind": "user"}}
    options = GenerateOptions.from_dict(
        {"provider": "p", "model": CONVERSE.model, **fields, "messages": [first, *messages]}
    )
    assembler = BlockAssembler()
    try:
        async for chunks in made.stream(options):
            for chunk in chunks:
                assembler.push(chunk)
    except LlmError as exc:
        return assembler, exc.failure
    return assembler, assembler.finish.failure


def answer(*frames: bytes, **fields: Any) -> Answer:
    return Answer(frames, headers=dict(FRAMES), **fields)


# --- credentials ------------------------------------------------------------------------------


def expected_signature(exchange: Exchange, secret: str) -> str:
    """Sign what arrived, by AWS's description of Signature Version 4 and nothing of botocore."""
    fields = dict(
        part.strip().split("=", 1)
        for part in exchange.headers["authorization"].removeprefix("AWS4-HMAC-SHA256 ").split(",")
    )
    names = fields["SignedHeaders"].split(";")
    lines = "".join(f"{name}:{exchange.headers[name]}\n" for name in names)
    path = quote(exchange.path)  # what arrived is encoded once more
    digest = hashlib.sha256(exchange.body).hexdigest()
    canonical = f"{exchange.method}\n{path}\n\n{lines}\n{fields['SignedHeaders']}\n{digest}"
    date = exchange.headers["x-amz-date"]
    scope = f"{date[:8]}/{REGION}/bedrock/aws4_request"
    assert fields["Credential"] == f"{ACCESS['AWS_ACCESS_KEY_ID']}/{scope}"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for step in scope.split("/"):
        key = hmac.digest(key, step.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}"
    return hmac.digest(key, text.encode(), "sha256").hex()


ARN = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.anthropic.claude-opus-4-1"


@pytest.mark.parametrize("token", ["", "of-a-session"])
@pytest.mark.parametrize("model", [CONVERSE.model, ARN], ids=["id", "arn"])
async def test_a_request_is_signed_as_it_arrives(token: str, model: str) -> None:
    """Path, headers and body on the wire are those that were signed, with our attribution."""
    environ = {**ACCESS, "AWS_SESSION_TOKEN": token}
    async with RawServer(answer(*CONVERSE.text)) as server, adapter(server, **environ) as made:
        _, failure = await read(made, model=model)
    assert failure is None
    (exchange,) = server.exchanges
    assert unquote(exchange.path) == f"/model/{model}/converse-stream"
    assert exchange.path.count("/") == 3  # one in a name is no step of the path
    assert exchange.headers["user-agent"] == user_agent()
    assert exchange.headers.get("x-amz-security-token", "") == token
    signature = exchange.headers["authorization"].rpartition("Signature=")[2]
    assert signature == expected_signature(exchange, ACCESS["AWS_SECRET_ACCESS_KEY"])


async def test_a_key_of_bedrock_goes_before_credentials() -> None:
    """It is sent as it is, read anew for each call."""
    environ = {**ACCESS, "AWS_BEARER_TOKEN_BEDROCK": "bedrock-key-0123456789"}
    async with RawServer(answer(*CONVERSE.text)) as server, adapter(server, **environ) as made:
        _, failure = await read(made)
    assert failure is None
    assert server.exchanges[0].headers["authorization"] == "Bearer bedrock-key-0123456789"


async def test_without_any_credentials_nothing_goes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure names the variables."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    for name in (*ACCESS, "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with RawServer(answer(*CONVERSE.text)) as server, adapter(server) as made:
        _, failure = await read(made)
    assert failure is not None
    assert failure.code == Code.MISSING_CREDENTIAL
    assert "AWS_ACCESS_KEY_ID" in failure.message
    assert server.exchanges == []


# --- frames -----------------------------------------------------------------------------------


def said(*texts: str) -> list[bytes]:
    deltas = [event("contentBlockDelta", contentBlockIndex=0, delta={"text": t}) for t in texts]
    return [event("messageStart", role="assistant"), *deltas]


END = [event("contentBlockStop", contentBlockIndex=0), event("messageStop", stopReason="end_turn")]


async def test_frames_cut_anywhere_make_the_same_text() -> None:
    """One byte per write: prelude, headers and characters are all split."""
    whole = b"".join([*said("Grüße, ", "世界 🎉"), *END])
    pieces = [whole[at : at + 1] for at in range(len(whole))]
    async with RawServer(answer(*pieces)) as server, adapter(server, **ACCESS) as made:
        assembler, failure = await read(made)
    assert failure is None
    assert [block.to_dict() for block in assembler.blocks()] == [
        {"type": "text", "text": "Grüße, 世界 🎉"}
    ]
    assert assembler.usage is None


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (exception("throttlingException", "Too many tokens, wait before trying."), Code.RATE_LIMIT),
        (exception("modelStreamErrorException", "Unexpected error."), Code.SERVER),
        (exception("validationException", "The model rejects it."), Code.INVALID_REQUEST),
        (
            exception("validationException", "Input is too long for requested model."),
            Code.CONTEXT_WINDOW_EXCEEDED,
        ),
        (exception("modelTimeoutException", "Took too long."), Code.TIMEOUT),
        (exception("newKindOfException", "Who knows."), Code.SERVER),
        (said("x")[1][:-1] + b"\0", Code.MALFORMED_RESPONSE),  # a checksum that is wrong
        (said("x")[1][:-7], Code.STREAM_CLOSED),
        (b"\xff" * 64, Code.MALFORMED_RESPONSE),
    ],
)
async def test_an_end_that_is_none_has_its_code(last: bytes, code: str) -> None:
    """What came before it stays, and one request was made."""
    async with RawServer(answer(*said("Hello"), last)) as server, adapter(server, **ACCESS) as made:
        assembler, failure = await read(made)
    assert failure is not None
    assert failure.code == code, failure
    assert assembler.interrupted_blocks()
    assert len(server.exchanges) == 1


@pytest.mark.parametrize("body", [b"<html>Sign in</html>", b'{"message": "gone"}'])
async def test_a_body_of_another_kind_is_malformed(body: bytes) -> None:
    """A page of some proxy, with status 200."""
    async with RawServer(Answer((body,))) as server, adapter(server, **ACCESS) as made:
        _, failure = await read(made)
    assert failure is not None
    assert failure.code == Code.MALFORMED_RESPONSE
    assert "no event stream" in failure.message


async def test_redacted_thinking_goes_back_as_it_came() -> None:
    """Nothing of it is shown; the next request carries it."""
    hidden = {"reasoningContent": {"redactedContent": SIGNATURE}}
    frames = [
        event("messageStart", role="assistant"),
        event("contentBlockDelta", contentBlockIndex=0, delta=hidden),
        event("contentBlockStop", contentBlockIndex=0),
        event("contentBlockDelta", contentBlockIndex=1, delta={"text": "Hi."}),
        event("contentBlockStop", contentBlockIndex=1),
        event("messageStop", stopReason="end_turn"),
    ]
    async with RawServer(answer(*frames)) as server, adapter(server, **ACCESS) as made:
        first, failure = await read(made)
        assert failure is None
        assert first.replay_state is not None
        content = [block.to_dict() for block in first.blocks()]
        source = {"kind": "model", "provider": "p", "model": CONVERSE.model}
        state = {"replayState": first.replay_state.to_dict()}
        message = {"id": "a", "role": "assistant", "content": content, "source": source | state}
        _, failure = await read(made, message)
    assert failure is None
    assert SIGNATURE.encode() in server.exchanges[1].body
