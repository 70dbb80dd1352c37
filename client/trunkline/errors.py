"""What the client raises besides the vocabulary's own errors; failures of a model never raise."""

from __future__ import annotations

from trunkline_protocol.failure import LlmError, LocalProtocolError, TrunklineError

__all__ = [
    "BrokerRefusedError",
    "BrokerUnreachableError",
    "ForkedClientError",
    "LlmError",
    "LocalProtocolError",
    "TrunklineError",
]


class BrokerUnreachableError(TrunklineError):
    """No broker answers at the endpoint, or its lane does not reach this process.

    Attributes:
        endpoint: the address that was tried.
    """

    def __init__(self, message: str, endpoint: str) -> None:
        super().__init__(message)
        self.endpoint = endpoint


class BrokerRefusedError(TrunklineError):
    """A broker answers but will not serve this client; another attempt changes nothing.

    Attributes:
        code: such as `VERSION`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class ForkedClientError(LocalProtocolError):
    """A forked child used the client of its parent; it must connect for itself."""

    def __init__(self) -> None:
        super().__init__(
            "this client was connected before a fork and belongs to the parent process;"
            " call trunkline.connect() in the child"
        )
