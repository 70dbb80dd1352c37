"""The screen of `trunkline top`, with Textual; imported only when that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import ClassVar, Final

import trunkline
from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from trunkline_broker.cli.exits import ExitCode
from trunkline_broker.cli.status import duration
from trunkline_broker.cli.top_view import RouteRow, View, Window, WorkerRow

EVERY_S: Final = 1.0
ASK_S: Final = 3.0
WIDE: Final = 110  # columns from which every figure is shown
_STYLES: Final = {"serving": "green", "down": "bold red", "starting": "yellow", "paused": "yellow"}

_TEXTS: Final = frozenset({"worker", "route", "queue", "state"})  # what is no number

Cell = str | Text
Column = tuple[str, bool]
"""Its title, and whether a narrow screen has it too."""


class Top(App[None]):
    """Asks the broker once a second and shows what it says; it changes nothing."""

    CSS: ClassVar[str] = """
    Screen { layers: base; }
    #head { height: auto; padding: 0 1; }
    .part { height: auto; padding: 1 1 0 1; }
    """
    TITLE = "trunkline top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._window = Window()
        self._view: View | None = None
        self._is_paused = False
        self._trouble = ""

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield Static(id="head")
        with VerticalScroll():
            yield Static(id="workers", classes="part")
            yield Static(id="routes", classes="part")
            yield Static(id="queues", classes="part")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to ask."""
        self.run_worker(self._ask(), exclusive=True)

    def on_resize(self) -> None:
        """Draw for the new width."""
        self._draw()

    def action_interrupt(self) -> None:
        """End as other commands do; Textual by itself would only say which key to press."""
        self.exit(return_code=ExitCode.INTERRUPTED)

    def action_pause(self) -> None:
        """Keep the screen as it is, or go on."""
        self._is_paused = not self._is_paused
        self._draw()

    async def _ask(self) -> None:
        """Ask for ever; a broker that is gone is waited for."""
        while True:
            try:
                async with trunkline.connect(name="trunkline top", timeout_s=ASK_S) as llm:
                    while True:
                        status = await llm.query("status", {}, timeout_s=ASK_S)
                        self._trouble = ""
                        if not self._is_paused:
                            self._view = self._window.add(status, self._clock())
                            self._draw()
                        await asyncio.sleep(EVERY_S)
            except trunkline.TrunklineError as exc:
                self._trouble = str(exc)
                self._draw()
                await asyncio.sleep(EVERY_S)

    def _draw(self) -> None:
        view, width = self._view, self.size.width
        self.query_one("#head", Static).update(self._head(view))
        if view is not None:
            is_wide = width >= WIDE
            self.query_one("#workers", Static).update(_workers(view.workers, is_wide=is_wide))
            self.query_one("#routes", Static).update(_routes(view.routes, is_wide=is_wide))
            self.query_one("#queues", Static).update(_queues(view))

    def _head(self, view: View | None) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        if view is not None:
            calls = view.calls
            text.append(f"trunkline {view.version}", "bold")
            text.append(f"  pid {view.pid}  up {duration(view.uptime_s)}  {view.state}\n")
            text.append(f"calls {calls['running']} running, {calls['queued']} queued, ")
            text.append(f"{calls['backoff']} in backoff, {calls['tails']} tails")
            text.append(f"  clients {view.clients}\n")
            text.append(f"chunks/s {view.chunks_per_s:.0f}  tokens/s {view.tokens_per_s:.0f}  ")
            text.append(f"retries {view.retries}  failed {view.failed}  ")
            text.append(f"broker {view.memory_mib:.0f} MiB {view.cpu_percent:.1f} % CPU")
            for trouble in view.troubles:
                text.append(f"\n{trouble}", "bold red")
        if self._is_paused:
            text.append("\npaused", "bold yellow")
        if self._trouble:
            text.append(f"\n{self._trouble}", "bold red")
        return text


def _workers(rows: Sequence[WorkerRow], *, is_wide: bool) -> Table:
    columns = (
        ("worker", True), ("state", True), ("calls", True), ("chunks/s", True), ("MiB", True),
        ("CPU %", True), ("restarts", True), ("age", is_wide),
    )  # fmt: skip
    return _table(columns, [_worker_cells(row) for row in rows])


def _worker_cells(row: WorkerRow) -> Sequence[Cell]:
    return (
        row.name,
        _state(row.state),
        str(row.calls),
        f"{row.chunks_per_s:.0f}",
        f"{row.memory_mib:.0f}",
        f"{row.cpu_percent:.1f}",
        str(row.restarts),
        duration(row.age_s) if row.age_s else "-",
    )


def _routes(rows: Sequence[RouteRow], *, is_wide: bool) -> Table:
    columns = (
        ("route", True), ("state", True), ("calls", True), ("queued", True), ("chunks/s", True),
        ("tokens/s", True), ("first chunk", True), ("gap", is_wide),
    )  # fmt: skip
    return _table(columns, [_route_cells(row) for row in rows])


def _route_cells(row: RouteRow) -> Sequence[Cell]:
    return (
        row.provider,
        _state(row.state),
        str(row.running),
        str(row.queued),
        f"{row.chunks_per_s:.0f}",
        f"{row.tokens_per_s:.0f}",
        _below(row.ttft_ms),
        _below(row.gap_ms),
    )


def _queues(view: View) -> Table:
    columns = (("queue", True), ("waiting", True), ("most", True), ("bound", True))
    rows = [(name, f"{a:,}", f"{b:,}", f"{c:,}") for name, a, b, c in view.queues]
    return _table(columns, rows)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, (title, is_shown) in enumerate(columns):
        if is_shown:
            justify = "left" if title in _TEXTS else "right"
            # A name that is too long goes on in the next line; numbers are short.
            table.add_column(title, justify=justify, no_wrap=at > 0, overflow="fold")
    shown = [at for at, (_, is_shown) in enumerate(columns) if is_shown]
    for row in rows:
        # A text would be read as markup: a name may hold brackets.
        cells = (row[at] for at in shown)
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def _state(name: str) -> Text:
    return Text(name, _STYLES.get(name, ""))


def _below(bound_ms: float | None) -> str:
    if bound_ms is None:
        return "-"
    return f"< {bound_ms / 1000:g} s" if bound_ms >= 1000 else f"< {bound_ms:g} ms"
