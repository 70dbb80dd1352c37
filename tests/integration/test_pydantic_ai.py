"""The pydantic_ai adapter on the wire: three APIs, recorded shapes, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from trunkline_protocol.attribution import user_agent
from trunkline_protocol.chunks import TokenUsage
from trunkline_protocol.failure import Code

from tests.support.calls import until
from tests.support.library import REASON
from tests.support.library_adapter import KEY, adapter, answered, asks, blocks, read, user
from tests.support.raw_http import Answer, RawServer
from tests.support.recorded import (
    ANTHROPIC,
    CONVERSE,
    GEMINI,
    RECORDINGS,
    RESPONSES,
    SIGNATURE,
    Recording,
)

pytest.importorskip("pydantic_ai", reason=REASON)
pytestmark = pytest.mark.integration

FOUR = [ANTHROPIC, CONVERSE, GEMINI, RESPONSES]
four = pytest.mark.parametrize("recording", FOUR, ids=lambda each: each.profile)
everyone = pytest.mark.parametrize(
    "recording", list(RECORDINGS.values()), ids=lambda each: each.profile
)


def system(text: str) -> dict[str, Any]:
    return {**user(text), "role": "system"}


def refusal(body: Mapping[str, Any], status: int, **headers: str) -> Answer:
    head = {"content-type": "application/json", **headers}
    return Answer((json.dumps(body).encode(),), status=status, headers=head)


# --- what arrives ----------------------------------------------------------------------------

REASONING = {"type": "reasoning", "text": "A greeting will do."}
TEXT = {"type": "text", "text": "Hello there."}
CLAUDES = TokenUsage(10, 42, cache_read_tokens=7, cache_write_tokens=3)
REASONED = TokenUsage(12, 42, cache_read_tokens=8, reasoning_tokens=30)
COUNTED = TokenUsage(20, 42)
USAGE = {
    "anthropic": CLAUDES,
    "bedrock": CLAUDES,
    "bedrock-converse": CLAUDES,
    "google": REASONED,
    "openai-responses": REASONED,
    "xai": REASONED,
    "mistral": COUNTED,
    "groq": COUNTED,
}


@everyone
async def test_parts_become_blocks_and_usage_is_disjoint(recording: Recording) -> None:
    """Thinking, text and a call in order; cached input is not counted twice; raw arguments."""
    async with RawServer(Answer(recording.tools)) as server, adapter(recording, server) as made:
        assembler, failure = await read(made, asks(recording))
    assert failure is None
    *shown, call = blocks(assembler)
    thinks = recording.profile not in {"mistral", "groq"}
    assert shown == ([REASONING, TEXT] if thinks else [TEXT])
    assert (call["name"], call["arguments"]) == ("weather", recording.arguments)
    assert assembler.usage == USAGE[recording.profile]
    assert assembler.finish.kind == "tool-calls"


@everyone
async def test_attribution_is_on_the_wire_and_the_key_nowhere_else(recording: Recording) -> None:
    """One request, our User-Agent on it whatever the SDK sets, the key in a header only."""
    async with RawServer(Answer(recording.text)) as server, adapter(recording, server) as made:
        assembler, failure = await read(made, asks(recording))
        await until(lambda: made.connections_in_use == 0)
    assert failure is None
    assert blocks(assembler)[-1] == TEXT
    (exchange,) = server.exchanges
    assert exchange.headers["user-agent"] == user_agent()
    assert exchange.headers["accept-encoding"] == "identity"
    assert KEY in " ".join(exchange.headers.values())
    assert KEY not in exchange.path
    assert KEY.encode() not in exchange.body


@everyone
async def test_a_connection_serves_one_call_after_the_other(recording: Recording) -> None:
    """The SDKs stop reading at the provider's last event; what follows it is drained."""
    answer = Answer(recording.text, interval_s=0.01)  # the end comes by itself
    async with RawServer(answer) as server, adapter(recording, server) as made:
        for _ in range(2):
            _, failure = await read(made, asks(recording))
            assert failure is None
            await until(lambda: made.connections_in_use == 0)
        assert server.connections == 1


# --- what goes back --------------------------------------------------------------------------


def sent_signatures(body: bytes) -> int:
    return body.count(SIGNATURE.encode())


