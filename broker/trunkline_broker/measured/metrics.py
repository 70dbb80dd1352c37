"""The metrics page: tallies and the status document as Prometheus reads them.

Needs `prometheus_client`, so it is imported only where the endpoint is configured. It is rendered
from a snapshot, in whatever thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from trunkline_protocol.counts import is_count, is_figure
from trunkline_protocol.printable import one_line

from trunkline_broker.measured.tallies import BUCKETS_S, DEBUG_PROMPTS, Histogram, Tallies

_BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS_S), "+Inf")

_ALERTING: Final = ("AUTH", "MISSING_CREDENTIAL", "QUOTA", "RATE_LIMIT")

_MAX_COUNTERS: Final = 64  # of one worker, which a broken one may make up
_MAX_NAME_CHARS: Final = 64

Samples = Iterable[tuple[tuple[str, ...], float]]
Parts = Iterable[tuple[tuple[str, ...], tuple[list[int], float]]]


class Page(NamedTuple):
    """A page in the form that the reader has asked for."""

    content_type: str
    body: bytes


class Snapshot(Collector):
    """All metrics of one moment.

    Args:
        tallies: read now; they go on changing.
        status: the status document of the same moment.
    """

    def __init__(self, tallies: Tallies, status: Mapping[str, Any]) -> None:
        self._metrics = [
            *_of_attempts(tallies, [row["provider"] for row in status["routes"]]),
            *_of_workers_measures(tallies),
            *_of_calls(status),
            *_of_pools(status),
            *_of_workers_queues(status),
            *_of_workers_counters(status),
            *_of_broker(status),
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self._metrics

    def page(self, accept: str) -> Page:
        """Render; `accept` is the header of the request."""
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        encode, content_type = _encoder(accept)
        return Page(content_type, encode(registry))


def _encoder(accept: str) -> tuple[Any, str]:
    """Return the encoder that a reader asks for; the plain one where its header is nonsense."""
    try:
        return choose_encoder(accept)
    except Exception:  # noqa: BLE001  # the library's parser raises what it likes
        return choose_encoder("")


def _of_attempts(tallies: Tallies, providers: Iterable[str]) -> Iterator[Metric]:
    yield _counter(
        "trunkline_attempts",
        "Provider attempts that are over, by outcome: ended, cancelled, failed, retried.",
        ("provider", "model", "outcome"),
        tallies.attempts.items(),
    )
    yield _counter(
        "trunkline_failures",
        "Attempts that ended with a failure, by its code; retried ones included.",
        ("provider", "code"),
        # Prometheus sees no rise in a series that begins at 1: what alerts begins at 0.
        ({(name, code): 0 for name in providers for code in _ALERTING} | tallies.failures).items(),
    )
    retried = {key[:2]: n for key, n in tallies.attempts.items() if key[2] == "retried"}
    yield _counter(
        "trunkline_retries",
        "Attempts that were given up for another one.",
        ("provider", "model"),
        retried.items(),
    )
    labels = ("provider", "model", "kind")
    text = "Tokens as providers counted them; reasoning is a part of output."
    yield _counter("trunkline_tokens", text, labels, tallies.tokens.items())
    text = "Tokens of attempts that were cancelled or retried; a part of trunkline_tokens."
    yield _counter("trunkline_wasted_tokens", text, labels, tallies.wasted.items())
    yield _histogram(
        "trunkline_wait_seconds",
        "From the agent's call to a worker: admission and queue.",
        ("provider",),
        (((key,), _parts(each)) for key, each in tallies.waits.items()),
    )
    yield _histogram(
        "trunkline_attempt_seconds",
        "From a worker to the end of the attempt.",
        ("provider",),
        (((key,), _parts(each)) for key, each in tallies.durations.items()),
    )


def _of_workers_measures(tallies: Tallies) -> Iterator[Metric]:
    labels = ("pool", "provider")
    routes = list(tallies.routes.items())
    yield _counter(
        "trunkline_chunks",
        "Chunks that workers handed over, as they report once a second.",
        labels,
        ((key, totals.chunks) for key, totals in routes),
    )
    yield _histogram(
        "trunkline_time_to_first_chunk_seconds",
        "From the start of an attempt in its worker to the first chunk of the provider.",
        labels,
        ((key, _parts(totals.ttft)) for key, totals in routes),
    )
    yield _histogram(
        "trunkline_chunk_gap_seconds",
        "Between two hand-overs of chunks of one stream; waiting for a slow agent counts.",
        labels,
        ((key, _parts(totals.gaps)) for key, totals in routes),
    )


def _of_calls(status: Mapping[str, Any]) -> Iterator[Metric]:
    calls = status["calls"]
    yield _gauge(
        "trunkline_calls",
        "Calls that the broker holds now, by state; tails wait to be received.",
        ("state",),
        (((state,), calls[state]) for state in ("queued", "running", "backoff", "tails")),
    )
    routes = [row for row in status["routes"] if "inFlight" in row]
    name = ("provider", "pool")
    yield _gauge(
        "trunkline_route_calls",
        "Attempts that run on a route.",
        name,
        (((row["provider"], row["pool"]), row["inFlight"]) for row in routes),
    )
    yield _gauge(
        "trunkline_route_queued",
        "Calls that wait on a route.",
        name,
        (((row["provider"], row["pool"]), row["queued"]) for row in routes),
    )
    yield _gauge(
        "trunkline_route_up",
        "1: calls can start; 0: the route is down, starting or paused by its provider.",
        name,
        (
            ((row["provider"], row["pool"]), float(row["state"] == "serving"))
            for row in status["routes"]
        ),
    )
    # Those of a worker are named by its pid, of a client by its id: new series with each start.
    others = ("worker ", "client ")
    queues = [row for row in status["queues"] if not row["name"].startswith(others)]
    for suffix, key, text in (
        ("depth", "depth", "What waits in a queue of the broker."),
        ("high_water", "highWater", "The most that ever waited in it."),
        ("bound", "bound", "The most that may wait in it."),
    ):
        rows = (((row["name"],), row[key]) for row in queues)
        yield _gauge(f"trunkline_queue_{suffix}", text, ("queue",), rows)
    clients = status["clients"]
    yield _gauge("trunkline_clients", "Client processes.", (), [((), len(clients))])


def _of_pools(status: Mapping[str, Any]) -> Iterator[Metric]:
    slots = [
        ((pool["name"], str(slot["slot"])), slot)
        for pool in status["pools"]
        for slot in pool["slots"]
    ]
    labels = ("pool", "slot")
    yield _gauge(
        "trunkline_worker_up",
        "1: the slot has a serving worker.",
        labels,
        ((key, float(slot["role"] == "serving")) for key, slot in slots),
    )
    yield _counter(
        "trunkline_worker_restarts",
        "Times that the worker of a slot died and was started again.",
        labels,
        ((key, slot["restarts"]) for key, slot in slots),
    )
    yield _gauge(
        "trunkline_worker_writes_prompts",
        "1: the worker writes prompts and answers into its log (debug_prompts).",
        labels,
        ((key, float(slot["load"].get(DEBUG_PROMPTS) is True)) for key, slot in slots),
    )
    yield _gauge(
        "trunkline_worker_calls",
        "Attempts that run in a worker.",
        labels,
        ((key, slot["inFlight"]) for key, slot in slots),
    )
    for name, figure, text in (
        ("resident_bytes", "rss", "Resident memory of a worker process."),
        ("open_fds", "fds", "Open descriptors of a worker process."),
        ("cpu_seconds", "cpuS", "Processor time of the worker process that serves now."),
    ):
        rows = ((key, slot["load"].get(figure, 0)) for key, slot in slots if slot["load"])
        known = ((key, value) for key, value in rows if is_figure(value))
        yield _gauge(f"trunkline_worker_{name}", text, labels, known)


def _of_workers_counters(status: Mapping[str, Any]) -> Iterator[Metric]:
    samples: list[tuple[tuple[str, ...], float]] = []
    for pool in status["pools"]:
        for slot in pool["slots"]:
            said = slot["load"].get("counters")
            found: Mapping[str, Any] = cast("Any", said) if isinstance(said, Mapping) else {}
            known = [(name, n) for name, n in found.items() if is_count(n)]
            samples += [
                ((pool["name"], str(slot["slot"]), name[:_MAX_NAME_CHARS]), count)
                for name, count in known[:_MAX_COUNTERS]
            ]
    text = "What the worker process that serves now counts: resent frames, overdue cancels …"
    yield _counter("trunkline_worker_events", text, ("pool", "slot", "event"), samples)


def _of_workers_queues(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield what waits in workers, as they report; replaced ones that still drain are left out."""
    rows: dict[str, list[tuple[tuple[str, ...], float]]] = {"": [], "HighWater": [], "Bound": []}
    for pool in status["pools"]:
        for slot in pool["slots"]:
            said = slot["load"].get("queues")
            if not isinstance(said, Mapping):
                continue  # an older worker, or one without a process
            for queue, what in (("kept", "Bytes"), ("waiting", "Items")):
                name = (pool["name"], str(slot["slot"]), f"{queue} {what.lower()}")
                for suffix, samples in rows.items():
                    figure = cast("Any", said).get(queue + (suffix or what))
                    if is_figure(figure):
                        samples.append((name, figure))
    labels = ("pool", "slot", "queue")
    for suffix, key, text in (
        ("depth", "", "What waits in a worker: bytes kept to be sent again, items without credit."),
        ("high_water", "HighWater", "The most that ever waited there."),
        ("bound", "Bound", "The most that may wait there."),
    ):
        yield _gauge(f"trunkline_worker_queue_{suffix}", text, labels, rows[key])


