"""The text by which one client hands a running call to another; it knows no streams."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Final
from urllib.parse import quote, unquote

from trunkline_protocol.failure import LocalProtocolError
from trunkline_protocol.ids import CALL_ID_BYTES, CallId
from trunkline_protocol.record import record

from trunkline import arguments

_TICKET: Final = re.compile(
    rf"([0-9a-f]{{{2 * CALL_ID_BYTES}}})\.((?:[0-9a-f]{{2}}){{1,64}})\.([^/]+)/([^/]+)"
)  # a broker drops a frame with an id of another length


@record
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
        if isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            found = _TICKET.fullmatch(text)
            if found is not None:
                call, token, *names = found.groups()
                provider, model = (arguments.name("ticket", unquote(name)) for name in names)
                return cls(CallId(bytes.fromhex(call)), bytes.fromhex(token), provider, model)
        raise LocalProtocolError("ticket: this is not the ticket of a call")
