"""What the agents have told and what the swaps did; and whether that is what was promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

GOOD_FINISHES: Final = frozenset({"stop", "max-tokens"})
FLOWING_CHUNKS: Final = 4  # from then on a stream counts as one whose tokens flow


@dataclass(slots=True)
class Turn:
    """One stream.

    Attributes:
        agent: who reads it.
        number: from 1.
        chunks: token chunks so far.
        generation: of the worker that serves it.
        text: the last words.
        result: the agent's report of its end; `None` while it is open.
    """

    agent: str
    number: int
    chunks: int = 0
    generation: tuple[int, int] | None = None
    text: str = ""
    result: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        """How the report names it."""
        return f"{self.agent}#{self.number}"


@dataclass(slots=True)
class Agent:
    """One agent process.

    Attributes:
        name: of the agent.
        pid: of its process.
        turns: its streams, in order.
        counters: what its client had to drop or repeat; set when it has left.
    """

    name: str
    pid: int
    turns: list[Turn] = field(default_factory=list[Turn])
    counters: dict[str, int] | None = None

    @property
    def open_turn(self) -> Turn | None:
        """The stream that it reads now."""
        return self.turns[-1] if self.turns and self.turns[-1].result is None else None

    @property
    def is_flowing(self) -> bool:
        """Whether tokens flow to it now."""
        now = self.open_turn
        return now is not None and now.chunks >= FLOWING_CHUNKS

    def take(self, event: dict[str, Any]) -> None:
        """Take one line of the agent."""
        match event["event"]:
            case "turn":
                self.turns.append(Turn(self.name, event["turn"]))
            case "chunks":
                now = self.turns[-1]
                now.chunks, now.text = event["chunks"], event["text"]
                if event["generation"] is not None:
                    now.generation = tuple(event["generation"])
            case "finish":
                self.turns[-1].chunks = event["chunks"]
                self.turns[-1].result = event
            case "left":
                self.counters = event["counters"]
            case _:
                pass  # connected


@dataclass(slots=True)
class Swap:
    """One swap.

    Attributes:
        before: worker process until then.
        after: worker process from then on.
        generation: of that process.
        alive_calls: streams that the broker says went on with the old worker.
        across: streams open at the cutover, and their chunks at that moment.
        seconds: from asking until cutover.
    """

    before: int
    after: int
    generation: tuple[int, int]
    alive_calls: int
    across: dict[str, int]
    seconds: float


@dataclass(slots=True)
class Record:
    """Everything of one performance.

    Attributes:
        agents: in order.
        swaps: in order.
        reconnects: clients of the agents beyond the first of each.
    """

    agents: list[Agent] = field(default_factory=list[Agent])
    swaps: list[Swap] = field(default_factory=list[Swap])
    reconnects: int = 0

    def turns(self) -> list[Turn]:
        """Return every stream."""
        return [turn for agent in self.agents for turn in agent.turns]

    def complaints(self, swaps: int) -> list[str]:
        """Return what is not as promised; empty if all is well."""
        found = [
            f"{turn.label} ended {turn.result and turn.result['kind']}"
            for turn in self.turns()
            if turn.result is None or turn.result["kind"] not in GOOD_FINISHES
        ]
        found += [f"{agent.name} did not leave" for agent in self.agents if agent.counters is None]
        if len(self.swaps) != swaps:
            found.append(f"{len(self.swaps)} of {swaps} swaps")
        chunks = {turn.label: turn.chunks for turn in self.turns()}
        for number, swap in enumerate(self.swaps, 1):
            if swap.before == swap.after:
                found.append(f"swap {number} changed no worker")
            grown = [label for label, then in swap.across.items() if chunks[label] > then]
            if not grown:
                found.append(f"no stream went on across swap {number}")
        if self.reconnects:
            found.append(f"clients connected again {self.reconnects} times")
        return found

    def summary(self, complaints: list[str]) -> dict[str, Any]:
        """Return the last line of the demo."""
        return {
            "ok": not complaints,
            "complaints": complaints,
            "agents": {agent.name: agent.pid for agent in self.agents},
            "swaps": [
                {
                    "workerBefore": swap.before,
                    "workerAfter": swap.after,
                    "seconds": round(swap.seconds, 2),
                    "aliveCalls": swap.alive_calls,
                    "streamsAcross": sorted(swap.across),
                }
                for swap in self.swaps
            ],
            "finishes": {turn.label: turn.result and turn.result["kind"] for turn in self.turns()},
            "reconnects": self.reconnects,
        }