def _of_broker(status: Mapping[str, Any]) -> Iterator[Metric]:
    counters = status["counters"]
    for name, text in (
        ("swaps", "Workers replaced while their streams went on."),
        ("swaps_failed", "Swaps whose new worker did not get ready."),
    ):
        yield _counter(f"trunkline_{name}", text, (), [((), counters.get(name, 0))])
    refused = (((code,), count) for code, count in status["refused"].items())
    text = "Frames that were refused, by code; not 0: somebody speaks wrongly."
    yield _counter("trunkline_refused_frames", text, ("code",), refused)
    text = "Everything the broker counts; names are those of `trunkline status --json`."
    events = (((name,), count) for name, count in counters.items())
    yield _counter("trunkline_events", text, ("event",), events)
    info = GaugeMetricFamily("trunkline_info", "Version of the broker.", labels=("version",))
    info.add_metric((status["version"],), 1)
    yield info
    ledger = status.get("measures", {}).get("ledger")
    if ledger is not None:
        text = "Attempts that the usage ledger lost: it could not be written for too long."
        yield _counter("trunkline_ledger_lost", text, (), [((), ledger["lost"])])
        text = "Attempts that wait to be written to the usage ledger."
        yield _gauge("trunkline_ledger_waiting", text, (), [((), ledger["waiting"])])
    traces = status.get("measures", {}).get("traces")
    if traces is not None:
        text = "Spans of calls that the collector did not take."
        yield _counter("trunkline_spans_lost", text, (), [((), traces["lost"])])
    for name, text in (("draining", "1: no new calls."), ("settling", "1: just restarted.")):
        yield _gauge(f"trunkline_{name}", text, (), [((), float(status[name]))])
    yield _gauge("trunkline_uptime_seconds", "Of the broker.", (), [((), status["uptimeS"])])


def _shown(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return values of labels that every encoder can write; names from outside are so already."""
    return tuple(one_line(value) for value in values)


def _parts(histogram: Histogram) -> tuple[list[int], float]:
    return list(histogram.bins), histogram.sum_s


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(_shown(values), value)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(_shown(values), value)
    return family


def _histogram(name: str, text: str, labels: tuple[str, ...], parts: Parts) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, (bins, sum_s) in parts:
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(_BOUNDS, bins, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(_shown(values), buckets, sum_s)
    return family
