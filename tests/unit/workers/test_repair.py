"""Payloads that are not one JSON value each."""

from __future__ import annotations

import pytest
from trunkline_workers.adapters.chat_completions.repair import is_whole, taken_apart


@pytest.mark.parametrize(
    ("payload", "parts"),
    [
        (b"[DONE] ", [b"[DONE]"]),
        (b'"[DONE]"', [b"[DONE]"]),
        (b'data: {"a":1}', [b'{"a":1}']),
        (b'{"a":1}{"b":"}{"} {"c":2}', [b'{"a":1}', b'{"b":"}{"}', b'{"c":2}']),
        (b'{"a":1}[DONE]', [b'{"a":1}', b"[DONE]"]),
        (b'{"a":1}\n{"b":2}\n[DONE]', [b'{"a":1}', b'{"b":2}', b"[DONE]"]),
    ],
)
def test_known_accidents_are_taken_apart(payload: bytes, parts: list[bytes]) -> None:
    """What gateways run together comes out as the payloads it stands for."""
    assert taken_apart(payload) == parts


@pytest.mark.parametrize(
    "payload",
    [b"", b"ping", b'{"a":1', b'{"a":1}x', b'{"a":1}{"b"', b"[1][2]", b"{" * 2000, b"1"],
)
def test_everything_else_is_left_alone(payload: bytes) -> None:
    """A payload that stands for nothing stays malformed."""
    assert taken_apart(payload) == []


@pytest.mark.parametrize(
    ("payload", "expected"),
    [(b"[DONE]", True), (b'{"a":1}', True), (b'{"a":', False), (b"[1]", False), (b"", False)],
)
def test_a_whole_payload_needs_no_blank_line(payload: bytes, expected: bool) -> None:
    """Only what is complete by its own framing counts as whole."""
    assert is_whole(payload) is expected
