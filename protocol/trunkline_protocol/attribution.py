"""Who we are to a provider: one static `User-Agent`, the same on every request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trunkline_protocol.version import __version__


@dataclass(frozen=True, slots=True)
class AppIdentity:
    """A public identity; no secret, path, session or person may enter it.

    Attributes:
        product: token of the product, lower case with hyphens.
        version: of the product.
        url: its home.
    """

    product: str
    version: str
    url: str


APP_IDENTITY: Final = AppIdentity(
    product="trunkline",
    version=__version__,
    url="https://trunkline.example",  # RFC 2606: the project has no public home yet
)


def user_agent(identity: AppIdentity = APP_IDENTITY) -> str:
    """Return the value of `User-Agent`."""
    return f"{identity.product}/{identity.version} (+{identity.url})"


def attribution_headers(identity: AppIdentity = APP_IDENTITY) -> dict[str, str]:
    """Return the headers every provider request carries."""
    return {"user-agent": user_agent(identity)}
