"""Token counts from whatever a provider calls `usage`, in any place and any number of times; pure.

The last usage that counts something wins. An empty, null or zero one never replaces it, and one
that has only half of the counts keeps the other half.
"""

from __future__ import annotations

from typing import Final, cast

from trunkline_protocol.chunks import INDEX_MAX, TokenUsage

_DIGITS_MAX: Final = 18
_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")


class UsageReader:
    """Take the usages of one response; `result` is what counts."""

    __slots__ = ("_raw",)

    def __init__(self) -> None:
        self._raw: dict[str, object] | None = None

    def take(self, raw: dict[str, object]) -> None:
        """Take one usage object as the provider sent it."""
        prompt, completion = _first(raw, _PROMPT), _first(raw, _COMPLETION)
        if prompt is None and completion is None:
            return
        known = self._raw
        if known is None:
            self._raw = raw
        elif prompt is None or completion is None:
            self._raw = {**known, **{key: item for key, item in raw.items() if item is not None}}
        elif prompt or completion:
            self._raw = raw

    def result(self) -> TokenUsage | None:
        """Return the counts with cached input taken out of the input, or `None` without any."""
        raw = self._raw
        if raw is None:
            return None
        details = _map(raw.get("prompt_tokens_details"))
        read = _either(
            details.get("cached_tokens"),
            raw.get("prompt_cache_hit_tokens"),
            raw.get("cache_read_input_tokens"),
            raw.get("cached_tokens"),
        )
        write = _either(details.get("cache_write_tokens"), raw.get("cache_creation_input_tokens"))
        reasoning = _map(raw.get("completion_tokens_details")).get("reasoning_tokens")
        return TokenUsage(
            input_tokens=max(0, (_first(raw, _PROMPT) or 0) - (read or 0) - (write or 0)),
            output_tokens=_first(raw, _COMPLETION) or 0,
            cache_read_tokens=read,
            cache_write_tokens=write,
            reasoning_tokens=_count(reasoning),
        )


def _map(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _first(raw: dict[str, object], keys: tuple[str, ...]) -> int | None:
    """Return the first of several counts that is one."""
    return _either(*(raw.get(key) for key in keys))


def _either(*values: object) -> int | None:
    return next((count for count in map(_count, values) if count is not None), None)


def _count(value: object) -> int | None:
    """Read a count: a whole number that is exact in JSON, perhaps as a float or as digits."""
    if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS_MAX:
        value = int(value)
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 <= value <= INDEX_MAX else None
