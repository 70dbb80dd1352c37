"""Secrets that show themselves to nobody."""

from __future__ import annotations

from trunkline_protocol.secret import NO_TOKEN, STARS, SecretBytes, SecretStr, proves


def test_a_secret_shows_stars() -> None:
    for secret in (SecretStr("canary"), SecretBytes(b"canary")):
        assert STARS in repr(secret)
        assert "canary" not in f"{secret!r} {secret}"


def test_only_the_whole_token_proves_itself() -> None:
    token = SecretBytes(b"whole")
    assert proves(b"whole", token)
    assert not proves(b"whol", token)
    assert not proves(b"", token)
    assert not NO_TOKEN
