"""The adapter contract as code: one numbered check for each obligation of `adapter`.

An author describes the adapter under test as a `Subject` and runs `run_contract`, or one check by
its number, inside any test framework. A scenario that the subject does not offer is reported as
`not shown`, never as fulfilled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trunkline_protocol.assembler import BlockAssembler
from trunkline_protocol.attribution import user_agent
from trunkline_protocol.chunks import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from trunkline_protocol.content import ToolCallBlock
from trunkline_protocol.failure import Code, LlmError, LlmFailure
from trunkline_protocol.finish import FAILED_KINDS
from trunkline_protocol.grammar import GrammarChecker
from trunkline_protocol.limits import CANCEL_S
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.secret import STARS

from trunkline_workers import adapter as adapter_contract
from trunkline_workers.adapter import LlmAdapter
from trunkline_workers.testing.spoilt import spoilt_histories

HOLDS: Final = "holds"
BROKEN: Final = "broken"
NOT_SHOWN: Final = "not shown"

TEXT: Final = "text"  # an ordinary answer with usage; more than one chunk
TOOLS: Final = "tools"  # an answer with the tool call of `Subject.tool_arguments`
STALL: Final = "stall"  # the provider answers nothing, for ever
FAILURE: Final = "failure"  # the provider refuses
UNSUPPORTED: Final = "unsupported"  # an option that the provider cannot honour
EMPTY: Final = "empty"  # the provider completes without any content
REPLAY: Final = "replay"  # a history with replay state of another version
SCENARIOS: Final = (TEXT, TOOLS, STALL, FAILURE, UNSUPPORTED, EMPTY, REPLAY)

_PATIENCE_S: Final = 30.0  # for a scenario that must end; far above any limit of a test subject


class Subject:
    """An adapter under test and its provider; override what there is.

    Attributes:
        adapter: open, and closed by whoever opened it.
        scenarios: requests by name (`SCENARIOS`) that make the provider behave so.
        tool_arguments: raw JSON text of the tool call in `TOOLS`, to the character.
        idle_limit_s: after which a stalled provider ends in `TIMEOUT`; short, for a test.
    """

    def __init__(
        self,
        adapter: LlmAdapter,
        scenarios: Mapping[str, GenerateOptions],
        *,
        tool_arguments: str = "",
        idle_limit_s: float | None = None,
    ) -> None:
        self.adapter = adapter
        self.scenarios = scenarios
        self.tool_arguments = tool_arguments
        self.idle_limit_s = idle_limit_s

    def open_requests(self) -> int | None:
        """Count the requests that the provider still serves; `None` if it cannot tell."""
        return None

    def request_headers(self) -> Sequence[Mapping[str, str]] | None:
        """Return the headers, in lower case, of each request so far; `None` without HTTP."""
        return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found.

    Attributes:
        number: of the obligation.
        outcome: `HOLDS`, `BROKEN` or `NOT_SHOWN`.
        detail: why, for people.
    """

    number: int
    outcome: str
    detail: str = ""


class ContractBrokenError(AssertionError):
    """An obligation is not met; the text says how."""


class _NotShownError(Exception):
    """The subject offers no scenario for this check."""


@dataclass(slots=True)
class _Played:
    """One scenario to its end: what came, and the failure it ended with."""

    chunks: list[Any]
    raised: BaseException | None = None

    @property
    def finishes(self) -> list[Finish]:
        return [chunk for chunk in self.chunks if isinstance(chunk, Finish)]

    @property
    def failure(self) -> LlmFailure | None:
        if isinstance(self.raised, LlmError):
            return self.raised.failure
        return self.finishes[-1].reason.failure if self.finishes else None


def obligation(number: int) -> str:
    """Return the text of an obligation, as `adapter` states it."""
    lines = (adapter_contract.__doc__ or "").splitlines()
    texts = [line.partition(". ") for line in lines if line[:1].isdigit()]
    return next(text for at, _, text in texts if at == str(number))


async def run_contract(subject: Subject) -> list[Verdict]:
    """Run every check, in the order of the obligations."""
    return [await run_check(number, subject) for number in CHECKS]


