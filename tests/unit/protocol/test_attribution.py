"""Who we are to a provider."""

from __future__ import annotations

from trunkline_protocol.attribution import (
    APP_IDENTITY,
    AppIdentity,
    attribution_headers,
    user_agent,
)
from trunkline_protocol.version import __version__


def test_the_identity_is_the_distribution() -> None:
    assert APP_IDENTITY.product == "trunkline"
    assert APP_IDENTITY.version == __version__
    assert attribution_headers() == {"user-agent": user_agent()}


def test_an_identity_without_a_home_names_none() -> None:
    """A made-up address would lead a provider that wants to reach us to somebody else."""
    assert user_agent() == f"trunkline/{__version__}"
    assert user_agent(AppIdentity("a", "1", "")) == "a/1 (+)"


def test_any_identity_becomes_one_header() -> None:
    identity = AppIdentity(product="a", version="1.0.0-rc.1+b", url="https://e.test/(x)")
    assert user_agent(identity) == "a/1.0.0-rc.1+b (+https://e.test/(x))"
    assert attribution_headers(identity) == {"user-agent": user_agent(identity)}
