"""The rule for API keys."""

from __future__ import annotations

import pytest
from trunkline_protocol.api_key import ApiKeyFault, normalize_api_key, usable_api_key
from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmError


@pytest.mark.parametrize(
    ("raw", "result"),
    [
        ("sk-abc", "sk-abc"),
        (" \u00a0sk-abc\r\n\ufeff", "sk-abc"),
        ("!~", "!~"),
        ("", ApiKeyFault.EMPTY),
        ("\u2003\n", ApiKeyFault.EMPTY),
        ("sk abc", ApiKeyFault.ILLEGAL_CHARACTERS),
        ("sk-\u00e9", ApiKeyFault.ILLEGAL_CHARACTERS),
        ("sk\x7f", ApiKeyFault.ILLEGAL_CHARACTERS),
        ("\x1c", ApiKeyFault.ILLEGAL_CHARACTERS),
        ("\x85sk", ApiKeyFault.ILLEGAL_CHARACTERS),
        ("sk\ud800", ApiKeyFault.ILLEGAL_CHARACTERS),
    ],
)
def test_normalization(raw: str, result: str | ApiKeyFault) -> None:
    assert normalize_api_key(raw) == result


def test_a_usable_key_is_stripped() -> None:
    assert usable_api_key(" sk ", "adapter", "KEY") == "sk"


@pytest.mark.parametrize("raw", ["  ", "super secret"])
def test_an_unusable_key_is_named_by_its_source_and_never_shown(raw: str) -> None:
    with pytest.raises(LlmError) as caught:
        usable_api_key(raw, "adapter", "MY_KEY")
    assert caught.value.code == Code.INVALID_CREDENTIAL
    assert "adapter" in str(caught.value)
    assert "MY_KEY" in str(caught.value)
    assert "secret" not in str(caught.value)
