"""The file format of field cases: what a server sends, and what users needed to come out.

Any file of the format is read. What an entry says that this reader does not know makes that entry
a `NotRun` with the reason; keys that only describe are ignored.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.raw_http import Answer

ENDS: Final = ("clean", "open", "reset", "cut")
DEFAULT_HEADERS: Final = {
    "sse": {"content-type": "text/event-stream"},
    "http": {"content-type": "application/json"},
}
# The server frames the body itself.
FRAMING: Final = frozenset({"transfer-encoding", "content-length", "connection", "keep-alive"})


@dataclass(frozen=True)
class Replay:
    """One answer of a provider to replay, and what is expected of it."""

    name: str
    answer: Answer
    expected: Mapping[str, Any]
    max_tokens: int | None = None
    context_window: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """Steps that need more than one answer."""

    name: str
    steps: list[str]
    expected: Mapping[str, Any]


@dataclass(frozen=True)
class NotRun:
    """An entry that can't be replayed, and why."""

    name: str
    reason: str


Entry = Replay | Scenario | NotRun


class UnknownShapeError(ValueError):
    """An entry says something that this reader does not know."""


def load(path: Path) -> list[Entry]:
    """Read a file of cases, one entry per replay; a table gives one per row.

    Raises:
        ValueError: the file is no list of cases, nor a map with one under `cases`.
    """
    data: Any = json.loads(path.read_text("utf-8"))
    if isinstance(data, dict):
        data = data.get("cases")
    if not isinstance(data, list):
        raise ValueError(f"{path}: a list of cases is required")  # noqa: TRY004
    return [entry for number, case in enumerate(data) for entry in _entries(case, number)]


def _entries(case: Any, number: int) -> list[Entry]:
    name = case.get("id") if isinstance(case, dict) else None
    name = str(name) if name else f"#{number + 1}"
    try:
        return list(_read(case, name))
    except UnknownShapeError as exc:
        return [NotRun(name, str(exc))]
    # A shape that nobody foresaw: the entry says so, the others run.
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as exc:
        return [NotRun(name, f"cannot be read: {type(exc).__name__}: {exc}")]


def _read(case: Mapping[str, Any], name: str) -> Iterator[Entry]:
    given, expected = case["input"], case.get("expected") or {}
    kind = given.get("kind")
    reader = _KINDS.get(kind)
    if reader is None:
        raise UnknownShapeError(f"unknown kind of input {kind!r}")
    yield from reader(name, given, expected)


def _sse(name: str, given: dict[str, Any], expected: dict[str, Any]) -> Iterator[Entry]:
    answer = _sse_answer(given)
    yield _replay(name, given, answer, _with_text_of_events(given, expected))


def _http(name: str, given: dict[str, Any], expected: dict[str, Any]) -> Iterator[Entry]:
    yield _replay(name, given, _http_answer(given, given.get("status", 200)), expected)


def _http_table(name: str, given: dict[str, Any], expected: dict[str, Any]) -> Iterator[Entry]:
    del expected  # its rules hold for every row
    for number, row in enumerate(given["rows"]):
        if isinstance(row, dict):
            status, body, code = row["status"], row.get("body"), row["failure"]
            given = {**given, "headers": row.get("headers") or given.get("headers")}
        else:
            status, body, code = row[:3]
        answer = _http_answer({**given, "body": body}, status)
        wanted = {"chunks": [], "failure": code}
        yield _replay(f"{name}.{number + 1}", given, answer, wanted)


def _scenario(name: str, given: dict[str, Any], expected: dict[str, Any]) -> Iterator[Entry]:
    yield Scenario(name, list(given.get("steps") or ()), expected)


_KINDS: Final[dict[Any, Callable[[str, Any, Any], Iterator[Entry]]]] = {
    "sse": _sse,
    "http": _http,
    "http-table": _http_table,
    "scenario": _scenario,
}


def _replay(
    name: str, given: Mapping[str, Any], answer: Answer, expected: Mapping[str, Any]
) -> Replay:
    return Replay(
        name,
        answer,
        expected,
        max_tokens=(given.get("request") or {}).get("max_tokens"),
        context_window=given.get("model_context"),
        options=given.get("options") or {},
    )


def _headers(given: Mapping[str, Any], kind: str) -> dict[str, str]:
    raw = given.get("headers")
    raw = DEFAULT_HEADERS[kind] if raw is None else raw
    return {key: str(value) for key, value in raw.items() if key.lower() not in FRAMING}


def _http_answer(given: Mapping[str, Any], status: int) -> Answer:
    if "writes" in given or "writes_hex" in given or "events" in given:
        writes = _writes(given)
    elif "body_hex" in given:
        writes = [bytes.fromhex(given["body_hex"])]
    else:
        body = given.get("body")
        text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
        writes = [text.encode("utf-8", "surrogatepass")]
    headers = _headers(given, "http")
    return Answer(_encoded(writes, headers), status=status, headers=headers, end=_end(given))


def _sse_answer(given: Mapping[str, Any]) -> Answer:
    headers = _headers(given, "sse")
    return Answer(
        _encoded(_writes(given), headers),
        status=given.get("status", 200),
        headers=headers,
        end=_end(given),
        interval_s=given.get("interval_ms", 0) / 1000,
    )


def _end(given: Mapping[str, Any]) -> Any:
    end = given.get("end", "clean")
    if end not in ENDS:
        raise UnknownShapeError(f"unknown end of the answer {end!r}")
    return end


def _encoded(writes: list[bytes], headers: Mapping[str, str]) -> list[bytes]:
    """Compress a body whose headers say so and that is given as text."""
    encoding = next(
        (value for key, value in headers.items() if key.lower() == "content-encoding"), ""
    )
    if encoding != "gzip" or (writes and writes[0].startswith(b"\x1f\x8b")):
        return writes
    # As in the reports: not flushed between events, so most of it comes at the end.
    packer = zlib.compressobj(wbits=31)
    return [packer.compress(write) for write in writes] + [packer.flush()]


def _writes(given: Mapping[str, Any]) -> list[bytes]:
    if "writes_hex" in given:
        return [bytes.fromhex(write) for write in given["writes_hex"]]
    texts = given.get("writes") or given.get("events") or ()
    writes = [write.encode("utf-8", "surrogatepass") for write in texts]
    repeats = given.get("repeat_middle")
    if repeats:  # as many of the write in the middle
        middle = writes[len(writes) // 2]
        first = writes.index(middle)
        writes = [*writes[:first], *[middle] * repeats, *writes[first + writes.count(middle) :]]
    return writes


def _with_text_of_events(given: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Add the plain text of the events where only rules are given."""
    if "chunks" in expected or expected.get("failure") or "events" not in given:
        return expected
    texts = [
        (choice.get("delta") or {}).get("content") or ""
        for event in given["events"]
        if event.startswith("data: {")
        for choice in json.loads(event[6:]).get("choices") or ()
    ]
    block = [
        {"t": "block-start", "block": 0, "kind": "text"},
        {"t": "text-delta", "block": 0, "text": "".join(texts)},
    ]
    return {**expected, "chunks": [*block, {"t": "finish", "reason": "stop"}]}
