"""The text by which one client hands a running call to another; it knows no streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.ids import CallId


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call, the secret that opens it, and what it asked for."""

    call: CallId
    token: bytes = field(repr=False)
    provider: str
    model: str

    def text(self) -> str:
        """Return it as one word."""
        names = "/".join(quote(name, safe="") for name in (self.provider, self.model))
        return f"{self.call.hex()}.{self.token.hex()}.{names}"

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """Read it back.

        Raises:
            LocalProtocolError: this is no ticket; the text is not repeated.
        """
        try:
            call, token, names = text.split(".", 2)
            provider, model = names.split("/")
            return cls(
                CallId(bytes.fromhex(call)), bytes.fromhex(token), unquote(provider), unquote(model)
            )
        except ValueError:
            raise LocalProtocolError("ticket: this is not the ticket of a call") from None
