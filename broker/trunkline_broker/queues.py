"""What the status document says of a queue outside the core."""

from __future__ import annotations

from typing import NamedTuple


class QueueFigures(NamedTuple):
    """How full a queue is, the most it ever held, and the most it may hold."""

    name: str
    depth: int
    high_water: int
    bound: int

    def row(self) -> dict[str, object]:
        """Return it as a row of `queues`."""
        return {
            "name": self.name,
            "depth": self.depth,
            "highWater": self.high_water,
            "bound": self.bound,
        }


class PeerQueue(NamedTuple):
    """A queue that ZeroMQ keeps for each connection; it does not tell how much is in one.

    Attributes:
        bound: frames of one connection.
        full: how often one was full; what happened then is in docs/operating.md. `None`: then the
            sender waits, which nobody counts.
    """

    name: str
    bound: int
    full: int | None

    def row(self) -> dict[str, object]:
        """Return it as a row of `peerQueues`."""
        return {"name": self.name, "depth": None, "bound": self.bound, "full": self.full}
