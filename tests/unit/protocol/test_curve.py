"""Key files and lane addresses."""

from __future__ import annotations

import pytest
from trunkline_protocol.curve import CurveKeys, is_key, keys_text, lane_address, read_keys
from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.secret import SecretStr

SECRET = "#" * 40
KEYS = CurveKeys("a" * 40, SecretStr(SECRET), "{" * 40)


def test_a_key_file_reads_back() -> None:
    assert read_keys(keys_text(KEYS, "of a test"), "file") == KEYS


def test_a_secret_is_never_shown() -> None:
    assert SECRET not in repr(KEYS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("public = ", "not TOML"),
        (f"public = '{'a' * 39}'\nsecret = '{'#' * 40}'", "public"),
        (f"public = '{'a' * 40}'\nsecret = '{'#' * 39}'", "secret"),
        (f"public = '{'a' * 40}'\nsecret = '{'#' * 40}'\nserver = 3", "server"),
    ],
)
def test_what_is_no_key_file_names_the_entry_and_no_key(text: str, said: str) -> None:
    with pytest.raises(LocalProtocolError, match=said) as caught:
        read_keys(text, "file")
    assert "###" not in str(caught.value)


def test_what_a_key_is() -> None:
    assert is_key("a" * 40)
    assert not is_key("a" * 39 + "~")
    assert not is_key(b"a" * 40)


@pytest.mark.parametrize(
    ("lane", "control", "address"),
    [
        ("tcp://*:5", "tcp://host:4", "tcp://host:5"),
        ("tcp://*:5", "tcp://[::1]:4", "tcp://[::1]:5"),
        ("tcp://other:5", "tcp://host:4", "tcp://other:5"),
        ("ipc:///run/lane", "ipc:///run/control", "ipc:///run/lane"),
        ("tcp://*:5", "ipc:///run/control", "tcp://*:5"),
    ],
)
def test_a_lane_on_any_host_is_on_the_host_of_control(
    lane: str, control: str, address: str
) -> None:
    assert lane_address(lane, control) == address
