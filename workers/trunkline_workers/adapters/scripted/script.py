"""The script of one call: what it may say, checked before anything is played.

A script is a map. Without `steps` it describes an ordinary response, into which `at` puts steps:

| key | default | meaning |
|---|---|---|
| `text` | numbered pieces | the whole visible text, cut into pieces of `chunk_chars` |
| `chunks`, `chunk_chars` | 16, 40 | number of the text pieces and characters in each |
| `seed` | 0 | varies the content of the pieces |
| `is_constant` | false | every piece is the same object: the cheapest content there is |
| `reasoning_chunks` | 0 | reasoning pieces before the text |
| `tool_calls` | [] | `{id, name, arguments}`, each with its arguments in pieces of `chunk_chars` |
| `batch` | 1 | pieces handed over as one list; 1 hands over single chunks |
| `first_delay_ms`, `pace_ms` | 0, 0 | wait before the first chunk, and before each batch |
| `usage` | counted | a usage map; `false` for none |
| `finish` | by content | a finish kind, a whole reason map, or `false` for none |
| `replay_state` | none | a replay envelope map for the finish |
| `at` | {} | chunk number → step or list of steps, done before that chunk |
| `after` | [] | steps after the finish |
| `steps` | none | all of the response as steps, instead of the above |

A step is a map with one key:

| step | what the fake provider does |
|---|---|
| `chunk`, `chunks` | emits a chunk map, or a list of them as one item |
| `garbage` | emits the value as it is, which is no chunk |
| `huge_block` | emits a whole text block of so many characters in one delta |
| `sleep_ms` | waits |
| `stall` | waits for ever |
| `raise` | raises `LlmError` (`code`, `message`, `status` …) or an `exception` of `EXCEPTIONS` |
| `end` | ends the stream without a finish |
| `block_ms` | blocks the worker's loop |
| `deaf_ms` | waits and ignores cancellation |
| `exit` | ends the process at once with that code |
| `signal` | sends the process a signal: KILL, STOP, SEGV, TERM, ABRT |
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from trunkline_protocol.chunks import chunk_from_dict

from trunkline_workers.adapters.scripted.content import sha256, whole

Step = tuple[str, Any]
Steps = tuple[Step, ...]

EXCEPTIONS: Final[Mapping[str, type[BaseException]]] = {
    each.__name__: each
    for each in (
        ArithmeticError, AssertionError, ConnectionResetError, Exception, KeyboardInterrupt,
        KeyError, MemoryError, OSError, RecursionError, RuntimeError, StopAsyncIteration,
        SystemExit, TimeoutError, TypeError, UnicodeDecodeError, ValueError,
    )
}  # fmt: skip
SIGNALS: Final = {
    name: getattr(signal, f"SIG{name}") for name in ("KILL", "STOP", "SEGV", "TERM", "ABRT")
}


class ScriptError(ValueError):
    """A script is wrong; the text names the key and what is allowed."""


@dataclass(frozen=True, slots=True)
class Script:
    """A checked script; see the table above for what each field means."""

    text: str | None = None
    chunks: int = 16
    chunk_chars: int = 40
    seed: int = 0
    is_constant: bool = False
    reasoning_chunks: int = 0
    tool_calls: tuple[Mapping[str, str], ...] = ()
    batch: int = 1
    first_delay_ms: float = 0
    pace_ms: float = 0
    usage: Mapping[str, Any] | bool = True
    finish: Mapping[str, Any] | bool = True
    replay_state: Mapping[str, Any] | None = None
    at: Mapping[int, Steps] = field(default_factory=dict[int, Steps])
    after: Steps = ()
    steps: Steps | None = None

    @property
    def whole_text(self) -> str:
        """The visible text of the response, if no step changes it."""
        if self.text is not None:
            return self.text
        if self.is_constant:
            return whole(1, self.chunk_chars, self.seed) * self.chunks
        return whole(self.chunks, self.chunk_chars, self.seed)

    @property
    def text_sha256(self) -> str:
        """The SHA-256 of `whole_text`."""
        return sha256(self.whole_text)


def script_from_map(data: object) -> Script:
    """Check a script.

    Raises:
        ScriptError: an unknown key or a wrong value.
    """
    if not isinstance(data, Mapping):
        raise ScriptError("a script must be a map")
    given = cast("Mapping[str, Any]", data)
    fields: dict[str, Any] = {}
    for key, value in given.items():
        check = _CHECKS.get(key)
        if check is None:
            raise ScriptError(f"script: unknown key {key!r}; allowed: {', '.join(_CHECKS)}")
        try:
            fields[key] = check(value)
        except (TypeError, ValueError) as exc:
            raise ScriptError(f"script.{key}: {exc}") from exc
    return Script(**fields)


def script_in_text(text: str) -> Script | None:
    """Return the script that a message carries as `{"script": {…}}`, or `None` if it has none.

    Raises:
        ScriptError: it carries one that is wrong.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:  # ordinary text that begins with a brace
        return None
    if not isinstance(found, dict) or list(cast("dict[str, Any]", found)) != ["script"]:
        return None
    return script_from_map(cast("dict[str, Any]", found)["script"])


