"""Where what the core tells of attempts goes: tallies, ledger, spans, log, metrics page.

What can't be had (a package, a port, a file) is said in the log and in the status, and the broker
works without it.
"""

from __future__ import annotations

import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trunkline_protocol.ids import Generation
from trunkline_protocol.trace_context import read_traceparent

from trunkline_broker.config import Settings
from trunkline_broker.core.effects import AttemptEnded, NoteLoad
from trunkline_broker.edge import Edges, in_a_line
from trunkline_broker.measured.ledger_writer import LedgerWriter
from trunkline_broker.measured.line_budget import LineBudget
from trunkline_broker.measured.metrics_server import MetricsServer, Take, snapshot_taker
from trunkline_broker.measured.tallies import DEBUG_PROMPTS, MAX_WORKERS, Tallies
from trunkline_broker.queues import QueueFigures

if TYPE_CHECKING:
    from trunkline_broker.measured.spans import CallSpans

Log = Callable[[str, str, Mapping[str, Any]], None]
_LEVELS = {"ended": "info", "cancelled": "info", "retried": "warning", "failed": "warning"}


class Measures:
    """Everything that is measured in one broker.

    Args:
        settings: what is wanted.
        log: writes a line (level, event, fields), from any thread.
        edges: take the errors of page, ledger, spans and log lines, each apart from the others.
    """

    def __init__(self, settings: Settings, log: Log, edges: Edges) -> None:
        broker = settings.broker
        self._log = log
        self._page_edge, self._ledger_edge = edges.of("metrics"), edges.of("ledger")
        self._spans_edge, self._log_edge = edges.of("spans"), edges.of("log")
        self._logs_all = broker.log_calls == "all"
        self._failures = LineBudget()
        self._address = broker.metrics
        self._server: MetricsServer | None = None
        self._listening = ""
        self._unavailable: dict[str, str] = {}
        self.tallies = Tallies()
        self._ledger = (
            LedgerWriter(
                settings.usage_file, broker.usage_days, broker.usage_mib, log, self._ledger_edge
            )
            if broker.usage
            else None
        )
        self._spans = self._call_spans(broker.traces)
        self._writing_prompts: OrderedDict[Generation, None] = OrderedDict()

    async def open(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Open the metrics page, if it is wanted.

        Args:
            status: returns the status document.
        """
        if not self._address:
            return
        take: Take | None = None
        try:
            take = snapshot_taker(self.tallies, status)
        except ImportError:
            self._without("metrics", "prometheus_client is not installed: trunkline[metrics]")
        try:
            self._server = MetricsServer(take, self._page_edge)
            listening = await self._server.start(self._address)
        except (OSError, OverflowError) as exc:  # in use, no such host, or no port
            self._without("metrics", f"{self._address}: {_reason(exc)}")
        except Exception as exc:  # noqa: BLE001  # any error of a side service ends at its edge
            self._page_edge.note(exc)
            self._without("metrics", in_a_line(exc))
        else:
            if take is not None:
                self._listening = listening
                self._log("info", "metrics", {"url": f"http://{self._listening}/metrics"})

    def close(self) -> None:
        """Write and send what waits, for some seconds at most."""
        if self._server is not None:
            self._page_edge.guard(self._server.close)()
        if self._ledger is not None:
            self._ledger_edge.guard(self._ledger.close)()
        if self._spans is not None:
            self._spans_edge.guard(self._spans.close)()

    def on_attempt(self, ended: AttemptEnded) -> None:
        """Take an attempt that is over; what one of the services cannot take, the others get."""
        self._page_edge.guard(self.tallies.on_attempt)(ended)
        if self._ledger is not None:
            self._ledger_edge.guard(self._ledger.put)(ended)
        if self._spans is not None:
            self._spans_edge.guard(self._spans.on_attempt)(ended)
        if self._logs_all or ended.kind == "error":
            self._log_edge.guard(self._say)(ended)

    def _say(self, ended: AttemptEnded) -> None:
        if ended.kind != "error":
            self._log(_LEVELS[ended.outcome], "attempt_over", attempt_fields(ended))
            return
        held = self._failures.take(time.monotonic())
        if held is not None:
            more = {"held_back": held} if held else {}
            self._log("warning", "attempt_over", attempt_fields(ended) | more)

    def on_load(self, note: NoteLoad) -> None:
        """Take what a worker measured."""
        self._page_edge.guard(self._take_load)(note)

    def _take_load(self, note: NoteLoad) -> None:
        self.tallies.on_load(note)
        if note.load.get(DEBUG_PROMPTS) is True and note.generation not in self._writing_prompts:
            self._writing_prompts[note.generation] = None
            if len(self._writing_prompts) > MAX_WORKERS:
                self._writing_prompts.popitem(last=False)
            # Loud on purpose: a switch for an hour that is forgotten is a leak.
            fields = {"worker": f"{note.pool}/{note.slot}", "off": "debug_prompts = false, reload"}
            self._log("warning", "prompts_and_answers_are_written", fields)

    def queues(self) -> list[QueueFigures]:
        """Return what waits for the threads of all this."""
        return [] if self._ledger is None else [self._ledger.queue()]

    def figures(self) -> dict[str, object]:
        """Return what the status document says of all this."""
        found: dict[str, object] = {}
        if self._ledger is not None:
            found["ledger"] = self._ledger.figures()
        if self._listening:
            found["metrics"] = f"http://{self._listening}/metrics"
        if self._spans is not None:
            exporter = self._spans.exporter
            found["traces"] = {"sent": exporter.sent, "lost": exporter.lost}
        if self.tallies.last_codes:
            found["lastFailures"] = dict(self.tallies.last_codes)
        if self._unavailable:
            found["unavailable"] = dict(self._unavailable)
        return found

    def _without(self, what: str, reason: str) -> None:
        self._unavailable[what] = reason
        self._log("error", f"{what}_unavailable", {"reason": reason})

    def _call_spans(self, endpoint: str) -> CallSpans | None:
        if not endpoint:
            return None
        try:
            from trunkline_broker.measured.spans import CallSpans

            return CallSpans(endpoint, self._log)
        except ImportError:
            self._without("traces", "OpenTelemetry is not installed: trunkline[traces]")
        except Exception as exc:  # noqa: BLE001  # a variable OTEL_… that the library refuses
            self._spans_edge.note(exc)
            self._without("traces", in_a_line(exc))
        return None


def attempt_fields(ended: AttemptEnded) -> dict[str, object]:
    """Return what the log says of an attempt: names and numbers.

    A provider's own words may quote the request, so only the broker's own are said.
    """
    figures = ended.figures or {}
    usage = ended.usage or {}
    trace = read_traceparent(ended.traceparent)  # without one the trace has the call's own id
    fields: dict[str, object] = {
        "call": ended.call.hex(),
        "trace": "" if trace is None else trace.trace_id,
        "attempt": ended.attempt,
        "outcome": ended.outcome,
        "finish": ended.kind,
        "code": ended.code,
        "client": ended.client,
        "provider": ended.provider,
        "model": ended.model,
        "worker": f"{ended.pool}/{ended.slot}" if ended.pool else "",
        "pid": ended.pid,
        "request_id": figures.get("requestId"),
        "wait_ms": _ms(ended.waited_s),
        "ms": _ms(ended.lasted_s),
        "ttft_ms": figures.get("ttftMs"),
        "chunks": figures.get("chunks"),
        "tokens_in": usage.get("inputTokens"),
        "tokens_out": usage.get("outputTokens"),
        "why": ended.message if ended.outcome == "failed" else "",
    }
    return {key: value for key, value in fields.items() if value not in {None, ""}}


def _reason(exc: OSError | OverflowError) -> str:
    """Return the system's own words; asyncio puts the address around them once more."""
    if isinstance(exc, OverflowError | socket.gaierror) or not exc.errno:
        return str(exc)
    return os.strerror(exc.errno)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
