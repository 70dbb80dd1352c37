"""A key that a hostile gateway echoes is found, whatever it has made of it."""

from __future__ import annotations

import base64
import html
import json
import random
import string
import textwrap
from collections.abc import Iterator
from time import process_time
from urllib.parse import quote, quote_plus

import pytest
from trunkline_protocol.redact import MASK, redact
from trunkline_protocol.secret_forms import FormIndex

from tests.support.timing import SLOW

KEY = 'Canary/9fT2+x"Q\\7?>~zz8-Kp40hWbR6vJm1sLq'
"""What URLs, JSON, Python and HTML escape is in it; nothing that a pattern of known keys finds."""


def ways(key: str) -> Iterator[tuple[str, str]]:
    """Yield what may be echoed of a key: its name and the text."""
    raw = key.encode()
    yield "whole", key
    for cut in (1, 2, 4, 7, 12):
        yield f"without its first {cut}", key[cut:]
        yield f"without its last {cut}", key[:-cut]
        yield f"without {cut} at both ends", key[cut:-cut]
    yield "its first half", key[: len(key) // 2]
    yield "its last half", key[len(key) // 2 :]
    yield "a dozen in the middle", key[24:36]
    yield "its last ten", key[-10:]
    yield "stars in the middle", f"{key[:10]}***{key[-10:]}"
    for name, text in (("all of", key), ("the end of", key[9:])):
        body = text.encode()
        yield f"{name} it in base64", base64.b64encode(body).decode()
        yield f"{name} it in base64 for URLs", base64.urlsafe_b64encode(body).decode()
        for user in ("a", "me", "api", "user"):
            pair = base64.b64encode(f"{user}:{text}\n".encode()).decode()
            yield f"{name} it as the password of {user}", f"Basic {pair}"
            yield f"the same cut, {user}", pair[9:-9]
            yield f"the same wrapped, {user}", "\n".join(textwrap.wrap(pair, 20))
        yield f"{name} it in hex", body.hex()
        yield f"{name} it in HEX", body.hex().upper()
        yield f"{name} it in hex with colons", body.hex(":")
        yield f"{name} it percent-encoded", quote(text, safe="")
        yield f"{name} it as a form", quote_plus(text)
        yield f"{name} it percent-encoded twice", quote(quote(text, safe=""), safe="")
        yield f"{name} it percent-encoded whole", "".join(f"%{byte:02X}" for byte in body)
        yield f"{name} it in JSON", json.dumps(text)
        yield f"{name} it in JSON in JSON", json.dumps(json.dumps(text))
        yield f"{name} it in units", "".join(f"\\u{ord(char):04x}" for char in text)
        yield f"{name} it in octal", "".join(f"\\{byte:03o}" for byte in body)
        yield f"{name} it in base32", base64.b32encode(b"a" + body).decode()
        yield f"{name} it in base64 twice", base64.b64encode(base64.b64encode(body)).decode()
        yield f"{name} it as Windows does", base64.b64encode(text.encode("utf-16-le")).decode()
        yield f"{name} it wide", text.translate({code: code + 0xFEE0 for code in range(33, 127)})
        yield f"{name} it in bytes", "".join(f"\\x{byte:02x}" for byte in body)
        yield f"{name} it in Python", repr(text)
        yield f"{name} it in HTML", html.escape(text)
        yield f"{name} it in numbers", "".join(f"&#{ord(char)};" for char in text)
        yield f"{name} it upper", text.upper()
        yield f"{name} it lower", text.lower()
        yield f"{name} it swapped", text.swapcase()
        yield f"{name} it backwards", text[::-1]
        yield f"{name} it spaced", " ".join(text)
        yield f"{name} it in lines", "\n".join(text)
        yield f"{name} it with dashes", "-".join(text)
        yield f"{name} it with dots", ".".join(text)
        yield f"{name} it wrapped", "\n  ".join(textwrap.wrap(text, 7))
        yield f"{name} it with hidden spaces", "\u200b".join(text)
    yield "base64 of base64's user", base64.b64encode(b"\xff\xfe" + raw).decode()


WAYS = dict(ways(KEY))


def longest_part(text: str, forms: list[str]) -> int:
    """Return the length of the longest part of a form that is still in a text."""
    return max(
        size
        for form in forms
        for size in range(len(form) + 1)
        if any(form[at : at + size] in text for at in range(len(form) - size + 1))
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_key_is_found_in_every_way_of_writing_it(way: str) -> None:
    cleaned = redact(f'error: "{WAYS[way]}" is wrong', [KEY])
    assert MASK in cleaned
    assert cleaned.startswith("error: ")
    assert cleaned.endswith(" is wrong")
    letters = "".join(char for char in cleaned.lower() if char.isalnum())
    whole = "".join(char for char in KEY.lower() if char.isalnum())
    forms = [whole, whole[::-1], KEY.encode().hex()]
    assert longest_part(letters, forms) < 8


@pytest.mark.parametrize("password", ["hunter-2", "s3cr3t", "Tr0ub4dor&3"])
def test_parts_of_a_short_password_are_found_too(password: str) -> None:
    for text in (password, password.upper(), password[1:], " ".join(password)):
        assert MASK in redact(f"no: {text}", [password])


TEXTS = [
    "the provider answered HTTP 401: Incorrect API key provided: sk-...abcd. You can find your key",
    "context length exceeded: 128000 tokens, model gpt-4o-mini-2024-07-18, request req_0123456789",
    "getaddrinfo ENOTFOUND api.openai.com (see https://platform.openai.com/account/api-keys)",
    "2026-12-01T04:05:06.789Z call=5e1f0c3a9b7d4f2e8a6c trace=4bf92f3577b34da6a3ce929d0e0e4736",
    'Traceback (most recent call last):\n  File "adapter.py", line 12, in stream\n    raise X',
    "日本語のエラー: モデルが見つかりません %E6%97%A5 &amp; \\n \\u65e5",
]


@pytest.mark.parametrize("text", TEXTS)
def test_ordinary_text_stays(text: str) -> None:
    draw = random.Random(5)  # noqa: S311  the same keys in each run
    letters = string.ascii_letters + string.digits + "-_"
    keys = ["".join(draw.choices(letters, k=48)) for _ in range(200)]
    assert redact(text, keys) == text


def test_what_providers_show_of_a_key_stays() -> None:
    """Four characters: what people recognize their key by."""
    assert redact(f"your key {KEY[:4]}...{KEY[-4:]}", [KEY]) == f"your key {KEY[:4]}...{KEY[-4:]}"


def texts_of_a_megabyte() -> Iterator[tuple[str, str]]:
    draw = random.Random(7)  # noqa: S311  the same keys in each run
    words = [text for line in TEXTS for text in line.split()]
    yield "words", " ".join(draw.choices(words, k=150_000))[:1_000_000]
    yield "one letter", "a" * 1_000_000
    yield "escapes", "%61" * 333_333
    yield "keys", f"{KEY[3:]} " * (1_000_000 // len(KEY))
    yield "nearly keys", f"{KEY[:4]}{KEY[9:14]}" * 100_000


@pytest.mark.parametrize("name", ["words", "one letter", "escapes", "keys", "nearly keys"])
def test_a_megabyte_and_a_hundred_keys_take_seconds_at_most(name: str) -> None:
    text = dict(texts_of_a_megabyte())[name]
    draw = random.Random(9)  # noqa: S311  the same keys in each run
    letters = string.ascii_letters + string.digits
    keys = ["".join(draw.choices(letters, k=60)) for _ in range(100)]
    index = FormIndex([*keys, KEY, "a" * 60, "ab" * 1000])
    before_s = process_time()
    spans = index.spans(text)
    assert process_time() - before_s < 10 * SLOW
    assert spans or name in {"words", "nearly keys"}