@four
async def test_signatures_and_ids_go_back(recording: Recording) -> None:
    """The next request carries what the provider signed, and the ids it gave."""
    said: list[str] = []
    async with (
        RawServer(Answer(recording.tools)) as server,
        adapter(recording, server, said) as made,
    ):
        first, _ = await read(made, asks(recording))
        call = blocks(first)[-1]
        result = {"type": "tool-result", "toolCallId": call["id"], "content": [TEXT]}
        history = [user("Hello."), answered(recording, first), {**user(""), "content": [result]}]
        _, failure = await read(made, asks(recording, *history))
    assert failure is None
    body = server.exchanges[1].body
    assert sent_signatures(body) == 1
    for given in _given_ids(recording):
        assert given in body
    assert said == []


def _given_ids(recording: Recording) -> Sequence[bytes]:
    if recording is RESPONSES:
        return (b'"rs_1"', b'"msg_1"', b'"fc_1"', b'"call_1"')
    return {"anthropic": (b'"toolu_1"',), "bedrock-converse": (b'"tooluse_1"',)}.get(
        recording.profile, ()
    )


def _of_another_version(state: dict[str, Any]) -> None:
    state["response"]["v"] = 99


def _of_another_provider(state: dict[str, Any]) -> None:
    state["response"]["system"] = "somebody"


def _of_other_blocks(state: dict[str, Any]) -> None:
    del state["blocks"][0]


def _with_a_wrong_signature(state: dict[str, Any]) -> None:
    for entry in filter(None, state["blocks"]):
        fields = entry["fields"]
        if "signature" in fields:
            fields["signature"] = 17
        if "provider_details" in fields:
            fields["provider_details"] = {"thought_signature": "no base64!"}


@four
@pytest.mark.parametrize(
    "spoil",
    [_of_another_version, _of_another_provider, _of_other_blocks, _with_a_wrong_signature],
    ids=lambda each: each.__name__.strip("_"),
)
async def test_state_that_cannot_be_used_degrades_that_message_only(
    recording: Recording, spoil: Any
) -> None:
    """The spoilt message goes out plain, the good one with its signature; the call succeeds."""
    said: list[str] = []
    async with (
        RawServer(Answer(recording.tools)) as server,
        adapter(recording, server, said) as made,
    ):
        first, _ = await read(made, asks(recording))
        good = answered(recording, first)
        bad = answered(recording, first)
        bad["source"] = json.loads(json.dumps(bad["source"]))
        spoil(bad["source"]["replayState"])
        call = blocks(first)[-1]["id"]
        result = {
            **user(""),
            "content": [{"type": "tool-result", "toolCallId": call, "content": [TEXT]}],
        }
        history = [user("One."), bad, result, user("Two."), good, result]
        _, failure = await read(made, asks(recording, *history))
    assert failure is None
    body = server.exchanges[1].body
    assert sent_signatures(body) == 1
    assert body.count(b"Hello there.") >= 2
    assert said
    assert all("replay state not used" in line for line in said)


async def test_a_changed_text_is_no_longer_signed() -> None:
    """A signature answers for the very text it was given with."""
    async with RawServer(Answer(ANTHROPIC.text)) as server, adapter(ANTHROPIC, server) as made:
        first, _ = await read(made, asks(ANTHROPIC))
        message = answered(ANTHROPIC, first)
        message["content"][0]["text"] = "Another thought."
        await read(made, asks(ANTHROPIC, user("Hello."), message, user("Again.")))
    body = server.exchanges[1].body
    assert sent_signatures(body) == 0
    assert b"Another thought." not in body  # unsigned thinking is nobody's


async def test_a_system_message_later_on_keeps_its_place() -> None:
    """Where the API has no such role it stays between its neighbours, and nothing is added."""
    history = [user("One."), system("Be brief."), user("<system>Two.</system>")]
    async with RawServer(Answer(ANTHROPIC.text)) as server, adapter(ANTHROPIC, server) as made:
        await read(made, asks(ANTHROPIC, *history, system="You help.", model="claude-haiku-4-5"))
    body = json.loads(server.exchanges[0].body)
    texts = [part["text"] for message in body["messages"] for part in message["content"]]
    assert texts == ["One.", "<system>\nBe brief.\n</system>", "<system>Two.</system>"]
    assert body["system"] == "You help."


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recording", "fields"),
    [
        (RESPONSES, {"temperature": 0.2}),  # a model that thinks takes none
        (RESPONSES, {"stop": ["END"]}),  # this API has no such field
        (ANTHROPIC, {"logitBias": {}}),
    ],
    ids=["temperature", "stop", "unknown"],
)
async def test_an_option_that_would_be_dropped_is_refused(
    recording: Recording, fields: dict[str, Any]
) -> None:
    """The library would leave it out with a warning; nothing goes out."""
    async with RawServer(Answer(recording.text)) as server, adapter(recording, server) as made:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library, to whoever reads the worker's log
            _, failure = await read(made, asks(recording, **fields))
    assert failure is not None
    assert failure.code == Code.UNSUPPORTED
    assert server.exchanges == []


