"""How a response ended: the reason, the token counts, the state for replaying it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.failure import LlmFailure, normalize_failure

FAILED_KINDS: Final = frozenset({"error", "aborted"})
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


def _no_extra() -> Mapping[str, object]:
    """Return the one empty map that all values without extra keys share."""
    return _NOTHING


def _is_count(value: object) -> bool:
    """Tell whether a value is a number of tokens."""
    return type(value) is int and value >= 0


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one call; the three input counts are disjoint.

    Attributes:
        input_tokens: uncached input only.
        output_tokens: all output, reasoning included.
        cache_read_tokens: input served from a cache.
        cache_write_tokens: input written to a cache.
        reasoning_tokens: a part of `output_tokens`, never added again.

    Raises:
        ValueError: a count is not a whole number, or below 0.
    """

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __post_init__(self) -> None:
        for key, name, is_required in _USAGE_KEYS:
            value: object = getattr(self, name)
            if not _is_count(value) and (is_required or value is not None):
                raise ValueError(f"{key}: a whole number, 0 or more, is required")

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map; absent counts have no key."""
        counts = ((key, getattr(self, name)) for key, name, _ in _USAGE_KEYS)
        return {key: count for key, count in counts if count is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> TokenUsage:
        """Read a camelCase map; unknown keys are left out.

        Raises:
            ValueError: a count is missing or wrong; the text names it.
        """
        return cls(*(cast("int", data.get(key)) for key, _, _ in _USAGE_KEYS))


_USAGE_KEYS: Final = (
    ("inputTokens", "input_tokens", True),
    ("outputTokens", "output_tokens", True),
    ("cacheReadTokens", "cache_read_tokens", False),
    ("cacheWriteTokens", "cache_write_tokens", False),
    ("reasoningTokens", "reasoning_tokens", False),
)


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a response stopped: `stop`, `tool-calls`, `max-tokens`, `aborted`, `error`, or another.

    Attributes:
        kind: other kinds than the five pass unchanged.
        failure: required for `aborted` and `error`.
        extra: the other keys of the reason, unchanged.

    Raises:
        ValueError: no text kind, or `aborted` or `error` without a failure.
    """

    kind: str
    failure: LlmFailure | None = None
    extra: Mapping[str, object] = field(default_factory=_no_extra, hash=False)

    def __post_init__(self) -> None:
        if type(self.kind) is not str:
            raise ValueError("kind: text is required")
        if self.failure is None and self.kind in FAILED_KINDS:
            raise ValueError(f"failure: a finish of kind {self.kind} needs one")

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map."""
        out: dict[str, object] = {"kind": self.kind}
        if self.failure is not None:
            out["failure"] = self.failure.to_dict()
        return {**self.extra, **out}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> FinishReason:
        """Read a camelCase map; keys of other kinds than the five stay as they are.

        Raises:
            ValueError: no text `kind`, or a failed kind without a usable failure.
        """
        kind, raw = data.get("kind"), data.get("failure")
        if type(kind) is not str:  # what a map holds may not even be looked for in a set
            raise ValueError("kind: text is required")
        extra = {key: value for key, value in data.items() if key not in {"kind", "failure"}}
        failure: LlmFailure | None = None
        if isinstance(raw, Mapping):
            carried = cast("Mapping[str, object]", raw)
            if kind in FAILED_KINDS:
                failure = LlmFailure.from_dict(carried)
            else:
                failure = _exact_failure(carried)
        if failure is None and "failure" in data and kind not in FAILED_KINDS:
            extra["failure"] = raw
        return cls(kind, failure, extra or _NOTHING)


def failed_finish(raised: object, *, was_cancelled: bool) -> FinishReason:
    """Return the terminal finish of a stream that ended in an exception.

    Args:
        raised: whatever the adapter raised.
        was_cancelled: the call had been cancelled by then; that explains any failure.
    """
    failure = normalize_failure(raised)
    is_aborted = was_cancelled or failure.code == Code.ABORTED
    return FinishReason("aborted" if is_aborted else "error", failure)


def _exact_failure(data: Mapping[str, object]) -> LlmFailure | None:
    """Read a failure only if nothing of the map would be lost."""
    try:
        failure = LlmFailure.from_dict(data)
    except ValueError:  # some other plugin's idea of a failure: it stays a plain map
        return None
    return failure if failure.to_dict() == data else None


@dataclass(frozen=True, slots=True)
class ReplayEnvelope:
    """Adapter-private state for replaying a response; opaque to everybody else.

    Attributes:
        response: metadata of the whole response, any lossless-JSON value.
        blocks: one entry per emitted block in first-seen order; `None`: independent of blocks.
        extra: other keys, unchanged until assembly drops a block.
    """

    response: object
    blocks: tuple[object, ...] | None = None
    extra: Mapping[str, object] = field(default_factory=_no_extra, hash=False)

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map; no `blocks` key if there are no entries per block."""
        out: dict[str, object] = {"response": self.response}
        if self.blocks is not None:
            out["blocks"] = list(self.blocks)
        return {**out, **self.extra}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ReplayEnvelope:
        """Read a camelCase map.

        Raises:
            ValueError: `response` is missing or `blocks` is no list.
        """
        if "response" not in data:
            raise ValueError("response: required in a replay state")
        blocks = data.get("blocks")
        if blocks is not None and not isinstance(blocks, list | tuple):
            raise ValueError("blocks: a list is required")
        entries = None if blocks is None else tuple(cast("list[object]", blocks))
        extra = {key: value for key, value in data.items() if key not in {"response", "blocks"}}
        return cls(data["response"], entries, extra or _NOTHING)