async def run_check(number: int, subject: Subject) -> Verdict:
    """Run the check of one obligation.

    Raises:
        KeyError: there is no obligation of that number.
    """
    try:
        await CHECKS[number](subject)
    except _NotShownError as exc:
        return Verdict(number, NOT_SHOWN, str(exc))
    except ContractBrokenError as exc:
        return Verdict(number, BROKEN, str(exc))
    return Verdict(number, HOLDS)


# --- the checks ------------------------------------------------------------------------------


async def _check_1(subject: Subject) -> None:
    """`usage` comes before `finish`."""
    played = await _play(subject, TEXT)
    kinds: list[type[object]] = [type(chunk) for chunk in played.chunks]
    _demand(kinds.count(Usage) == 1, "an ordinary answer has one usage")
    _demand(kinds.index(Usage) < _finish_at(played), "usage comes after finish")


async def _check_2(subject: Subject) -> None:
    """Nothing comes after `finish`."""
    for name in _offered(subject, TEXT, TOOLS):
        played = await _play(subject, name)
        _demand(_finish_at(played) == len(played.chunks) - 1, f"{name}: chunks after the finish")


async def _check_3(subject: Subject) -> None:
    """Block indices appear in first-seen order, and the stream keeps the grammar."""
    for name in _offered(subject, TEXT, TOOLS):
        played = await _play(subject, name)
        seen = list(dict.fromkeys(c.index for c in played.chunks if isinstance(c, _INDEXED)))
        _demand(seen == list(range(len(seen))), f"{name}: block indices {seen}")
        grammar = GrammarChecker()
        for chunk in played.chunks:
            grammar.push(chunk)
        violation = grammar.end()
        _demand(violation is None, f"{name}: {violation.rule if violation else ''}")


async def _check_4(subject: Subject) -> None:
    """Tool-call arguments are the provider's raw JSON text."""
    played = await _play(subject, TOOLS)
    assembler = BlockAssembler()
    for chunk in played.chunks:
        assembler.push(chunk)
    calls = [block for block in assembler.blocks() if isinstance(block, ToolCallBlock)]
    _demand(bool(calls), "no tool call arrived")
    _demand(calls[0].arguments == subject.tool_arguments, f"arguments {calls[0].arguments!r}")


async def _check_5(subject: Subject) -> None:
    """Cancellation closes the provider's request within `CANCEL_S`."""
    options = _options(subject, STALL)
    task = asyncio.ensure_future(_pulled(subject.adapter, options))
    await _until(lambda: subject.open_requests() != 0, CANCEL_S, "no request was made")
    task.cancel()
    await asyncio.wait((task,), timeout=CANCEL_S)
    _demand(task.done(), f"the stream is not over {CANCEL_S} s after cancel")
    _demand(task.cancelled(), "the stream swallowed its cancellation")
    late = "the provider's request is open after cancel"
    await _until(lambda: not subject.open_requests(), CANCEL_S, late)


async def _check_6(subject: Subject) -> None:
    """No provider exception type escapes."""
    played = await _play(subject, FAILURE)
    raised = played.raised
    _demand(raised is None or isinstance(raised, LlmError), f"{type(raised).__name__} escaped")
    _demand(played.failure is not None, "a refusal ended without a failure")
    if raised is None:
        _demand(played.finishes[-1].reason.kind in FAILED_KINDS, "a failure in a good finish")


async def _check_7(subject: Subject) -> None:
    """An option that cannot be honoured ends in `UNSUPPORTED`."""
    failure = (await _play(subject, UNSUPPORTED)).failure
    allowed = (Code.UNSUPPORTED, Code.UNSUPPORTED_CONTENT)
    _demand(failure is not None and failure.code in allowed, f"ended with {failure}")


async def _check_8(subject: Subject) -> None:
    """A completion without any block ends in `EMPTY_RESPONSE`."""
    failure = (await _play(subject, EMPTY)).failure
    _demand(failure is not None and failure.code == Code.EMPTY_RESPONSE, f"ended with {failure}")


async def _check_9(subject: Subject) -> None:
    """One `stream()` is one provider attempt, also where the provider refuses."""
    before = len(_headers(subject))
    await _play(subject, FAILURE)
    made = len(_headers(subject)) - before
    _demand(made == 1, f"{made} requests for one refused call")