@pytest.mark.parametrize("recording", [ANTHROPIC, GEMINI], ids=lambda each: each.profile)
async def test_options_that_are_honoured_are_on_the_wire(recording: Recording) -> None:
    """Limit, temperature, stop texts, under the provider's names."""
    fields = {"maxTokens": 900, "temperature": 0.25, "stop": ["END"], "reasoningEffort": "off"}
    model = "claude-haiku-4-5" if recording is ANTHROPIC else "gemini-2.5-flash"
    async with RawServer(Answer(recording.text)) as server, adapter(recording, server) as made:
        _, failure = await read(made, asks(recording, model=model, **fields))
    assert failure is None
    body = server.exchanges[0].body
    for piece in (b"900", b"0.25", b"END"):
        assert piece in body


async def test_an_effort_that_the_model_has_not_is_refused() -> None:
    """The efforts come with the exact model."""
    async with RawServer(Answer(ANTHROPIC.text)) as server, adapter(ANTHROPIC, server) as made:
        info = await made.resolve_model("anthropic", "claude-sonnet-5")
        assert info.reasoning is not None
        assert [each.id for each in info.reasoning.efforts] == ["off", "low", "medium", "high"]
        _, failure = await read(made, asks(ANTHROPIC, reasoningEffort="enormous"))
    assert failure is not None
    assert failure.code == Code.UNSUPPORTED_REASONING_EFFORT


# --- what goes wrong -------------------------------------------------------------------------


@everyone
async def test_a_refusal_is_classified_by_the_shared_law_and_asked_once(
    recording: Recording,
) -> None:
    """Status, wait and request id are those of the response; no library asks again."""
    answer = refusal(recording.error, 429, **{"retry-after": "7", "x-request-id": "req_1"})
    async with RawServer(answer) as server, adapter(recording, server) as made:
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert (failure.code, failure.status) == (Code.RATE_LIMIT, 429)
    assert failure.provider_retry_after_ms == 7000
    assert failure.request_id == "req_1"
    assert len(server.exchanges) == 1


async def test_the_library_recovers_nothing_by_a_second_request() -> None:
    """It would drop rejected thinking and ask again: one call is one attempt."""
    text = "messages.1.content.0: Invalid `signature` in `thinking` block"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    async with RawServer(refusal(error, 400)) as server, adapter(ANTHROPIC, server) as made:
        _, failure = await read(made, asks(ANTHROPIC))
    assert failure is not None
    assert failure.code == Code.INVALID_REQUEST
    assert len(server.exchanges) == 1


@everyone
async def test_an_error_inside_a_stream_has_the_provider_s_code(recording: Recording) -> None:
    """What came before it stays; the same words mean the same as under HTTP."""
    begun = [*recording.text[: recording.begun], recording.in_band]
    async with RawServer(Answer(begun)) as server, adapter(recording, server) as made:
        assembler, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code == Code.SERVER
    assert failure.message.encode() in recording.in_band
    assert assembler.interrupted_blocks()


@everyone
async def test_a_stream_that_is_cut_is_said_to_be(recording: Recording) -> None:
    """An end before the provider's finish is never a success."""
    begun = recording.text[: recording.begun]
    async with RawServer(Answer(begun)) as server, adapter(recording, server) as made:
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code == Code.STREAM_CLOSED


@everyone
async def test_a_reset_connection_is_the_transport_s(recording: Recording) -> None:
    """Facts of the wire win over the library's view of them."""
    begun = recording.text[: recording.begun]
    async with RawServer(Answer(begun, end="reset")) as server, adapter(recording, server) as made:
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code == Code.TRANSPORT


