"""The chunk lane: what an adapter emits until the application has it, beside a bare proxy."""

from __future__ import annotations

from typing import Final

from bench.bare_lane import inner_of, outer_of
from bench.result import Chart, Points, Result, Row, shown, versus
from bench.rig import Child, Rig, rig
from bench.running import MOST_ROUNDS, medians, run_agent

BUDGET: Final = 0.55
FRAMES_BUDGET: Final = 0.9
BARE: Final = "bare zmq.proxy"
WORKERS_STREAMS: Final = 20
FRAMES_TIMES: Final = 3  # as many frames, since they pass so fast


def lane(rig: Rig, rounds: int, chunks: int) -> Result:
    """Compare adapter → application with the same frames through a bare proxy.

    In a burst a worker joins turns of its loop to larger frames than the bare proxy is given, which
    is what makes the first two rows; the third keeps each chunk in a frame of its own. A bare
    receiver decodes nothing; how much of the rest that explains is shown beside the second.
    """
    cases = (("1", 1, chunks), ("16", 16, 4 * chunks), ("1x3", 1, chunks // 2))
    ours: dict[str, list[float]] = {model: [] for model, _, _ in cases}
    bare: dict[str, list[float]] = {model: [] for model, _, _ in cases}
    frames: list[float] = []
    limit: list[float] = []
    decoded: list[float] = []
    for turn in range(rounds):
        for model, per_frame, count in cases:
            bare[model].append(_bare(rig, count, per_frame))
            ours[model].append(run_agent(rig, "trunkline", "burst", model, count)["chunks_per_s"])
        decoded.append(_bare(rig, 4 * chunks, 16, "decode"))
        pair = [(limit, _bare), (frames, _through_broker)]
        for found, measure in pair if turn % 2 else reversed(pair):
            found.append(measure(rig, FRAMES_TIMES * chunks, 1))
    rows = [_row(name, ours[model], bare[model]) for name, model in _NAMES]
    typed = ("bare proxy, decoded to chunks", decoded)
    rows.append(
        versus("16 chunks per loop turn", ours["16"], "{:,.0f} chunks/s", typed, ("", _anything))
    )
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


def _anything(_ratio: float) -> bool:
    return True


def _bare(rig: Rig, count: int, per_frame: int, role: str = "receive") -> float:
    where = str(rig.directory)
    with Child("bench.bare_lane", "proxy", where) as proxy:
        rate = _between(inner_of(where), outer_of(where), count, per_frame, role)
        proxy.end()
        return rate


def _through_broker(rig: Rig, count: int, per_frame: int) -> float:
    endpoints = rig.status()["endpoints"]
    return _between(endpoints["workersLane"], endpoints["lane"], count, per_frame)


def _between(inner: str, outer: str, count: int, per_frame: int, role: str = "receive") -> float:
    numbers = (str(count), str(per_frame))
    with (
        Child("bench.bare_lane", role, outer, *numbers) as receiver,
        Child("bench.bare_lane", "send", inner, *numbers) as sender,
    ):
        receiver.line()
        sender.go()
        rate: float = receiver.result()["chunks_per_s"]
        sender.end()
        return rate


def scale(running: Rig, rounds: int, chunks: int) -> Result:
    """Measure throughput over the number of streams, of workers, and the size of chunks."""
    rounds = min(rounds, MOST_ROUNDS)

    def of_streams(model: str, total: int) -> Points:
        return medians(
            (1, 2, 5, 10, 20, 50, 100),
            rounds,
            lambda count: _rate(running, model, total // count, count),
        )

    def of_workers(model: str, total: int) -> Points:
        def rate(replicas: int) -> float:
            with rig(replicas=replicas) as other:
                return _rate(other, model, total // WORKERS_STREAMS, WORKERS_STREAMS)

        return medians((1, 2, 4), rounds, rate)

    def of_size(size: int) -> float:
        return _rate(running, f"1x1x{size}", chunks // (1 + size // 400), 1) * size / 2**20

    sizes = medians((10, 40, 100, 400, 1_000, 4_000, 10_000, 40_000), rounds, of_size)
    streams = {"1 chunk per turn": of_streams("1", chunks), "16": of_streams("16", 4 * chunks)}
    workers = {"1 chunk per turn": of_workers("1", chunks), "16": of_workers("16", 4 * chunks)}
    form = "{:,.0f} chunks/s"
    of_many = [value for _, value in streams["1 chunk per turn"]]
    of_more = [value for _, value in workers["1 chunk per turn"]]
    return Result(
        [
            shown("1 chunk per turn, 1 to 100 streams", of_many, form),
            shown(f"the same, {WORKERS_STREAMS} streams, 1 to 4 workers", of_more, form),
        ],
        [
            _chart("streams", "streams at once", "chunks/s", streams),
            _chart("workers", f"workers, {WORKERS_STREAMS} streams", "chunks/s", workers),
            _chart("chunk_size", "characters in a chunk", "MiB/s", {"one stream": sizes}),
        ],
    )


def _rate(rig: Rig, model: str, count: int, streams: int) -> float:
    return run_agent(rig, "trunkline", "burst", model, count, streams=streams)["chunks_per_s"]


def _chart(name: str, x: str, y: str, curves: dict[str, Points]) -> Chart:
    return Chart(name, f"Throughput over {x}", x, y, curves, is_log_x=True)
