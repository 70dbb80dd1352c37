"""The chunk lane: what an adapter emits until the application has it, beside a bare proxy."""

from __future__ import annotations

from typing import Final

from bench.bare_lane import inner_of, outer_of
from bench.result import Chart, Points, Result, Row, shown, versus
from bench.rig import Child, Rig
from bench.running import run_agent

BUDGET: Final = 0.55
FRAMES_BUDGET: Final = 0.9
BARE: Final = "bare zmq.proxy"


def lane(rig: Rig, rounds: int, chunks: int) -> Result:
    """Compare adapter → application with the same frames through a bare proxy.

    In a burst a worker joins turns of its loop to larger frames than the bare proxy is given, which
    is what makes the first two rows; the third keeps each chunk in a frame of its own.
    """
    cases = (("1", 1, chunks), ("16", 16, 4 * chunks), ("1x3", 1, chunks // 2))
    ours: dict[str, list[float]] = {model: [] for model, _, _ in cases}
    bare: dict[str, list[float]] = {model: [] for model, _, _ in cases}
    frames: list[float] = []
    limit: list[float] = []
    for _ in range(rounds):
        for model, per_frame, count in cases:
            bare[model].append(_bare(rig, count, per_frame))
            ours[model].append(run_agent(rig, "trunkline", "burst", model, count)["chunks_per_s"])
        limit.append(_bare(rig, chunks, 1))
        frames.append(_through_broker(rig, chunks))
    rows = [_row(name, ours[model], bare[model]) for name, model in _NAMES]
    rows.append(
        versus(
            "frames alone: bare ends, through the broker's proxy",
            frames,
            "{:,.0f} frames/s",
            (BARE, limit),
            (f">= {FRAMES_BUDGET}", lambda ratio: ratio >= FRAMES_BUDGET),
        )
    )
    return Result(rows)


_NAMES: Final = (
    ("1 chunk per loop turn", "1"),
    ("16 chunks per loop turn", "16"),
    ("1 chunk per frame, none joined", "1x3"),
)


def _row(name: str, ours: list[float], bare: list[float]) -> Row:
    budget = (f">= {BUDGET}", lambda ratio: ratio >= BUDGET)
    return versus(name, ours, "{:,.0f} chunks/s", (BARE, bare), budget)


def _bare(rig: Rig, count: int, per_frame: int) -> float:
    where = str(rig.directory)
    with Child("bench.bare_lane", "proxy", where) as proxy:
        rate = _between(inner_of(where), outer_of(where), count, per_frame)
        proxy.end()
        return rate


def _through_broker(rig: Rig, count: int) -> float:
    endpoints = rig.status()["endpoints"]
    return _between(endpoints["workersLane"], endpoints["lane"], count, 1)


def _between(inner: str, outer: str, count: int, per_frame: int) -> float:
    numbers = (str(count), str(per_frame))
    with (
        Child("bench.bare_lane", "receive", outer, *numbers) as receiver,
        Child("bench.bare_lane", "send", inner, *numbers) as sender,
    ):
        receiver.line()
        sender.go()
        rate: float = receiver.result()["chunks_per_s"]
        sender.end()
        return rate


def scale(rig: Rig, rounds: int, chunks: int) -> Result:
    """Measure throughput over the number of streams and the size of chunks."""
    del rounds  # a curve shows its own noise
    streams = [
        (count, _rate(rig, "1", chunks // count, count)) for count in (1, 2, 5, 10, 20, 50, 100)
    ]
    paired = [
        (count, _rate(rig, "16", chunks * 4 // count, count)) for count in (1, 2, 5, 10, 20, 50)
    ]
    sizes = [
        (size, _rate(rig, f"1x1x{size}", chunks // (1 + size // 400), 1) * size / 2**20)
        for size in (10, 40, 100, 400, 1_000, 4_000, 10_000, 40_000)
    ]
    rows = [shown("20 streams at once, 1 chunk per turn", [streams[4][1]], "{:,.0f} chunks/s")]
    return Result(
        rows,
        [
            _chart("streams", "streams at once", "chunks/s", {"1 per turn": streams, "16": paired}),
            _chart("chunk_size", "characters in a chunk", "MiB/s", {"one stream": sizes}),
        ],
    )


def _rate(rig: Rig, model: str, count: int, streams: int) -> float:
    return run_agent(rig, "trunkline", "burst", model, count, streams=streams)["chunks_per_s"]


def _chart(name: str, x: str, y: str, curves: dict[str, Points]) -> Chart:
    return Chart(name, f"Throughput over {x}", x, y, curves, is_log_x=True)
