"""Secrets out of texts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from trunkline_protocol.redact import MASK, MAX_LEARNED, redact, redactor, secrets_in


@pytest.mark.parametrize("order", [1, -1])
def test_keys_that_begin_alike_leave_nothing_of_each_other(order: int) -> None:
    secrets = ["Canary-first-5T", "Canary-second-9Q"][::order]
    assert redact("a Canary-first-5T b Canary-second-9Q c", secrets) == f"a {MASK} b {MASK} c"


def test_a_beginning_of_a_key_goes_as_far_as_it_is_one() -> None:
    assert redact("x Canary-fi...", ["Canary-first"]) == f"x {MASK}..."
    assert redact("Cana", ["Canary-first"]) == "Cana"


def test_a_short_secret_goes_whole_only() -> None:
    assert redact("ab abc abcd", ["abc"]) == f"ab {MASK} {MASK}d"
    assert redact("text", [""]) == "text"


def ways_of_writing(key: str) -> Iterator[str]:
    quoted = quote(key, safe="")
    yield from (key, quoted, re.sub("%..", lambda found: found[0].lower(), quoted))
    yield from (json.dumps({"sent": key}), json.dumps(key).replace("/", "\\/"))
    yield repr({"authorization": f"Bearer {key}"})
    for user in ("", "a", "me", "api"):
        pair = f"{user}:{key}".encode()
        yield base64.b64encode(pair).decode()
        yield base64.urlsafe_b64encode(pair).decode()


def test_a_key_is_found_in_every_way_of_writing_it() -> None:
    key = 'Canary/9+x"Q\\7?>~zz8'
    for written in ways_of_writing(key):
        cleaned = redact(f"said {written}.", [key])
        assert MASK in cleaned, written
        assert cleaned[:5] + cleaned[-1:] == "said ."
        assert written[-6:-2] not in cleaned.replace('"}', ""), written


def drawn(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:20]


def test_a_secret_from_elsewhere_is_learned_and_the_oldest_forgotten() -> None:
    clean = redactor({"A_TOKEN": "planted-2"}, {})
    clean.learn("short")
    assert clean(drawn(0)) == drawn(0)
    for number in range(MAX_LEARNED):
        clean.learn(drawn(number))
    clean.learn("planted-2")
    assert clean(f"short planted-2 {drawn(0)}") == f"short {MASK} {MASK}"
    clean.learn(drawn(0))  # said again: the latest
    clean.learn(drawn(MAX_LEARNED))
    assert clean(f"{drawn(MAX_LEARNED)} {drawn(0)}") == f"{MASK} {MASK}"
    assert clean(drawn(1)) == drawn(1)


CREDENTIALS = [
    "https://me:pass%2Fw0rd-9@proxy.example:8080",
    "http://me:pass/w0rd-9@proxy.example",
    "me:pass/w0rd-9@proxy.example:3128",
    "postgresql+psycopg://me:pass%2Fw0rd-9@db/x?sslmode=require",
    "a=1 https://me:pass%2Fw0rd-9@one,https://me:pass%2Fw0rd-9@two",
    "https://gateway.example/v1?api-key=pass%2Fw0rd-9&x=1",
    "Server=db;User Id=me;Password=pass/w0rd-9;Timeout=5",
]


@pytest.mark.parametrize("value", CREDENTIALS)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "baseURL", "BASE_URL_NAME", "x"])
def test_credentials_inside_a_value_are_secrets_whatever_its_name(name: str, value: str) -> None:
    for clean in (redactor({name: value}, {}), redactor({}, {"a": [{name: [value]}]})):
        for text in ("pass%2Fw0rd-9", "pass/w0rd-9", "ass/w0rd-9", "PASS%2fW0RD-9", "w0rd-9"):
            assert MASK in clean(f"refused {text}"), text
        encoded = base64.b64encode(b"me:pass/w0rd-9").decode()
        assert MASK in clean(f"Proxy-Authorization: {encoded}")
        assert clean("refused by proxy.example, gateway.example") == (
            "refused by proxy.example, gateway.example"
        )


def test_a_short_password_is_found_as_basic_authentication_makes_it() -> None:
    clean = redactor({"HTTP_PROXY": "http://admin:abc@proxy"}, {})
    assert clean(base64.b64encode(b"admin:abc").decode()) == MASK
    assert clean("admin said abc") == "admin said abc"


@pytest.mark.parametrize(
    "value", ["https://example.com/a@b", "git@example.com", "ssh://git@host/x", "a@b, c@d", "x=1"]
)
def test_addresses_without_credentials_teach_nothing(value: str) -> None:
    assert list(secrets_in({"URL": value})) == []


def test_lists_and_authorizations_under_any_name_are_secrets() -> None:
    options = {"keys": ["planted-1", {"token": "planted-2"}], "proxy": "Basic cGxhbnRlZA=="}
    clean = redactor({}, options)
    assert clean("planted-1 planted-2 cGxhbnRlZA==") == f"{MASK} {MASK} {MASK}"


def test_nested_options_and_headers_are_secrets_too() -> None:
    options = {
        "apiKeyEnv": "LOUD_API_KEY",
        "headers": {"Authorization": "Bearer planted-1", "accept": "text/plain"},
    }
    clean = redactor({"A_TOKEN": "planted-2"}, options)
    assert clean("Bearer planted-1 planted-2") == f"Bearer {MASK} {MASK}"
    assert clean("set LOUD_API_KEY for text/plain") == "set LOUD_API_KEY for text/plain"
