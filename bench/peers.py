"""The whole path beside the same path through each peer, and without any gateway."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bench.gateways import Gateway, gateways
from bench.result import Result, Table, quantile
from bench.rig import Rig, process_cpu_s, process_rss_mib
from bench.running import first_ms, run_agent

STREAMS: Final = 20
PACE_MS: Final = 20
PACED_CHUNKS: Final = 50
CALLS: Final = 30
OURS: Final = "Trunkline"
_HEAD: Final = [
    "path",
    "chunks/s",
    "gateway CPU us per chunk, burst",
    "paced",
    "agent CPU us per chunk, burst",
    "paced",
    "whole, burst",
    "whole, paced",
    "added latency p50 / p99 ms",
    "added to first chunk ms",
    "gateway MiB",
]


@dataclass(slots=True)
class _Path:
    """One way from the provider to the application, and its figures of each round."""

    name: str
    way: str
    target: str
    model: str
    cpu_s: Callable[[], dict[str, float]]
    rss_mib: Callable[[], float]
    rate: list[float] = field(default_factory=list[float])
    burst: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    paced: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    late_ms: list[float] = field(default_factory=list[float])
    first_ms: list[float] = field(default_factory=list[float])

    def measure(self, rig: Rig, chunks: int) -> None:
        """Add one round: a burst, paced streams, single calls."""
        before = self.cpu_s()
        done = run_agent(rig, self.way, self.target, self.model, chunks, streams=STREAMS)
        self.rate.append(done["chunks_per_s"])
        self.burst.append(self._cost_us(before, done))
        before = self.cpu_s()
        done = run_agent(
            rig,
            self.way,
            self.target,
            self.model,
            PACED_CHUNKS,
            pace=PACE_MS,
            streams=STREAMS,
            late=True,
        )
        self.paced.append(self._cost_us(before, done))
        self.late_ms += done["late_ms"]
        self.first_ms += first_ms(rig, (self.way, self.target, self.model), CALLS)

    def _cost_us(self, before: dict[str, float], done: dict[str, Any]) -> dict[str, float]:
        """Return the CPU per chunk of each process since then, and of the agent."""
        after = self.cpu_s()
        spent = {name: (after[name] - before[name]) / done["chunks"] * 1e6 for name in after}
        return spent | {"agent": done["cpu_us"]}

    def apart(self) -> list[list[str]]:
        """Return the lines of a table with each process apart."""
        burst, paced = _medians(self.burst), _medians(self.paced)
        return [[name, f"{burst[name]:.2f}", f"{paced[name]:.1f}"] for name in burst]

    def line(self, direct: _Path) -> list[str]:
        """Return the line of the table; latency is what is added to the direct path."""
        burst, paced = _medians(self.burst), _medians(self.paced)
        gateway = [sum(cost.values()) - cost["agent"] for cost in (burst, paced)]
        late = [
            quantile(self.late_ms, share) - quantile(direct.late_ms, share) for share in (0.5, 0.99)
        ]
        first = statistics.median(self.first_ms) - statistics.median(direct.first_ms)
        has_gateway = self.rss_mib() > 0
        return [
            self.name,
            f"{statistics.median(self.rate):,.0f}",
            f"{gateway[0]:.1f}" if has_gateway else "-",
            f"{gateway[1]:.0f}" if has_gateway else "-",
            f"{burst['agent']:.1f}",
            f"{paced['agent']:.0f}",
            f"{sum(burst.values()):.1f}",
            f"{sum(paced.values()):.0f}",
            f"{late[0]:.2f} / {late[1]:.2f}" if self is not direct else "-",
            f"{first:.2f}" if self is not direct else "-",
            f"{self.rss_mib():.0f}" if has_gateway else "-",
        ]


def peers(rig: Rig, rounds: int, chunks: int) -> Result:
    """Compare paths, interleaved; `chunks` of each of twenty streams in a burst."""
    with gateways(rig.directory, rig.url) as found:
        paths = [_direct(rig), _sdk(rig), _ours(rig)]
        for gateway in found:
            paths += [_through(gateway, "direct", "bare loop"), _through(gateway, "openai", "SDK")]
        for _ in range(rounds):
            for path in paths:
                path.measure(rig, chunks)
        lines = [path.line(paths[0]) for path in paths]
    ours = next(path for path in paths if path.name == OURS)
    apart = Table(["Trunkline, CPU us per chunk", "burst", f"paced at {PACE_MS} ms"], ours.apart())
    return Result(tables=[Table(_HEAD, lines), apart])


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def _nobody() -> dict[str, float]:
    return {}


def _nothing() -> float:
    return 0.0


def _direct(rig: Rig) -> _Path:
    return _Path("no gateway, bare loop", "direct", rig.url, "mock", _nobody, _nothing)


def _sdk(rig: Rig) -> _Path:
    return _Path("no gateway, openai SDK", "openai", rig.url, "mock", _nobody, _nothing)


def _ours(rig: Rig) -> _Path:
    def cpu_s() -> dict[str, float]:
        used = rig.cpu_s()
        broker = used.pop("broker")
        return {"worker": sum(used.values()), "broker": broker}

    def rss_mib() -> float:
        """The broker and the one worker; not those of the other pools."""
        return sum(process_rss_mib(rig.pids[name][0]) for name in ("broker", "mock"))

    return _Path(OURS, "trunkline", "mock", "mock", cpu_s, rss_mib)


def _through(gateway: Gateway, way: str, reader: str) -> _Path:
    return _Path(
        f"{gateway.name} {gateway.version}, {reader}",
        way,
        gateway.url,
        gateway.model,
        lambda: {"gateway": process_cpu_s(gateway.pid)},
        lambda: process_rss_mib(gateway.pid),
    )
