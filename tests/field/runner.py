"""Replays a file of field cases: `python -m tests.field.runner FILE`.

Every answer is served as raw bytes by a local server and read through the real adapter (or, with
`--through-broker`, through a broker and a worker process). A line per case; status 1 on a miss.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trunkline_protocol.chunks import Finish, StreamChunk
from trunkline_protocol.failure import LlmError
from trunkline_protocol.options import GenerateOptions
from trunkline_workers.adapter import AdapterContext
from trunkline_workers.adapters.chat_completions.adapter import ChatCompletionsAdapter

from tests.field.cases import Replay, Scenario, load
from tests.field.expectation import Outcome, misses
from tests.field.scenarios import SCENARIOS
from tests.support.calls import a_request, fast_options
from tests.support.raw_http import RawServer

CASE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Call:
    """One call: the options of the worker that serves it, and the request."""

    worker_options: Mapping[str, Any]
    request: GenerateOptions


RunCall = Callable[[Call], Awaitable[Outcome]]


async def run_adapter(call: Call) -> Outcome:
    """Run one call through the adapter in this process."""
    adapter = ChatCompletionsAdapter.create(
        AdapterContext(name="field", options=call.worker_options)
    )
    await adapter.open()
    chunks: list[StreamChunk] = []
    failure = None
    start = time.monotonic()
    try:
        async for some in adapter.stream(call.request):
            chunks += some
    except LlmError as exc:
        failure = exc.failure
    finally:
        seconds = time.monotonic() - start
        await adapter.close()
    if failure is None and chunks and isinstance(chunks[-1], Finish):
        failure = chunks[-1].reason.failure
    return Outcome(chunks, failure, seconds)


async def run_replay(replay: Replay, run_call: RunCall) -> list[str]:
    """Serve one answer, call, and return what differs."""
    async with RawServer(replay.answer) as server:
        options = fast_options(server.url, **replay.options)
        if replay.context_window is not None:
            options["contextWindow"] = replay.context_window
        request = a_request(max_tokens=replay.max_tokens)
        async with asyncio.timeout(CASE_LIMIT_S):
            outcome = await run_call(Call(options, request))
        found = misses(outcome, replay.expected)
        if not server.exchanges:
            return ["no request was made", *found]
        headers = server.exchanges[0].headers
    if headers.get("accept-encoding") != "identity":
        found.append(f"accept-encoding {headers.get('accept-encoding')!r}")
    if not headers.get("user-agent", "").startswith("trunkline/"):
        found.append(f"user-agent {headers.get('user-agent')!r}")
    return found


async def run_scenario(scenario: Scenario) -> list[str] | None:
    """Stage a scenario; `None`: it is none of an adapter."""
    stage = SCENARIOS.get(scenario.name)
    return None if stage is None else await stage()


async def run_file(path: Path, run_call: RunCall, out: Callable[[str], None]) -> int:
    """Run all cases of a file; returns the exit status."""
    counts = {"ok": 0, "MISS": 0, "skip": 0}
    for case in load(path):
        start = time.monotonic()
        try:
            if isinstance(case, Replay):
                found: list[str] | None = await run_replay(case, run_call)
            else:
                found = await run_scenario(case)
        # Whatever a case raises is a miss of that case, and the others still run.
        except Exception as exc:  # noqa: BLE001
            found = [f"raised {exc!r}"]
        verdict = "skip" if found is None else "MISS" if found else "ok"
        counts[verdict] += 1
        detail = "not staged by an adapter" if found is None else "; ".join(found)
        out(f"{case.name:8} {verdict:4} {time.monotonic() - start:6.2f} s  {detail}".rstrip())
    out(f"{counts['ok']} ok, {counts['MISS']} missed, {counts['skip']} not staged here")
    return 1 if counts["MISS"] else 0


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.field.runner")
    parser.add_argument("file", type=Path, help="a file of field cases")
    options = parser.parse_args(arguments)
    return asyncio.run(run_file(options.file, run_adapter, print))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
