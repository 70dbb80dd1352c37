"""The performance: a broker of its own, agents, swaps while tokens flow, and everything ended."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trunkline

from demo.record import Agent, Record, Swap
from demo.view import View

ROOT: Final = Path(__file__).resolve().parent.parent
TOPICS: Final = (
    ("ada", "Tell me a long story about a lighthouse keeper."),
    ("ben", "Explain in detail how a telephone exchange worked."),
    ("cleo", "Describe a long walk through an old harbour town."),
    ("dan", "Write a long letter from a ship's engineer to a friend."),
    ("eve", "Tell me everything you know about rivers."),
    ("finn", "Describe the work of a clock maker, step by step."),
)
LOOK_AGAIN_S: Final = 0.02
PATIENCE_S: Final = 180.0

LOCAL: Final = """
[worker.model]
adapter = "local"
providers = ["model"]
"""
SCRIPTED: Final = """
[worker.model]
adapter = "scripted"
providers = ["model"]
options = { script = { chunks = 80, chunk_chars = 8, pace_ms = 50 } }
"""
POOL: Final = "model"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is performed.

    Attributes:
        agents: 1 to the number of `TOPICS`.
        turns: of each conversation, at least.
        max_tokens: of each turn.
        swaps: how often the worker is replaced.
        is_local: the real model, not the script.
        directory: an empty private one.
    """

    agents: int
    turns: int
    max_tokens: int
    swaps: int
    is_local: bool
    directory: Path


class StageError(Exception):
    """The performance could not be given; the text says why."""


async def perform(plan: Plan, record: Record, view: View) -> None:
    """Give the performance; the record holds what happened, also after an error.

    Raises:
        StageError: the broker does not start, or something never happens.
        trunkline.TrunklineError: a swap fails.
    """
    os.environ["TRUNKLINE_RUN_DIR"] = str(plan.directory / "run")
    os.environ.pop("TRUNKLINE_ENDPOINT", None)
    async with _broker(plan, view), trunkline.connect(name="demo") as llm:
        model = (await _until_models(llm))[0]
        view.name_workers(await _workers(llm))
        view.say(f"the worker serves {model}")
        processes = [
            await _started(name, topic, plan, model) for name, topic in TOPICS[: plan.agents]
        ]
        record.agents += [
            Agent(name, process.pid) for (name, _), process in zip(TOPICS, processes, strict=False)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for agent, process in zip(record.agents, processes, strict=True):
                    group.create_task(_listen(agent, process, view))
                group.create_task(_direct(llm, plan, record, processes, view))
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


@asynccontextmanager
async def _broker(plan: Plan, view: View) -> AsyncGenerator[None]:
    config = plan.directory / "trunkline.toml"
    config.write_text(LOCAL if plan.is_local else SCRIPTED)
    view.say(await _command("up", "--detach", "--config", str(config)))
    try:
        yield
    finally:
        view.say(await _command("down", "--drain", "0"))


async def _command(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "trunkline_broker.cli.main", *arguments, stdout=PIPE, stderr=PIPE
    )
    out, err = await process.communicate()
    if process.returncode:
        raise StageError(f"trunkline {arguments[0]}: {err.decode()}{out.decode()}")
    return out.decode().strip()


async def _started(name: str, topic: str, plan: Plan, model: str) -> Process:
    arguments = {
        "--name": name,
        "--topic": topic,
        "--provider": POOL,
        "--model": model,
        "--turns": str(plan.turns),
        "--max-tokens": str(plan.max_tokens),
    }
    words = [word for pair in arguments.items() for word in pair]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "demo.agent", *words, cwd=ROOT, stdin=PIPE, stdout=PIPE
    )


async def _listen(agent: Agent, process: Process, view: View) -> None:
    """Take what an agent tells, to its end."""
    assert process.stdout is not None
    async for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        agent.take(event)
        if event["event"] == "finish":
            view.ended(agent.turns[-1])
        elif event["event"] == "chunks" and len(agent.turns) == 1 and event["chunks"] == 1:
            view.say(f"{agent.name} (pid {agent.pid}) has its first chunk")
    if await process.wait():
        raise StageError(f"agent {agent.name} ended with exit code {process.returncode}")


async def _direct(
    llm: trunkline.LlmRuntime, plan: Plan, record: Record, processes: list[Process], view: View
) -> None:
    """Swap while tokens flow to every agent, then let the agents come to an end."""
    known: dict[int, set[str]] = {}
    for number in range(1, plan.swaps + 1):
        await _until(lambda: _is_flowing(record), "tokens flow to all, some from the new worker")
        await _note_clients(llm, record, known)
        view.say(f"swap {number}: asked, while {plan.agents} streams flow")
        record.swaps.append(await _swapped(llm, record))
        view.name_workers(await _workers(llm))
        swap = record.swaps[-1]
        view.say(
            f"swap {number}: worker {swap.before} -> {swap.after} after {swap.seconds:.1f} s;"
            f" alive across it: {', '.join(sorted(swap.across))}"
        )
    await _note_clients(llm, record, known)
    record.reconnects = sum(len(clients) - 1 for clients in known.values() if clients)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"enough\n")
        process.stdin.close()


def _is_flowing(record: Record) -> bool:
    """Tell whether tokens flow to every agent, and since the last swap also from its worker."""
    turns = [agent.open_turn for agent in record.agents]
    wanted = record.swaps[-1].generation if record.swaps else None
    is_new = wanted is None or any(turn and turn.generation == wanted for turn in turns)
    return is_new and all(agent.is_flowing for agent in record.agents)


async def _swapped(llm: trunkline.LlmRuntime, record: Record) -> Swap:
    start_s = time.monotonic()
    reply = await llm.query("swap", {"pool": POOL}, timeout_s=PATIENCE_S)
    across = {turn.label: turn.chunks for turn in record.turns() if turn.result is None}
    slot = reply["slots"][0]
    took_s = time.monotonic() - start_s
    generation = tuple(slot["newGeneration"])
    return Swap(slot["oldPid"], slot["newPid"], generation, slot["aliveCalls"], across, took_s)


async def _note_clients(
    llm: trunkline.LlmRuntime, record: Record, known: dict[int, set[str]]
) -> None:
    """Note under which client ids the agents' processes are connected."""
    pids = {agent.pid for agent in record.agents}
    for client in (await llm.status())["clients"]:
        if client["pid"] in pids:
            known.setdefault(client["pid"], set()).add(client["client"])


async def _workers(llm: trunkline.LlmRuntime) -> dict[tuple[int, int], int]:
    """Return the process of each generation that lives."""
    status = await llm.status()
    slots = [slot for pool in status["pools"] for slot in pool["slots"]]
    return {
        tuple(worker["generation"]): worker["pid"]
        for worker in (*slots, *status.get("leaving", ()))
        if worker.get("generation")
    }


async def _until_models(llm: trunkline.LlmRuntime) -> list[str]:
    """Wait until the worker serves; return its models."""
    deadline_s = time.monotonic() + PATIENCE_S
    while POOL not in await llm.models():
        if time.monotonic() > deadline_s:
            raise StageError(
                "the worker does not get ready; see workers/*.log in the run directory"
            )
        await asyncio.sleep(LOOK_AGAIN_S)
    return [info.id for info in await llm.list_models(POOL)]


async def _until(fact: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not fact():
        if time.monotonic() > deadline_s:
            raise StageError(f"never seen: {what}")
        await asyncio.sleep(LOOK_AGAIN_S)