# --- checks ---------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a text is required")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is required")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a whole number, 0 or more, is required")
    return value


def _positive(value: Any) -> int:
    if _count(value) == 0:
        raise ValueError("a whole number above 0 is required")
    return value


def _ms(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9:
        raise ValueError("milliseconds, 0 or more, are required")
    return value


def _map(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("a map is required")
    return cast("Mapping[str, Any]", value)


def _map_or_flag(value: Any) -> Mapping[str, Any] | bool:
    return value if isinstance(value, bool) else _map(value)


def _finish(value: Any) -> Mapping[str, Any] | bool:
    return {"kind": value} if isinstance(value, str) else _map_or_flag(value)


def _tool_calls(value: Any) -> tuple[Mapping[str, str], ...]:
    calls = tuple(_map(item) for item in _list(value))
    for call in calls:
        if {type(call.get(key)) for key in ("id", "name", "arguments")} != {str}:
            raise ValueError("each call needs id, name and arguments, all text")
    return calls


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list is required")
    return cast("Sequence[Any]", value)


def _raised(value: Any) -> Mapping[str, Any]:
    wanted = _map(value)
    name = wanted.get("exception")
    if name is not None and name not in EXCEPTIONS:
        raise ValueError(f"exception must be one of {', '.join(EXCEPTIONS)}")
    return wanted


def _signal(value: Any) -> int:
    if value not in SIGNALS:
        raise ValueError(f"one of {', '.join(SIGNALS)} is required")
    return SIGNALS[value]


def _as_is(value: Any) -> Any:
    return value


_STEP_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "chunk": lambda value: chunk_from_dict(_map(value)),
    "chunks": lambda value: [chunk_from_dict(_map(item)) for item in _list(value)],
    "garbage": _as_is,
    "huge_block": _positive,
    "sleep_ms": _ms,
    "stall": _flag,
    "raise": _raised,
    "end": _flag,
    "block_ms": _ms,
    "deaf_ms": _ms,
    "exit": _count,
    "signal": _signal,
}


def _step(value: Any) -> Step:
    given = _map(value)
    if len(given) != 1:
        raise ValueError("a step is a map with one key")
    name, argument = next(iter(given.items()))
    check = _STEP_CHECKS.get(name)
    if check is None:
        raise ValueError(f"unknown step {name!r}; allowed: {', '.join(_STEP_CHECKS)}")
    try:
        return name, check(argument)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{name}: {exc}") from exc


def _steps(value: Any) -> Steps:
    return tuple(_step(item) for item in _list(value))


def _at(value: Any) -> Mapping[int, Steps]:
    return {
        _count(int(number)): _steps(steps if isinstance(steps, list | tuple) else [steps])
        for number, steps in _map(value).items()
    }


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "text": _text,
    "chunks": _count,
    "chunk_chars": _positive,
    "seed": _count,
    "is_constant": _flag,
    "reasoning_chunks": _count,
    "tool_calls": _tool_calls,
    "batch": _positive,
    "first_delay_ms": _ms,
    "pace_ms": _ms,
    "usage": _map_or_flag,
    "finish": _finish,
    "replay_state": _map,
    "at": _at,
    "after": _steps,
    "steps": _steps,
}
