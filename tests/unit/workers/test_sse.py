"""The event decoder: framing, splits, bounds."""

from __future__ import annotations

import time

import pytest
from trunkline_workers import sse
from trunkline_workers.sse import (
    MAX_EVENT_BYTES,
    MAX_EVENT_LINES,
    STRAY_BYTES,
    ErrorEvent,
    EventTooLargeError,
    KeepAliveEvent,
    SseDecoder,
)


def decoded(*reads: bytes) -> list[bytes]:
    decoder = SseDecoder()
    return [payload for data in reads for payload in decoder.feed(data)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_frames_events(end: bytes) -> None:
    """LF, CRLF and CR end lines alike."""
    body = end.join([b": note", b"event: x", b"data: a", b"data: b", b"", b"data:c", b"", b""])
    assert decoded(body) == [b"a\nb", b"c"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_any_split_gives_the_same_events(end: bytes) -> None:
    """A body cut into two at any byte gives the events of the whole."""
    lines = [b"\xef\xbb\xbfdata: \xe4\xbd\xa0", b"data: b", b"", b":c", b"id: 1", b"data", b"", b""]
    body = end.join(lines)
    whole = decoded(body)
    assert whole == [b"\xe4\xbd\xa0\nb", b""]
    for cut in range(len(body) + 1):
        assert decoded(body[:cut], body[cut:]) == whole
    assert decoded(*(body[at : at + 1] for at in range(len(body)))) == whole


def test_cr_ends_its_line_without_the_next_byte() -> None:
    """An event in CR framing is delivered when it is complete, not one byte later."""
    assert decoded(b"data: a\r\r") == [b"a"]


def test_lf_after_a_cr_of_the_read_before_is_no_blank_line() -> None:
    """A CRLF cut in the middle is one line end."""
    assert decoded(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]


def test_line_separators_of_unicode_are_text() -> None:
    """U+2028, U+0085, VT and FF do not end a line."""
    text = "a\u2028b\u0085c\x0bd\x0ce".encode()
    assert decoded(b"data: " + text + b"\n\n") == [text]


def test_only_the_first_bom_is_taken_off() -> None:
    """A byte order mark counts at the start of the body alone."""
    assert decoded(b"\xef", b"\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [b"a"]


def test_events_without_data_are_not_dispatched() -> None:
    """Blocks of retry, id, event and comments give nothing."""
    assert decoded(b"retry: 3\n\nid: 7\n: ping\n\nevent: message\n\ndata: a\n\n") == [b"a"]


def test_events_that_say_error_are_told_apart() -> None:
    """The mark belongs to its own event alone, also when it comes in another read."""
    decoder = SseDecoder()
    body = b"event: error\ndata: a\n\ndata: b\n\nevent: error\n\ndata: c\n\nevent: error\n"
    payloads = decoder.feed(body) + decoder.feed(b"data: d\n\ndata: e\n\n")
    assert [(p, isinstance(p, ErrorEvent)) for p in payloads] == [
        (b"a", True),
        (b"b", False),
        (b"c", False),
        (b"d", True),
        (b"e", False),
    ]


def test_events_that_are_named_as_keep_alives_are_told_apart() -> None:
    """A keep-alive by name may say anything; the next event has no name again."""
    decoder = SseDecoder()
    payloads = decoder.feed(
        b"event: heartbeat\ndata: ping\n\ndata: a\n\nevent: ping\n\ndata: b\n\n"
    )
    assert [type(payload) for payload in payloads] == [KeepAliveEvent, bytes, bytes]
    assert payloads == [b"ping", b"a", b"b"]


def test_comments_are_counted_and_handed_out() -> None:
    """Keep-alives are seen, without colon and space."""
    seen: list[bytes] = []
    decoder = SseDecoder(seen.append)
    decoder.feed(b": keep-alive\n\n:\n:x\n")
    assert (decoder.comments, seen) == (3, [b"keep-alive", b"", b"x"])
    assert not decoder.has_events


def test_finish_gives_the_event_without_its_blank_line() -> None:
    """What the standard drops is handed out for the caller to judge."""
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\ndata: [DO") == [b"a"]
    assert decoder.feed(b"NE]") == []
    assert decoder.finish() == b"[DONE]"
    assert decoder.finish() is None


def test_finish_of_a_short_body_takes_off_the_bom() -> None:
    """A body without any line end still has its mark removed."""
    decoder = SseDecoder()
    decoder.feed(b"\xef\xbb\xbfdata: a")
    assert decoder.finish() == b"a"


def test_lines_that_are_no_field_are_kept_up_to_a_bound() -> None:
    """An error without `data:` stays readable, and a flood of junk does not grow memory."""
    decoder = SseDecoder()
    decoder.feed(b'{"error": 1}\n')
    assert decoder.stray == b'{"error": 1}\n'
    for _ in range(100):
        decoder.feed(b"x" * 1000 + b"\n")
    assert len(decoder.stray) <= STRAY_BYTES + 1


@pytest.mark.parametrize("line", [b"x" * 1_000_000, b"data: " + b"x" * 999_994 + b"\n"])
def test_an_endless_event_is_refused(line: bytes) -> None:
    """Neither a line nor an event grows without bound."""
    with pytest.raises(EventTooLargeError):
        decoded(*[line] * (MAX_EVENT_BYTES // len(line) + 2))


def test_an_event_of_many_empty_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines without any text count too, by their bytes and by their number."""
    bound = 4 * MAX_EVENT_LINES
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", bound)
    lines = [b"data:\n" * (bound // 12)]
    assert decoded(*lines) == []
    with pytest.raises(EventTooLargeError):
        decoded(*lines * 3)
    monkeypatch.undo()
    with pytest.raises(EventTooLargeError, match="lines"):
        decoded(b"data:\n" * (MAX_EVENT_LINES + 1))


@pytest.mark.parametrize("line", [b":\n", b"\n", b"\r", b"event: x\n", b"stray\n"])
def test_a_flood_between_two_events_is_refused(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes no event has the bound of an event; a whole event begins it anew."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 64 * 1024)
    decoder = SseDecoder()
    flood = line * (32 * 1024 // len(line))
    for _ in range(4):
        decoder.feed(flood)
        assert decoder.feed(b"\n\ndata: 1\n\n") == [b"1"]
    decoder.feed(flood)
    with pytest.raises(EventTooLargeError):
        decoder.feed(flood + flood)


def test_small_reads_cost_no_more_than_linear() -> None:
    """One event in many reads is joined once."""

    def cost_s(count: int) -> float:
        decoder = SseDecoder()
        start = time.process_time()
        decoder.feed(b"data: ")
        for _ in range(count):
            decoder.feed(b"x")
        assert decoder.feed(b"\n\n") == [b"x" * count]
        return time.process_time() - start

    small = min(cost_s(20_000) for _ in range(5))
    # Quadratic work would be a hundred times as much; a busy machine may double a measurement.
    assert min(cost_s(200_000) for _ in range(3)) <= 25 * max(small, 0.002)
