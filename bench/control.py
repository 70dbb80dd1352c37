"""The control plane: what a call costs the broker, and whether that depends on anything."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.result import Chart, Points, Result, Row, absolute, quantile, shown
from bench.rig import Child, Rig, process_cpu_s, rig
from bench.running import MOST_ROUNDS, medians, run_agent

BUDGET: Final = 4000
PROCESSES: Final = 10
AT_ONCE: Final = 200
FLAT_BUDGET: Final = 1.5
SECONDS: Final = 3
LARGE_MIB: Final = 8
PACED_MODEL: Final = "paced-600-5"


def control(running: Rig, rounds: int, seconds: int) -> Result:
    """Measure calls opened and ended per CPU-second of the broker.

    Args:
        running: the rig.
        rounds: of each.
        seconds: of each measurement.
    """
    one: list[float] = []
    many: list[float] = []
    rates: list[float] = []
    for _ in range(rounds):
        one.append(_calls_per_cpu_s(running, 1, 1, 20, seconds)[0])
        per_cpu_s, rate = _calls_per_cpu_s(running, PROCESSES, 20, 10, seconds)
        many.append(per_cpu_s)
        rates.append(rate)
    budget = (f">= {BUDGET:,}", lambda value: value >= BUDGET)
    form = "{:,.0f} calls"
    return Result(
        [
            absolute("calls per broker CPU-second, 200 clients x 10 calls", many, form, budget),
            absolute("the same, 1 client x 20 calls", one, form, budget),
            shown("calls opened and ended per second, all processes on this machine", rates, form),
        ]
    )


def flat(running: Rig, rounds: int, seconds: int) -> Result:
    """Measure the broker's CPU per call as routes, clients and open calls grow.

    Always with 200 calls at a time, so that over more clients there are fewer on each connection.
    The floor is that of bare ROUTERs which pass on the same frames (`bare_calls`).
    """
    rounds = min(rounds, MOST_ROUNDS)

    def of_clients(count: int) -> float:
        processes = min(PROCESSES, count)
        return _cost_us(running, processes, count // processes, AT_ONCE // count, seconds)

    def beside_calls(count: int) -> float:
        with idle_streams(running, count):
            return _cost_us(running, 1, 20, AT_ONCE // 20, seconds)

    def of_routes(count: int) -> float:
        with rig(routes=count) as other:
            return _cost_us(other, 1, 20, AT_ONCE // 20, seconds)

    numbers = (1, 10, 50, 100, 200)
    clients = medians(numbers, rounds, of_clients)
    floor = medians(numbers, rounds, lambda count: _floor_us(running, count, seconds))
    calls = medians((0, 500, 1000, 2000), rounds, beside_calls)
    routes = medians((1, 20, 100, 200), rounds, of_routes)
    beside = f"; bare ROUTERs {floor[0][1]:.0f} and {floor[-1][1]:.0f} us"
    rows = [
        _flat_row("clients", clients, beside),
        _flat_row("open calls", calls),
        _flat_row("routes", routes),
    ]
    return Result(
        rows,
        [
            _flat_chart("clients", {"Trunkline": clients, "bare ROUTERs": floor}),
            _flat_chart("open calls", {"Trunkline": calls}),
            _flat_chart("routes", {"Trunkline": routes}),
        ],
    )


def _flat_chart(what: str, curves: dict[str, Points]) -> Chart:
    title = f"Broker CPU per call over {what}, {AT_ONCE} calls at a time"
    return Chart(f"flat_{what.replace(' ', '_')}", title, what, "microseconds per call", curves)


def _flat_row(name: str, curve: Points, beside: str = "") -> Row:
    (least, first), (most, last) = curve[0], curve[-1]
    return Row(
        f"cost of a call with {most:,} {name}, against {least:,}",
        f"{last:.0f} us",
        f"{first:.0f} us{beside}",
        last / first,
        f"<= {FLAT_BUDGET} x",
        last / first <= FLAT_BUDGET,
        spread_of(curve),
    )


def _floor_us(running: Rig, count: int, seconds: int) -> float:
    """Return the CPU per call of ROUTERs that only pass frames on, with so many connections."""
    where = str(running.directory)
    numbers = (str(count), str(AT_ONCE // count), str(seconds))
    with Child("bench.bare_calls", "broker", where) as router:
        router.line()
        with (
            Child("bench.bare_calls", "worker", where),
            Child("bench.bare_calls", "clients", where, *numbers) as clients,
        ):
            router.line()  # it knows its worker: what came before would be lost
            clients.line()
            before_s = process_cpu_s(router.pid)
            clients.go()
            calls: int = clients.result()["calls"]
            return (process_cpu_s(router.pid) - before_s) / calls * 1e6


def spread_of(curve: Points) -> str:
    """Return the least and the greatest value of a curve."""
    values = [value for _, value in curve]
    return f"{min(values):.0f} - {max(values):.0f} us"


@contextmanager
def idle_streams(running: Rig, count: int) -> Iterator[None]:
    """Hold open streams in which nothing happens, of up to ten clients."""
    if not count:
        yield
        return
    clients = min(10, count)
    with running.calls(
        "idle", "--clients", str(clients), "--loops", str(count // clients)
    ) as holder:
        holder.line()
        yield
        holder.go()
        holder.result()


def _cost_us(running: Rig, processes: int, clients: int, loops: int, seconds: int) -> float:
    return 1e6 / _calls_per_cpu_s(running, processes, clients, loops, seconds)[0]


def _calls_per_cpu_s(
    running: Rig, processes: int, clients: int, loops: int, seconds: int
) -> tuple[float, float]:
    """Return calls per CPU-second of the broker, and per second."""
    arguments = ("--clients", str(clients), "--loops", str(loops), "--seconds", str(seconds))
    with ExitStack() as stack:
        children = [
            stack.enter_context(running.calls("seconds", *arguments)) for _ in range(processes)
        ]
        for child in children:
            child.line()
        before_s = running.cpu_s()["broker"]
        for child in children:
            child.go()
        done = [child.result() for child in children]
        used_s = running.cpu_s()["broker"] - before_s
    calls = sum(one["calls"] for one in done)
    return calls / used_s, calls / max(one["seconds"] for one in done)


def large(running: Rig, rounds: int, seconds: int) -> Result:
    """Measure a stream paced at 5 ms beside requests of 8 MiB, which the broker only forwards.

    The paced stream has a worker of its own; then both share one, which has to read the requests.
    Client and worker of such a request keep one CPU busy in turns, which alone delays others where
    there are few: that is measured too.
    """
    quiet: list[float] = []
    busy: list[float] = []
    beside: list[float] = []
    shared: list[float] = []
    took: list[float] = []
    cpu: list[float] = []
    for _ in range(rounds):
        quiet += _paced(running)
        with Child("bench.busy"):
            busy += _paced(running)
        before_s = running.cpu_s()["broker"]
        with _large_calls(running, "burst", seconds) as child:
            beside += _paced(running)
            done = child.result()
        took.append(done["p50_ms"])
        cpu.append((running.cpu_s()["broker"] - before_s) / done["calls"] * 1e3)
        with _large_calls(running, "paced", seconds) as child:
            shared += _paced(running)
            child.result()
    p99 = [quantile(values, 0.99) for values in (quiet, beside, shared, busy)]
    return Result(
        [
            Row(
                f"p99 of a paced stream beside {LARGE_MIB} MiB requests to another worker",
                f"{p99[1]:.2f} ms",
                f"alone {p99[0]:.2f} ms",
                None,
                "<= alone + 1.5 ms",
                p99[1] <= p99[0] + 1.5,
                f"p50 {statistics.median(beside):.2f} ms",
            ),
            shown("the same beside requests to its own worker", [p99[2]], "{:.2f} ms"),
            shown("the same beside one busy process, no requests", [p99[3]], "{:.2f} ms"),
            shown(f"a whole call with {LARGE_MIB} MiB", took, "{:.0f} ms"),
            shown("broker CPU for it", cpu, "{:.1f} ms"),
        ]
    )


@contextmanager
def _large_calls(running: Rig, route: str, seconds: int) -> Iterator[Child]:
    arguments = ("--route", route, "--mib", str(LARGE_MIB), "--seconds", str(seconds))
    with running.calls("seconds", *arguments) as child:
        child.line()
        child.go()
        yield child


def _paced(running: Rig) -> Sequence[float]:
    done = run_agent(running, "trunkline", "paced", PACED_MODEL, 600, late=True)
    late: list[float] = done["late_ms"]
    return late
