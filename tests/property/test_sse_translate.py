"""Any bytes through decoder and translator: well-formed chunks and one end, however cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from trunkline_protocol.chunks import Finish, StreamChunk
from trunkline_protocol.failure import LlmFailure
from trunkline_protocol.grammar import GrammarChecker
from trunkline_protocol.http_failure import in_band_failure
from trunkline_workers.adapters.chat_completions.profiles import PROFILES, ResponseRules
from trunkline_workers.adapters.chat_completions.translate import Translator
from trunkline_workers.sse import EventTooLargeError, SseDecoder

RULES = (
    ResponseRules(),
    ResponseRules(inline_thinking="tags"),
    ResponseRules(inline_thinking="prefilled"),
    PROFILES["deepseek"].response,
)

# Values as providers send them, right and wrong in every place.
words = st.sampled_from(
    ["", "a", "<think>", "</think>", "{}", '{"x":1}', '{"x":', "\u2028", "\ud83d"]
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**60) | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


def fields(**values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    """Return objects with any of some keys, each with its own kind of value or junk."""
    return st.fixed_dictionaries({}, optional={key: kind | junk for key, kind in values.items()})


functions = fields(name=words, arguments=words)
calls = fields(index=st.integers(0, 2), id=words, function=functions, extra_content=junk)
details = fields(type=words, index=st.integers(0, 2), text=words)
deltas = fields(
    content=words,
    reasoning_content=words,
    reasoning=words,
    refusal=words,
    tool_calls=st.lists(calls | junk, max_size=3),
    reasoning_details=st.lists(details | junk, max_size=2),
    function_call=functions,
)
usages = fields(
    prompt_tokens=st.integers(0, 9),
    completion_tokens=st.integers(0, 9),
    prompt_tokens_details=fields(cached_tokens=st.integers(0, 9)),
)
reasons = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "", "weird"])
choices = fields(delta=deltas, message=deltas, finish_reason=reasons, usage=usages)
payloads = fields(
    choices=st.lists(choices | junk, max_size=2), usage=usages, error=junk, x_groq=junk
)
bodies = st.lists(
    st.one_of(
        payloads.map(lambda value: b"data: " + json.dumps(value).encode()),
        st.just(b"data: [DONE]"),
        st.just(b": keep-alive"),
        st.sampled_from((b"event: error", b"event: ping", b"data: data: [DONE]", b"data: {}{}")),
        st.binary(max_size=40),
        junk.map(lambda value: json.dumps(value).encode()),
    ),
    max_size=12,
)
ends = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n"])


def run(reads: list[bytes], rules: ResponseRules) -> tuple[list[StreamChunk], LlmFailure | None]:
    """Read a body as the adapter does."""
    decoder = SseDecoder()
    translator = Translator(rules, in_band_failure, max_tokens=4, context_window=5)
    chunks: list[StreamChunk] = []
    for data in reads:
        if translator.is_done:
            break
        try:
            chunks += translator.feed(decoder.feed(data))
        except EventTooLargeError:
            raise AssertionError("no generated event is that large") from None
    if not translator.is_done:
        chunks += translator.end(decoder.finish(), decoder.stray)
    assert translator.is_done
    return chunks, translator.failure


def check(chunks: list[StreamChunk], failure: LlmFailure | None) -> None:
    """Check that a stream is well-formed and ends exactly once."""
    finishes = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    checker = GrammarChecker()
    for chunk in chunks:
        checker.push(chunk)
    if failure is None:
        assert len(finishes) == 1
        assert chunks[-1] is finishes[0]
        assert checker.end() is None
        assert finishes[0].reason.kind != "error" or finishes[0].reason.failure is not None
    else:
        assert not finishes
        assert failure.code


@given(st.lists(st.binary(max_size=200), max_size=6), st.sampled_from(RULES))
def test_any_bytes_end_in_chunks_and_one_end(reads: list[bytes], rules: ResponseRules) -> None:
    """Random bytes never raise and never leave a stream without its end."""
    check(*run(reads, rules))


@given(bodies, ends, st.sampled_from(RULES))
def test_any_events_end_in_chunks_and_one_end(
    parts: list[bytes], end: bytes, rules: ResponseRules
) -> None:
    """Nearly right payloads neither."""
    check(*run([end.join([*parts, b""])], rules))


@given(bodies, ends, st.sampled_from(RULES), st.data())
def test_the_result_does_not_depend_on_the_split(
    parts: list[bytes], end: bytes, rules: ResponseRules, data: st.DataObject
) -> None:
    """The same bytes in any reads, also one by one, give the same chunks and the same end."""
    body = end.join([*parts, b""])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(body)), max_size=6)))
    reads = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    whole = run([body], rules)
    assert run(reads, rules) == whole
    assert run([body[at : at + 1] for at in range(len(body))], rules) == whole


@given(bodies)
def test_a_whole_json_answer_ends_once(parts: list[bytes]) -> None:
    """Any body taken for JSON ends in chunks or a failure."""
    translator = Translator(ResponseRules(), in_band_failure)
    check(translator.whole(b"".join(parts)), translator.failure)
