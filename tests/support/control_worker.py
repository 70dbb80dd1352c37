"""A worker that does what a test tells it over a socket: registrations, answers, streams.

Loaded as `tests.support.control_worker:setup` by a worker process; `tests.support.control` holds
the other end. One JSON line per command, one per answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from trunkline_protocol.chunks import StreamChunk, chunk_from_dict
from trunkline_protocol.failure import LlmError
from trunkline_protocol.models import LlmModelDiscoveryRequest, LlmProviderInfo
from trunkline_protocol.options import GenerateOptions
from trunkline_protocol.retry_policy import resolve_retry_policy
from trunkline_workers.adapter import AdapterContext, LlmAdapter
from trunkline_workers.runtime import WorkerRuntime

from tests.conformance.handlers.thrown import thrown

DEFAULT_CHUNKS = (
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "hi"},
    {"type": "block-end", "index": 0, "block": {"type": "text", "text": "hi"}},
    {"type": "finish", "reason": {"kind": "stop"}},
)


class ThrownValueError(Exception):
    """Stands for a thrown value that is no exception, with its text."""


class DoubleAdapter(LlmAdapter):
    """Answers and emits what it was told; keeps what it saw.

    Attributes:
        plan: `resolved`, `models`, `policy`, `chunks`, `failAt` and `thrown`, `hangAt`; `attempts`:
            what differs in the first, second … attempt, until none is left.
        infos: provider info by route, as raw maps that may be wrong.
        seen: requests that reached `stream`.
        notes: what happened, such as a cancelled query.
        go: lets go on what waits at `waitAt`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.plan: dict[str, Any] = {}
        self.infos: dict[str, Mapping[str, Any]] = {}
        self.seen: list[GenerateOptions] = []
        self.notes: list[str] = []
        self.go = asyncio.Event()

    def provider_info(self, provider: str) -> LlmProviderInfo:
        raw = self.infos.get(provider)
        if raw is None:
            return super().provider_info(provider)
        return LlmProviderInfo.model_construct(**raw)

    def provider_retry_policy(self, provider: str) -> Any:
        return resolve_retry_policy(self.plan["policy"]) if "policy" in self.plan else None

    async def list_models(self, provider: str) -> Any:
        await self._at("listModels")
        return self.plan.get("models", ())

    async def resolve_model(self, provider: str, model: str) -> Any:
        await self._at("resolveModel")
        fallback = {"provider": provider, "id": model, "name": model}
        resolved = self.plan.get("resolved", fallback)
        return {**fallback, **resolved} if self.plan.get("fillsIdentity") else resolved

    async def _at(self, place: str, plan: Mapping[str, Any] | None = None) -> None:
        """Fail, hang or die, if the plan says so for this place."""
        plan = self.plan if plan is None else plan
        if plan.get("hangAt") == place:
            self.notes.append(f"{place} hangs")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.notes.append(f"{place} was cancelled")
                if "thrown" in plan:
                    raise _raised(plan) from None
                raise
        if plan.get("waitAt") == place:
            await self.go.wait()
        if plan.get("dieAt") == place:
            os.kill(os.getpid(), signal.SIGKILL)
        if plan.get("failAt") == place:
            raise _raised(plan)

    def stream(self, options: GenerateOptions) -> Any:
        self.seen.append(options)
        attempts: list[dict[str, Any]] = self.plan.get("attempts", [])
        plan = {**self.plan, **attempts.pop(0)} if attempts else self.plan
        if plan.get("failAt") == "dispatch":
            raise _raised(plan)
        if plan.get("failAt") == "iterator":
            return FailingIterable(_raised(plan))
        return self._chunks(plan)

    async def _chunks(self, plan: Mapping[str, Any]) -> AsyncIterator[StreamChunk]:
        for raw in plan.get("chunks", DEFAULT_CHUNKS):
            yield chunk_from_dict(raw)
        await self._at("next", plan)


def _raised(plan: Mapping[str, Any]) -> BaseException:
    value = thrown(plan["thrown"])
    return value if isinstance(value, BaseException) else ThrownValueError(str(value))