@everyone
async def test_garbage_is_malformed(recording: Recording) -> None:
    """Nothing of the SDK's parser escapes."""
    async with (
        RawServer(Answer([recording.text[0], b"data: {nonsense\n\n"])) as server,
        adapter(recording, server) as made,
    ):
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert failure.code in {Code.MALFORMED_RESPONSE, Code.STREAM_CLOSED}


@everyone
async def test_an_error_with_200_and_no_stream_is_that_error(recording: Recording) -> None:
    """Gateways answer so."""
    body = {"error": {"message": "The engine is overloaded", "code": 503}}
    async with RawServer(refusal(body, 200)) as server, adapter(recording, server) as made:
        _, failure = await read(made, asks(recording))
    assert failure is not None
    assert "overloaded" in failure.message
    assert failure.code == Code.SERVER


@everyone
async def test_a_connection_that_stays_open_after_the_finish_ends_soon(
    recording: Recording,
) -> None:
    """The provider's finish is the end; the idle limit is not waited for."""
    answer = Answer(recording.text, end="open")
    if recording.profile in {"mistral", "groq"}:
        answer = Answer(recording.text[:-1], end="open")  # without `[DONE]`
    async with RawServer(answer) as server, adapter(recording, server) as made:
        async with asyncio.timeout(5):
            assembler, failure = await read(made, asks(recording))
    assert failure is None
    assert assembler.finish.kind == "stop"
    assert assembler.usage is not None


@everyone
@pytest.mark.parametrize("held", ["before the head", "mid-stream"])
async def test_a_cancel_closes_the_connection(recording: Recording, held: str) -> None:
    """The provider sees the end within a second, and the slot is free."""
    gate = asyncio.Event()
    begun = Answer(recording.text[: recording.begun], end="open")
    answer = Answer(gate=gate) if held == "before the head" else begun
    async with RawServer(answer) as server, adapter(recording, server) as made:
        task = asyncio.ensure_future(read(made, asks(recording)))
        exchange = await server.exchange(0)
        if held == "mid-stream":
            await until(lambda: exchange.sent >= recording.begun)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(exchange.closed.wait(), 1.0)
        assert made.connections_in_use == 0


@everyone
async def test_a_reader_that_leaves_closes_the_connection(recording: Recording) -> None:
    """Closing the iterator is a cancel too."""
    answer = Answer(recording.text[: recording.begun], end="open")
    async with RawServer(answer) as server, adapter(recording, server) as made:
        stream = made.stream(asks(recording))
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(server.exchanges[0].closed.wait(), 1.0)


async def test_a_key_that_the_provider_echoes_is_taken_out() -> None:
    """The text of a failure never holds it."""
    error = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    async with RawServer(refusal(error, 401)) as server, adapter(RESPONSES, server) as made:
        _, failure = await read(made, asks(RESPONSES))
    assert failure is not None
    assert failure.code == Code.AUTH
    assert KEY not in failure.message


async def test_broken_arguments_are_never_a_call_to_run() -> None:
    """A call whose arguments are no JSON ends the stream with a failure."""
    broken = [each.replace(b'\\"Oslo\\"}', b'\\"Oslo') for each in ANTHROPIC.tools]
    async with RawServer(Answer(broken)) as server, adapter(ANTHROPIC, server) as made:
        _, failure = await read(made, asks(ANTHROPIC))
    assert failure is not None
    assert failure.code == Code.MALFORMED_RESPONSE


async def test_a_limit_reached_is_max_tokens() -> None:
    """The provider's word for it is the library's, ours is the seeds'."""
    cut = [each.replace(b'"end_turn"', b'"max_tokens"') for each in ANTHROPIC.text]
    async with RawServer(Answer(cut)) as server, adapter(ANTHROPIC, server) as made:
        assembler, failure = await read(made, asks(ANTHROPIC))
    assert (failure, assembler.finish.kind) == (None, "max-tokens")


async def test_models_are_listed_without_asking_anybody() -> None:
    """Configured ones, or those that the library knows."""
    async with RawServer(Answer()) as server, adapter(GEMINI, server) as made:
        known = [each.id for each in await made.list_models("google")]
        assert any(each.startswith("gemini-") for each in known)
    async with (
        RawServer(Answer()) as server,
        adapter(GEMINI, server, models=[{"id": "gemini-x"}]) as made,
    ):
        assert [each.id for each in await made.list_models("google")] == ["gemini-x"]
