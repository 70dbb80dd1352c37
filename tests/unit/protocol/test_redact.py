"""Secrets out of texts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from trunkline_protocol.redact import MASK, MAX_LEARNED, redact, redactor


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


def test_a_secret_from_elsewhere_is_learned_and_the_oldest_forgotten() -> None:
    clean = redactor({"A_TOKEN": "planted-2"}, {})
    clean.learn("short")
    for number in range(MAX_LEARNED + 1):
        clean.learn(f"{number:06}-learned")
    clean.learn("planted-2")
    assert clean("short planted-2") == f"short {MASK}"
    assert clean(f"{MAX_LEARNED:06}-learned") == MASK
    assert "-learned" in clean("000000-learned")


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
