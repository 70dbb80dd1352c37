"""What an error body says, whatever its shape."""

from __future__ import annotations

import json

import pytest
from trunkline_protocol.error_body import (
    MESSAGE_MAX_CHARS,
    ErrorBody,
    parse_error_body,
    read_error,
)


@pytest.mark.parametrize(
    ("body", "message", "detail"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c"}}, "m", "c t m"),
        ({"error": {"message": "m", "code": 400, "status": "S"}}, "m", "400 S m"),
        ({"error": "text", "code": "c"}, "text", "c text"),
        ({"error": ""}, "", ""),
        ({"error": None, "message": "m"}, "m", "m"),
        ({"object": "error", "message": "m", "type": "T", "code": 400}, "m", "400 T m"),
        ({"detail": "d"}, "d", "d"),
        ({"detail": [{"msg": "one"}, {"msg": "two"}]}, "one; two", "one; two"),
        ({"detail": ["one", "two"]}, "one; two", "one; two"),
        ({"detail": [{"loc": ["a"]}]}, '[{"loc": ["a"]}]', '[{"loc": ["a"]}]'),
        ({"code": 400, "reason": "R", "message": ""}, "R", "400 R"),
        ({"error": {"message": {"text": "x"}}}, '{"text": "x"}', '{"text": "x"}'),
        ({"error": {"message": 5}}, "5", "5"),
        ({"error": {"message": 0}}, "", ""),
        ({"error": {"message": "m", "type": ["x"]}}, "m", "m"),
        ([{"error": {"message": "m"}}], "m", "m"),
        ([{"error": {"message": "m"}}, 1], "", ""),
        ("text", "text", "text"),
        (None, "", ""),
        (
            {
                "error": {
                    "message": "Provider returned error",
                    "metadata": {"raw": "prompt is long"},
                }
            },
            "Provider returned error",
            "Provider returned error prompt is long",
        ),
        ({"error": {"message": "m", "metadata": {"raw": {"x": 1}}}}, "m", "m"),
    ],
)
def test_every_shape_is_read(body: object, message: str, detail: str) -> None:
    for error in (read_error(body), parse_error_body(json.dumps(body).encode())):
        assert (error.message, error.detail) == (message, detail)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'\xef\xbb\xbf {"error":{"message":"bom"}}', "bom"),
        (b'{"message":"m"}\nSee the docs.', "m"),
        (b'{"error":{"message":"m","x":NaN}}', '{"error":{"message":"m","x":NaN}}'),
        (b"upstream connect error", "upstream connect error"),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[" * 100_000, "[" * MESSAGE_MAX_CHARS),
    ],
    ids=["bom", "text-behind", "nan", "text", "empty", "no-utf8", "deep"],
)
def test_any_bytes_give_an_answer(body: bytes, message: str) -> None:
    assert parse_error_body(body).message == message


def test_markup_says_nothing_about_the_cause() -> None:
    error = parse_error_body(" <html>insufficient_quota</html>")
    assert error.detail == ""
    assert error.message


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"code": 429}, 429),
        ({"code": "503"}, 503),
        ({"code": "invalid", "status": 400}, 400),
        ({"code": 1001}, None),
        ({"code": "1001"}, None),
        ({"code": True}, None),
    ],
)
def test_a_status_inside_the_body(fields: dict[str, object], status: int | None) -> None:
    assert read_error({"error": fields}).status == status


@pytest.mark.parametrize(
    ("fields", "delay_ms"),
    [
        ({"details": [{"x": 1}, 5, {"retryDelay": "12.5s"}]}, 12_500),
        ({"details": [{"retryDelay": 5}]}, None),
        ({"details": "x", "message": "Please retry in 2s"}, 2_000),
        ({"message": "no"}, None),
    ],
)
def test_a_delay_inside_the_body(fields: dict[str, object], delay_ms: float | None) -> None:
    assert read_error({"error": fields}).retry_after_ms == delay_ms


def test_names_are_the_texts_of_code_and_type() -> None:
    error = read_error({"error": {"code": 400, "type": "t", "error_code": "e"}})
    assert error.names == ("t", "e")
    assert read_error(5) == ErrorBody()


def test_a_validation_answer_is_told_apart() -> None:
    assert read_error({"detail": "x"}).is_validation
    assert not read_error({"detail": "x", "error": {"message": "m"}}).is_validation


def test_texts_are_bounded() -> None:
    error = read_error({"error": {"message": "x" * 10_000}})
    assert len(error.message) == MESSAGE_MAX_CHARS
    assert len(error.detail) == 4 * MESSAGE_MAX_CHARS
