"""The contract's checks: a good adapter passes, a broken obligation is found by its number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from trunkline_protocol.attribution import user_agent
from trunkline_protocol.options import GenerateOptions
from trunkline_workers import testing
from trunkline_workers.adapters.scripted.adapter import ScriptedAdapter
from trunkline_workers.testing import BROKEN, HOLDS, NOT_SHOWN, Subject, run_check, run_contract

from tests.support.calls import a_request

ARGUMENTS = '{"city":  "Oslo"}'
TOOL = {"id": "c", "name": "weather", "arguments": ARGUMENTS}
GOOD: dict[str, dict[str, Any]] = {
    testing.TEXT: {"reasoning_chunks": 2},
    testing.TOOLS: {"chunks": 1, "tool_calls": [TOOL], "chunk_chars": 4},
    testing.STALL: {"steps": [{"stall": True}]},
    testing.FAILURE: {"steps": [{"raise": {"code": "SERVER"}}]},
    testing.UNSUPPORTED: {"steps": [{"raise": {"code": "UNSUPPORTED"}}]},
    testing.EMPTY: {"steps": [{"raise": {"code": "EMPTY_RESPONSE"}}]},
    testing.REPLAY: {},
}


class ScriptedSubject(Subject):
    """The scripted adapter, seen from the provider's side."""

    def __init__(
        self,
        scripts: Mapping[str, Any] | None = None,
        *,
        attempts: int = 1,
        agent: str | None = None,
        leak: int = 0,
        **facts: Any,
    ) -> None:
        requests = {
            name: a_request(json.dumps({"script": script}))
            for name, script in {**GOOD, **(scripts or {})}.items()
        }
        self.seen: list[Mapping[str, str]] = []
        self.open = 0
        self.attempts = attempts
        self.agent = user_agent() if agent is None else agent
        self.leak = leak
        super().__init__(_Watched(self), requests, tool_arguments=ARGUMENTS, **facts)

    def open_requests(self) -> int | None:
        return self.open

    def request_headers(self) -> Sequence[Mapping[str, str]] | None:
        return self.seen


class _Watched(ScriptedAdapter):
    def __init__(self, subject: ScriptedSubject) -> None:
        super().__init__()
        self.subject = subject

    async def stream(self, options: GenerateOptions) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        subject = self.subject
        subject.seen += [{"user-agent": subject.agent}] * subject.attempts
        subject.open += 1
        try:
            inner: Any = super().stream(options)
            async for item in inner:
                yield item
        finally:
            subject.open -= 1 - subject.leak


def outcomes(verdicts: list[testing.Verdict]) -> dict[int, str]:
    return {verdict.number: verdict.outcome for verdict in verdicts}


async def test_a_good_adapter_passes_every_check_that_it_can_show() -> None:
    found = outcomes(await run_contract(ScriptedSubject()))
    assert found == {**dict.fromkeys(range(1, 12), HOLDS), 12: NOT_SHOWN}


async def test_what_a_subject_does_not_offer_is_not_shown() -> None:
    found = outcomes(await run_contract(Subject(ScriptedAdapter(), {})))
    assert set(found.values()) == {NOT_SHOWN}


def late_usage(script: dict[str, Any]) -> dict[str, Any]:
    usage = {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 1}}
    return {**script, "usage": False, "after": [{"chunk": usage}]}


def delta(index: int) -> dict[str, Any]:
    return {"chunk": {"type": "text-delta", "index": index, "text": "x"}}


BREAKS: list[tuple[int, str, Callable[[], Subject]]] = [
    (1, "usage comes after", lambda: ScriptedSubject({testing.TEXT: late_usage({})})),
    (1, "one usage", lambda: ScriptedSubject({testing.TEXT: {"usage": False}})),
    (2, "after the finish", lambda: ScriptedSubject({testing.TOOLS: {"after": [delta(0)]}})),
    (2, "without a finish", lambda: ScriptedSubject({testing.TEXT: {"finish": False}})),
    (2, "LlmError", lambda: ScriptedSubject({testing.TEXT: {"steps": [{"raise": {}}]}})),
    (3, "block indices", lambda: ScriptedSubject({testing.TEXT: {"steps": [delta(1)]}})),
    (3, "not open", lambda: ScriptedSubject({testing.TEXT: {"steps": [delta(0)]}})),
    (4, "no tool call", lambda: ScriptedSubject({testing.TOOLS: {}})),
    (
        4,
        "arguments",
        lambda: ScriptedSubject({testing.TOOLS: {"tool_calls": [{**TOOL, "arguments": "{}"}]}}),
    ),
    (5, "not over", lambda: ScriptedSubject({testing.STALL: {"steps": [{"deaf_ms": 1500}]}})),
    (5, "is open after", lambda: ScriptedSubject(leak=1)),
    (6, "ValueError", lambda: _failing({"exception": "ValueError"})),
    (6, "without a failure", lambda: ScriptedSubject({testing.FAILURE: {}})),
    (7, "ended with", lambda: ScriptedSubject({testing.UNSUPPORTED: {}})),
    (8, "ended with", lambda: ScriptedSubject({testing.EMPTY: {"chunks": 0}})),
    (9, "2 requests", lambda: ScriptedSubject(attempts=2)),
    (10, "User-Agent", lambda: ScriptedSubject(agent="curl")),
    (10, "no request", lambda: ScriptedSubject(attempts=0)),
    (11, "ended with", lambda: ScriptedSubject({testing.REPLAY: GOOD[testing.FAILURE]})),
    (12, "ended with", lambda: ScriptedSubject({testing.STALL: {}}, idle_limit_s=0.01)),
]


def _failing(raised: dict[str, Any]) -> Subject:
    return ScriptedSubject({testing.FAILURE: {"steps": [{"raise": raised}]}})


@pytest.mark.parametrize(("number", "detail", "subject"), BREAKS)
async def test_a_broken_obligation_is_found_by_its_number(
    number: int, detail: str, subject: Callable[[], Subject]
) -> None:
    verdict = await run_check(number, subject())
    assert verdict.outcome == BROKEN
    assert detail in verdict.detail
    await asyncio.sleep(0)


async def test_a_stall_that_times_out_and_a_reader_that_pauses() -> None:
    timeout = {"steps": [{"raise": {"code": "TIMEOUT"}}]}
    subject = ScriptedSubject({testing.STALL: timeout}, idle_limit_s=0.01)
    assert (await run_check(12, subject)).outcome == HOLDS


def test_there_is_a_check_for_every_obligation() -> None:
    from trunkline_workers import adapter

    numbered = [line for line in (adapter.__doc__ or "").splitlines() if line[:1].isdigit()]
    assert [int(line.split(".")[0]) for line in numbered] == list(testing.CHECKS)
