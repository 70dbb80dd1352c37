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
        url: its public home; `None`: it has none, and nothing is said in its place.
    """

    product: str
    version: str
    url: str | None


# No address where nobody could be found: a provider that looks us up must not be misled.
APP_IDENTITY: Final = AppIdentity(product="trunkline", version=__version__, url=None)


def user_agent(identity: AppIdentity = APP_IDENTITY) -> str:
    """Return the value of `User-Agent`: a product and, if there is a home, a comment (RFC 9110)."""
    product = f"{identity.product}/{identity.version}"
    return product if identity.url is None else f"{product} (+{identity.url})"


def attribution_headers(identity: AppIdentity = APP_IDENTITY) -> dict[str, str]:
    """Return the headers every provider request carries."""
    return {"user-agent": user_agent(identity)}
