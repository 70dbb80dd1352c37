"""What a client may ask for, by the key that it connected with.

Local clients are of the broker's own user and may do everything. Clients on other hosts may use
every provider unless `[client.NAME]` names some, and may not administer the broker unless it says
so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure

from trunkline_broker.core.specs import AccessSpec

FULL: Final = AccessSpec(is_admin=True)
REMOTE: Final = AccessSpec()


def access_of(table: Mapping[str, AccessSpec], user: str | None) -> AccessSpec:
    """Return what a client may do.

    Args:
        table: from the configuration, by name of the key.
        user: name of its key; empty: it has none; `None`: it is local.
    """
    if user is None:
        return FULL
    return table.get(user, REMOTE) if user else REMOTE


def refusal(access: AccessSpec, provider: str) -> LlmFailure | None:
    """Return why a client may not use a provider; `None`: it may."""
    if access.allows(provider):
        return None
    return LlmFailure(f"this client's key may not use {provider!r}", Code.FORBIDDEN)
