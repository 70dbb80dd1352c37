"""What a status document says is wrong beside calls and workers, in a line each; pure.

`status`, `top` and `doctor` show the same lines. Calls go on with all of them, so nobody would
notice otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

_LOST: Final = {
    "log.lost": "lines of the broker's log",
    "output.lost": "files of what workers print",
    "hints.lost": "notes of which workers run: do not restart the broker now",
}


_CODES: Final = {
    "MISSING_CREDENTIAL": "give its worker a key, then trunkline swap NAME",
    "AUTH": "correct the key of its worker, then trunkline swap NAME",
    "QUOTA": "look at the account; trunkline usage --by client,provider tells who uses it",
    "RATE_LIMIT": "set concurrency in [worker.NAME], then trunkline reload",
    "TRANSPORT": "is the network there? trunkline logs NAME",
    "TIMEOUT": "is the network there? trunkline logs NAME",
    "SERVER": "it is the provider's; its request id is in trunkline logs",
    "MALFORMED_RESPONSE": "is there a proxy between, or another API than the profile says?",
}
"""Codes that are no agent's own mistake, and what to do."""
_SHOWN: Final = 4  # names in one line
_BLOCKED_MS: Final = 500  # what a worker itself tells of in its log


class Trouble(NamedTuple):
    """One of them, and what to do about it; `is_past`: it may be over."""

    text: str
    fix: str
    is_past: bool = False


def troubles(document: Mapping[str, Any]) -> Iterator[Trouble]:
    """Yield what is wrong, the most alarming first."""
    writing = writing_prompts(document)
    if writing:
        more = f" and {len(writing) - _SHOWN} more" if len(writing) > _SHOWN else ""
        text = (
            f"prompts and answers are written to the logs of: {', '.join(writing[:_SHOWN])}{more}"
        )
        yield Trouble(text, "take debug_prompts out of their sections, then trunkline reload")
    measures = document.get("measures", {})
    for name, reason in measures.get("unavailable", {}).items():
        yield Trouble(f"no {name}: {reason}", f"correct {name} of [broker], then trunkline restart")
    pools = {row["provider"]: row["pool"] for row in document.get("routes", ())}
    for provider, code in measures.get("lastFailures", {}).items():
        if code in _CODES:
            is_past = code not in {"AUTH", "MISSING_CREDENTIAL"}
            text = f"the last attempt on {provider} ended in {code}"
            fix = _CODES[code].replace("NAME", pools.get(provider, "NAME"))
            yield Trouble(text, fix, is_past=is_past)
    yield from _blocked(document)
    ledger = measures.get("ledger", {})
    if ledger.get("trouble"):
        text = f"the usage ledger {ledger['file']} can't be written: {ledger['trouble']}"
        yield Trouble(f"{text}; {ledger['waiting']} attempts wait", "make room; they are kept")
    if ledger.get("lost"):
        text = f"the usage ledger has lost {ledger['lost']} attempts"
        yield Trouble(text, "make room; what is lost stays lost", is_past=True)
    if lost := measures.get("traces", {}).get("lost"):
        text = f"the collector did not take {lost} spans"
        yield Trouble(text, "look at it, or at traces of [broker]", is_past=True)
    counters = document.get("counters", {})
    for name, what in _LOST.items():
        if counters.get(name):
            text = f"could not be written, {counters[name]} times: {what}"
            yield Trouble(text, "make room", is_past=True)


def _blocked(document: Mapping[str, Any]) -> Iterator[Trouble]:
    """Look for workers whose loop stood still of late; for much longer, and they are killed."""
    for pool in document.get("pools", ()):
        for slot in pool.get("slots", ()):
            late_ms: object = slot.get("load", {}).get("loopLateMs")
            if isinstance(late_ms, int) and late_ms >= _BLOCKED_MS:
                name = pool["name"]
                text = f"the loop of {name}/{slot['slot']} stood still for {late_ms / 1000:.1f} s"
                fix = f"work that blocks belongs into asyncio.to_thread; trunkline logs {name}"
                yield Trouble(f"{text} of late, and with it all its streams", fix, is_past=True)


def writing_prompts(document: Mapping[str, Any]) -> list[str]:
    """Return the workers that write prompts and answers into their log, as NAME/SLOT."""
    return [
        f"{pool['name']}/{slot['slot']}"
        for pool in document.get("pools", ())
        for slot in pool.get("slots", ())
        if slot.get("load", {}).get("debugPrompts") is True
    ]
