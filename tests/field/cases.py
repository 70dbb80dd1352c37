"""The file format of field cases: what a server sends, and what users needed to come out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.raw_http import Answer


@dataclass(frozen=True)
class Replay:
    """One answer of a provider to replay, and what is expected of it."""

    name: str
    answer: Answer
    expected: dict[str, Any]
    max_tokens: int | None = None
    context_window: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """Steps that need more than one answer."""

    name: str
    steps: list[str]
    expected: dict[str, Any]


def load(path: Path) -> list[Replay | Scenario]:
    """Read a file of cases, one entry per replay; a table gives one per row."""
    data = json.loads(path.read_text("utf-8"))
    return [entry for case in data for entry in _entries(case)]


def _entries(case: dict[str, Any]) -> Iterator[Replay | Scenario]:
    name, given, expected = case["id"], case["input"], case["expected"]
    kind = given["kind"]
    if kind == "sse":
        yield Replay(
            name,
            _sse_answer(given),
            _with_text_of_events(given, expected),
            max_tokens=(given.get("request") or {}).get("max_tokens"),
            context_window=given.get("model_context"),
            options=given.get("options") or {},
        )
    elif kind == "http":
        yield Replay(name, _http_answer(given, given["status"], given["body"]), expected)
    elif kind == "http-table":
        for number, (status, body, code) in enumerate(given["rows"]):
            answer = _http_answer(given, status, body)
            yield Replay(f"{name}.{number + 1}", answer, {"chunks": [], "failure": code})
    elif kind == "scenario":
        yield Scenario(name, given["steps"], expected)
    else:
        raise SystemExit(f"{name}: unknown kind of input {kind!r}")


def _headers(given: dict[str, Any]) -> dict[str, str]:
    # The server frames the body itself.
    skipped = {"transfer-encoding", "content-length", "connection"}
    raw = given.get("headers") or {"content-type": "application/json"}
    return {key: value for key, value in raw.items() if key.lower() not in skipped}


def _http_answer(given: dict[str, Any], status: int, body: str | dict[str, Any]) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body)
    return Answer([text.encode()], status=status, headers=_headers(given))


def _sse_answer(given: dict[str, Any]) -> Answer:
    headers = _headers(given)
    writes = _writes(given)
    interval_s = given.get("interval_ms", 0) / 1000
    if headers.get("content-encoding") == "gzip":
        # As in the reports: not flushed between events, so most of it comes at the end.
        packer = zlib.compressobj(wbits=31)
        writes = [packer.compress(write) for write in writes] + [packer.flush()]
    return Answer(
        writes,
        status=given.get("status", 200),
        headers=headers,
        end=given.get("end", "clean"),
        interval_s=interval_s,
    )


def _writes(given: dict[str, Any]) -> list[bytes]:
    if "writes_hex" in given:
        return [bytes.fromhex(write) for write in given["writes_hex"]]
    writes = [write.encode() for write in given.get("writes") or given.get("events") or ()]
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
        choice.get("delta", {}).get("content") or ""
        for event in given["events"]
        if event.startswith("data: {")
        for choice in json.loads(event[6:]).get("choices", ())
    ]
    block = [
        {"t": "block-start", "block": 0, "kind": "text"},
        {"t": "text-delta", "block": 0, "text": "".join(texts)},
    ]
    return {**expected, "chunks": [*block, {"t": "finish", "reason": "stop"}]}
