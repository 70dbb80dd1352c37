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
