"""What a person sees: a live table on a terminal, plain lines elsewhere, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.record import Agent, Record, Turn

KEPT_LINES = 6
WORDS = 40  # fits beside the rest on 80 columns


class View:
    """Shows a record while it grows; used as a context manager."""

    def __init__(self, record: Record, console: Console) -> None:
        self._record = record
        self._console = console
        self._start_s = time.monotonic()
        self._lines: list[str] = []
        self._pids: Mapping[tuple[int, int], int] = {}
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, get_renderable=self._shown, refresh_per_second=8)

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def name_workers(self, pids: Mapping[tuple[int, int], int]) -> None:
        """Know which process a generation is."""
        self._pids = pids

    def say(self, text: str) -> None:
        """Show one line."""
        line = f"{time.monotonic() - self._start_s:6.1f} s  {text}"
        self._lines.append(line)
        if self._live is None:
            self._console.print(line, markup=False, soft_wrap=True)

    def ended(self, turn: Turn) -> None:
        """Show that a stream has ended."""
        result = turn.result or {}
        self.say(f"{turn.label} ended {result.get('kind')}, {turn.chunks} chunks")

    def _worker(self, turn: Turn | None) -> str:
        if turn is None or turn.generation is None:
            return ""
        return str(self._pids.get(turn.generation, f"generation {turn.generation[1]}"))

    def _shown(self) -> Group:
        table = Table(box=None, pad_edge=False, expand=True)
        for head, width in (("agent", 7), ("pid", 8), ("turn", 5), ("worker", 8), ("chunks", 7)):
            table.add_column(head, min_width=width, no_wrap=True)
        table.add_column("says", ratio=1, no_wrap=True, overflow="crop")
        for agent in self._record.agents:
            table.add_row(*self._row(agent))
        return Group(Text("\n".join(self._lines[-KEPT_LINES:]), style="dim"), table)

    def _row(self, agent: Agent) -> tuple[str, ...]:
        turn = agent.turns[-1] if agent.turns else None
        if turn is None:
            return (agent.name, str(agent.pid), "", "", "", "")
        words = turn.text.replace("\n", " ")[-WORDS:]
        return (
            agent.name,
            str(agent.pid),
            str(turn.number),
            self._worker(turn),
            str(turn.chunks),
            words,
        )


def final_table(record: Record) -> Table:
    """Return the table of all streams."""
    table = Table(box=None, pad_edge=False)
    for head in ("stream", "tokens", "chunks", "first chunk", "chunks/s", "finish"):
        table.add_column(head, justify="left" if head in {"stream", "finish"} else "right")
    for turn in record.turns():
        result = turn.result
        if result is None:
            table.add_row(turn.label, "", str(turn.chunks), "", "", "none")
            continue
        flowing_s = max(result["seconds"] - result["firstMs"] / 1000, 1e-3)
        table.add_row(
            turn.label,
            str(result["tokens"]),
            str(turn.chunks),
            f"{result['firstMs']:.0f} ms",
            f"{turn.chunks / flowing_s:.1f}",
            result["kind"],
        )
    return table