class FailingIterable:
    """Cannot even be iterated."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        raise self._error


class Commands:
    """Carries out commands, one after the other."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime
        self._adapters: dict[str, DoubleAdapter] = {}
        self._handles: dict[str, Any] = {}
        self._drafts: list[LlmModelDiscoveryRequest] = []
        self._ops: dict[str, Callable[[Mapping[str, Any]], Awaitable[object]]] = {
            "register": self._register,
            "registerDirectory": self._register_directory,
            "registerDiscovery": self._register_discovery,
            "replace": self._replace,
            "dispose": self._dispose,
            "plan": self._plan,
            "seen": self._seen,
            "go": self._go,
            "drafts": self._seen_drafts,
            "mutate": self._mutate,
            "reset": self._reset,
        }

    async def carry_out(self, command: Mapping[str, Any]) -> dict[str, object]:
        try:
            return {"ok": await self._ops[command["op"]](command)}
        except LlmError as exc:
            return {"error": exc.code}
        # A mistake in a test shall be seen in the test.
        except Exception as exc:  # noqa: BLE001
            return {"broken": repr(exc)}

    def _adapter(self, name: str) -> DoubleAdapter:
        return self._adapters.setdefault(name, DoubleAdapter(name))

    async def _register(self, command: Mapping[str, Any]) -> None:
        adapter = self._adapter(command["adapter"])
        adapter.infos.update(command.get("info", {}))
        adapter.plan.update(command.get("plan", {}))
        handle = await self._runtime.register_adapter(command["providers"], adapter)
        self._handles[command["handle"]] = handle

    async def _register_directory(self, command: Mapping[str, Any]) -> None:
        handle = await self._runtime.register_configurable_providers(command["entries"])
        self._handles[command["handle"]] = handle

    async def _register_discovery(self, command: Mapping[str, Any]) -> None:
        async def discover(draft: LlmModelDiscoveryRequest) -> Sequence[Any]:
            self._drafts.append(draft)
            if "failure" in command:
                text = f"the endpoint refused {draft.api_key}"
                raise LlmError.of(text, command["failure"])
            return command["discovered"]

        handle = await self._runtime.register_model_discovery(command["settingsNs"], discover)
        self._handles[command["handle"]] = handle

    async def _replace(self, command: Mapping[str, Any]) -> None:
        handle = self._handles[command["handle"]]
        await handle.replace(command.get("providers", command.get("entries")))

    async def _dispose(self, command: Mapping[str, Any]) -> None:
        await self._handles[command["handle"]].dispose()

    async def _plan(self, command: Mapping[str, Any]) -> None:
        self._adapter(command["adapter"]).plan = dict(command["plan"])

    async def _seen(self, command: Mapping[str, Any]) -> object:
        adapter = self._adapter(command["adapter"])
        return {"requests": [each.to_dict() for each in adapter.seen], "notes": adapter.notes}

    async def _go(self, command: Mapping[str, Any]) -> None:
        self._adapter(command["adapter"]).go.set()

    async def _seen_drafts(self, command: Mapping[str, Any]) -> object:
        return [draft.to_dict() for draft in self._drafts]

    async def _mutate(self, command: Mapping[str, Any]) -> object:
        """Try to change everything in the last request; tell what could be changed."""
        return changeable(self._adapter(command["adapter"]).seen[-1])

    async def _reset(self, command: Mapping[str, Any]) -> None:
        for handle in self._handles.values():
            await handle.dispose()
        self._handles.clear()
        self._adapters.clear()
        self._drafts.clear()


def changeable(value: object, path: str = "options") -> list[str]:
    """Return the places of a request that accepted a change."""
    found: list[str] = []
    if isinstance(value, dict):
        with contextlib.suppress(TypeError):
            value["sneaked"] = 1
            found.append(path)
        for key, item in value.items():
            found += changeable(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        if isinstance(value, list):
            with contextlib.suppress(TypeError):
                value.append(1)
                found.append(path)
        for number, item in enumerate(value):
            found += changeable(item, f"{path}.{number}")
    elif hasattr(type(value), "model_fields"):
        for name in type(value).model_fields:  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue, reportUnknownVariableType]
            with contextlib.suppress(ValueError, TypeError):
                setattr(value, name, 1)
                found.append(f"{path}.{name}")
            found += changeable(getattr(value, name), f"{path}.{name}")
        found += changeable(getattr(value, "model_extra", None) or (), f"{path}.extra")
    return found


async def setup(runtime: WorkerRuntime, context: AdapterContext) -> Callable[[], Awaitable[None]]:
    """Connect to the test and obey."""
    reader, writer = await asyncio.open_unix_connection(str(context.options["commands"]))
    writer.write(context.name.encode() + b"\n")
    commands = Commands(runtime)

    async def obey() -> None:
        while line := await reader.readline():
            answer = await commands.carry_out(json.loads(line))
            writer.write(json.dumps(answer).encode() + b"\n")

    task = asyncio.get_running_loop().create_task(obey())

    async def close() -> None:
        task.cancel()
        await asyncio.wait((task,))
        writer.close()

    return close
