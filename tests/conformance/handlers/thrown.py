"""Builds the raised values that vectors describe."""

from __future__ import annotations

from typing import Any

from trunkline_protocol.failure import LlmError, LlmFailure, TrunklineError


class ScriptedError(Exception):
    """An exception of a foreign library, with attributes of its own."""


class AggregateError(ScriptedError):
    """A group whose members need not be exceptions."""

    exceptions: list[object]


class HarnessError(TrunklineError):
    """One of ours with a code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Hostile:
    """A value without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def thrown(spec: dict[str, Any], outer: object = None) -> object:
    """Build one value; `outer` is what `self` stands for."""
    kind = spec["kind"]
    if kind in {"primitive", "value", "object"}:
        return spec["value"]
    if kind == "hostile-object":
        return Hostile()
    if kind == "self":
        return outer
    error = _error(kind, spec)
    outer = error if outer is None else outer
    for name, value in spec.get("own", {}).items():
        setattr(error, name, value)
    if "errors" in spec:
        error.exceptions = [thrown(each, outer) for each in spec["errors"]]
    if "cause" in spec:
        cause = thrown(spec["cause"], outer)
        if isinstance(cause, BaseException) and cause is not error:
            error.__cause__ = cause
        else:
            error.cause = cause
    return error


def _error(kind: str, spec: dict[str, Any]) -> Any:
    message = spec.get("message", "")
    if kind == "LlmError":
        return llm_error(message, spec["code"], spec.get("options", {}))
    if kind == "HarnessError":
        return HarnessError(message, spec["code"])
    if kind == "AggregateError":
        return AggregateError(message)
    return type(kind, (ScriptedError,), {})(message)


def llm_error(message: str, code: str, options: dict[str, Any]) -> LlmError:
    """Build our error from camelCase options; a null option is a wrong one."""
    if None in options.values():
        raise ValueError("null is no fact")
    return LlmError.of(
        message,
        code,
        status=options.get("status"),
        provider_retry_after_ms=options.get("providerRetryAfterMs"),
        request_id=options.get("requestId"),
    )


def failure_map(failure: LlmFailure) -> dict[str, object]:
    """Return the facts without the wording."""
    return {key: value for key, value in failure.to_dict().items() if key != "message"}
