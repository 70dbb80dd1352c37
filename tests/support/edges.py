"""Edges of side services that remember what was noted, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trunkline_broker.edge import Edge, Edges


class KnownEdges(Edges):
    """Edges whose counters and lines a test looks at."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.lines: list[tuple[str, str, Mapping[str, object]]] = []
        super().__init__(self._add, lambda *line: self.lines.append(line))

    def _add(self, name: str) -> None:
        self.counters[name] += 1


def an_edge(name: str = "x") -> Edge:
    """Return an edge whose notes nobody looks at."""
    return KnownEdges().of(name)