async def _check_10(subject: Subject) -> None:
    """Every provider request carries the attribution `User-Agent`."""
    before = len(_headers(subject))
    await _play(subject, TEXT)
    made = _headers(subject)[before:]
    _demand(bool(made), "no request was made")
    for headers in made:
        found = headers.get("user-agent", "")
        _demand(user_agent() in found, f"User-Agent {found!r}")
        starred = [name for name, value in headers.items() if STARS in value]
        _demand(not starred, f"{starred} carry what a secret prints as, not the secret")


async def _check_11(subject: Subject) -> None:
    """Replay state that cannot be used does not fail the request."""
    played = await _play(subject, REPLAY)
    _demand(played.failure is None and bool(played.finishes), f"ended with {played.failure}")
    answer = BlockAssembler()
    for chunk in (await _play(subject, _offered(subject, TOOLS, TEXT)[0])).chunks:
        answer.push(chunk)
    for options in spoilt_histories(answer, _options(subject, REPLAY)):
        played = await _played(subject.adapter.stream(options))
        ended = played.failure or played.raised
        holds = ended is None and bool(played.finishes)
        _demand(holds, f"its own state, tampered with, ended with {ended!r}")


async def _check_12(subject: Subject) -> None:
    """A stalled provider ends in `TIMEOUT`; time in which nobody pulls does not count."""
    if subject.idle_limit_s is None:
        raise _NotShownError("the subject names no idle limit")
    failure = (await _play(subject, STALL)).failure
    _demand(failure is not None and failure.code == Code.TIMEOUT, f"ended with {failure}")
    stream = subject.adapter.stream(_options(subject, TEXT))
    await anext(stream)
    await asyncio.sleep(2 * subject.idle_limit_s)  # the reader's pause is what is tested
    played = await _played(stream)
    _demand(played.failure is None, f"a slow reader ended with {played.failure}")


CHECKS: Final[Mapping[int, Callable[[Subject], Awaitable[None]]]] = {
    1: _check_1,
    2: _check_2,
    3: _check_3,
    4: _check_4,
    5: _check_5,
    6: _check_6,
    7: _check_7,
    8: _check_8,
    9: _check_9,
    10: _check_10,
    11: _check_11,
    12: _check_12,
}
"""The checks by the number of their obligation."""

_INDEXED: Final = (BlockStart, TextDelta, ReasoningDelta, ToolCallDelta, BlockEnd)


def _demand(is_met: bool, otherwise: str) -> None:
    if not is_met:
        raise ContractBrokenError(otherwise)


def _offered(subject: Subject, *names: str) -> list[str]:
    offered = [name for name in names if name in subject.scenarios]
    if not offered:
        raise _NotShownError(f"no scenario {' or '.join(names)}")
    return offered


def _options(subject: Subject, name: str) -> GenerateOptions:
    return subject.scenarios[_offered(subject, name)[0]]


def _headers(subject: Subject) -> Sequence[Mapping[str, str]]:
    headers = subject.request_headers()
    if headers is None:
        raise _NotShownError("the provider's requests cannot be seen")
    return headers


def _finish_at(played: _Played) -> int:
    if played.raised is not None:
        raise ContractBrokenError(f"ended with {type(played.raised).__name__}: {played.raised}")
    places = [at for at, chunk in enumerate(played.chunks) if isinstance(chunk, Finish)]
    _demand(bool(places), "the stream ended without a finish")
    return places[0]


async def _play(subject: Subject, name: str) -> _Played:
    return await _played(subject.adapter.stream(_options(subject, name)))


async def _played(stream: Any) -> _Played:
    """Read a stream to its end; whatever it raises is part of what it did."""
    played = _Played([])
    try:
        async with asyncio.timeout(_PATIENCE_S):
            async for item in stream:
                played.chunks += item if isinstance(item, list) else [item]
    # The contract is about what may be raised, so everything is looked at.
    except Exception as exc:  # noqa: BLE001
        played.raised = exc
    return played


async def _pulled(adapter: LlmAdapter, options: GenerateOptions) -> None:
    async for _ in adapter.stream(options):
        continue


async def _until(fact: Callable[[], object], timeout_s: float, otherwise: str) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while not fact():
        _demand(loop.time() < deadline_s, otherwise)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)
