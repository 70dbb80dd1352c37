"""Secrets out of texts."""

from __future__ import annotations

import pytest
from trunkline_workers.boundary import redactor
from trunkline_workers.redact import MASK, redact


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


def test_nested_options_and_headers_are_secrets_too() -> None:
    options = {
        "apiKeyEnv": "LOUD_API_KEY",
        "headers": {"Authorization": "Bearer planted-1", "accept": "text/plain"},
    }
    clean = redactor({"A_TOKEN": "planted-2"}, options)
    assert clean("Bearer planted-1 planted-2") == f"Bearer {MASK} {MASK}"
    assert clean("set LOUD_API_KEY for text/plain") == "set LOUD_API_KEY for text/plain"
