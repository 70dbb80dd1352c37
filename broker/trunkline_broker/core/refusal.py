"""An unwanted request, inside the core: code and text of the `REFUSED` or failure it becomes."""

from __future__ import annotations

from trunkline_protocol.failure import LlmFailure


class Refusal(Exception):  # noqa: N818  it is no error of ours; the glossary's word is refuse
    """Something a peer asked for is not done; caught where the answer is made.

    Attributes:
        code: stable, for counters and for the peer.
        message: for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def failure(self) -> dict[str, object]:
        """Return the failure map of this refusal."""
        return LlmFailure(self.message, self.code).to_dict()
