"""`ScriptedAdapter`: a provider that needs no network and does exactly what it is told.

Which script a call plays, the first that applies:

1. the last user message is `{"script": {…}}`;
2. `model` names one of the option `scripts`;
3. the option `script`;
4. an ordinary response of 16 numbered pieces.

Options: `script`, `scripts`, `models` (model → fields of its resolved info, camelCase),
`retryPolicy`, `open_delay_ms`, `open_error` (the adapter cannot open: a broken version), `journal`
(a file to which each stream appends when it starts and how it ends, for another process to see).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

from trunkline_protocol.content import TextBlock
from trunkline_protocol.failure import Code, LlmError
from trunkline_protocol.models import LlmModelInfo, LlmResolvedModelInfo
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.retry_policy import ResolvedRetryPolicy, resolve_retry_policy

from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.adapters.scripted.play import play
from trunkline_workers.adapters.scripted.script import (
    Script,
    ScriptError,
    script_from_map,
    script_in_text,
)

_OPTIONS: Final = (
    "journal",
    "models",
    "open_delay_ms",
    "open_error",
    "retryPolicy",
    "script",
    "scripts",
)
DEFAULT_MODEL: Final = "scripted"


class ScriptedAdapter(LlmAdapter):
    """Plays scripts.

    Args:
        options: the options of the module docstring.

    Raises:
        ValueError: an unknown option or a wrong value; the text names it.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        given = options or {}
        for key in given:
            if key not in _OPTIONS:
                raise ValueError(f"unknown option {key!r}; allowed: {', '.join(_OPTIONS)}")
        self._script = script_from_map(given.get("script", {}))
        self._scripts = {
            name: script_from_map(script) for name, script in _table(given, "scripts").items()
        }
        self._models = {
            name: cast("Mapping[str, Any]", fields)
            for name, fields in _table(given, "models").items()
        }
        policy = given.get("retryPolicy")
        self._policy = resolve_retry_policy(cast("Mapping[str, object] | None", policy))
        self._open_delay_s = float(cast("float", given.get("open_delay_ms", 0))) / 1000
        self._open_error = given.get("open_error")
        self._journal = given.get("journal")

    @classmethod
    def create(cls, context: AdapterContext) -> ScriptedAdapter:
        """Build the adapter of one worker process.

        Raises:
            ValueError: an unknown option or a wrong value; the text names it.
        """
        return cls(context.options)

    def default_providers(self) -> Sequence[str]:
        """Serve the route `scripted`."""
        return ("scripted",)

    async def open(self) -> None:
        """Wait or fail as the options say.

        Raises:
            LlmError: `open_error` is set.
        """
        await asyncio.sleep(self._open_delay_s)
        if self._open_error is not None:
            raise LlmError.of(str(self._open_error), Code.UNKNOWN)

    def provider_retry_policy(self, provider: str) -> ResolvedRetryPolicy | None:
        """Return the configured policy."""
        del provider
        return self._policy

    async def list_models(self, provider: str) -> Sequence[LlmModelInfo]:
        """List the default model, the scripts and the described models."""
        names = dict.fromkeys((DEFAULT_MODEL, *self._scripts, *self._models))
        return [LlmModelInfo(provider=provider, id=name, name=name) for name in names]

    async def resolve_model(self, provider: str, model: str) -> LlmResolvedModelInfo:
        """Return the described model, or its bare identity; any model is accepted.

        Raises:
            ValueError: the description has a wrong type.
        """
        described = self._models.get(model, {})
        identity = {"provider": provider, "id": model, "name": model}
        return LlmResolvedModelInfo.from_dict({**identity, **described})

    def script_for(self, options: GenerateOptions) -> Script:
        """Return the script that a request plays.

        Raises:
            LlmError: `INVALID_REQUEST`: the request carries a script that is wrong.
        """
        try:
            carried = script_in_text(_last_user_text(options))
        except ScriptError as exc:
            raise LlmError.of(str(exc), Code.INVALID_REQUEST) from exc
        return carried or self._scripts.get(options.model, self._script)

    def stream(self, options: GenerateOptions) -> AsyncIterator[Any]:
        """Play the script of the request.

        Raises:
            LlmError: `INVALID_REQUEST`: the request carries a script that is wrong.
            BaseException: from the stream, whatever the script says.
        """
        script = self.script_for(options)
        return play(script) if self._journal is None else self._noted(script, options)

    async def _noted(self, script: Script, options: GenerateOptions) -> AsyncIterator[Any]:
        """Play with entries in the journal: `start`, then `played`, `cancelled` or `closed`."""
        self._note(options, "start")
        ended = "closed"
        try:
            async with aclosing(cast("Any", play(script))) as items:
                async for item in items:
                    yield item
            ended = "played"
        except asyncio.CancelledError:
            ended = "cancelled"
            raise
        finally:
            self._note(options, ended)

    def _note(self, options: GenerateOptions, event: str) -> None:
        entry = {
            "event": event,
            "pid": os.getpid(),
            "atS": time.monotonic(),
            "model": options.model,
            "sessionId": options.session_id,
        }
        # One short write to a file opened for appending: lines of several workers do not mix.
        with open(str(self._journal), "ab", buffering=0) as file:
            file.write(json.dumps(entry).encode() + b"\n")


def _table(options: Mapping[str, object], key: str) -> Mapping[str, object]:
    table = options.get(key, {})
    if not isinstance(table, Mapping):
        raise ValueError(f"{key}: a table is required")  # noqa: TRY004  as every wrong option
    return cast("Mapping[str, object]", table)


def _last_user_text(options: GenerateOptions) -> str:
    for message in reversed(options.messages):
        if message.role == "user":
            return "".join(block.text for block in message.content if isinstance(block, TextBlock))
    return ""
