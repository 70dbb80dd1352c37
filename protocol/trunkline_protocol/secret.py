"""Secrets that live longer than a function: values that print, log and serialize as stars.

The types are pydantic's; they are named here so that the cores need not know pydantic.
"""

from __future__ import annotations

import hmac
from typing import Final

from pydantic import SecretBytes, SecretStr

STARS: Final = "**********"  # how pydantic writes a secret

__all__ = ["NO_TOKEN", "STARS", "SecretBytes", "SecretStr", "proves"]

NO_TOKEN: Final = SecretBytes(b"")


def proves(told: bytes, token: SecretBytes) -> bool:
    """Tell whether a peer knows a token, in a time that does not depend on what it got right."""
    return hmac.compare_digest(told, token.get_secret_value())
