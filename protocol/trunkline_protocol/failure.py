"""What can go wrong, as data (`LlmFailure`) and as exceptions; it decides no policy.

Failures cross processes, exceptions never do. Callers route on `code`, never on text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard, cast

from trunkline_protocol.codes import Code
from trunkline_protocol.error_chain import error_chain, error_message

__all__ = [
    "NOTHING_SAID",
    "Code",
    "LlmError",
    "LlmFailure",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "TrunklineError",
    "error_chain",
    "normalize_failure",
]

_STATUS_MIN: Final = 100  # RFC 9110 section 15: three digits, the first 1 to 5
_STATUS_MAX: Final = 599


def is_status(value: object) -> TypeGuard[int]:
    """Tell whether a value is an HTTP status: a whole number, 100 to 599."""
    return type(value) is int and _STATUS_MIN <= value <= _STATUS_MAX


def is_delay_ms(value: object) -> TypeGuard[float]:
    """Return whether a value is a usable delay: finite milliseconds above 0; whole: to 2^63 - 1."""
    return (type(value) is int and 0 < value < 2**63) or (
        type(value) is float and math.isfinite(value) and value > 0
    )


def is_request_id(value: object) -> TypeGuard[str]:
    """Tell whether a value is a request id: any text but the empty one."""
    return isinstance(value, str) and value != ""


@dataclass(frozen=True, slots=True)
class LlmFailure:
    """Facts about one failed provider call; a policy decides what follows from them.

    Attributes:
        message: for people; never parsed.
        code: stable and provider-neutral, mostly a constant of `Code`; any text is legal.
        status: HTTP status of the provider, 100 to 599.
        provider_retry_after_ms: milliseconds the provider asked for, finite and above 0.
        request_id: opaque id the provider gave to the request.

    Raises:
        ValueError: an attribute is outside these ranges.
    """

    message: str
    code: str
    status: int | None = None
    provider_retry_after_ms: float | None = None
    request_id: str | None = None

    def __post_init__(self) -> None:
        if type(self.message) is not str or type(self.code) is not str:
            raise ValueError("a failure needs a message and a code, both text")
        if self.status is not None and not is_status(self.status):
            raise ValueError("status: a whole number from 100 to 599 is required")
        delay_ms = self.provider_retry_after_ms
        if delay_ms is not None and not is_delay_ms(delay_ms):
            raise ValueError("providerRetryAfterMs: a finite number above 0 is required")
        if self.request_id is not None and not is_request_id(self.request_id):
            raise ValueError("requestId: a text that is not empty is required")

    def to_dict(self) -> dict[str, object]:
        """Return the camelCase map; absent facts have no key."""
        out: dict[str, object] = {"message": self.message, "code": self.code}
        if self.status is not None:
            out["status"] = self.status
        if self.provider_retry_after_ms is not None:
            out["providerRetryAfterMs"] = self.provider_retry_after_ms
        if self.request_id is not None:
            out["requestId"] = self.request_id
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> LlmFailure:
        """Read a camelCase map; unknown keys and unusable optional facts are left out.

        Raises:
            ValueError: `message` or `code` is missing or not text.
        """
        message, code = data.get("message"), data.get("code")
        if type(message) is not str or type(code) is not str:
            raise ValueError("a failure needs a message and a code, both text")
        status, delay_ms = data.get("status"), data.get("providerRetryAfterMs")
        request_id = data.get("requestId")
        return cls(
            message=message,
            code=code,
            status=status if is_status(status) else None,
            provider_retry_after_ms=delay_ms if is_delay_ms(delay_ms) else None,
            request_id=request_id if is_request_id(request_id) else None,
        )


class TrunklineError(Exception):
    """Root of every exception that Trunkline raises on purpose."""


class ProtocolError(TrunklineError):
    """A rule of the protocol was broken; never raised itself, only its two kinds."""


class LocalProtocolError(ProtocolError):
    """Our own caller broke the rules: bad arguments or a call at a wrong moment."""


class RemoteProtocolError(ProtocolError):
    """A peer sent what the protocol does not allow.

    Attributes:
        code: stable text for the counter of refusals.
        about: what the refusal must name so that the sender's waiting ends, as fields of `REFUSED`.
    """

    def __init__(
        self, message: str, code: str = "MALFORMED", about: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.about: Mapping[str, Any] = {} if about is None else about


class LlmError(TrunklineError):
    """A model call failed; route on `code`.

    Attributes:
        failure: the facts.
        code: the same as `failure.code`.
    """

    def __init__(self, failure: LlmFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.code = failure.code

    def __reduce__(self) -> tuple[type[LlmError], tuple[LlmFailure]]:
        return type(self), (self.failure,)

    @classmethod
    def of(
        cls,
        message: str,
        code: str,
        *,
        status: int | None = None,
        provider_retry_after_ms: float | None = None,
        request_id: str | None = None,
    ) -> LlmError:
        """Build the error and its failure in one step.

        Raises:
            ValueError: an empty message or code, or a fact outside its range.
        """
        if not message or not code:
            raise ValueError("an error needs a message and a code")
        return cls(LlmFailure(message, code, status, provider_retry_after_ms, request_id))


NOTHING_SAID: Final = "LLM adapter failed"
"""The message of a failure whose exception has no text of its own, or none that can be had."""


def normalize_failure(raised: object) -> LlmFailure:
    """Turn whatever an adapter raised into facts that may cross a process.

    A failure that the exception carries as its own attribute `failure` counts, from any library,
    if all of its facts are usable and its code is the one of the exception. Else the code is
    `UNKNOWN`, unless the exception is one of ours: a foreign `code` is not our vocabulary.
    """
    carried = _carried(raised)
    if carried is not None:
        return carried
    if not isinstance(raised, BaseException):
        return LlmFailure(error_chain(raised) or NOTHING_SAID, Code.UNKNOWN)
    code: object = getattr(raised, "code", None) if isinstance(raised, TrunklineError) else None
    return LlmFailure(_own_message(raised), code if type(code) is str else Code.UNKNOWN)


def _own_message(error: BaseException) -> str:
    try:
        return str.__str__(error_message(error)) or NOTHING_SAID
    # As in error_chain: a foreign class may raise anything from its own text.
    except Exception:  # noqa: BLE001
        return NOTHING_SAID


def _carried(raised: object) -> LlmFailure | None:
    """Read the failure that an exception carries, or `None` if there is no usable one."""
    own = getattr(raised, "__dict__", None) if isinstance(raised, BaseException) else None
    facts: object = own.get("failure") if isinstance(own, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    code: object = own.get("code") if isinstance(own, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(facts, LlmFailure):
        return facts if facts.code == code else None
    if not isinstance(facts, Mapping):
        return None
    data = cast("Mapping[str, object]", facts)
    if not data.get("message") or not code or data.get("code") != code:
        return None
    try:
        failure = LlmFailure.from_dict(data)
    except ValueError:  # no text where text is needed
        return None
    # One unusable fact makes the whole carrier foreign.
    kept = failure.to_dict()
    return failure if all(key in kept for key in data if key in _FACTS) else None


_FACTS: Final = frozenset({"status", "providerRetryAfterMs", "requestId"})
